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
from typing import Any, TypeGuard

from tilewright.ir.analysis.bounds import limits
from tilewright.ir.analysis.intervals import single
from tilewright.ir.buffer import Buffer, Region, Space
from tilewright.ir.dtype import INT32, DType
from tilewright.ir.expr import Bin, Cmp, Const, Expr, Load, Var, loads, variables
from tilewright.ir.op import (
    Alloc,
    Arrive,
    BarrierInit,
    Body,
    Break,
    Commit,
    Continue,
    Fence,
    For,
    Hint,
    If,
    Intrinsic,
    Kernel,
    Let,
    Op,
    Program,
    Role,
    Store,
    Sync,
    View,
    Wait,
    WaitGroup,
    While,
    expressions,
    op_loads,
    operands,
    placed,
    walk_ops,
)
from tilewright.ir.tensor_map import MapHint
from tilewright.support.errors import CompileError, Loc
from tilewright.targets.cuda.emit_expr import TYPES, print_expr
from tilewright.targets.cuda.emit_foreign import FOREIGN
from tilewright.targets.cuda.emit_products import adjacent, together
from tilewright.targets.cuda.names import Names, comment, quoted_path, words_of
from tilewright.targets.cuda.sm90a import REGISTERS, fields_of, instruction
from tilewright.targets.cuda.spans import Spans

