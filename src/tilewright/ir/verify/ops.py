"""The verifier's rules for ops on memory, for compute and synchronisation, and `CHECKS`, the table
from op class to checks."""

from __future__ import annotations

from math import prod

from tilewright.ir.atoms import ATOMS, GROUP_UNITS
from tilewright.ir.buffer import Region, Space
from tilewright.ir.expr import (
    Const,
    Expr,
)
from tilewright.ir.intrinsics import INTRINSICS
from tilewright.ir.op import (
    OPS,
    Alloc,
    Arrive,
    Atomic,
    BarrierInit,
    Commit,
    Copy,
    Fence,
    Fill,
    Gemm,
    Hint,
    Intrinsic,
    Op,
    Reduce,
    Relayout,
    Role,
    Scan,
    Store,
    Sync,
    Turn,
    View,
    Wait,
    WaitGroup,
)
from tilewright.ir.ptx_text import written_operands
from tilewright.ir.verify.core import (
    WARP,
    Check,
    Context,
    block_warps,
    require_bool,
    require_dtype,
    require_integer,
    require_one_of,
)
from tilewright.ir.verify.structure import STRUCTURE, WARPGROUP, tile_op
from tilewright.ir.verify.values import (
    DATA,
    TILES,
    Extents,
    check_buffer,
    check_expr,
    check_indices,
    fits,
    in_space,
    need_cluster,
    one_barrier,
    same_tile,
    shape_text,
)

NAMED_BARRIERS = 16

# ── memory ───────────────────────────────────────────────────────────────────────────────────


def _alloc(op: Alloc, context: Context) -> None:
    if op.buffer.space is Space.GLOBAL:
        context.fail(
            op,
            f"{op.buffer.name} is global memory allocated in a kernel",
            fix="declare it as scratch of the program",
        )
    for size in op.buffer.shape:
        check_expr(size, op, context)
    check_buffer(op.buffer, op, context)
    if op.init is not None:
        if op.buffer.rank:
            context.fail(op, f"{op.buffer.name}: only a scalar variable has an initial value")
        require_dtype(op.init.dtype, op.buffer.dtype, "the initial value", op, context)


def _view(op: View, context: Context) -> None:
    for size in op.buffer.shape:
        check_expr(size, op, context)
    if op.buffer.space is not op.source.space:
        context.fail(
            op,
            f"{op.buffer.name} and {op.source.name} are in different memories",
            expected=op.source.space.value,
            got=op.buffer.space.value,
        )
    check_buffer(op.buffer, op, context)
    require_integer(op.offset, "the offset", op, context)
    if not (op.buffer.is_static and op.source.is_static and isinstance(op.offset, Const)):
        return
    have = prod(op.source.static_shape) * op.source.dtype.bits
    want = (int(op.offset.value) + prod(op.buffer.static_shape)) * op.buffer.dtype.bits
    if want > have or op.offset.value < 0:
        context.fail(
            op,
            f"{op.buffer.name} reaches beyond {op.source.name}",
            expected=f"at most {have} bits",
            got=f"{want} bits",
        )


_ROUTES: dict[str, tuple[tuple[Space, ...], tuple[Space, ...]]] = {
    "cp_async": ((Space.GLOBAL,), (Space.SHARED,)),
    "bulk_load": ((Space.GLOBAL, Space.SHARED), (Space.SHARED,)),
    "bulk_store": ((Space.SHARED,), (Space.GLOBAL,)),
    "remote_store": ((Space.SHARED, Space.FRAGMENT, Space.LOCAL), (Space.SHARED,)),
    "ldmatrix": ((Space.SHARED,), (Space.FRAGMENT,)),
    "stmatrix": ((Space.FRAGMENT,), (Space.SHARED,)),
}


def _atom(op: Copy | Gemm, context: Context) -> None:
    served = type(op).__name__
    if op.atom is None:
        if context.laid_out:
            context.fail(
                op,
                f"{served.lower()} has no atom at stage {context.stage.name}",
                expected="one of " + ", ".join(a.name for a in ATOMS.values() if a.op == served),
            )
        return
    require_one_of(op.atom, ATOMS, "atom", op, context)
    if ATOMS[op.atom].op != served:
        context.fail(
            op,
            f"atom {op.atom} does not serve {served.lower()}",
            expected="one of " + ", ".join(a.name for a in ATOMS.values() if a.op == served),
        )


