"""Rules that bring programs into one form, and the walker that applies them.

A rule looks at the ops of some types, one by one from the inside out, with the facts of their
kernel, and answers with what stands there instead: an op, a body, or None to keep it. `rule` makes
a pass of one, `kernel_pass` of a function that needs the kernel as a whole. These passes take a
program, or one kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property, wraps
from typing import Any

from tilewright.ir.analysis.aliases import aliases
from tilewright.ir.analysis.effects import written_in
from tilewright.ir.analysis.uniform import PerThread, per_thread
from tilewright.ir.core import *
from tilewright.ir.intrinsics import FUNCTIONS
from tilewright.ir.messages import label_kernel
from tilewright.ir.target import Target
from tilewright.support import errors

KernelPass = Callable[[Any, Target], Any]  # a program or a kernel, and the same in another form


class Facts:
    """A kernel, and what is known of it as a whole, each found when it is first asked for."""

    def __init__(self, kernel: Kernel, target: Target, program: Program) -> None:
        self.kernel, self.target, self.program = kernel, target, program

    @property
    def names(self) -> set[str]:
        """Names that are taken in the program."""
        return taken_names()

    def of(self, kernel: Kernel) -> Facts:
        """Those of `kernel`, another form of this one."""
        return Facts(kernel, self.target, self.program)

    @property
    def dims(self) -> tuple[Dim, ...]:
        return self.program.dims

    @cached_property
    def ops(self) -> list[Op]:
        return list(walk_ops(self.kernel))

    @cached_property
    def has_roles(self) -> bool:
        return any(isinstance(op, Role) for op in self.ops)

    @cached_property
    def outside_maps(self) -> set[int]:
        """Ids of the ops that stand in no map."""
        return set(map(id, outside_maps(self.kernel.body)))

    @cached_property
    def used(self) -> set[Buffer]:
        """Buffers that more than their allocation and hints about them names."""
        return {b for op in self.ops for b in named_buffers(op) if b is not _about(op)}

    @cached_property
    def written(self) -> set[str]:
        return written_in(self.kernel.body)

    @cached_property
    def viewed(self) -> set[str]:
        """Buffers whose memory has more than one name."""
        return aliases(self.kernel).viewed

    @cached_property
    def differs(self) -> PerThread:
        return per_thread(self.kernel)

    def uniform(self, *exprs: Expr) -> bool:
        """Whether all threads of the block have the same values."""
        return self.differs.source(exprs) is None


def _about(op: Op) -> Buffer | None:
    return op.buffer if isinstance(op, (Alloc, Hint)) else None


def kernel_pass(run: Callable[[Facts], Kernel]) -> KernelPass:
    """A pass that rewrites each kernel by `run`."""

    @wraps(run)
    def over(program: Any, target: Target) -> Any:
        alone = isinstance(program, Kernel)
        whole = Program(program.name, (), (program,)) if alone else program

        def one(kernel: Kernel) -> Kernel:
            with errors.at(kernel.loc):
                return run(Facts(kernel, target, whole))

        with naming(whole):
            found = map_kernels(whole, one)
        return found.kernels[0] if alone else found

    return over


def rule(*ops: type[Op]) -> Callable[[Callable[[Any, Facts], Op | Body | None]], KernelPass]:
    """A pass that puts every op of these types through a rule."""

    def made(rewrite: Callable[[Any, Facts], Op | Body | None]) -> KernelPass:
        @wraps(rewrite)
        def run(at: Facts) -> Kernel:
            return map_ops(at.kernel, lambda op: rewrite(op, at) if isinstance(op, ops) else None)

        return kernel_pass(run)

    return made


# ── expressions ──────────────────────────────────────────────────────────────────────────────


def _is_small(kind: DType) -> bool:
    """Whether values of this type are computed with in float32."""
    return kind.is_float and kind.bits <= 16


def widened(e: Expr) -> Expr:
    """`e`, one operation on operands that are done, with narrow floats widened."""
    same_bits = isinstance(e, Call) and e.name.startswith(("pack_", "reinterpret"))
    if same_bits or not isinstance(e, (Bin, Cmp, Call)):
        return e
    if not any(_is_small(c.dtype) for c in e.children):
        return e
    wide = tuple(cast(c, FLOAT32) if _is_small(c.dtype) else c for c in e.children)
    if isinstance(e, Call):
        kind = FLOAT32 if _is_small(e.dtype) else e.dtype
        return cast(Call(e.name, wide, kind), e.dtype)
    return cast(e.rebuild(wide), e.dtype)


# ── rules ────────────────────────────────────────────────────────────────────────────────────


@rule(Map, For)
def _drop_empty(op: Map | For, at: Facts) -> Body | None:
    """A map without iterations does nothing, nor does one, or a loop, over nothing."""
    extents = op.extents if isinstance(op, Map) else ()
    none = not op.body or any(isinstance(e, Const) and e.value == 0 for e in extents)
    return () if none else None


@rule(Alloc, Hint)
def _drop_unused(op: Alloc | Hint, at: Facts) -> Body | None:
    """A tile that nothing uses takes no memory, no registers and no layout."""
    return None if op.buffer is None or op.buffer in at.used else ()


def drop_unused(program: Any, target: Target) -> Any:
    """Remove tiles that are allocated and never used."""
    for each in (_drop_empty, _drop_unused, _drop_empty):  # of unused tiles, nothing is left
        program = each(program, target)
    return program


@rule(Copy)
def reduce_by_atomics(op: Copy, at: Facts) -> Op | None:
    """Let the block's threads add a tile that the copy engine would add (`T.atomic_add(...,
    use_tma=True)`): the sum is the same. A scheduled program says `atom=bulk_store` itself."""
    if op.reduce is None or op.atom is not None:
        return None
    return Atomic(op.reduce, op.dst, src=op.src)


@rule(Store)
def map_stores(op: Store, at: Facts) -> Op | None:
    """Turn a store to one element of a fragment into a map of one point: its layout says which
    threads hold the element. Stores that differ between threads stay, and are refused where threads
    are told apart."""
    if (
        not op.buffer.is_fragment
        or id(op) not in at.outside_maps
        or id(op) in at.differs.controls
        or not at.uniform(*expressions(op))
    ):
        return None
    return Map((fresh_var("p"),), (const(1),), (op,))


# ── rules of whole kernels ───────────────────────────────────────────────────────────────────


@kernel_pass
def use_fast_functions(at: Facts) -> Kernel:
    """Use approximate float32 functions and division where `fast_math` asks for them. They are off
    by a few ulp (`tanh` by 2⁻¹¹) where the hardware has them."""
    if not at.target.numerics.fast_math:
        return at.kernel
    return map_ops(at.kernel, lambda op: map_exprs(op, lambda e: transform(e, _fast)))


def _fast(e: Expr) -> Expr | None:
    if e.dtype == FLOAT32:
        if isinstance(e, Call) and f"__{e.name}" in FUNCTIONS:
            return Call(f"__{e.name}", e.args, e.dtype)
        if isinstance(e, Bin) and e.op == "/":
            return Call("__divide", (e.a, e.b), e.dtype)
    return None


@kernel_pass
def announce_barriers(at: Facts) -> Kernel:
    """Synchronize the block after one thread has initialized the barriers that the author
    allocates: no other thread may arrive or wait before. Kernels that do so themselves, and derived
    barriers, stay as they are."""
    kernel = at.kernel
    if at.has_roles:
        return kernel
    scope = "cluster" if kernel.cluster_size > 1 else "block"
    found: list[Op] = []
    fresh: Op | None = None  # the last initialisation that nobody has met after
    for op in kernel.body:
        if isinstance(op, BarrierInit):
            fresh = op
        elif isinstance(op, Sync) and op.scope in ("block", "cluster") and not op.arrive:
            fresh = None
        elif fresh is not None and not isinstance(op, (Alloc, Let, Hint, Fence)):
            found += [Fence("barrier_init", loc=fresh.loc), Sync(scope, loc=fresh.loc)]
            fresh = None
        found.append(op)
    return kernel if len(found) == len(kernel.body) else rebuild(kernel, body=tuple(found))


@kernel_pass
def hoist_views(at: Facts) -> Kernel:
    """Make views of tensors first: copies that run ahead would stand before a view made inside a
    loop. Views whose offset is known only inside stay where they are."""
    kernel = at.kernel
    inner = {var for op in at.ops[1:] for var in bound(op)}
    stay: set[str] = set()
    first: list[View] = []
    for op in at.ops:
        if not isinstance(op, View) or not op.source.is_global:
            continue
        sizes = (op.offset, *op.buffer.shape)
        if op.source.name in stay or any(variables(e) & inner or loads(e) for e in sizes):
            stay.add(op.buffer.name)
        else:
            first.append(op)
    if all(a is b for a, b in zip(first, kernel.body, strict=False)):
        return kernel
    chosen = set(map(id, first))
    rest = map_ops(kernel, lambda op: () if id(op) in chosen else None)
    return rebuild(rest, body=(*first, *rest.body))


def label_prints(kernel: Kernel, target: Target) -> Kernel:
    """Record what `T.print` calls its values, before passes rename them."""
    return label_kernel(kernel)


# ── copies, fills and tile atomics as maps ───────────────────────────────────────────────────


@rule(Copy, Fill, Relayout, Atomic)
def expand_copies(op: Op, at: Facts) -> Op | None:
    """Turn copies into maps, which every later pass understands."""
    return expand_op(op)


def expand_op(op: Op, names: set[str] | None = None, stem: str = "c") -> Op | None:
    """`op` as a `Map`, or as plain loops where a local buffer takes part: a thread's own memory
    would be private to each iteration of a map. None where it is no tile operation of these. `stem`
    names the variables of copies, `{}` in it the dimension."""
    src, value = None, None
    match op:
        case Copy() | Relayout():
            src = op.src
        case Fill():
            value, stem = op.value, "f"
        case Atomic() if op.src is not None or op.dst.tile:
            src, value = op.src, op.value
            stem = stem if src is not None else "a"
        case _:
            return None
    _check(op)
    vars_ = variables_of(op.dst, stem, names)
    place, extents = op.dst.at(vars_), op.dst.tile
    if src is not None:
        # the constant ones where one of them is
        pairs = zip(src.tile, op.dst.tile, strict=True)
        extents = tuple(a if isinstance(a, Const) else b for a, b in pairs)
        value = cast(Load(src.buffer, src.at(vars_), op.loc), op.dst.dtype)
    inner: Op
    match op:
        case Atomic():
            inner = replace(op, dst=element(op.dst.buffer, *place), value=value, src=None)
        case Copy(reduce=str(how)):
            inner = Atomic(how, element(op.dst.buffer, *place), value)
        case _:
            assert value is not None
            inner = Store(op.dst.buffer, place, cast(value, op.dst.dtype))
    return map_over(vars_, extents, inner, op.dst, src or op.dst)


def variables_of(region: Region, stem: str, names: set[str] | None = None) -> tuple[Var, ...]:
    """Fresh variables, one for each extent of the region's tile."""
    return tuple(fresh_var(stem.format(d), names) for d in range(len(region.tile)))


def map_over(vars_: tuple[Var, ...], extents: tuple[Expr, ...], inner: Op, *sides: Region) -> Op:
    """`inner` for all elements of the sides' tile."""
    if vars_ and not any(r.buffer.is_local for r in sides):
        return Map(vars_, extents, (inner,))
    for var, extent in zip(reversed(vars_), reversed(extents), strict=True):
        inner = For(var, const(0), extent, (inner,))
    return inner


def _check(op: Copy | Relayout | Fill | Atomic) -> None:
    """Refuse what only a scheduled program can say."""
    said = ""
    if isinstance(op, Copy) and (op.barrier is not None or op.multicast is not None):
        said = "a copy that completes on a barrier belongs to a scheduled program"
    for region in (getattr(op, "src", None), op.dst):
        if region is not None and region.cta is not None:
            said = f"{region.buffer.name} of another block of the cluster cannot be reached here"
    if said:
        fix = "run it with target='interp', or compile it for cuda"
        raise errors.CompileError(said, loc=op.loc, fix=fix)