HEADER = "tilewright.cuh"
PARTS = ("numbers.cuh", "threads.cuh")


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
    name: str | None = None,
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
        kernels.append(writer.described())
    parts = [f"// {comment(name or program.name)}", *["#define TW_DIAGNOSTIC"] * diagnostic]
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
        found = placed(self.kernel)
        self.places = {buffer.name: place for buffer, place in found.items()}
        self.maps: list[MapParam] = []
        self.shared_bytes = max((at + _bytes(buffer) for buffer, at in found.items()), default=0)
        self.warp: str | None = None
        self.role: Role | None = None
        self.first = False  # in a branch that thread 0 takes alone
        for op in walk_ops(self.kernel):
            if isinstance(op, Hint) and op.name == "tensor_map" and op.buffer is not None:
                said = MapHint.of(op)
                self.maps.append(MapParam(said.name, op.buffer, said.box, said.swizzle, said.sizes))

    def is_first_thread(self, cond: Expr) -> bool:
        """`cond` is true of no thread of the block but number 0."""
        if isinstance(cond, Bin) and cond.op == "and":
            return self.is_first_thread(cond.a) or self.is_first_thread(cond.b)
        first, *others = zip(self.kernel.thread_vars, self.kernel.threads, strict=True)
        return (
            isinstance(cond, Cmp)
            and cond.op == "=="
            and cond.a is first[0]
            and isinstance(cond.b, Const)
            and cond.b.value == 0
            and all(count == 1 for _, count in others)
        )

    # ── the function ─────────────────────────────────────────────────────────────────────────

    @cached_property
    def params(self) -> tuple[Buffer | Var | MapParam, ...]:
        buffers: set[Buffer] = set()
        named: set[Var] = set()
        for op in walk_ops(self.kernel):
            if isinstance(op, Hint):
                continue
            for operand in operands(op):
                if isinstance(operand, Region):
                    buffers.add(operand.buffer)
                elif isinstance(operand, Buffer):
                    buffers.add(operand)
            for expr in expressions(op):
                found = [expr, *(i for x in loads(expr) for i in x.buffer.shape)]
                buffers |= {x.buffer for x in loads(expr)}
                named |= {v for e in found for v in variables(e)}
            if isinstance(op, Store):
                named |= {v for e in op.buffer.shape for v in variables(e)}
        for buffer in list(buffers):
            if buffer.space is Space.GLOBAL:
                for size in (*buffer.shape, *(buffer.strides or ())):
                    named |= variables(size)
        tensors = [t for t in (*self.program.tensors, *self.program.scratch) if t in buffers]
        dims = [d.var for d in self.program.dims if d.var in named]
        scalars = [s for s in self.program.scalars if s in named]
        return (*self.maps, *tensors, *scalars, *dims)

    @cached_property
    def used(self) -> set[Var]:
        """Variables whose values the kernel's ops read."""
        return {v for op in walk_ops(self.kernel.body) for e in expressions(op)
                for v in variables(e)}  # fmt: skip

    def described(self) -> KernelSource:
        return KernelSource(self.name, self.kernel, self.shared_bytes, self.params)

    def function(self) -> str:
        threads = prod(self.kernel.threads)
        params = ",\n    ".join(self.param(p) for p in self.params)
        cluster = ""
        if self.kernel.cluster:
            dims = (*self.kernel.cluster, 1, 1)[:3]
            cluster = f" __cluster_dims__({', '.join(map(str, dims))})"
        least = [int(op.detail[0]) for op in walk_ops(self.kernel) if _is_min_blocks(op)]
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
        self.body(self.kernel.body)
        self.lines.append("}")
        return "\n".join(self.lines) + "\n"

    def param(self, param: Buffer | Var | MapParam) -> str:
        name = self.names.of(param.name)
        if isinstance(param, MapParam):
            return f"const __grid_constant__ tw::TensorMap {name}"
        if isinstance(param, Var):
            return f"const {TYPES[param.dtype.name]} {name}"
        return f"{TYPES[param.dtype.name]}* __restrict__ {name}"

    # ── lines ────────────────────────────────────────────────────────────────────────────────

    def line(self, text: str, loc: Loc | None = None) -> None:
        if loc is not None and (loc.file, loc.line) != self.at:
            self.at = (loc.file, loc.line)
            self.lines.append(f'#line {loc.line} "{quoted_path(loc.file)}"')
        self.lines.append("  " * self.depth + text)

    def block(self, head: str, body: Body, loc: Loc | None = None, tail: str = "}") -> None:
        self.line(head, loc)
        self.depth += 1
        self.body(body)
        self.depth -= 1
        self.line(tail)

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
            products = adjacent(body, index)
            if products:
                _intrinsic(self, together(products))
                index += len(products)
                continue
            rule = _RULES.get(type(op))
            if rule is None:
                raise CompileError(f"{type(op).__name__} has no CUDA form", loc=op.loc)
            rule(self, op)
            index += 1

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
        return f"{name}[{self.index(buffer, indices)}]"

    def index(self, buffer: Buffer, indices: tuple[Expr, ...], beside: str = "") -> str:
        """The row-major (or strided) offset; 64 bits in global memory."""
        if len(indices) == 1 and buffer.space is not Space.GLOBAL:
            return self.expr(indices[0], index=True, beside=beside)
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
                terms.append(self.expr(index, index=True, beside="+"))
            else:
                terms.append(f"{wide}({self.expr(index, index=True)}) * ({stride})")
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
        buffer = operand.buffer
        name = self.names.of(buffer.name)
        index = self.index(buffer, operand.starts, "" if buffer.space is Space.BARRIER else "+")
        if buffer.space is Space.BARRIER:
            where = name if index == "0" else f"{name} + 8 * ({index})"
        elif buffer.space is Space.SHARED:
            where = f"tw::address({name})" if index == "0" else f"tw::address({name} + {index})"
        else:
            return name if index == "0" else f"{name} + {index}"
        if operand.cta is not None:
            return f"tw::remote({where}, {self.expr(operand.cta)})"
        return where

    def pointer(self, operand: Expr | Region) -> str:
        """A value, or for a region a pointer to where it begins."""
        if isinstance(operand, Expr):
            return self.expr(operand)
        if operand.cta is not None or operand.buffer.space is Space.BARRIER:
            return self.operand(operand)
        name = self.names.of(operand.buffer.name)
        if not operand.starts:
            return f"&{name}"
        index = self.index(operand.buffer, operand.starts, "+")
        return name if index == "0" else f"{name} + {index}"

    # ── structure ────────────────────────────────────────────────────────────────────────────

    def roles(self, roles: list[Role]) -> None:
        """One chain over the warp's number, of roles that no warp has two of."""
        at_entry = REGISTERS // prod(self.kernel.threads) // 8 * 8
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

    def wait(self, verb: str, op: Op, barrier: Region, phase: Expr) -> None:
        more = self.site(op, barrier.buffer)
        args = ", ".join([self.operand(barrier), self.expr(phase), *more])
        self.line(f"tw::{verb}({args});", op.loc)


def _bytes(buffer: Buffer) -> int:
    count = prod(buffer.static_shape)
    return 8 * count if buffer.space is Space.BARRIER else buffer.dtype.storage_bytes(count)


def _type(dtype: DType) -> str:
    return TYPES[dtype.name]


# ── ops ──────────────────────────────────────────────────────────────────────────────────────