def _copy(op: Copy, context: Context) -> None:
    for region, what in ((op.src, "the source"), (op.dst, "the destination")):
        in_space(region, what, DATA, op, context)
    same_tile(op.src, op.dst, op, context)
    if op.barrier is not None:
        one_barrier(op.barrier, op, context)
    if op.reduce is not None:
        require_one_of(op.reduce, ("add", "min", "max", "and", "or", "xor"), "reduce", op, context)
        if op.atom not in (None, "bulk_store"):
            context.fail(op, f"{op.atom} does not reduce", expected="atom=bulk_store")
    if op.multicast is not None:
        require_integer(op.multicast, "the multicast mask", op, context)
        need_cluster("multicast", op, context)
        if op.atom not in (None, "bulk_load"):
            context.fail(op, f"{op.atom} does not multicast", expected="atom=bulk_load")
    if op.atom is not None:
        _copy_atom(op, op.atom, context)


def _copy_atom(op: Copy, name: str, context: Context) -> None:
    atom = ATOMS[name]
    if atom.completion == "barrier" and op.barrier is None:
        context.fail(
            op,
            f"{name} completes on a barrier, but none is given",
            fix="add barrier=full[s]",
        )
    if atom.completion != "barrier" and op.barrier is not None:
        how = f"with `commit {atom.completion}`" if atom.is_async else "when it returns"
        context.fail(op, f"{name} does not complete on a barrier but {how}", fix="drop barrier=")
    if name in _ROUTES:
        sources, destinations = _ROUTES[name]
        in_space(op.src, f"{name}: the source", sources, op, context)
        in_space(op.dst, f"{name}: the destination", destinations, op, context)
    if atom.is_async and op.src.dtype != op.dst.dtype:
        context.fail(
            op,
            f"{name} does not convert",
            expected=str(op.src.dtype),
            got=str(op.dst.dtype),
            fix="copy with atom=threads, or convert in a map",
        )


def _store(op: Store, context: Context) -> None:
    if op.buffer.space is Space.BARRIER:
        context.fail(op, f"{op.buffer.name} is a barrier and cannot be stored to")
    check_indices(op.buffer, op.indices, op, context)
    require_dtype(op.value.dtype, op.buffer.dtype, "the stored value", op, context)


_ATOMICS = ("add", "max", "min", "and", "or", "xor", "exch", "load", "store")


def _atomic(op: Atomic, context: Context) -> None:
    require_one_of(op.op, _ATOMICS, "atomic", op, context)
    in_space(op.dst, "the destination", DATA, op, context)
    if op.dst.dtype.packed:
        context.fail(op, f"{op.dst.dtype} is packed: its elements have no atomics")
    given = (op.value is not None) + (op.src is not None)
    if given != (op.op != "load"):
        context.fail(
            op,
            f"atomic {op.op} takes " + ("no value" if op.op == "load" else "a value or a source"),
            got=f"{given} of value= and src=",
        )
    if op.value is not None:
        require_dtype(op.value.dtype, op.dst.dtype, "the value", op, context)
    if op.src is not None:
        same_tile(op.src, op.dst, op, context)
    if op.result is not None:
        require_dtype(op.dst.dtype, op.result.dtype, "the old value", op, context)
        if op.dst.tile:
            context.fail(
                op, "only an atomic on one element has a result", got=shape_text(op.dst.tile)
            )


def _fill(op: Fill, context: Context) -> None:
    in_space(op.dst, "the destination", DATA, op, context)
    require_dtype(op.value.dtype, op.dst.dtype, "the value", op, context)


# ── compute ──────────────────────────────────────────────────────────────────────────────────

_GEMM_SPACES: dict[str | None, tuple[tuple[Space, ...], tuple[Space, ...], tuple[Space, ...]]] = {
    # a target that packs its operands may read them from tensors
    None: ((*TILES, Space.GLOBAL), (*TILES, Space.GLOBAL), TILES),
    "fma": (TILES, TILES, TILES),
    "mma": (
        (Space.SHARED, Space.FRAGMENT),
        (Space.SHARED, Space.FRAGMENT),
        (Space.FRAGMENT,),
    ),
    "wgmma": ((Space.SHARED, Space.FRAGMENT), (Space.SHARED,), (Space.FRAGMENT,)),
}


def _gemm(op: Gemm, context: Context) -> None:
    spaces = _GEMM_SPACES.get(op.atom, _GEMM_SPACES["fma"])
    for region, what, allowed in zip((op.a, op.b, op.c), "abc", spaces, strict=True):
        in_space(region, f"gemm's {what}", allowed, op, context)
    require_bool(op.clear, "clear", op, context)
    require_one_of(op.policy, ("square", "full_row", "full_col"), "policy", op, context)
    require_one_of(op.precision, ("ieee", "tf32"), "precision", op, context)
    shapes = [_matrix(r, op, context) for r in (op.a, op.b, op.c)]
    if any(s is None for s in shapes):
        return
    a, b, c = (s for s in shapes if s is not None)
    m, ka = reversed(a) if op.transpose_a else a
    kb, n = reversed(b) if op.transpose_b else b
    wrong = not fits((m, n), c) or (op.meta is None and not fits((ka,), (kb,)))
    if wrong:
        context.fail(
            op,
            "gemm's shapes do not fit",
            expected="a: M×K, b: K×N, c: M×N",
            got=f"op(a) {m}×{ka}, op(b) {kb}×{n}, c {c[0]}×{c[1]}",
            fix="check transpose_a and transpose_b",
        )


