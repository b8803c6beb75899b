"""Handlers for XLA on the CPU: the kernel's own entry points, its blocks over XLA's threads."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

from tilewright.frameworks.jax_frame import (
    API,
    INTERNAL,
    SCHEDULE,
    THREADS,
    aligned,
    attribute,
    buffer,
    handler,
    load,
    text,
)
from tilewright.ir.core import *
from tilewright.targets.cpu.host import LLVM_LOCK, Binary, Code, object_file, optimize
from tilewright.targets.cpu.kernel import CpuKernel
from tilewright.targets.cpu.numbers import item_bytes

WORTH_SHARING = 60_000  # nanoseconds
_CLOCK = 6 if sys.platform == "darwin" else 1  # CLOCK_MONOTONIC

# What tasks share outlives the call: XLA may start one when all blocks are done.
# struct Job { ptr entry, args; i64 total, chunk, next, left, users, arena; }
_RUN = f"""\
declare ptr @malloc(i64)
declare void @free(ptr)
declare i32 @sched_yield()
declare i32 @clock_gettime(i32, ptr)

define internal i64 @tw.now() noinline {{
  %time = alloca [2 x i64]
  %status = call i32 @clock_gettime(i32 {_CLOCK}, ptr %time)
  %seconds = load i64, ptr %time
  %at = getelementptr i64, ptr %time, i64 1
  %rest = load i64, ptr %at
  %whole = mul i64 %seconds, 1000000000
  %now = add i64 %whole, %rest
  ret i64 %now
}}

define internal ptr @tw.room(ptr %memory) {{
  %number = ptrtoint ptr %memory to i64
  %up = add i64 %number, 4095
  %down = and i64 %up, -4096
  %arena = inttoptr i64 %down to ptr
  ret ptr %arena
}}

define internal void @tw.work(ptr %job, ptr %arena) noinline {{
{load("entry", "%job", 0)}
{load("args", "%job", 8)}
{load("total", "%job", 16, "i64")}
{load("chunk", "%job", 24, "i64")}
  %next = getelementptr i8, ptr %job, i64 32
  %left = getelementptr i8, ptr %job, i64 40
  br label %take
take:
  %first = atomicrmw add ptr %next, i64 %chunk seq_cst
  %some = icmp slt i64 %first, %total
  br i1 %some, label %do, label %end
do:
  %after = add i64 %first, %chunk
  %last = call i64 @llvm.smin.i64(i64 %after, i64 %total)
  call void %entry(ptr %args, ptr %arena, i64 %first, i64 %last)
  %count = sub i64 %last, %first
  %before = atomicrmw sub ptr %left, i64 %count seq_cst
  br label %take
end:
  ret void
}}

declare i64 @llvm.smin.i64(i64, i64)
declare i64 @llvm.smax.i64(i64, i64)

define internal void @tw.leave(ptr %job) noinline {{
  %users = getelementptr i8, ptr %job, i64 48
  %before = atomicrmw sub ptr %users, i64 1 seq_cst
  %last = icmp eq i64 %before, 1
  br i1 %last, label %free, label %end
free:
  call void @free(ptr %job)
  br label %end
end:
  ret void
}}

define internal void @tw.task(ptr %job) {{
{load("size", "%job", 56, "i64")}
  %bytes = add i64 %size, 4096
  %memory = call ptr @malloc(i64 %bytes)
  %none = icmp eq ptr %memory, null
  br i1 %none, label %end, label %begin
begin:
  %arena = call ptr @tw.room(ptr %memory)
  call void @tw.work(ptr %job, ptr %arena)
  call void @free(ptr %memory)
  br label %end
end:
  call void @tw.leave(ptr %job)
  ret void
}}

define internal void @tw.share(ptr %api, ptr %context, ptr %job, ptr %arena,
                               i64 %blocks) noinline {{
  %count = alloca i64
  store i64 1, ptr %count
  %given = alloca [5 x i64]
  store [5 x i64] zeroinitializer, ptr %given
  store i64 {THREADS}, ptr %given
  %g1 = getelementptr i8, ptr %given, i64 16
  store ptr %context, ptr %g1
  %g2 = getelementptr i8, ptr %given, i64 24
  store ptr %count, ptr %g2
{load("ask", "%api", API["threads"])}
  %error = call ptr %ask(ptr %given)
  call void @tw.drop(ptr %api, ptr %error)
  %threads = load i64, ptr %count
  %most = call i64 @llvm.smin.i64(i64 %threads, i64 %blocks)
  %parts = mul i64 %most, 8
  %part = sdiv i64 %blocks, %parts
  %chunk = call i64 @llvm.smax.i64(i64 %part, i64 1)
  %chunk.at = getelementptr i8, ptr %job, i64 24
  store i64 %chunk, ptr %chunk.at
  %users = getelementptr i8, ptr %job, i64 48
{load("schedule", "%api", API["schedule"])}
  store i64 {SCHEDULE}, ptr %given
  store ptr @tw.task, ptr %g2
  %g3 = getelementptr i8, ptr %given, i64 32
  store ptr %job, ptr %g3
  br label %more
more:
  %i = phi i64 [ 1, %0 ], [ %i.next, %asked ]
  %wanted = icmp slt i64 %i, %most
  br i1 %wanted, label %add, label %own
add:
  %joined = atomicrmw add ptr %users, i64 1 seq_cst
  %refused = call ptr %schedule(ptr %given)
  %went = icmp eq ptr %refused, null
  br i1 %went, label %asked, label %back
back:
  call void @tw.drop(ptr %api, ptr %refused)
  %left.again = atomicrmw sub ptr %users, i64 1 seq_cst
  br label %own
asked:
  %i.next = add i64 %i, 1
  br label %more
own:
  call void @tw.work(ptr %job, ptr %arena)
  %left.at = getelementptr i8, ptr %job, i64 40
  br label %wait
wait:
  %left = load atomic i64, ptr %left.at seq_cst, align 8
  %over = icmp sle i64 %left, 0
  br i1 %over, label %end, label %yield
yield:
  %yielded = call i32 @sched_yield()
  br label %wait
end:
  ret void
}}

