"""Thread IR to CUDA C++. Every choice has been made: this prints.

One `extern "C"` function per kernel. Parameters: pointers of the tensors that threads touch,
tensor maps, scalars, sizes. Buffers in shared memory are typed pointers at fixed offsets, barriers
32-bit addresses; registers are arrays indexed by constants after unrolling.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any

from tilewright.ir.analysis.aliases import places
from tilewright.ir.analysis.effects import exchanging
from tilewright.ir.analysis.intervals import limits, single
from tilewright.ir.core import *
from tilewright.ir.tensor_map import MapHint
from tilewright.ir.verify.structure import REGISTERS_PER_BLOCK
from tilewright.targets.cuda.emit_expr import TYPES, print_expr
from tilewright.targets.cuda.emit_foreign import FOREIGN
from tilewright.targets.cuda.hoist import hoist, is_written_out
from tilewright.targets.cuda.instructions import adjacent, instruction, together
from tilewright.targets.cuda.names import Names, comment, quoted_path, words_of
from tilewright.targets.cuda.spans import Spans

HEADER = "tilewright.cuh"
PARTS = ("numbers.cuh", "threads.cuh", "copies.cuh")


@dataclass(frozen=True)
class MapParam:
    """A tensor map among the parameters: `box` per dimension of the tensor, slowest first."""

    name: str
    tensor: Buffer
    box: tuple[int, ...]
    swizzle: int
    sizes: tuple[int, ...] = ()  # of the shape that the tensor is seen under, if not its own


@dataclass(frozen=True)
class KernelSource:
    """One kernel's function and how it is launched."""

    name: str
    kernel: Kernel
    shared_bytes: int
    params: tuple[Buffer | Var | MapParam, ...]


@dataclass(frozen=True)
class Site:
    """A place where a diagnostic build may say that threads stand: the op and what is around it.
    `barrier` is None where threads meet (`sync`)."""

    op: Op
    kernel: Kernel
    role: Role | None
    barrier: Buffer | None = None


@dataclass(frozen=True)
class Source:
    """A program's CUDA C++. `sites`, of a diagnostic build, are what its waits are numbered by."""

    text: str
    kernels: tuple[KernelSource, ...]
    sites: tuple[Site, ...] = ()


def emit_program(
    program: Program,
    *,
    diagnostic: bool = False,
    blocks: Mapping[str, int] | None = None,
) -> Source:
    """The source of all kernels of a program at stage THREAD. `blocks`: how many of a kernel, by
    name, a multiprocessor should have registers for."""
    functions: dict[str, str] = {}
    names = Names()
    texts, kernels = [], []
    sites: list[Site] | None = [] if diagnostic else None
    for kernel in program.kernels:
        function = names.of(f"{program.name}_{kernel.name}")
        most = (blocks or {}).get(kernel.name, 1)
        writer = _Writer(program, kernel, function, functions, sites, most)
        texts.append(writer.function())
        kernels.append(KernelSource(function, kernel, writer.shared_bytes, writer.params))
    parts = [f"// {comment(program.name)}", *["#define TW_DIAGNOSTIC"] * diagnostic]
    parts += [f'#include "{HEADER}"', "", *program.sources]
    parts += [*functions.values(), *texts]
    return Source("\n".join(parts), tuple(kernels), tuple(sites or ()))