def _matrix(region: Region, op: Op, context: Context) -> tuple[Expr, Expr] | None:
    """The two extents a product sees; None when they depend on run-time sizes."""
    if len(region.tile) == 2:
        return region.tile[0], region.tile[1]
    if len(region.extents) >= 2 and len(region.tile) < 2:
        return region.extents[-2], region.extents[-1]
    if all(isinstance(e, Const) for e in region.extents):
        context.fail(
            op,
            f"gemm needs a matrix, but {region.buffer.name} is not",
            got=shape_text(region.tile),
        )
    return None


_REDUCTIONS = (
    "sum", "max", "min", "abssum", "absmax", "max_num", "min_num", "absmax_num",
    "and", "or", "xor", "any", "all",
)  # fmt: skip


def _reduce(op: Reduce, context: Context) -> None:
    require_one_of(op.op, _REDUCTIONS, "reduction", op, context)
    for region, what in ((op.src, "the source"), (op.dst, "the destination")):
        in_space(region, what, DATA, op, context)
    # `dim` counts the tile's dimensions, or the buffer's when the reduced one has extent 1
    answers = [
        _without(extents, op.dim)
        for extents in (op.src.tile, op.src.extents)
        if 0 <= op.dim < len(extents)
    ]
    if not answers:
        context.fail(
            op,
            f"{op.src.buffer.name} has no dimension {op.dim}",
            expected=f"0 … {max(len(op.src.extents) - 1, 0)}",
        )
    if not any(fits(answer, op.dst.tile) for answer in answers):
        context.fail(
            op,
            f"{op.dst.buffer.name} does not have the shape of the reduction",
            expected=shape_text(answers[0]),
            got=shape_text(op.dst.tile),
        )


def _without(extents: Extents, dim: int) -> Extents:
    rest = extents[:dim] + extents[dim + 1 :]
    return tuple(e for e in rest if not (isinstance(e, Const) and e.value == 1))


def _scan(op: Scan, context: Context) -> None:
    require_one_of(op.op, ("sum", "max"), "scan", op, context)
    for region, what in ((op.src, "the source"), (op.dst, "the destination")):
        in_space(region, what, DATA, op, context)
    same_tile(op.src, op.dst, op, context)
    if not 0 <= op.dim < max(1, len(op.src.extents)):
        context.fail(
            op,
            f"{op.src.buffer.name} has no dimension {op.dim}",
            expected=f"0 … {max(len(op.src.tile) - 1, 0)}",
        )


def _relayout(op: Relayout, context: Context) -> None:
    for region, what in ((op.src, "the source"), (op.dst, "the destination")):
        in_space(region, what, (Space.FRAGMENT,), op, context)
    same_tile(op.src, op.dst, op, context)
    require_dtype(op.src.dtype, op.dst.dtype, "the source", op, context)


# ── synchronisation ──────────────────────────────────────────────────────────────────────────


def _barrier_init(op: BarrierInit, context: Context) -> None:
    in_space(op.barrier, "the barrier", (Space.BARRIER,), op, context)
    require_integer(op.count, "the count", op, context)
    if isinstance(op.count, Const) and op.count.value < 1:
        context.fail(op, "a barrier needs at least one arrival", got=str(op.count.value))


def _arrive(op: Arrive, context: Context) -> None:
    one_barrier(op.barrier, op, context)
    require_integer(op.bytes, "bytes", op, context)
    require_integer(op.count, "the count", op, context)
    require_one_of(op.by, ("instance", "warps"), "by", op, context)


def _wait(op: Wait, context: Context) -> None:
    one_barrier(op.barrier, op, context)
    require_integer(op.phase, "the phase", op, context)
    if op.barrier.cta is not None:
        context.fail(
            op,
            "a block can only wait on its own barriers",
            fix=f"arrive at {op.barrier.buffer.name} in the waiting block instead",
        )


def _group(op: Commit | WaitGroup, context: Context) -> None:
    require_one_of(op.unit, GROUP_UNITS, "unit", op, context)
    if isinstance(op, WaitGroup):
        if op.pending < 0:
            context.fail(op, "pending must not be negative", got=str(op.pending))
        if op.read and op.unit != "bulk":
            context.fail(op, "read= is for bulk stores", got=f"wait_group {op.unit}")