def _for(w: _Writer, op: For) -> None:
    var, kind = w.names.of(op.var.name), _type(op.var.dtype)
    start, stop = w.expr(op.start, index=True), w.expr(op.stop, index=True)
    if loads(op.stop):
        bound = w.names.of(f"{op.var.name}_stop")
        w.line(f"const {kind} {bound} = {stop};", op.loc)
        stop = bound
    whole = op.kind == "unroll" and not (_trips(op) > FEW and _walks_memory(op))
    w.line("#pragma unroll" if whole else "#pragma unroll 1")
    step, by = w.expr(op.step), w.spans.of(op.step)
    advance = f"++{var}" if by == single(1) else f"{var} += {step}"
    most = limits(op.var.dtype).hi
    if min(w.spans.exact(op.stop).hi, most) - 1 + by.hi > most:
        advance = f"{var} = tw::advance<{kind}>({var}, {step})"
    head = f"for ({kind} {var} = {start}; {var} < {stop}; {advance}) {{"
    w.block(head, op.body, op.loc)


LARGE = 2 * 255 * 4  # bytes of an array that is no longer mostly in registers
FEW = 8  # iterations that are written out all the same


def _trips(op: For) -> int:
    ends = [e.value for e in (op.start, op.stop, op.step) if isinstance(e, Const)]
    return len(range(*map(int, ends))) if len(ends) == 3 else 0


def _walks_memory(op: For) -> bool:
    """Whether a loop is over an array that local memory holds: to write it out would not bring it
    into registers, and takes the assembler minutes."""
    for inner in walk_ops(op.body):
        places = [(load.buffer, load.indices) for load in op_loads(inner)]
        if isinstance(inner, Store):
            places.append((inner.buffer, inner.indices))
        for buffer, indices in places:
            large = buffer.space is Space.LOCAL and buffer.bytes > LARGE
            if large and any(op.var in variables(i) for i in indices):
                return True
    return False


def _while(w: _Writer, op: While) -> None:
    w.block(f"while ({w.expr(op.cond)}) {{", op.body, op.loc)


def _if(w: _Writer, op: If) -> None:
    if not op.orelse:
        around, w.first = w.first, w.first or w.is_first_thread(op.cond)
        w.block(f"if ({w.expr(op.cond)}) {{", op.then, op.loc)
        w.first = around
        return
    w.block(f"if ({w.expr(op.cond)}) {{", op.then, op.loc, "} else {")
    w.depth += 1
    w.body(op.orelse)
    w.depth -= 1
    w.line("}")


def _break(w: _Writer, op: Break) -> None:
    w.line("break;", op.loc)


def _continue(w: _Writer, op: Continue) -> None:
    w.line("continue;", op.loc)


def _let(w: _Writer, op: Let) -> None:
    w.line(f"const {_type(op.var.dtype)} {w.names.of(op.var.name)} = {w.expr(op.value)};", op.loc)


def _alloc(w: _Writer, op: Alloc) -> None:
    buffer = op.buffer
    name = w.names.of(buffer.name)
    if buffer.space is Space.BARRIER:
        place = w.places[buffer.name]
        w.line(f"const uint32_t {name} = tw::address(shared) + {place};", op.loc)
        return
    kind = _type(buffer.dtype)
    if buffer.space is Space.SHARED:
        place = w.places[buffer.name]
        w.line(f"{kind}* const {name} = reinterpret_cast<{kind}*>(shared + {place});", op.loc)
    elif not buffer.rank:
        start = f" = {w.expr(op.init)}" if op.init is not None else ""
        w.line(f"{kind} {name}{start};", op.loc)
    else:
        align = "alignas(16) " if buffer.dtype.bits < 32 else ""
        count = max(1, prod(buffer.static_shape))  # C++ has no arrays of nothing
        w.line(f"{align}{kind} {name}[{count}];", op.loc)


def _overlap(a: Role, b: Role) -> bool:
    return a.first < b.first + b.warps and b.first < a.first + a.warps


def _store(w: _Writer, op: Store) -> None:
    w.line(f"{w.element(op.buffer, op.indices)} = {w.expr(op.value)};", op.loc)


def _barrier_init(w: _Writer, op: BarrierInit) -> None:
    count = prod(int(e) for e in op.barrier.extents)
    name = w.operand(op.barrier)
    if count == 1:
        w.line(f"tw::barrier_init({name}, {w.expr(op.count)});", op.loc)
        return
    w.line(f"for (int i = 0; i < {count}; ++i) tw::barrier_init({name} + 8 * i, "
           f"{w.expr(op.count)});", op.loc)  # fmt: skip


