"""Annotations, element types and sizes, and the checks of arguments that many words share."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeVar

from tilewright.ir.buffer import Space
from tilewright.ir.dtype import DTYPES, DType, dtype
from tilewright.ir.expr import Const, Expr, Var, cast, wrap
from tilewright.ir.op import Dim
from tilewright.lang.builder import in_kernel
from tilewright.lang.scalar import Scalar, concrete, is_runtime
from tilewright.support.errors import CompileError, entry, swap

F = TypeVar("F", bound=Callable[..., Any])


def named(name: str, doc: str) -> Callable[[F], F]:
    """A word that a table makes."""

    def name_it(word: F) -> F:
        word.__name__ = word.__qualname__ = name
        word.__doc__ = doc
        return word

    return name_it


def static_int(value: Any, what: str, least: int | None = None) -> int:
    """`value` as a compile-time integer."""
    value = concrete(value)
    is_array = getattr(value, "ndim", 0) > 0  # arrays have an `__index__` that fails
    if isinstance(value, (bool, Expr)) or is_array or not hasattr(value, "__index__"):
        raise CompileError(
            f"{what} must be a compile-time integer",
            got="a run-time value" if isinstance(value, Expr) else repr(value)[:60],
            fix="use a number, or an argument of the factory",
            code="not-constant",
        )
    number = int(value.__index__())
    if least is not None and number < least:
        raise CompileError(
            f"{what} must be at least {least}", got=str(number), fix=f"write {least} or more"
        )
    return number


def integer(
    value: Any,
    what: str,
    fix: str = "divide with // instead of /, or cast with T.int32(...)",
    bools: bool = False,
) -> Expr:
    """`value` as an integer expression."""
    expr = wrap(value)
    if not (expr.dtype.is_int or (bools and expr.dtype.is_bool)):
        raise CompileError(
            f"{what} must be an integer",
            got=repr(value) if isinstance(value, float) else f"a value of type {expr.dtype}",
            fix=fix,
            code="not-integer",
            repair=swap("/", "//"),
        )
    return expr


def one_of(value: Any, known: Collection[Any], what: str, fix: str) -> Any:
    """`value` where it is known; what it stands for, in a mapping."""
    if value not in known:
        raise CompileError(
            what,
            expected=", ".join(repr(each) for each in known if each is not None),
            got=repr(value),
            fix=fix,
        )
    return known[value] if isinstance(known, Mapping) else value


# ── element types and sizes ──────────────────────────────────────────────────────────────────────


class ScalarType(str):
    """An element type as users name it: `T.float16`.

    It is its own name (a `str`), so it compares and formats like one; called, it casts.

    >>> import tilewright.language as T
    >>> T.dtype("float") == T.float32, T.float16.bits, T.float16.bytes
    (True, 16, 2)
    """

    def __new__(cls, name: Any) -> ScalarType:
        return super().__new__(cls, dtype(name).name)

    @property
    def dtype(self) -> DType:
        return DTYPES[str(self)]

    bits = property(lambda self: self.dtype.bits)
    bytes = itemsize = property(lambda self: self.dtype.bytes)

    def as_torch(self) -> Any:
        """The PyTorch type of the same name."""
        import torch

        return getattr(torch, str(self))

    def __call__(self, value: Any = 0) -> Expr:
        return cast(wrap(value, self.dtype), self.dtype)

    # `A.dtype` is a ScalarType and `(A[0] + 1).dtype` a DType: comparing them silently to False
    # would choose the wrong branch of a kernel.
    def __eq__(self, other: object) -> bool:
        if isinstance(other, DType):
            return self.dtype == other
        if isinstance(other, str):
            return str(self) == str(other) or _alias(other) == str(self)
        if type(other).__module__.split(".")[0] in ("torch", "numpy"):
            return dtype(other) == self.dtype
        return NotImplemented

    def __ne__(self, other: object) -> bool:
        equal = self.__eq__(other)
        return NotImplemented if equal is NotImplemented else not equal

    __hash__ = str.__hash__

    def __repr__(self) -> str:
        return f"T.{self}"


def _alias(name: str) -> str | None:
    try:
        return dtype(name).name
    except CompileError:
        return None


class Size(Scalar):
    """A size known at launch, `T.dynamic("m")`, or arithmetic of sizes outside a kernel, `n * 4`,
    with the contracts of all that it is made of."""

    def __init__(self, expr: Expr, dims: tuple[Dim, ...]) -> None:
        self.expr, self.dims = expr, dims

    dtype = property(lambda self: ScalarType(self.expr.dtype))
    name = property(lambda self: self.expr.name)

    def as_expr(self) -> Expr:
        return self.expr

    def __repr__(self) -> str:
        return f"T.dynamic({self.name!r})" if isinstance(self.expr, Var) else str(self.expr)


def _size_operator(name: str) -> Callable[[Any, Any], Any]:
    def operator(self: Size, other: Any) -> Any:
        found = getattr(self.as_expr(), name)(other)
        more = other.dims if isinstance(other, Size) else ()
        sizes = more or (isinstance(other, int) and not isinstance(other, bool))
        if not sizes or in_kernel() or not isinstance(found, Expr):
            return found
        return Size(found, (*self.dims, *more))

    return operator


for _name in ("__add__", "__radd__", "__sub__", "__rsub__", "__mul__", "__rmul__"):
    setattr(Size, _name, _size_operator(_name))


class Extent(int):
    """A size of `T.const`, which dimensions of values match by name."""

    name: str

    def __new__(cls, value: int, name: str) -> Extent:
        made = super().__new__(cls, value)
        made.name = name
        return made


def split_names(names: str) -> list[str]:
    """'M, N' or 'M N' as names."""
    if not isinstance(names, str):
        raise CompileError(
            "a size needs a name", got=repr(names)[:60], fix='write a string: T.dynamic("m")'
        )
    found = [name for name in re.split(r"[\s,]+", names.strip()) if name]
    for name in found:
        if not name.isidentifier():
            raise CompileError(f"{name!r} is not a name", fix="write names separated by commas")
    if not found:
        raise CompileError("a size needs a name", fix='write T.dynamic("m")')
    return found


def dynamic(
    name: str,
    dtype_: Any = "int32",
    *,
    dtype: Any = None,
    min: int = 0,
    max: int | None = None,
    multiple_of: int = 1,
) -> Any:
    """A size known at launch, or a tuple of them for "m, n". One binary serves all sizes.

    `min`, `max` and `multiple_of` are a contract: checked at launch, used by the compiler.

    >>> n = T.dynamic("n", min=1)
    >>> @T.prim_func
    ... def negate(A: T.Tensor((n,), "int32")):
    ...     with T.Kernel(T.ceildiv(n, 32), threads=32) as bx:
    ...         for i in T.Parallel(32):
    ...             A[bx * 32 + i] = -A[bx * 32 + i]
    >>> kernel = tw.compile(negate, target="interp")
    >>> few, many = np.ones(3, np.int32), np.ones(50, np.int32)
    >>> kernel(few), kernel(many)
    (None, None)
    >>> int(few.sum()), int(many.sum())
    (-3, -50)
    """
    kind = ScalarType(dtype or dtype_).dtype
    if multiple_of < 1 or (max is not None and max < min):
        raise CompileError(
            f"the contract of {name} is impossible",
            expected="min ≤ max and multiple_of ≥ 1",
            got=f"min={min}, max={max}, multiple_of={multiple_of}",
            fix="exchange min and max" if max is not None and max < min else "",
        )
    dims = [Dim(Var(n, kind), min, max, multiple_of) for n in split_names(name)]
    sizes = tuple(Size(dim.var, (dim,)) for dim in dims)
    return sizes if len(sizes) > 1 else sizes[0]


symbolic = dynamic


# ── annotations ──────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class TensorType:
    """`T.Tensor((M, N), dtype)`: a parameter in global memory. Of a direct kernel, one that does
    not say its type `takes` the array's."""

    shape: tuple[Any, ...]
    dtype: DType
    strides: tuple[Any, ...] | None = None
    space: Space | None = Space.GLOBAL
    takes: bool = field(default=False, compare=False)