_FENCES = ("proxy_async", "wgmma", "barrier_init", "cluster", "cluster_shared", "gpu")


def _fence(op: Fence, context: Context) -> None:
    require_one_of(op.kind, _FENCES, "fence", op, context)


def _sync(op: Sync, context: Context) -> None:
    require_one_of(op.scope, ("block", "warp", "cluster", "named"), "scope", op, context)
    require_one_of(op.order, ("all", "shared"), "order", op, context)
    if op.scope == "cluster":
        need_cluster("sync cluster", op, context)
    if op.scope != "named":
        if op.id is not None or op.threads is not None:
            context.fail(op, f"sync {op.scope} takes no id and no threads", fix="sync named …")
        return
    if op.id is None or op.threads is None:
        context.fail(op, "sync named needs id and threads", fix="add id=1 threads=128")
    require_integer(op.id, "the id", op, context)
    if isinstance(op.id, Const) and not 0 <= op.id.value < NAMED_BARRIERS:
        context.fail(
            op,
            "there is no such named barrier",
            expected=f"0 … {NAMED_BARRIERS - 1}",
            got=str(op.id.value),
            fix="use a smaller number, or T.sync_threads() for the whole block",
        )
    assert context.kernel is not None
    most = block_warps(context.kernel) * WARP
    if op.threads % WARP or not 0 < op.threads <= most:
        context.fail(
            op,
            "a named barrier counts whole warps of the block",
            expected=f"a multiple of {WARP} up to {most}",
            got=str(op.threads),
        )


def _turn(op: Turn, context: Context) -> None:
    require_one_of(op.edge, ("begin", "end"), "edge of a turn", op, context)
    role = context.inside(Role)
    if not isinstance(role, Role):
        context.fail(
            op, "a turn outside a role", fix="put it into the role whose warpgroups take turns"
        )
    if role.instances > 1:
        context.fail(
            op,
            "turns are for warpgroups that run a role together",
            expected=f"role {role.name} with one instance",
            got=f"{role.instances} instances",
            fix="let instances meet by named barriers",
        )
    if role.first % WARPGROUP or role.warps % WARPGROUP or role.warps < 2 * WARPGROUP:
        context.fail(
            op,
            "turns are taken by whole warpgroups, two or more",
            expected=f"first and warps of role {role.name} multiples of 4, at least 8 warps",
            got=f"warps {role.first} + {role.warps}",
        )


# ── late ─────────────────────────────────────────────────────────────────────────────────────


def _intrinsic(op: Intrinsic, context: Context) -> None:
    require_one_of(op.name, INTRINSICS, "intrinsic", op, context)
    if op.result is not None and not INTRINSICS[op.name].yields:
        context.fail(op, f"{op.name} has no result")
    if op.name == "ptx":
        _ptx(op, context)


def _ptx(op: Intrinsic, context: Context) -> None:
    """Registers that the text writes are results, or variables of the thread in front."""
    written = op.width or 0
    for arg in op.args[:written]:
        if not isinstance(arg, Region) or arg.buffer.space is not Space.LOCAL:
            context.fail(op, "ptx writes what is no variable of the thread", expected="&x in front")
    beyond = {n for n in written_operands(op.text) if n > written or (n == 0 and op.result is None)}
    if not 0 <= written <= len(op.args) or beyond:
        context.fail(
            op,
            f"ptx writes ${min(beyond, default=written)}, an operand that it only reads",
            expected="operands that are written in front, and their number as width=",
        )


def _hint(op: Hint, context: Context) -> None:
    if op.name == "assume" and op.value is not None:
        require_bool(op.value, "what is assumed", op, context)


CHECKS: dict[type[Op], tuple[Check, ...]] = {
    **STRUCTURE,
    Alloc: (_alloc,),
    View: (_view,),
    Copy: (tile_op, _atom, _copy),
    Store: (_store,),
    Atomic: (_atomic,),
    Fill: (tile_op, _fill),
    Gemm: (tile_op, _atom, _gemm),
    Reduce: (tile_op, _reduce),
    Scan: (tile_op, _scan),
    Relayout: (tile_op, _relayout),
    BarrierInit: (_barrier_init,),
    Arrive: (_arrive,),
    Wait: (_wait,),
    Commit: (_group,),
    WaitGroup: (_group,),
    Fence: (_fence,),
    Sync: (_sync,),
    Turn: (_turn,),
    Intrinsic: (_intrinsic,),
    Hint: (_hint,),
}
assert set(CHECKS) == set(OPS.values())