@dataclass
class _Writer:
    program: Program
    kernel: Kernel
    name: str
    functions: dict[str, str]
    sites: list[Site] | None = None  # of a diagnostic build
    blocks: int = 1  # at least, of a multiprocessor
    lines: list[str] = field(default_factory=list)
    depth: int = 1
    at: tuple[str, int] | None = None

    def __post_init__(self) -> None:
        self.names = Names(words_of(self.program.sources))
        self.spans = Spans(self.kernel, self.program.dims)
        found = places(self.kernel)
        self.places = {buffer.name: place for buffer, place in found.items()}
        self.maps: list[MapParam] = []
        self.shared_bytes = max(
            (at + buffer.shared_bytes for buffer, at in found.items()), default=0
        )
        self.warp: str | None = None
        self.role: Role | None = None
        self.first = False  # in a branch that thread 0 takes alone
        self.rows: dict[Any, tuple[str, str]] = {}  # see `hoist`: the pointer, and what is left
        self.stamped_wait = ""  # the call that the next wait begins with, in a traced build
        for op in self.hints("tensor_map"):
            assert op.buffer is not None
            said = MapHint.of(op)
            self.maps.append(MapParam(said.name, op.buffer, said.box, said.swizzle, said.sizes))

    def hints(self, name: str) -> list[Hint]:
        return [op for op in walk_ops(self.kernel, Hint) if op.name == name]

    def is_first_thread(self, cond: Expr) -> bool:
        """`cond` is true of no thread of the block but number 0."""
        if isinstance(cond, Bin) and cond.op == "and":
            return self.is_first_thread(cond.a) or self.is_first_thread(cond.b)
        is_first = cond is compare("==", self.kernel.thread_vars[0], const(0))
        return is_first and all(count == 1 for count in self.kernel.threads[1:])

    # ── the function ─────────────────────────────────────────────────────────────────────────

    @cached_property
    def params(self) -> tuple[Buffer | Var | MapParam, ...]:
        ops = [op for op in walk_ops(self.kernel) if not isinstance(op, Hint)]
        buffers = {buffer for op in ops for buffer in named_buffers(op)}
        buffers |= {op.buffer for op in self.hints("stamps") if op.buffer is not None}
        sizes = [e for b in buffers if b.space is Space.GLOBAL
                 for e in (*b.shape, *(b.strides or ()))]  # fmt: skip
        named = {v for e in (*sizes, *(e for op in ops for e in expressions(op)))
                 for v in variables(e)}  # fmt: skip
        tensors = [t for t in (*self.program.tensors, *self.program.scratch) if t in buffers]
        dims = [d.var for d in self.program.dims if d.var in named]
        scalars = [s for s in self.program.scalars if s in named]
        return (*self.maps, *tensors, *scalars, *dims)

    @cached_property
    def used(self) -> set[Var]:
        """Variables whose values the kernel's ops read."""
        return read_variables(self.kernel.body)

    @cached_property
    def stamp_names(self) -> tuple[str, ...]:
        """Where a thread's next stamp goes, how often the block will run what is traced with
        stamps, and the clocks of stamps that are not stored yet; no names of the IR are alike."""
        return tuple(map(self.names.of, ("stamps at", "stamps left", "stamps clocks")))

    def function(self) -> str:
        threads = self.kernel.thread_count
        params = ",\n    ".join(self.param(p) for p in self.params)
        cluster = ""
        if self.kernel.cluster:
            dims = (*self.kernel.cluster, 1, 1)[:3]
            cluster = f" __cluster_dims__({', '.join(map(str, dims))})"
        least = [int(op.detail[0]) for op in self.hints("min_blocks")]
        bounds = f"__launch_bounds__({threads}, {max(least, default=self.blocks)})"
        self.lines = [
            f'extern "C" __global__ void {bounds}{cluster}',
            f"{self.name}(\n    {params}) {{",
            "  extern __shared__ __align__(1024) uint8_t shared[];",
        ]
        # blocks are launched in one dimension: a thread's number is its indices' row-major order
        stride = 1
        for var, count in zip(self.kernel.thread_vars, self.kernel.threads, strict=True):
            value = "threadIdx.x" if stride == 1 else f"threadIdx.x / {stride}"
            stride *= count
            if stride < threads:
                value += f" % {count}"
            self.line(f"const int {self.names.of(var.name)} = {value};")
        for var, axis in zip(self.kernel.blocks, "xyz", strict=False):
            if var in self.used:
                self.line(f"const int {self.names.of(var.name)} = blockIdx.{axis};")
        rank = self.kernel.rank
        if rank is not None and rank in self.used:
            self.line(f"const int {self.names.of(rank.name)} = tw::cluster_rank();")
        if self.hints("stamps"):
            count = 1 + max((int(op.detail[0]) for op in self.hints("clock")), default=0)
            at, left, clocks = self.stamp_names
            self.line(f"int {left} = 0;")
            self.line(f"uint32_t {at} = 0, {clocks}[{count}];")
        self.body(self.kernel.body)
        self.lines.append("}")
        return "\n".join(self.lines) + "\n"

    def param(self, param: Buffer | Var | MapParam) -> str:
        if isinstance(param, MapParam):
            kind = "const __grid_constant__ tw::TensorMap"
        else:
            alone = " __restrict__" * (param.name not in exchanging(self.kernel))
            kind = TYPES[param.dtype.name]
            kind = f"const {kind}" if isinstance(param, Var) else f"{kind}*{alone}"
        return f"{kind} {self.names.of(param.name)}"

    # ── lines ────────────────────────────────────────────────────────────────────────────────

    def line(self, text: str, loc: Loc | None = None) -> None:
        if loc is not None and (loc.file, loc.line) != self.at:
            self.at = (loc.file, loc.line)
            self.lines.append(f'#line {loc.line} "{quoted_path(loc.file)}"')
        self.lines.append("  " * self.depth + text)

    def block(self, head: str, body: Body, loc: Loc | None, orelse: Body = ()) -> None:
        self.line(head, loc)
        self.inner(body)
        if orelse:
            self.line("} else {")
            self.inner(orelse)
        self.line("}")

    def inner(self, body: Body) -> None:
        self.depth += 1
        self.body(body)
        self.depth -= 1

    def body(self, body: Body) -> None:
        index = 0
        while index < len(body):
            op = body[index]
            if isinstance(op, Role):
                roles = [op]
                while index + len(roles) < len(body):
                    following = body[index + len(roles)]
                    if not isinstance(following, Role) or any(
                        _overlap(following, r) for r in roles
                    ):
                        break
                    roles.append(following)
                self.roles(roles)
                index += len(roles)
                continue
            if isinstance(op, Hint) and op.name == "traced":
                rest = body[index + 1 :]
                head = f"if ({self.stamp_names[1]}-- > 0) {{"
                return self.block(head, rest, op.loc, _without_stamps(rest))
            products = adjacent(body, index)
            op = together(products) if products else op
            rule = _RULES.get(type(op))
            if rule is None:
                raise CompileError(f"{type(op).__name__} has no CUDA form", loc=op.loc)
            statement = rule(self, op)
            if statement is not None:
                self.line(f"{statement};", op.loc)
            index += max(1, len(products))

    def expr(self, expr: Expr, *, index: bool = False, beside: str = "") -> str:
        """`index`: see `print_expr`."""
        return print_expr(expr, self.names, self.load, beside, self.spans, index)

    def load(self, load: Load) -> str:
        return self.element(load.buffer, load.indices)

    def element(self, buffer: Buffer, indices: Iterable[Expr]) -> str:
        name = self.names.of(buffer.name)
        indices = tuple(indices)
        if not indices and buffer.space is Space.LOCAL:
            return name
        if row := self.rows.get((buffer, indices)):
            return f"{row[0]}[{row[1]}]"
        return f"{name}[{self.index(buffer, indices)}]"

    def index(
        self, buffer: Buffer, indices: tuple[Expr, ...], beside: str = "", inside: bool = True
    ) -> str:
        """The row-major (or strided) offset; 64 bits in global memory. `inside`: whether the
        indices are those of an element, and so do not overflow."""
        if len(indices) == 1 and buffer.space is not Space.GLOBAL:
            return self.expr(indices[0], index=inside, beside=beside)
        strides: list[str | None] = []
        if buffer.strides is not None:
            strides = [self.expr(s, index=True) for s in buffer.strides]
        else:
            for axis in range(len(indices)):
                strides.append(self.product(buffer.shape[axis + 1 :]))
        wide = "int64_t" if buffer.space is Space.GLOBAL else "int"
        terms = []
        for index, stride in zip(indices, strides, strict=True):
            if isinstance(index, Const) and index.value == 0:
                continue
            if stride is None or stride == "1":
                terms.append(self.expr(index, index=inside, beside="+"))
                continue
            index, offset = self.spans.apart(index, stride)
            terms.append(f"{wide}({self.expr(index, index=inside)}) * ({stride})")
            if offset is not None:
                terms.append(f"({self.expr(offset, index=inside)}) * {stride}")
        return " + ".join(terms) or "0"

    def product(self, sizes: tuple[Expr, ...]) -> str | None:
        """The product of sizes, of 64 bits where 32 may be too few."""
        if not sizes:
            return None
        most = prod(self.spans.of(s).hi for s in sizes)
        text = " * ".join(self.expr_atom(s) for s in sizes)
        return text if most <= limits(INT32).hi or len(sizes) == 1 else f"int64_t(1) * {text}"

    def expr_atom(self, expr: Expr) -> str:
        text = self.expr(expr)
        return text if re.fullmatch(r"\w+", text) else f"({text})"

    def operand(self, operand: Expr | Region) -> str:
        """A value, or for a region its address: 32 bits in shared memory, a pointer elsewhere."""
        if isinstance(operand, Expr):
            return self.expr(operand)
        buffer, where = operand.buffer, self.start(operand)
        if buffer.space is Space.BARRIER:
            name, index = self.names.of(buffer.name), self.index(buffer, operand.starts)
            where = name if index == "0" else f"{name} + 8 * ({index})"
        elif buffer.space is Space.SHARED:
            where = f"tw::address({where})"
        if operand.cta is not None:
            return f"tw::remote({where}, {self.expr(operand.cta)})"
        return where

    def start(self, region: Region) -> str:
        name = self.names.of(region.buffer.name)
        found = self.rows.get((region.buffer, region.starts))
        name, index = found or (name, self.index(region.buffer, region.starts, "+"))
        return name if index == "0" else f"{name} + {index}"

    def pointer(self, operand: Expr | Region) -> str:
        """A value, or for a region a pointer to where it begins."""
        if isinstance(operand, Expr):
            return self.expr(operand)
        if operand.cta is not None or operand.buffer.space is Space.BARRIER:
            return self.operand(operand)
        return self.start(operand)

    # ── structure ────────────────────────────────────────────────────────────────────────────

    def roles(self, roles: list[Role]) -> None:
        """One chain over the warp's number, of roles that no warp has two of."""
        at_entry = REGISTERS_PER_BLOCK // self.kernel.thread_count // 8 * 8
        for number, role in enumerate(roles):
            first, last = role.first, role.first + role.warps
            warp = self.warp or "warp"
            bound = f"{warp} < {last}" if first == 0 else f"{warp} >= {first} && {warp} < {last}"
            head = ("} else " if number else "") + f"if ({bound}) {{  // role {comment(role.name)}"
            self.line(head, role.loc)
            self.depth += 1
            if role.registers is not None:
                verb = "give" if role.registers < at_entry else "take"
                self.line(f"tw::{verb}_registers<{role.registers}>();")
            if role.var is not None:
                per = role.warps // role.instances
                offset = f"({warp} - {first})" if first else warp
                self.line(f"const int {self.names.of(role.var.name)} = {offset} / {per};")
            self.role = role
            self.body(role.body)
            self.role = None
            self.depth -= 1
        self.line("}")

    # ── waiting ──────────────────────────────────────────────────────────────────────────────

    def site(self, op: Op, barrier: Buffer | None = None) -> tuple[str, ...]:
        """What a diagnostic build passes besides: the place's number and the barriers' address."""
        if self.sites is None:
            return ()
        self.sites.append(Site(op, self.kernel, self.role, barrier))
        number = str(len(self.sites) - 1)
        return (number,) if barrier is None else (number, self.names.of(barrier.name))

    def wait(self, verb: str, op: Op, barrier: Region, phase: Expr) -> str:
        args = [self.operand(barrier), self.expr(phase), *self.site(op, barrier.buffer)]
        if self.stamped_wait:
            stamped = f"tw::{self.stamped_wait}, {', '.join(args)})"
            self.stamped_wait = ""
            if verb == "wait":
                return stamped
            self.line(f"{stamped};")
        return f"tw::{verb}({', '.join(args)})"