def _arrive(w: _Writer, op: Arrive) -> None:
    remote = "_remote" if op.barrier.cta is not None else ""
    name = w.operand(op.barrier)
    times = int(op.count.value) if isinstance(op.count, Const) else None
    if op.bytes is not None:
        verb = "arrive_expect" if times == 1 else "expect"
        w.line(f"tw::{verb}{remote}({name}, {w.expr(op.bytes)});", op.loc)
    if times == 0 or (op.bytes is not None and times == 1):
        return
    count = "" if times == 1 else f", {w.expr(op.count)}"
    w.line(f"tw::arrive{remote}({name}{count});", op.loc)


def _wait(w: _Writer, op: Wait) -> None:
    w.wait("wait", op, op.barrier, op.phase)


def _commit(w: _Writer, op: Commit) -> None:
    w.line(f"tw::commit_{op.unit}();", op.loc)


def _wait_group(w: _Writer, op: WaitGroup) -> None:
    read = "_read" if op.read else ""
    w.line(f"tw::wait_{op.unit}{read}<{op.pending}>();", op.loc)


def _fence(w: _Writer, op: Fence) -> None:
    w.line(f"tw::fence_{op.kind}();", op.loc)


def _sync(w: _Writer, op: Sync) -> None:
    if op.scope == "named" and op.id is not None:
        verb = "arrive" if op.arrive else "sync"
        args = ", ".join([w.expr(op.id), str(op.threads), *(() if op.arrive else w.site(op))])
        w.line(f"tw::{verb}_named({args});", op.loc)
        return
    if w.sites is not None and op.scope != "warp":
        w.line(f"tw::sync_{op.scope}({', '.join(w.site(op))});", op.loc)
        return
    narrow = "_shared" if op.order == "shared" else ""
    text = {"block": "__syncthreads", "warp": "__syncwarp", "cluster": f"tw::sync_cluster{narrow}"}
    w.line(f"{text[op.scope]}();", op.loc)


def _hint(w: _Writer, op: Hint) -> None:
    return


def _is_min_blocks(op: Op) -> TypeGuard[Hint]:
    return isinstance(op, Hint) and op.name == "min_blocks"


def _intrinsic(w: _Writer, op: Intrinsic) -> None:
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
    fields: dict[str, Any] = {"mask": "~0u", "width": op.width or 32, **fields_of(op.text)}
    if fields.get("type") == "bool":
        fields["type"] = "boolean"
    fields["kept"] = f", tw::{fields['cache']}" if "cache" in fields else ""
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
    if op.result is not None:
        text = f"const {_type(op.result.dtype)} {w.names.of(op.result.name)} = {text}"
    w.line(text + ";", op.loc)


# atomics whose old value thread 0 need not wait for until it is used
_OF_FIRST = dict.fromkeys((("add", "int32"), ("add", "uint32")), "tw::first_atomic_add({all})")
# what takes pointers, to whatever memory
_POINTERS = ("atomic", "atomic_of_warp")
# types that the built-in shuffles take
_SHUFFLED = (
    "float32", "tfloat32", "float64", "int32", "uint32", "int64", "uint64",
)  # fmt: skip


def _view(w: _Writer, op: View) -> None:
    kind, name = _type(op.buffer.dtype), w.names.of(op.buffer.name)
    start = w.names.of(op.source.name)
    offset = (
        ""
        if isinstance(op.offset, Const) and not op.offset.value
        else f" + {w.expr(op.offset, index=True, beside='+')}"
    )
    w.line(f"{kind}* const {name} = reinterpret_cast<{kind}*>({start}){offset};", op.loc)


_RULES: dict[type[Op], Callable[[_Writer, Any], None]] = {
    For: _for,
    While: _while,
    If: _if,
    Break: _break,
    Continue: _continue,
    Let: _let,
    Alloc: _alloc,
    Store: _store,
    BarrierInit: _barrier_init,
    Arrive: _arrive,
    Wait: _wait,
    Commit: _commit,
    WaitGroup: _wait_group,
    Fence: _fence,
    Sync: _sync,
    Hint: _hint,
    Intrinsic: _intrinsic,
    View: _view,
}