class _Tensor:
    """`T.Tensor(shape, dtype)` or `T.Tensor[shape, dtype]`; bare, it admits any tensor."""

    def __init__(self, word: str, space: Space | None, doc: str, strided: bool = False) -> None:
        self.word, self.space, self.strided = word, space, strided
        self.__doc__ = doc

    @entry
    def __call__(self, shape: Any, *args: Any, **kwargs: Any) -> Any:
        names = ["strides", "dtype"] if self.strided else ["dtype", "strides"]
        data = kwargs.pop("data", None)
        if args and hasattr(args[-1], "tilewright_view"):
            *args, data = args  # type: ignore[assignment]
        if data is not None:
            return data.tilewright_view(shape, *args, **kwargs)
        given = dict(zip(names, args, strict=False))
        if not self.strided:
            check_one_shape(f"T.{self.word}", shape, *args)
        if len(args) > 2 or set(kwargs) - {"dtype", "strides", "scope"}:
            raise CompileError(
                f"T.{self.word} takes a shape and a dtype",
                expected=f"T.{self.word}(shape, {', '.join(names)})",
                got=", ".join([f"{len(args) + 1} arguments", *kwargs]),
                fix='put the sizes in a tuple: T.Tensor((M, N), "float32")',
            )
        given.update((k, v) for k, v in kwargs.items() if k in names)
        strides = given.get("strides")
        if self.strided and strides is None:
            raise CompileError(
                "T.StridedTensor needs strides", fix="write T.StridedTensor(shape, strides, dtype)"
            )
        return TensorType(
            shape_tuple(shape),
            dtype(given.get("dtype", "float32")),
            None if strides is None else shape_tuple(strides),
            self.space,
            "dtype" not in given,
        )

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, tuple) and key and isinstance(key[0], (tuple, list)):
            return self(*key)
        if isinstance(key, tuple) and len(key) > 1 and _names_type(key[-1]):
            sizes = key[:-1]
            return self(sizes[0] if len(sizes) == 1 else sizes, key[-1])
        return self(key)

    def __repr__(self) -> str:
        return f"T.{self.word}"