def _declared(w: _Writer, var: Var, value: str) -> str:
    return f"const {TYPES[var.dtype.name]} {w.names.of(var.name)} = {value}"


# ── ops ──────────────────────────────────────────────────────────────────────────────────────

# A rule returns the statement, or None where it has written its lines itself.


def _for(w: _Writer, op: For) -> None:
    var, kind = w.names.of(op.var.name), TYPES[op.var.dtype.name]
    start, stop = w.expr(op.start, index=True), w.expr(op.stop, index=True)
    if loads(op.stop):
        bound = w.names.of(f"{op.var.name}_stop")
        w.line(f"const {kind} {bound} = {stop};", op.loc)
        stop = bound
    whole = is_written_out(op)
    step, by = w.expr(op.step), w.spans.of(op.step)
    advance = f"++{var}" if by == single(1) else f"{var} += {step}"
    most = limits(op.var.dtype).hi
    if min(w.spans.exact(op.stop).hi, most) - 1 + by.hi > most:
        advance = f"{var} = tw::advance<{kind}>({var}, {step})"
    head = f"for ({kind} {var} = {start}; {var} < {stop}; {advance}) {{"
    rows = hoist(w, op) if whole else []
    w.line("#pragma unroll" if whole else f"#pragma unroll {op.unroll}")
    w.block(head, op.body, op.loc)
    for place in rows:
        del w.rows[place]


