"""Parameters: what a signature, a direct-style declaration or `T.empty` adds to a program."""

from __future__ import annotations

from dataclasses import replace
from math import lcm, prod
from typing import Any

from tilewright.ir.buffer import Buffer, Space
from tilewright.ir.dtype import DType
from tilewright.ir.dtype import dtype as find_dtype
from tilewright.ir.expr import Bin, Const, Expr, Var, loads, variables, wrap
from tilewright.ir.op import Dim
from tilewright.lang.builder import CHOSEN, Builder, current
from tilewright.lang.handles import Tile
from tilewright.lang.scalar import OPERATORS
from tilewright.lang.types import (
    Extent,
    ScalarType,
    Size,
    TensorType,
    dynamic,
    shape_tuple,
    size_expr,
    split_names,
    static_int,
)
from tilewright.support.errors import CompileError, Repair, current_loc, swap


def sizes(builder: Builder, shape: tuple[Any, ...], name: str) -> tuple[Expr, ...]:
    """A shape as expressions; sizes known at launch are noted with their contract."""
    found = []
    for axis, size in enumerate(shape):
        if isinstance(size, str):
            raise CompileError(
                f"dimension {axis} of {name} is a string",
                fix=f"write T.dynamic({size!r})",
                repair=_named_size(size),
                code="annotation",
            )
        expr = size_expr(size, f"dimension {axis} of {name}")
        _note(builder, size, expr)
        if loads(expr):
            raise CompileError(
                f"dimension {axis} of {name} is known only inside a kernel",
                expected="sizes made of numbers, T.dynamic sizes and scalar parameters",
                fix="allocate for the largest case",
            )
        found.append(expr)
    return tuple(found)


def _named_size(name: str) -> Repair:
    said = [swap(q + name + q, f"T.dynamic({q}{name}{q})") for q in ('"', "'")]
    return lambda text: next(filter(None, (repair(text) for repair in said)), None)


def _note(builder: Builder, size: Any, expr: Expr) -> None:
    """The sizes known at launch that `size` is made of, and their contracts."""
    scalars = {p for p in builder.params if isinstance(p, Var)}
    noted = {dim.var: dim for dim in getattr(size, "dims", ())}
    for var in variables(expr):
        if var in scalars:
            continue
        known = builder.dims.get(var)
        builder.dims[var] = _meet(known, noted.get(var, Dim(var)))
        if known is None:
            builder.fresh(var.name)


def _meet(a: Dim | None, b: Dim) -> Dim:
    """Both contracts."""
    if a is None:
        return b
    highs = [m for m in (a.max, b.max) if m is not None]
    low, high = max(a.min, b.min), min(highs) if highs else None
    if high is not None and high < low:
        raise CompileError(
            f"the contracts of {b.var.name} do not meet",
            expected="one contract for one name",
            got=f"min={low} and max={high}",
            fix=f"make {b.var.name} once and use it in both shapes, or rename one",
        )
    return Dim(b.var, low, high, lcm(a.multiple_of, b.multiple_of))


