"""The verifier's rules for ops on memory, for compute and synchronisation."""

from __future__ import annotations

from math import prod

from tilewright.ir.atoms import ATOMS, GROUP_UNITS
from tilewright.ir.intrinsics import INTRINSICS
from tilewright.ir.ptx_text import written_operands
from tilewright.ir.verify.core import *

# ── memory ───────────────────────────────────────────────────────────────────────────────────


@rule
def _alloc(op: Alloc, context: Context) -> None:
    if op.buffer.is_global:
        context.fail(
            f"{op.buffer.name} is global memory allocated in a kernel",
            fix="declare it as scratch of the program",
        )
    for size in op.buffer.shape:
        check_expr(size, context)
    check_buffer(op.buffer, context)
    if op.init is not None:
        if op.buffer.rank:
            context.fail(f"{op.buffer.name}: only a scalar variable has an initial value")
        context.dtype(op.init.dtype, op.buffer.dtype, "the initial value")


@rule
def _view(op: View, context: Context) -> None:
    for size in op.buffer.shape:
        check_expr(size, context)
    if op.buffer.space is not op.source.space:
        context.fail(
            f"{op.buffer.name} and {op.source.name} are in different memories",
            expected=op.source.space.value,
            got=op.buffer.space.value,
        )
    check_buffer(op.buffer, context)
    context.integer(op.offset, "the offset")
    if not (op.buffer.is_static and op.source.is_static and isinstance(op.offset, Const)):
        return
    have = prod(op.source.static_shape) * op.source.dtype.bits
    want = (int(op.offset.value) + prod(op.buffer.static_shape)) * op.buffer.dtype.bits
    if want > have or op.offset.value < 0:
        context.fail(
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


@rule
def _atom(op: Copy | Gemm, context: Context) -> None:
    kind = type(op).__name__
    fit = [a.name for a in ATOMS.values() if a.op == kind]
    if op.atom is not None:
        context.one_of(op.atom, ATOMS, "atom")
        wrong = f"atom {op.atom} does not serve {kind.lower()}"
    else:
        wrong = f"{kind.lower()} has no atom at stage {context.stage.name}"
    if op.atom not in fit and (op.atom is not None or context.laid_out):
        context.fail(wrong, expected="one of " + ", ".join(fit))


def _moves(
    op: Copy | Reduce | Scan | Relayout, spaces: tuple[Space, ...], context: Context
) -> None:
    in_space(op.src, "the source", spaces, context)
    in_space(op.dst, "the destination", spaces, context)


@rule
def _copy(op: Copy, context: Context) -> None:
    _moves(op, DATA, context)
    same_tile(op.src, op.dst, context)
    if op.barrier is not None:
        one_barrier(op.barrier, context)
    if op.reduce is not None:
        context.one_of(op.reduce, ("add", "min", "max", "and", "or", "xor"), "reduce")
        if op.atom not in (None, "bulk_store"):
            context.fail(f"{op.atom} does not reduce", expected="atom=bulk_store")
    if op.multicast is not None:
        context.integer(op.multicast, "the multicast mask")
        need_cluster("multicast", context)
        if op.atom not in (None, "bulk_load"):
            context.fail(f"{op.atom} does not multicast", expected="atom=bulk_load")
    if op.atom is not None:
        _copy_atom(op, op.atom, context)


def _copy_atom(op: Copy, name: str, context: Context) -> None:
    atom = ATOMS[name]
    if atom.completion == "barrier" and op.barrier is None:
        context.fail(
            f"{name} completes on a barrier, but none is given",
            fix="add barrier=full[s]",
        )
    if atom.completion != "barrier" and op.barrier is not None:
        how = f"with `commit {atom.completion}`" if atom.is_async else "when it returns"
        context.fail(f"{name} does not complete on a barrier but {how}", fix="drop barrier=")
    if name in _ROUTES:
        sources, destinations = _ROUTES[name]
        in_space(op.src, f"{name}: the source", sources, context)
        in_space(op.dst, f"{name}: the destination", destinations, context)
    if atom.is_async and op.src.dtype != op.dst.dtype:
        context.fail(
            f"{name} does not convert",
            expected=op.src.dtype,
            got=op.dst.dtype,
            fix="copy with atom=threads, or convert in a map",
        )


@rule
def _store(op: Store, context: Context) -> None:
    if op.buffer.space is Space.BARRIER:
        context.fail(f"{op.buffer.name} is a barrier and cannot be stored to")
    check_indices(op.buffer, op.indices, context)
    context.dtype(op.value.dtype, op.buffer.dtype, "the stored value")


_ATOMICS = ("add", "max", "min", "and", "or", "xor", "exch", "load", "store")


@rule
def _atomic(op: Atomic, context: Context) -> None:
    context.one_of(op.op, _ATOMICS, "atomic")
    in_space(op.dst, "the destination", DATA, context)
    if op.dst.dtype.packed:
        context.fail(f"{op.dst.dtype} is packed: its elements have no atomics")
    given = (op.value is not None) + (op.src is not None)
    if given != (op.op != "load"):
        context.fail(
            f"atomic {op.op} takes " + ("no value" if op.op == "load" else "a value or a source"),
            got=f"{given} of value= and src=",
        )
    if op.value is not None:
        context.dtype(op.value.dtype, op.dst.dtype, "the value")
    if op.src is not None:
        same_tile(op.src, op.dst, context)
    if op.result is not None:
        context.dtype(op.dst.dtype, op.result.dtype, "the old value")
        if op.dst.tile:
            context.fail("only an atomic on one element has a result", got=shape_text(op.dst.tile))


@rule
def _fill(op: Fill, context: Context) -> None:
    in_space(op.dst, "the destination", DATA, context)
    context.dtype(op.value.dtype, op.dst.dtype, "the value")


# ── compute ──────────────────────────────────────────────────────────────────────────────────

_GEMM_SPACES: dict[str | None, tuple[tuple[Space, ...], tuple[Space, ...], tuple[Space, ...]]] = {
    # a target that packs its operands may read them from tensors
    None: ((*TILES, Space.GLOBAL), (*TILES, Space.GLOBAL), TILES),
    "micro_kernel": (DATA, DATA, DATA),
    "fma": (TILES, TILES, TILES),
    "mma": (
        (Space.SHARED, Space.FRAGMENT),
        (Space.SHARED, Space.FRAGMENT),
        (Space.FRAGMENT,),
    ),
    "wgmma": ((Space.SHARED, Space.FRAGMENT), (Space.SHARED,), (Space.FRAGMENT,)),
}


@rule
def _gemm(op: Gemm, context: Context) -> None:
    spaces = _GEMM_SPACES.get(op.atom, _GEMM_SPACES["fma"])
    for region, what, allowed in zip((op.a, op.b, op.c), "abc", spaces, strict=True):
        in_space(region, f"gemm's {what}", allowed, context)
    context.boolean(op.clear, "clear")
    context.one_of(op.policy, ("square", "full_row", "full_col"), "policy")
    context.one_of(op.precision, ("ieee", "tf32"), "precision")
    shapes = [_matrix(r, context) for r in (op.a, op.b, op.c)]
    if any(s is None for s in shapes):
        return
    a, b, c = (s for s in shapes if s is not None)
    m, ka = reversed(a) if op.transpose_a else a
    kb, n = reversed(b) if op.transpose_b else b
    wrong = not fits((n, m) if op.transpose_c else (m, n), c) or (
        op.meta is None and not fits((ka,), (kb,))
    )
    if wrong:
        context.fail(
            "gemm's shapes do not fit",
            expected="op(a): M×K, op(b): K×N, op(c): M×N",
            got=f"op(a) {m}×{ka}, op(b) {kb}×{n}, c {c[0]}×{c[1]}",
            fix="check transpose_a, transpose_b and transpose_c",
        )


def _matrix(region: Region, context: Context) -> tuple[Expr, Expr] | None:
    """The two extents a product sees; None when they depend on run-time sizes."""
    if len(region.tile) == 2:
        return region.tile[0], region.tile[1]
    if len(region.extents) >= 2 and len(region.tile) < 2:
        return region.extents[-2], region.extents[-1]
    if all(isinstance(e, Const) for e in region.extents):
        context.fail(
            f"gemm needs a matrix, but {region.buffer.name} is not",
            got=shape_text(region.tile),
        )
    return None


_REDUCTIONS = (
    "sum", "prod", "max", "min", "abssum", "absmax", "max_num", "min_num", "absmax_num",
    "and", "or", "xor", "any", "all",
)  # fmt: skip


@rule
def _reduce(op: Reduce, context: Context) -> None:
    context.one_of(op.op, _REDUCTIONS, "reduction")
    _moves(op, DATA, context)
    extents = op.src.extents
    if not 0 <= op.dim < len(extents):
        context.fail(
            f"{op.src.buffer.name} has no dimension {op.dim}",
            expected=f"0 … {max(len(extents) - 1, 0)}",
        )
    left = tuple(extents[d] for d in long_dims(extents) if d != op.axis)
    if not fits(left, op.dst.tile):
        context.fail(
            f"{op.dst.buffer.name} does not have the shape of the reduction",
            expected=shape_text(left),
            got=shape_text(op.dst.tile),
        )


@rule
def _scan(op: Scan, context: Context) -> None:
    context.one_of(op.op, ("sum", "prod", "max", "min", "by"), "scan")
    for each in op.sources + op.results:
        in_space(each, "a scanned tile", DATA, context)
        same_tile(op.src, each, context)
    if not 0 <= op.dim < max(1, len(op.src.extents)):
        context.fail(
            f"{op.src.buffer.name} has no dimension {op.dim}",
            expected=f"0 … {max(len(op.src.tile) - 1, 0)}",
        )
    left = tuple(op.src.extents[d] for d in long_dims(op.src.extents) if d != op.axis)
    for total in op.totals:
        if not fits(left, total.tile):
            context.fail(
                f"{total.buffer.name} does not have the shape of the totals",
                expected=shape_text(left),
                got=shape_text(total.tile),
            )
    count = len(op.sources)
    by = op.by or Operator(tuple(Var("x") for _ in range(2 * count)), ())
    counts = (len(op.results), len(op.totals) or count, len(by.vars) // 2)
    if (op.op == "by") != (op.by is not None) or counts != (count,) * 3:
        context.fail(
            "scan's operator does not fit its tiles",
            expected="by= with scan by; as many results and totals as sources, and an operator of "
            "two elements of each",
        )
    for source, result in zip(op.sources, by.result, strict=False):
        context.dtype(result.dtype, source.dtype, "the operator's result")
    for result in by.result:
        for var in variables(result) - set(by.vars):
            context.fail(f"the operator uses {var.name}, which is not one of its variables")


@rule
def _relayout(op: Relayout, context: Context) -> None:
    _moves(op, (Space.FRAGMENT,), context)
    same_tile(op.src, op.dst, context)
    context.dtype(op.src.dtype, op.dst.dtype, "the source")


# ── synchronisation ──────────────────────────────────────────────────────────────────────────


@rule
def _barrier_init(op: BarrierInit, context: Context) -> None:
    in_space(op.barrier, "the barrier", (Space.BARRIER,), context)
    context.integer(op.count, "the count")
    if isinstance(op.count, Const) and op.count.value < 1:
        context.fail("a barrier needs at least one arrival", got=op.count.value)


@rule
def _arrive(op: Arrive, context: Context) -> None:
    one_barrier(op.barrier, context)
    context.integer(op.bytes, "bytes")
    context.integer(op.count, "the count")
    context.one_of(op.by, ("instance", "warps"), "by")


@rule
def _wait(op: Wait, context: Context) -> None:
    one_barrier(op.barrier, context)
    context.integer(op.phase, "the phase")
    if op.barrier.cta is not None:
        context.fail(
            "a block can only wait on its own barriers",
            fix=f"arrive at {op.barrier.buffer.name} in the waiting block instead",
        )


@rule
def _group(op: Commit | WaitGroup, context: Context) -> None:
    context.one_of(op.unit, GROUP_UNITS, "unit")
    if isinstance(op, WaitGroup):
        if op.pending < 0:
            context.fail("pending must not be negative", got=op.pending)
        if op.read and op.unit != "bulk":
            context.fail("read= is for bulk stores", got=f"wait_group {op.unit}")


_FENCES = ("proxy_async", "wgmma", "barrier_init", "cluster", "cluster_shared", "gpu")


@rule
def _fence(op: Fence, context: Context) -> None:
    context.one_of(op.kind, _FENCES, "fence")


@rule
def _sync(op: Sync, context: Context) -> None:
    context.one_of(op.scope, ("block", "warp", "cluster", "named"), "scope")
    context.one_of(op.order, ("all", "shared"), "order")
    if op.scope == "cluster":
        need_cluster("sync cluster", context)
    if op.scope != "named":
        if op.id is not None or op.threads is not None:
            context.fail(f"sync {op.scope} takes no id and no threads", fix="sync named …")
        return
    if op.id is None or op.threads is None:
        context.fail("sync named needs id and threads", fix="add id=1 threads=128")
    context.integer(op.id, "the id")
    if isinstance(op.id, Const) and not 0 <= op.id.value < NAMED_BARRIERS:
        context.fail(
            "there is no such named barrier",
            expected=f"0 … {NAMED_BARRIERS - 1}",
            got=op.id.value,
            fix="use a smaller number, or T.sync_threads() for the whole block",
        )
    assert context.kernel is not None
    most = context.kernel.warps * WARP
    if op.threads % WARP or not 0 < op.threads <= most:
        context.fail(
            "a named barrier counts whole warps of the block",
            expected=f"a multiple of {WARP} up to {most}",
            got=op.threads,
        )


@rule
def _turn(op: Turn, context: Context) -> None:
    context.one_of(op.edge, ("begin", "end"), "edge of a turn")
    role = context.inside(Role)
    if not isinstance(role, Role):
        context.fail(
            "a turn outside a role", fix="put it into the role whose warpgroups take turns"
        )
    if role.instances > 1:
        context.fail(
            "turns are for warpgroups that run a role together",
            expected=f"role {role.name} with one instance",
            got=f"{role.instances} instances",
            fix="let instances meet by named barriers",
        )
    if role.first % GROUP or role.warps % GROUP or role.warps < 2 * GROUP:
        context.fail(
            "turns are taken by whole warpgroups, two or more",
            expected=f"first and warps of role {role.name} multiples of 4, at least 8 warps",
            got=f"warps {role.first} + {role.warps}",
        )


# ── late ─────────────────────────────────────────────────────────────────────────────────────


@rule
def _intrinsic(op: Intrinsic, context: Context) -> None:
    context.one_of(op.name, INTRINSICS, "intrinsic")
    if op.result is not None and not INTRINSICS[op.name].yields:
        context.fail(f"{op.name} has no result")
    if op.name == "ptx":
        _ptx(op, context)


def _ptx(op: Intrinsic, context: Context) -> None:
    """Registers that the text writes are results, or variables of the thread in front."""
    written = op.width or 0
    for arg in op.args[:written]:
        if not isinstance(arg, Region) or not arg.buffer.is_local:
            context.fail("ptx writes what is no variable of the thread", expected="&x in front")
    beyond = {n for n in written_operands(op.text) if n > written or (n == 0 and op.result is None)}
    if not 0 <= written <= len(op.args) or beyond:
        context.fail(
            f"ptx writes ${min(beyond, default=written)}, an operand that it only reads",
            expected="operands that are written in front, and their number as width=",
        )


@rule
def _hint(op: Hint, context: Context) -> None:
    if op.name == "assume" and op.value is not None:
        context.boolean(op.value, "what is assumed")