def _if(w: _Writer, op: If) -> None:
    around, w.first = w.first, w.first or (not op.orelse and w.is_first_thread(op.cond))
    w.block(f"if ({w.expr(op.cond)}) {{", op.then, op.loc, op.orelse)
    w.first = around


def _alloc(w: _Writer, op: Alloc) -> str:
    buffer = op.buffer
    name = w.names.of(buffer.name)
    if buffer.space is Space.BARRIER:
        return f"const uint32_t {name} = tw::address(shared) + {w.places[buffer.name]}"
    kind = TYPES[buffer.dtype.name]
    if buffer.space is Space.SHARED:
        place = w.places[buffer.name]
        return f"{kind}* const {name} = reinterpret_cast<{kind}*>(shared + {place})"
    if not buffer.rank:
        return f"{kind} {name}" + (f" = {w.expr(op.init)}" if op.init is not None else "")
    align = "alignas(16) " if buffer.dtype.bits < 32 else ""
    count = max(1, prod(buffer.static_shape))  # C++ has no arrays of nothing
    return f"{align}{kind} {name}[{count}]"


def _overlap(a: Role, b: Role) -> bool:
    return a.first < b.first + b.warps and b.first < a.first + a.warps


def _barrier_init(w: _Writer, op: BarrierInit) -> str:
    count = prod(int(e) for e in op.barrier.extents)
    name, arrivals = w.operand(op.barrier), w.expr(op.count)
    if count == 1:
        return f"tw::barrier_init({name}, {arrivals})"
    return f"for (int i = 0; i < {count}; ++i) tw::barrier_init({name} + 8 * i, {arrivals})"


