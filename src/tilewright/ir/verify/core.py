"""What the verifier's rules stand on: stages, the context of an op, names in scope, the checks that
many rules share, and those of expressions, buffers and regions. Every failure raises `VerifyError`
at the op's position."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from math import prod
from typing import Any, NoReturn, TypeVar

from tilewright.ir.core import *
from tilewright.ir.intrinsics import FUNCTIONS
from tilewright.ir.text.expr import did_you_mean
from tilewright.ir.text.printer import FORMS, print_op
from tilewright.support.errors import VerifyError, occurrence


class Stage(Enum):
    """How far a program has come. TILE: layouts, atoms and sync are optional. LAID_OUT: all
    chosen. THREAD: scalars, loops, intrinsics and sync only."""

    TILE = "tile"
    LAID_OUT = "laid_out"
    THREAD = "thread"


@dataclass
class Context:
    """Where the verifier is: the op, what is in scope and what encloses it."""

    program: Program
    stage: Stage
    op: Op | None = None
    kernel: Kernel | None = None
    has_roles: bool = False
    enclosing: list[Op] = field(default_factory=list)
    vars: dict[str, Var] = field(default_factory=dict)
    buffers: dict[str, Buffer] = field(default_factory=dict)
    names: dict[str, Op | None] = field(default_factory=dict)
    load: Load | None = None  # of the op's expressions, the one that is checked

    @property
    def laid_out(self) -> bool:
        return self.stage is Stage.LAID_OUT

    def inside(self, *classes: type[Op]) -> Op | None:
        """The innermost enclosing op of one of `classes`."""
        return next((op for op in reversed(self.enclosing) if isinstance(op, classes)), None)

    def fail(self, message: str, **details: Any) -> NoReturn:
        """Raise for the op, or another as `op`, at its position or the nearest one around it."""
        op: Op | None = details.pop("op", self.op)
        part = self.load.loc if self.load is not None else None
        loc = occurrence(part, op.loc if op is not None else None)
        for outer in reversed(self.enclosing):
            loc = loc or outer.loc
        if op is not None and op.loc is None and type(op) in FORMS:
            details["notes"] = (f"in: {print_op(op).splitlines()[0]}",)
        raise VerifyError(message, loc=loc or self.program.loc, **details)

    # ── what the op's operands must be ───────────────────────────────────────────────────────

    def integer(self, expr: Expr | None, what: str) -> None:
        if expr is not None and not expr.dtype.is_int:
            self.fail(f"{what} must be an integer", expected="an integer", got=expr.dtype)

    def boolean(self, expr: Expr, what: str) -> None:
        if not expr.dtype.is_bool:
            self.fail(
                f"{what} must be a bool",
                expected="bool",
                got=expr.dtype,
                fix=f"compare: {expr} != 0",
            )

    def dtype(self, got: DType, expected: DType, what: str) -> None:
        if got != expected:
            self.fail(
                f"{what} has another type than what it goes to",
                expected=expected,
                got=got,
                fix=f"convert it: {expected}(…)",
            )

    def one_of(self, value: Any, known: tuple[Any, ...] | dict[str, Any], what: str) -> None:
        if value not in known:
            self.fail(
                f"unknown {what} {value!r}",
                expected="one of " + ", ".join(map(str, known)),
                fix=did_you_mean(str(value), map(str, known)),
            )


Check = Callable[[Any, Context], None]
C = TypeVar("C", bound=Check)
RULES: dict[str, list[Check]] = {}  # by the name of an op's class


def rule(check: C) -> C:
    """A check of the ops that its first parameter is annotated with."""
    for name in check.__annotations__["op"].split(" | "):
        RULES.setdefault(name, []).append(check)
    return check


# ── names ────────────────────────────────────────────────────────────────────────────────────


def define(what: Var | Buffer, context: Context) -> None:
    """Bring a variable or buffer into scope; its name must be new in the whole program."""
    if what.name in context.names:
        before = context.names[what.name]
        where = f" at {before.loc}" if before is not None and before.loc else ""
        context.fail(
            f"{what.name} is defined twice{where}",
            expected="names that are unique within the program",
            fix="rename one (rewrite.rename_unique gives a copied body fresh names)",
        )
    context.names[what.name] = context.op
    if isinstance(what, Var):
        context.vars[what.name] = what
    else:
        context.buffers[what.name] = what


def use_var(var: Var, context: Context) -> None:
    found = context.vars.get(var.name)
    if found is var:
        return
    if found is not None:
        context.fail(
            f"{var.name} is used as {var.dtype} but defined as {found.dtype}",
            expected=found.dtype,
            got=var.dtype,
        )
    where = "is not in scope here" if var.name in context.names else "is never defined"
    if var.name in context.buffers:
        where = "is a buffer, not a variable"
    fix = did_you_mean(var.name, context.vars) or (
        f"make {var.name} a parameter, or a size of one: sizes are known from the shapes of tensors"
    )
    context.fail(f"variable {var.name} {where}", fix=fix)


def use_buffer(buffer: Buffer, context: Context) -> None:
    found = context.buffers.get(buffer.name)
    if found is buffer or found == buffer:
        return
    if found is None:
        where = "is not in scope here" if buffer.name in context.names else "is never allocated"
        fix = did_you_mean(buffer.name, context.buffers)
        context.fail(f"buffer {buffer.name} {where}", fix=fix)
    different = [
        name
        for name in ("shape", "dtype", "space", "strides", "layout")
        if getattr(found, name) != getattr(buffer, name)
    ]
    context.fail(
        f"{buffer.name} here is not the buffer that was allocated: {', '.join(different)} differ",
        expected=", ".join(_shown(getattr(found, name)) for name in different),
        got=", ".join(_shown(getattr(buffer, name)) for name in different),
        fix="replace it everywhere (rewrite.replace_buffers)",
    )


def _shown(value: Any) -> str:
    return f"({', '.join(map(str, value))})" if isinstance(value, tuple) else str(value)


# ── expressions, buffers and regions ─────────────────────────────────────────────────────────────


# ── expressions ──────────────────────────────────────────────────────────────────────────────


def check_expr(expr: Expr, context: Context) -> None:
    """Every node of `expr`: names in scope, types right. Types are looked at once: an expression
    never changes, and what is right about it stays so wherever it stands."""
    if isinstance(expr, Const):
        return
    named: tuple[Var | Load, ...] | None = expr.__dict__.get("_named")
    if named is not None:
        if isinstance(expr, (Var, Load)):
            _check_named(expr, context)
        for node in named:
            _check_named(node, context)
        return
    for each in walk(expr):
        if isinstance(each, (Var, Load)):
            _check_named(each, context)
        elif not isinstance(each, Const):
            _NODE_CHECKS[type(each)](each, context)
    expr.__dict__["_named"] = tuple(
        each for each in walk(expr) if isinstance(each, (Var, Load)) and each is not expr
    )


def _check_named(node: Var | Load, context: Context) -> None:
    if isinstance(node, Var):
        use_var(node, context)
    else:
        _check_load(node, context)


def _check_bin(e: Bin, context: Context) -> None:
    if e.op not in BIN_OPS:
        context.fail(f"unknown operator {e.op!r}", expected=" ".join(BIN_OPS))
    kind = _same_type(e, e.a, e.b, context)
    if e.op in ("and", "or"):
        wrong, needs = not kind.is_bool, "bools"
    elif e.op in ("&", "|", "^"):
        wrong, needs = not (kind.is_int or kind.is_bool), "integers or bools"
    elif e.op in ("<<", ">>"):
        wrong, needs = not kind.is_int, "integers"
    elif e.op == "/":
        wrong, needs = not kind.is_float, "floats"
    else:
        wrong, needs = not (kind.is_int or kind.is_float), "numbers"
    if wrong:
        context.fail(f"'{e.op}' needs {needs}", expected=needs, got=f"{kind} in {e}")


def _check_cmp(e: Cmp, context: Context) -> None:
    if e.op not in CMP_OPS:
        context.fail(f"unknown comparison {e.op!r}", expected=" ".join(CMP_OPS))
    _same_type(e, e.a, e.b, context)


def _same_type(e: Expr, a: Expr, b: Expr, context: Context) -> DType:
    if a.dtype != b.dtype:
        context.fail(
            f"the sides of {e} have different types",
            expected="one type on both sides",
            got=f"{a.dtype} and {b.dtype}",
            fix=f"convert one side: {a.dtype}({b})",
        )
    return a.dtype


def _check_select(e: Select, context: Context) -> None:
    context.boolean(e.cond, f"the condition of {e}")
    _same_type(e, e.a, e.b, context)


def _check_cast(e: Cast, context: Context) -> None:
    if "barrier" in (e.dtype.kind, e.a.dtype.kind):
        context.fail("barriers do not convert", got=e)


_DOMAINS: dict[str, Callable[[DType], bool]] = {
    "float": lambda d: d.is_float,
    "int": lambda d: d.is_int,
    "bool": lambda d: d.is_bool,
    "any": lambda d: d.kind != "barrier",
}


def _check_call(e: Call, context: Context) -> None:
    function = FUNCTIONS.get(e.name)
    if function is None:
        context.fail(f"unknown function {e.name}", expected="one of intrinsics.FUNCTIONS")
    if len(e.args) != function.arity:
        context.fail(f"{e.name} takes {function.arity} arguments", got=f"{len(e.args)} arguments")
    if not all(_DOMAINS[function.domain](a.dtype) for a in e.args):
        context.fail(
            f"{e.name} takes {function.domain} arguments",
            expected=function.domain,
            got=", ".join(str(a.dtype) for a in e.args),
        )
    first = e.args[0].dtype
    if function.result != "free" and any(a.dtype != first for a in e.args):
        context.fail(
            f"the arguments of {e.name} have different types",
            got=", ".join(str(a.dtype) for a in e.args),
        )
    if function.result == "free":
        return
    if function.result == "bool":
        result = BOOL
    else:
        result = INT32 if e.name == "neg" and first.is_bool else first
    if e.dtype != result:
        context.fail(f"{e.name} has another type", expected=result, got=e.dtype)


def _check_load(e: Load, context: Context) -> None:
    context.load = e
    use_buffer(e.buffer, context)
    if e.buffer.space is Space.BARRIER:
        context.fail(f"{e.buffer.name} is a barrier and has no value")
    check_indices(e.buffer, e.indices, context)
    context.load = None


_NODE_CHECKS: dict[type[Expr], Check] = {
    Bin: _check_bin,
    Cmp: _check_cmp,
    Select: _check_select,
    Cast: _check_cast,
    Call: _check_call,
}


def check_indices(buffer: Buffer, indices: tuple[Expr, ...], context: Context) -> None:
    """Right number, integers, and inside a tile where they are constant."""
    if len(indices) != buffer.rank:
        context.fail(
            f"{buffer.name} has {buffer.rank} dimensions",
            expected=f"{buffer.rank} indices",
            got=f"{len(indices)}",
        )
    for axis, (index, size) in enumerate(zip(indices, buffer.shape, strict=True)):
        context.integer(index, f"index {axis} of {buffer.name}")
        _check_inside(buffer, axis, index, 1, size, context)


def _check_inside(
    buffer: Buffer, axis: int, start: Expr, extent: int, size: Expr, context: Context
) -> None:
    """Outside a global tensor reads zero; outside a tile is an error."""
    if buffer.is_global or not (isinstance(start, Const) and isinstance(size, Const)):
        return
    if not 0 <= start.value <= size.value - extent:
        context.fail(
            f"index {axis} of {buffer.name} is out of range",
            expected=f"0 … {size.value - extent}",
            got=start.value,
        )


# ── buffers and regions ──────────────────────────────────────────────────────────────────────


def check_buffer(buffer: Buffer, context: Context) -> None:
    """What a declaration must keep, whatever it is for."""
    name = buffer.name
    if (buffer.dtype.kind == "barrier") != (buffer.space is Space.BARRIER):
        context.fail(
            f"{name}: barriers, and only they, live in barrier space",
            got=f"{buffer.dtype} in {buffer.space.value}",
        )
    for size in buffer.shape:
        if not size.dtype.is_int or (isinstance(size, Const) and size.value < 1):
            context.fail(f"{name}: sizes must be positive integers", got=size)
    if not buffer.is_global and not buffer.is_static:
        context.fail(
            f"{name}: tiles have constant sizes",
            got=f"({', '.join(map(str, buffer.shape))})",
            fix="use the largest size as a constant and guard the rest",
        )
    inner = buffer.shape[-1] if buffer.shape else None
    if buffer.dtype.packed and isinstance(inner, Const):
        per_byte = 8 // buffer.dtype.bits if 8 % buffer.dtype.bits == 0 else 4
        if inner.value % per_byte:
            context.fail(
                f"{name}: the innermost extent of a packed type fills whole bytes",
                expected=f"a multiple of {per_byte}",
                got=inner.value,
            )
    if buffer.strides is not None and (not buffer.is_global or len(buffer.strides) != buffer.rank):
        context.fail(
            f"{name}: strides are for global tensors, one per dimension",
            got=f"{len(buffer.strides)} strides of rank {buffer.rank} in {buffer.space.value}",
        )
    if buffer.layout is not None or context.laid_out:
        _check_layout(buffer, context)


def _check_layout(buffer: Buffer, context: Context) -> None:
    layout = buffer.layout
    if buffer.space not in (Space.SHARED, Space.FRAGMENT):
        if layout is not None:
            context.fail(
                f"{buffer.name}: only shared and fragment buffers have layouts",
                got=f"{layout} in {buffer.space.value}",
            )
        return
    if layout is None:
        context.fail(
            f"{buffer.name} has no layout at stage {context.stage.name}",
            fix='run layout inference, or give layout="…"',
        )
    if buffer.is_fragment:
        if not isinstance(layout, Fragment):
            context.fail(
                f"{buffer.name}: a fragment's layout says which thread holds what",
                expected="frag{tile=… tv=…}",
                got=repr(layout),
            )
        if prod(layout.tile) != prod(buffer.static_shape):
            _layout_misfit(buffer, str(layout.tile), context)
        return
    if isinstance(layout, Fragment):
        context.fail(f"{buffer.name}: a fragment layout on shared memory", got=repr(layout))
    if layout.size() != prod(buffer.static_shape):
        _layout_misfit(buffer, f"{layout} of size {layout.size()}", context)


def _layout_misfit(buffer: Buffer, got: str, context: Context) -> None:
    context.fail(
        f"{buffer.name}: the layout does not fit the buffer's shape",
        expected=f"{buffer.static_shape}, {prod(buffer.static_shape)} elements",
        got=got,
    )


def check_region(region: Region, context: Context) -> None:
    """Buffer in scope, integer starts and extents, inside a tile where they are constant."""
    buffer = region.buffer
    use_buffer(buffer, context)
    for axis, (start, extent, size) in enumerate(
        zip(region.starts, region.extents, buffer.shape, strict=True)
    ):
        check_expr(start, context)
        check_expr(extent, context)
        context.integer(start, f"index {axis} of {buffer.name}")
        context.integer(extent, f"extent {axis} of {buffer.name}")
        if isinstance(extent, Const):
            if extent.value < 1:
                context.fail(
                    f"extent {axis} of {buffer.name} must be positive",
                    got=extent.value,
                )
            _check_inside(buffer, axis, start, int(extent.value), size, context)
    if region.cta is None:
        return
    check_expr(region.cta, context)
    context.integer(region.cta, "the rank after '@'")
    need_cluster(f"{buffer.name}@{region.cta}", context)
    if buffer.space not in (Space.SHARED, Space.BARRIER):
        context.fail(
            f"{buffer.name} cannot be reached in another block",
            expected="shared memory or a barrier",
            got=buffer.space.value,
        )


def need_cluster(what: str, context: Context) -> None:
    if context.kernel is None or not context.kernel.cluster:
        context.fail(
            f"{what} in a kernel without a cluster",
            fix="give the kernel cluster=(…) and rank=r",
        )


def one_barrier(region: Region, context: Context) -> None:
    in_space(region, "the barrier", (Space.BARRIER,), context)
    if region.tile:
        context.fail(
            "one barrier is needed",
            got=f"{' × '.join(map(str, region.tile))} of {region.buffer.name}",
            fix=f"say which: {region.buffer.name}[i]",
        )


def in_space(region: Region, what: str, spaces: tuple[Space, ...], context: Context) -> None:
    if region.buffer.space not in spaces:
        context.fail(
            f"{what} {region.buffer.name} is in the wrong memory",
            expected=" or ".join(s.value for s in spaces),
            got=region.buffer.space.value,
        )


DATA = (Space.GLOBAL, Space.SHARED, Space.FRAGMENT, Space.LOCAL, Space.TMEM)
TILES = (Space.SHARED, Space.FRAGMENT, Space.LOCAL, Space.TMEM)
Extents = tuple[Expr, ...]


def fits(a: Extents, b: Extents) -> bool:
    """Whether two tile shapes may be equal: sizes known only at run time may be anything."""
    if all(isinstance(e, Const) for e in (*a, *b)) or len(a) == len(b):
        return len(a) == len(b) and all(
            x.value == y.value
            for x, y in zip(a, b, strict=True)
            if isinstance(x, Const) and isinstance(y, Const)
        )
    return True


def same_tile(a: Region, b: Region, context: Context) -> None:
    if not fits(a.tile, b.tile):
        context.fail(
            f"{a.buffer.name} and {b.buffer.name} have different shapes",
            expected=shape_text(a.tile),
            got=shape_text(b.tile),
            fix="shapes must be equal after extents of 1 are dropped",
        )


def shape_text(extents: Extents) -> str:
    return f"({', '.join(map(str, extents))})"