def check_packed(buffer: Buffer) -> None:
    """4-bit tensors are packed along the innermost dimension."""
    if not buffer.dtype.packed or not buffer.shape:
        return
    inner = getattr(buffer.shape[-1], "value", None)
    per_byte = 8 // buffer.dtype.bits if 8 % buffer.dtype.bits == 0 else 4
    if isinstance(inner, int) and inner % per_byte:
        raise CompileError(
            f"{buffer.name} packs {per_byte} {buffer.dtype} elements into a byte",
            expected=f"an innermost extent that is a multiple of {per_byte}",
            got=str(inner),
            fix=f"pad the innermost extent to {-(-inner // per_byte) * per_byte}",
            repair=swap(str(inner), str(-(-inner // per_byte) * per_byte)),
            code="shape",
        )


def check_addressable(buffer: Buffer) -> None:
    """A tensor whose bytes 64-bit addresses can count."""
    sizes = [size.value for size in buffer.shape if isinstance(size, Const)]
    total = buffer.dtype.storage_bytes(int(prod(sizes)))
    if total >= 2**63:
        raise CompileError(
            f"{buffer.name} is too large: no address reaches its end",
            expected="less than 2**63 bytes",
            got=f"{total:.3g} bytes",
            fix="use smaller sizes",
            code="too-large",
        )


def add_tensor(builder: Builder, name: str, kind: TensorType, *, partial: bool = False) -> Tile:
    """A tensor parameter."""
    strides = None if kind.strides is None else tuple(map(wrap, kind.strides))
    for stride, expr in zip(kind.strides or (), strides or (), strict=True):
        _note(builder, stride, expr)  # a size may be known from a stride alone
    buffer = Buffer(
        builder.fresh(name),
        sizes(builder, kind.shape, name),
        kind.dtype,
        Space.GLOBAL,
        strides,
        loc=current_loc(),
        partial=partial,
    )
    if buffer.strides is not None and len(buffer.strides) != buffer.rank:
        raise CompileError(
            f"{name} has {buffer.rank} dimensions and {len(buffer.strides)} strides",
            expected=f"{buffer.rank} strides, in elements",
            got=str(len(buffer.strides)),
            fix="give one stride per dimension",
            code="shape",
        )
    check_packed(buffer)
    check_addressable(buffer)
    builder.params.append(buffer)
    return Tile(buffer, declared=kind.shape)


def add_parameter(builder: Builder, name: str, annotation: Any) -> Any:
    """The value of a parameter of a `prim_func`."""
    if isinstance(annotation, TensorType):
        if annotation.space is not Space.GLOBAL:
            raise CompileError(
                f"parameter {name!r} must be a tensor in global memory",
                fix="annotate it with T.Tensor: T.SharedBuffer and T.FragmentBuffer are for macros",
                code="annotation",
            )
        return add_tensor(builder, name, annotation)
    if isinstance(annotation, Size):
        raise CompileError(
            f"parameter {name!r} is annotated with a size",
            fix="sizes come from the shapes of tensors; annotate a number with T.int32",
        )
    if not isinstance(annotation, ScalarType):
        try:
            annotation = ScalarType(annotation)
        except CompileError:
            raise CompileError(
                f"parameter {name!r} has no usable annotation",
                expected="T.Tensor(shape, dtype) or a scalar type such as T.int32",
                got=repr(annotation)[:60],
                fix=f'write {name}: T.Tensor((M, N), "float32")',
                code="annotation",
            ) from None
    var = Var(builder.fresh(name), annotation.dtype)
    builder.params.append(var)
    return var


# ── direct style ─────────────────────────────────────────────────────────────────────────────


def _shape_of(array: Any, kind: DType) -> tuple[int, ...]:
    """The sizes of an array in elements of `kind`: packed ones come as bytes."""
    shape = tuple(int(s) for s in array.shape)
    if kind.packed and shape and str(array.dtype).removeprefix("torch.") != kind.name:
        return (*shape[:-1], shape[-1] * 8 // kind.bits)
    return shape


def declare_argument(builder: Builder, name: str, kind: TensorType) -> Tile:
    """`A: T.Tensor((M, N), dtype)` in the body, for an array that was passed as `A`."""
    arguments = builder.arguments
    if name in builder.plain:
        raise CompileError(
            f"{name} is declared as a tensor, and is none",
            expected="an array",
            got=repr(builder.plain[name])[:60],
            fix=f"pass an array: np.array({name}, np.float32)",
            code="arguments",
        )
    if name not in arguments:
        raise CompileError(
            f"{name!r} is not a parameter of this function",
            expected="one of " + (", ".join(arguments) or "its array arguments"),
            fix="use T.empty for an output, T.alloc_* for a tile",
            code="annotation",
        )
    if arguments[name] is None:  # compiled before any array is there
        builder.declared.append(name)
        return add_tensor(builder, name, kind)
    if kind.takes:
        kind = replace(kind, dtype=find_dtype(str(arguments[name].dtype).removeprefix("torch.")))
    came = _shape_of(arguments[name], find_dtype(kind.dtype))
    if builder.probing:
        for size, value in zip(kind.shape, came, strict=False):
            name_, times = _multiple(size)
            if name_ and value % times == 0:
                builder.consts.setdefault(name_, value // times)
    tile = add_tensor(builder, name, kind)
    if len(came) != tile.buffer.rank:
        raise CompileError(
            f"{name} is declared with {tile.buffer.rank} dimensions",
            got=f"an array of shape {came}",
            fix=f"pass an array of {tile.buffer.rank} dimensions, or declare {name} otherwise",
            code="shape",
        )
    for axis, (size, value) in enumerate(zip(tile.buffer.shape, came, strict=True)):
        if isinstance(size, Const) and size.value != value:
            raise CompileError(
                f"dimension {axis} of {name} does not fit its declaration",
                expected=str(size.value),
                got=f"{value}, in an array of shape {came}",
                fix=f"pass an array of that size, or declare it as a size of T.const: {name}'s "
                "own size binds it",
                code="shape",
            )
    builder.declared.append(name)
    return tile


def _multiple(size: Any) -> tuple[str | None, int]:
    """`M` or `M * 4` as a name and a factor."""
    expr = size.as_expr() if isinstance(size, Size) else size
    if isinstance(expr, Var):
        return expr.name, 1
    if isinstance(expr, Bin) and expr.op == "*":
        for a, b in ((expr.a, expr.b), (expr.b, expr.a)):
            if isinstance(a, Var) and isinstance(b, Const) and b.value > 0:
                return a.name, int(b.value)
    return None, 1


def empty(*shape: Any, dtype: Any = None, partial: bool = False) -> Tile:
    """An output tensor that the call allocates and the function returns, uninitialised. One of
    shape `()` is a scalar: `Y[()] = total`.

    What nothing wrote must not be read, nor added to by an atomic: the sanitizer reports it. It
    warns of elements that no block writes; `partial=True` says that this is meant.

    >>> @tw.jit
    ... def double(A):
    ...     N = T.const("N")
    ...     A: T.Tensor((N,), "float32")
    ...     B = T.empty((N,), "float32")
    ...     with T.Kernel(T.ceildiv(N, 128)) as bx:
    ...         for i in T.Parallel(128):
    ...             B[bx * 128 + i] = A[bx * 128 + i] * 2
    ...     return B
    >>> double(np.arange(4, dtype=np.float32)).tolist()
    [0.0, 2.0, 4.0, 6.0]
    """
    builder = current()
    if builder.kernel is not None:
        raise CompileError("T.empty inside a kernel", fix="call it before the kernel begins")
    given = list(shape)
    if dtype is None and len(given) > 1 and isinstance(given[-1], (str, DType)):
        dtype = given.pop()
    extents = shape_tuple(given[0]) if len(given) == 1 else tuple(given)
    kind = TensorType(extents, find_dtype("float32" if dtype is None else dtype))
    tile = add_tensor(builder, builder.hint or "out", kind, partial=bool(partial))
    builder.outputs.append(tile.name)
    return tile


def const(names: str, dtype: Any = None) -> Any:
    """Compile-time sizes, bound by name to the shapes of the arguments. A new size is a new binary.

    >>> @tw.jit
    ... def column_sums(A):
    ...     M, N = T.const("M, N")
    ...     A: T.Tensor((M, N), "float32")
    ...     B = T.empty((N,), "float32")
    ...     with T.Kernel(1):
    ...         a = T.alloc_fragment((M, N), "float32")
    ...         T.copy(A, a)
    ...         s = T.alloc_fragment((N,), "float32")
    ...         T.reduce_sum(a, s, dim=0)
    ...         T.copy(s, B)
    ...     return B
    >>> column_sums(np.ones((3, 2), np.float32)).tolist()
    [3.0, 3.0]
    """
    builder = current()
    if builder.probing:
        return dynamic(names)
    found = []
    for name in split_names(names):
        builder.asked.append(name)
        if builder.stand_in is not None:
            builder.consts.setdefault(name, builder.stand_in)
        if name not in builder.consts:
            if builder.probe_error is not None:
                raise builder.probe_error
            raise CompileError(
                f"nothing determines the size {name!r}",
                expected=f"an argument declared with {name} as one of its sizes",
                fix=f"declare one: A: T.Tensor(({name}, …), dtype); or compile with {name}=…",
                code="arguments",
            )
        size = static_int(builder.consts[name], f"the size {name}")
        # an empty one is known at launch, so that no tile has to have no elements; not at most 1,
        # which would make its only index 0 and prove nothing of a size that may be 0
        found.append(Extent(size, name) if size else dynamic(name, max=2))
    return tuple(found) if len(found) > 1 else found[0]


def chosen(name: str, most: int) -> int:
    """A number from 1 to `most` that the compiler chooses, such as how many blocks share the keys
    of a query. A schedule names it as it names tiles. It is 1 where no model says more.

    >>> @tw.jit
    ... def total(X):
    ...     N = T.const("N")
    ...     X: T.Tensor((N,), "float32")
    ...     Y = T.empty((1,), "float32")
    ...     parts = T.chosen("parts", most=64)
    ...     sums, run = T.alloc_global((parts,), "float32"), T.ceildiv(N, parts)
    ...     for p in T.tile(T.each(parts)):
    ...         found = T.zeros(())
    ...         for n in T.tile((p * run, T.min(p * run + run, N))):
    ...             found += T.sum(X[n], dim=0)
    ...         sums[p] = found
    ...     for _ in T.tile(T.each(1)):
    ...         Y[0] = T.sum(sums[:], dim=0)
    ...     return Y
    >>> total(np.ones(100, np.float32)).tolist()
    [100.0]
    >>> total.with_schedule(tiles={"parts": 3})(np.ones(100, np.float32)).tolist()
    [100.0]
    """
    builder = current()
    if builder.kernel is not None:
        raise CompileError(
            "T.chosen inside a kernel",
            expected="a number that is known before any kernel begins",
            fix="call it before the first `for … in T.tile(…)`",
        )
    if builder.probing:
        return 1
    builder.numbers[name] = static_int(most, "most of T.chosen", 1)
    told = dict(CHOSEN.get().schedule.tiles).get(name, builder.sizes.numbers.get(name, 1))
    if told > most:
        raise CompileError(
            f"the schedule has {told} for {name!r}",
            expected=f"at most {most}, as the text says",
            fix="choose a smaller number, or leave it open",
            code="too-large",
        )
    return told


class Undeclared:
    """An array argument before its declaration, or an argument that was left out."""

    def __init__(self, name: str, missing: bool = False) -> None:
        self.__dict__["_name"] = name
        self.__dict__["_missing"] = missing

    def _fail(self, *_: Any) -> Any:
        if self._missing:
            raise CompileError(
                f"argument {self._name!r} is missing",
                fix=f"pass {self._name}=…, or declare it if it is an array: "
                f'{self._name}: T.Tensor((M, N), "float32")',
            )
        raise CompileError(
            f"array argument {self._name!r} is used before it is declared",
            fix='declare its sizes and it first: M, N = T.const("M, N"); '
            f'{self._name}: T.Tensor((M, N), "float32")',
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            return object.__getattribute__(self, name)
        return self._fail()


for _name in (*OPERATORS, "getitem", "setitem", "iter"):
    setattr(Undeclared, f"__{_name}__", Undeclared._fail)