def _arrive(w: _Writer, op: Arrive) -> str | None:
    remote = "_remote" if op.barrier.cta is not None else ""
    name = w.operand(op.barrier)
    times = int(op.count.value) if isinstance(op.count, Const) else None
    if op.bytes is not None:
        verb = "arrive_expect" if times == 1 else "expect"
        w.line(f"tw::{verb}{remote}({name}, {w.expr(op.bytes)});", op.loc)
    if times == 0 or (op.bytes is not None and times == 1):
        return None
    count = "" if times == 1 else f", {w.expr(op.count)}"
    return f"tw::arrive{remote}({name}{count})"


def _sync(w: _Writer, op: Sync) -> str:
    if op.scope == "named" and op.id is not None:
        verb = "arrive" if op.arrive else "sync"
        args = ", ".join([w.expr(op.id), str(op.threads), *(() if op.arrive else w.site(op))])
        return f"tw::{verb}_named({args})"
    if w.sites is not None and op.scope != "warp":
        return f"tw::sync_{op.scope}({', '.join(w.site(op))})"
    narrow = "_shared" if op.order == "shared" else ""
    text = {"block": "__syncthreads", "warp": "__syncwarp", "cluster": f"tw::sync_cluster{narrow}"}
    return f"{text[op.scope]}()"