define internal i1 @tw.run(ptr %api, ptr %context, ptr %entry, ptr %count, i64 %size, ptr %args) {{
  %total = call i64 %count(ptr %args)
  %some = icmp sgt i64 %total, 0
  br i1 %some, label %begin, label %end
begin:
  %job = call ptr @malloc(i64 64)
  %bytes = add i64 %size, 4096
  %memory = call ptr @malloc(i64 %bytes)
  %no.job = icmp eq ptr %job, null
  %no.memory = icmp eq ptr %memory, null
  %lacks = or i1 %no.job, %no.memory
  br i1 %lacks, label %lost, label %fill
lost:
  call void @free(ptr %job)
  call void @free(ptr %memory)
  ret i1 false
fill:
  %arena = call ptr @tw.room(ptr %memory)
  store ptr %entry, ptr %job
  %j1 = getelementptr i8, ptr %job, i64 8
  store ptr %args, ptr %j1
  %j2 = getelementptr i8, ptr %job, i64 16
  store i64 1, ptr %j2
  %j3 = getelementptr i8, ptr %job, i64 24
  store i64 1, ptr %j3
  %j4 = getelementptr i8, ptr %job, i64 32
  store i64 0, ptr %j4
  %j5 = getelementptr i8, ptr %job, i64 40
  store i64 %total, ptr %j5
  %j6 = getelementptr i8, ptr %job, i64 48
  store i64 1, ptr %j6
  %j7 = getelementptr i8, ptr %job, i64 56
  store i64 %size, ptr %j7
  %started = call i64 @tw.now()
  call void @tw.work(ptr %job, ptr %arena)
  %ended = call i64 @tw.now()
  store i64 1, ptr %j4
  store i64 %total, ptr %j2
  %took = sub i64 %ended, %started
  %rest = sub i64 %total, 1
  %long = mul i64 %took, %rest
  %worth = icmp sgt i64 %long, {WORTH_SHARING}
  br i1 %worth, label %shared, label %alone
alone:
  %whole = call i64 @llvm.smax.i64(i64 %rest, i64 1)
  store i64 %whole, ptr %j3
  call void @tw.work(ptr %job, ptr %arena)
  br label %leave
shared:
  call void @tw.share(ptr %api, ptr %context, ptr %job, ptr %arena, i64 %total)
  br label %leave
leave:
  call void @free(ptr %memory)
  call void @tw.leave(ptr %job)
  br label %end
end:
  ret i1 true
}}
"""


def compiled(
    kernel: CpuKernel,
    tensors: Mapping[str, tuple[str, int]],
    scalars: Sequence[str],
    counts: tuple[int, int, int],
    sizes: Mapping[Var, int],
) -> Binary:
    """The handler `tw.handler` of `kernel` for these sizes. `tensors` says in which list of buffers
    each parameter and scratch tensor is, and where; `scalars` are attributes in this order."""
    program = kernel.given
    body, units = [], []
    slots: list[str] = []
    for p in program.params:
        name = f"v{len(slots)}"
        if isinstance(p, Var):
            body.append(attribute(name, scalars.index(p.name)))
            slots.append(f"i64 %{name}")
        elif p.name in tensors:
            of, place = tensors[p.name]
            body.append(buffer(name, f"%{of}", place))
            units.append((f"%{name}", item_bytes(p.dtype)))
            slots.append(f"ptr %{name}")
        else:
            slots.append("ptr null")
    for b in kernel.code.scratch:
        name = f"v{len(slots)}"
        body.append(buffer(name, "%results", tensors[b.name][1]))
        slots.append(f"ptr %{name}")
    slots += [f"i64 {sizes[d.var]}" for d in program.dims]
    slots += ["i64 0", "i64 0"]  # no assertion has failed, and nobody is told
    body.append(aligned(units))
    body.append(f"  %block = alloca [{len(slots)} x i64], align 16\n")
    for i, slot in enumerate(slots):
        body.append(f"  %s{i} = getelementptr i64, ptr %block, i64 {i}\n")
        body.append(f"  store {slot}, ptr %s{i}\n")
    for i, launch in enumerate(kernel.launches):
        entry, count = (launch.binary.address(f"{launch.name}{end}") for end in ("", ".blocks"))
        body.append(f"""\
  %ok.{i} = call i1 @tw.run(ptr %api, ptr %context, ptr inttoptr (i64 {entry} to ptr),
    ptr inttoptr (i64 {count} to ptr), i64 {launch.arena_bytes}, ptr %block)
  br i1 %ok.{i}, label %step.{i}, label %memory
step.{i}:
""")
    body.append(f"""\
  ret ptr null
memory:
  %failed = call ptr @tw.fail(ptr %frame, ptr @tw.memory, i32 {INTERNAL})
  ret ptr %failed
""")
    constants = f"""\
@tw.odd = internal constant {text(f"{program.name}: a buffer is misaligned")}
@tw.memory = internal constant {text(f"{program.name}: out of memory")}
{_RUN}"""
    source = handler(program.name, counts, "".join(body), constants)
    with LLVM_LOCK:
        image = object_file(optimize(source))
        return Code((), (), (), source, image).link(("tw.handler",))