def _names_type(value: Any) -> bool:
    if isinstance(value, (int, Expr, Scalar)):
        return False
    return not isinstance(value, str) or _alias(value) is not None


_BUFFER = """A tile in {place} memory that a `T.macro` takes; bare, any tile of that kind.

>>> @T.macro
... def clear_corner(tile: T.{word}):
...     tile[0] = 0
>>> T.{word}((64,), "float16").dtype.name
'float16'
"""

Tensor = _Tensor(
    "Tensor",
    Space.GLOBAL,
    """A tensor in global memory, as the annotation of a parameter: `T.Tensor(shape, dtype)` or
    `T.Tensor[shape, dtype]`, row-major. Without a dtype it has the array's in a kernel that is
    written directly, else float32. Bare, for a macro, it admits any tensor.

    >>> @T.prim_func
    ... def first_row(A: T.Tensor((8, 64), "float16"), B: T.Tensor((64,), T.float32)):
    ...     with T.Kernel(1, threads=64):
    ...         T.copy(A[0, 0:64], B)
    >>> a, b = np.ones((8, 64), np.float16), np.zeros(64, np.float32)
    >>> tw.compile(first_row, target="interp")(a, b)
    >>> float(b.sum())
    64.0
    """,
)
Buffer = _Tensor(
    "Buffer",
    Space.GLOBAL,
    """`T.Tensor`, by another name.

    >>> T.Buffer((8, 64), "float16") == T.Tensor((8, 64), "float16")
    True
    """,
)
StridedTensor = _Tensor(
    "StridedTensor",
    Space.GLOBAL,
    """A tensor whose rows lie apart: `T.StridedTensor(shape, strides, dtype)`, in elements. A size
    or a stride may be `T.dynamic`.

    >>> @T.prim_func
    ... def clear_left(A: T.StridedTensor((4, 8), (16, 1), "float32")):
    ...     with T.Kernel(1, threads=32):
    ...         T.clear(A)
    >>> a = np.ones((4, 16), np.float32)
    >>> tw.compile(clear_left, target="interp")(a[:, :8])
    >>> float(a.sum())
    32.0
    """,
    strided=True,
)
SharedBuffer = _Tensor(
    "SharedBuffer", Space.SHARED, _BUFFER.format(place="shared", word="SharedBuffer")
)
FragmentBuffer = _Tensor(
    "FragmentBuffer", Space.FRAGMENT, _BUFFER.format(place="register", word="FragmentBuffer")
)
LocalBuffer = _Tensor(
    "LocalBuffer", Space.LOCAL, _BUFFER.format(place="a thread's", word="LocalBuffer")
)