def _intrinsic(w: _Writer, op: Intrinsic) -> str | None:
    if op.name == "warp_index":
        assert op.result is not None
        w.warp = w.names.of(op.result.name)
    if op.name == "wait_cluster":
        barrier, phase = op.args
        assert isinstance(barrier, Region) and isinstance(phase, Expr)
        return w.wait("_".join([op.name, *op.text.split()]), op, barrier, phase)
    foreign = FOREIGN.get(op.name)
    if foreign is not None:
        return foreign(w, op)
    record = instruction(op.name)
    fields: dict[str, Any] = {"mask": "~0u", "width": op.width or 32, **op.fields}
    if fields.get("type") == "bool":
        fields["type"] = "boolean"
    flag = ", true" * ("fixed" in fields or "renamed" in fields)
    kept = f", tw::{fields.get('cache', 'normal')}"
    fields["kept"] = f"{kept}{flag}" if flag or "cache" in fields else ""
    if fields["mask"] == "active":
        fields["mask"] = "__activemask()"
    if record.define is not None:
        fields["function"], text = record.define(fields)
        w.functions[fields["function"]] = text
    template = record.template
    if op.name == "atomic" and w.first and op.result is not None:
        template = _OF_FIRST.get((fields["op"], op.result.dtype.name), template)
    pointers = op.name in _POINTERS
    printed = [w.pointer(a) if pointers else w.operand(a) for a in op.args]
    if op.name.startswith("shfl_"):
        value = op.args[0]
        assert isinstance(value, Expr)
        fields["space"] = "" if value.dtype.name in _SHUFFLED else "tw::narrow::"
        if op.width is not None:
            printed.append(str(op.width))
    numbered = 1 + max((int(n) for n in re.findall(r"\{(\d+)\}", template)), default=-1)
    rest, every = ", ".join(printed[numbered:]), ", ".join(printed)
    text = template.format(*printed, rest=rest, all=every, **fields)
    return text if op.result is None else _declared(w, op.result, text)


# atomics whose old value thread 0 need not wait for until it is used
_OF_FIRST = dict.fromkeys((("add", "int32"), ("add", "uint32")), "tw::first_atomic_add({all})")
# what takes pointers, to whatever memory
_POINTERS = ("atomic", "atomic_of_warp")
# types that the built-in shuffles take
_SHUFFLED = (
    "float32", "tfloat32", "float64", "int32", "uint32", "int64", "uint64",
)  # fmt: skip


_STAMPS = ("clock", "stamp", "stamp_wait", "stamps", "traced")


def _without_stamps(body: Body) -> Body:
    kept = (op for op in body if not (isinstance(op, Hint) and op.name in _STAMPS))
    return tuple(map_bodies(op, _without_stamps) for op in kept)


def _hint(w: _Writer, op: Hint) -> str | None:
    """Stamps are code, all else is said elsewhere."""
    if op.name not in _STAMPS:
        return None
    assert op.buffer is not None
    slots, detail = op.buffer.static_shape[1], op.detail
    at, left, clocks = w.stamp_names
    to = f"{w.names.of(op.buffer.name)}, {at}"
    if op.name == "clock":
        return f"{clocks}[{detail[0]}] = tw::clock()"
    if op.name == "stamp":
        pairs = [f"{n}, {clocks}[{c}]" for n, c in zip(*[iter(detail)] * 2, strict=True)]
        return f"tw::stamp<{slots}>({', '.join([to, *pairs])})"
    if op.name == "stamp_wait":
        w.stamped_wait = f"wait<{slots}>({to}, {detail[0]}"
        return None
    return f"{left} = tw::begin_stamps<{slots}, {', '.join(map(str, detail))}>({to})"


def _view(w: _Writer, op: View) -> str:
    kind, name = TYPES[op.buffer.dtype.name], w.names.of(op.buffer.name)
    start, offset = w.names.of(op.source.name), ""
    if not (isinstance(op.offset, Const) and not op.offset.value):
        offset = f" + {w.expr(op.offset, index=True, beside='+')}"
    return f"{kind}* const {name} = reinterpret_cast<{kind}*>({start}){offset}"


_RULES: dict[type[Op], Callable[[_Writer, Any], str | None]] = {
    For: _for,
    While: lambda w, op: w.block(f"while ({w.expr(op.cond)}) {{", op.body, op.loc),
    If: _if,
    Break: lambda w, op: "break",
    Continue: lambda w, op: "continue",
    Let: lambda w, op: _declared(w, op.var, w.expr(op.value)),
    Alloc: _alloc,
    Store: lambda w, op: f"{w.element(op.buffer, op.indices)} = {w.expr(op.value)}",
    BarrierInit: _barrier_init,
    Arrive: _arrive,
    Wait: lambda w, op: w.wait("wait", op, op.barrier, op.phase),
    Commit: lambda w, op: f"tw::commit_{op.unit}()",
    WaitGroup: lambda w, op: f"tw::wait_{op.unit}{'_read' * op.read}<{op.pending}>()",
    Fence: lambda w, op: f"tw::fence_{op.kind}()",
    Sync: _sync,
    Hint: _hint,
    Intrinsic: _intrinsic,
    View: _view,
}