class Ref:
    """Annotates a macro's parameter that the macro assigns to: an `alloc_var` or an element.

    >>> @T.macro
    ... def bump(x: T.Ref):
    ...     x += 1
    >>> @T.prim_func
    ... def count(A: T.Tensor((4,), "int32")):
    ...     with T.Kernel(1, threads=32):
    ...         for i in T.Parallel(4):
    ...             n = T.alloc_var("int32", init=10)
    ...             bump(n)
    ...             bump(n)
    ...             A[i] = n
    >>> a = np.zeros(4, np.int32)
    >>> tw.compile(count, target="interp")(a)
    >>> a.tolist()
    [12, 12, 12, 12]
    """


def shape_tuple(shape: Any) -> tuple[Any, ...]:
    """A shape however it was written: a number, a tuple, a list."""
    if isinstance(shape, (int, Expr, Scalar)) or hasattr(shape, "__index__"):
        return (shape,)
    if isinstance(shape, str) or not hasattr(shape, "__iter__"):
        raise CompileError(
            "not a shape",
            expected="a number, a tuple or a list of sizes",
            got=repr(shape)[:60],
            fix="the shape comes first, then the dtype"
            if isinstance(shape, str)
            else "write a tuple: (M, N)",
            code="arguments",
            repair=_shape_first,
        )
    return tuple(shape)


def _shape_first(text: str) -> str | None:
    found = re.fullmatch(r"(.*\()([\"']\w+[\"']), *(\([\w, ]*\)|\w+)\)", text)
    return f"{found.group(1)}{found.group(3)}, {found.group(2)})" if found else None


def check_one_shape(word: str, shape: Any, *others: Any) -> None:
    """The sizes are one argument."""
    if not (others and isinstance(others[0], int) and hasattr(shape, "__index__")):
        return
    count = next((at for at, o in enumerate(others) if not hasattr(o, "__index__")), len(others))
    sizes = ", ".join(str(size) for size in (shape, *others[:count]))

    def repair(text: str) -> str | None:
        found = re.fullmatch(r"(.*?\bT\.\w+\()((?:\w+, *)+)(?=[\"'])(.*)", text)
        if found is None or found.group(2).count(",") != count + 1:
            return None
        return f"{found.group(1)}({found.group(2).rstrip(', ')}), {found.group(3)}"

    raise CompileError(
        f"{word} takes all sizes as one argument",
        expected=f"{word}(shape, dtype)",
        got=f"{word}({sizes}, …)",
        fix=f'put the sizes in a tuple: {word}(({sizes}), "float32")',
        code="arguments",
        repair=repair,
    )


def size_expr(size: Any, what: str) -> Expr:
    """One extent: a positive integer or a size known at launch."""
    if getattr(size, "shape", ()) and not is_runtime(size):
        raise CompileError(
            f"{what} is an array",
            expected="a number, or T.dynamic",
            got=f"{type(size).__name__} of shape {tuple(size.shape)}",
            fix="pass its size, x.shape[0], to the factory, and x to the kernel that it returns",
        )
    expr = integer(size, what)
    if isinstance(expr, Const) and expr.value < 1:
        raise CompileError(
            f"{what} must be positive",
            got=str(expr.value),
            fix="T.ceildiv(n, block) is positive where n is; only a tensor's T.const or T.dynamic "
            "size may be 0",
            code="shape",
        )
    return expr


class GemmWarpPolicy(str, Enum):
    """How `T.gemm` splits its tile over the warps: nearly square parts, all along the rows
    (`FullRow`), or all along the columns (`FullCol`).

    >>> T.GemmWarpPolicy.FullRow.value
    'full_row'
    """

    Square = "square"
    FullRow = "full_row"
    FullCol = "full_col"
