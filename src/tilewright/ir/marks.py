"""Marks on the fields of operations, and what derives from them.

A field is one of

- `arg()`   an operand: `Expr`, `Region`, `Buffer`, `Var`, or a tuple of them; `reads`/`writes`
            says what the op does to the region's elements;
- `binds()` a `Var` (or tuple, or None) that the op defines;
- `attr()`  a compile-time value (int, float, str, bool, tuple of them, a layout, or None);
- `body()`  a tuple of ops.

`syntax` is the op's text with `{field}` holes; attributes that differ from their default are
added after as `name=value`. The text module reads nothing else.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, overload

from tilewright.ir.buffer import Buffer, Region
from tilewright.ir.expr import Expr, Load, Var, loads, variables
from tilewright.support.errors import Loc, here

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:  # for checkers alone; Python has it from 3.11 on

    def dataclass_transform(**_):
        return lambda cls: cls


def arg(*, reads: bool = False, writes: bool = False, **kwargs: Any) -> Any:
    return field(metadata={"mark": "arg", "reads": reads, "writes": writes}, **kwargs)


def binds(**kwargs: Any) -> Any:
    return field(metadata={"mark": "binds"}, **kwargs)


def attr(**kwargs: Any) -> Any:
    return field(metadata={"mark": "attr"}, **kwargs)


def body(**kwargs: Any) -> Any:
    return field(metadata={"mark": "body"}, **kwargs)


@dataclass_transform(frozen_default=True, field_specifiers=(arg, binds, attr, body))
@dataclass(frozen=True)
class Op:
    """Base of all operations: every class of them is a frozen dataclass. `loc`: unless another one
    is given, that of the op which is being rewritten (`map_body`, `errors.at`)."""

    syntax: ClassVar[str]
    loc: Loc | None = field(default_factory=here.get, compare=False, repr=False, kw_only=True)

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True)(cls)


Body = tuple[Op, ...]


def marked(op: Op | type[Op], mark: str) -> tuple[dataclasses.Field[Any], ...]:
    cls: Any = type(op) if isinstance(op, Op) else op
    return _marked(cls, mark)


@functools.cache
def _marked(cls: Any, mark: str) -> tuple[dataclasses.Field[Any], ...]:
    return tuple(f for f in dataclasses.fields(cls) if f.metadata.get("mark") == mark)


_Found = TypeVar("_Found")
_O = TypeVar("_O", bound=Op)
_P = TypeVar("_P", bound=Op)


def kept(derive: Callable[[_O], _Found]) -> Callable[[_O], _Found]:
    """`derive`, asked once of each op: ops never change, and the answer goes with the op."""
    name = f"_{derive.__module__}.{derive.__name__}"

    @functools.wraps(derive)
    def once(op: _O) -> _Found:
        found: _Found | None = op.__dict__.get(name)
        if found is None:
            found = op.__dict__[name] = derive(op)
        return found

    return once


def with_loc(op: _O, loc: Loc | None) -> _O:
    """`op` at a place; whatever is kept with it holds there too."""
    found = object.__new__(type(op))
    found.__dict__.update(op.__dict__, loc=loc)
    return found


@kept
def operands(op: Op) -> tuple[Expr | Region | Buffer, ...]:
    """The op's operands, tuples flattened, None left out."""
    found: list[Expr | Region | Buffer] = []
    for f in marked(op, "arg"):
        value = getattr(op, f.name)
        if isinstance(value, tuple):
            found += [v for v in value if v is not None]
        elif value is not None:
            found.append(value)
    return tuple(found)


@functools.cache
def _body_names(cls: Any) -> tuple[str, ...]:
    return tuple(f.name for f in _marked(cls, "body"))


def bodies(op: Op) -> tuple[Body, ...]:
    cls: Any = type(op)
    names = _body_names(cls)
    return tuple([getattr(op, name) for name in names]) if names else ()


@kept
def bound(op: Op) -> tuple[Var, ...]:
    """The variables the op defines."""
    found: list[Var] = []
    for f in marked(op, "binds"):
        value = getattr(op, f.name)
        found += value if isinstance(value, tuple) else [value] if value is not None else []
    return tuple(found)


@kept
def bound_within(op: Op) -> tuple[Var, ...]:
    """The variables that the op, and what stands in it, define."""
    inner = [var for body in bodies(op) for each in body for var in bound_within(each)]
    return (*bound(op), *inner)


@kept
def _inside(op: Op) -> tuple[Op, ...]:
    """Every op in the op's bodies, in text order."""
    return tuple([x for body in bodies(op) for each in body for x in (each, *_inside(each))])


@overload
def walk_ops(op: Op | Body) -> Iterator[Op]: ...
@overload
def walk_ops(op: Op | Body, one: type[_O], /) -> Iterator[_O]: ...
@overload
def walk_ops(op: Op | Body, one: type[_O], other: type[_P], /) -> Iterator[_O | _P]: ...
def walk_ops(op: Op | Body, *kinds: type[Op]) -> Iterator[Op]:
    """Every op, itself included, in text order; or those of some kinds."""
    parts = op if isinstance(op, tuple) else (op,)
    found = itertools.chain.from_iterable((each, *_inside(each)) for each in parts)
    return (each for each in found if isinstance(each, kinds)) if kinds else found


@kept
def expressions(op: Op) -> tuple[Expr, ...]:
    """The expressions among the op's operands, starts and ranks of regions included."""
    found: list[Expr] = []
    for operand in operands(op):
        if isinstance(operand, Expr):
            found.append(operand)
        elif isinstance(operand, Region):
            found += operand.starts
            found += operand.extents
            if operand.cta is not None:
                found.append(operand.cta)
    return tuple(found)


def read_variables(code: Op | Body) -> set[Var]:
    """Variables that an op and what stands in it ask for."""
    return {v for op in walk_ops(code) for e in expressions(op) for v in variables(e)}


@kept
def op_loads(op: Op) -> tuple[Load, ...]:
    """Elements the op reads through expressions."""
    return tuple(load for expr in expressions(op) for load in loads(expr))


def loads_within(code: Op | Body) -> Iterator[Load]:
    """Elements that an op and what stands in it read through expressions."""
    return (load for op in walk_ops(code) for load in op_loads(op))


def regions(op: Op, *, reads: bool = False, writes: bool = False) -> list[Region]:
    """Regions the op itself reads (or writes) as tiles."""
    return [r for r, read, written in _regions(op) if (reads and read) or (writes and written)]


@kept
def _regions(op: Op) -> tuple[tuple[Region, bool, bool], ...]:
    """Regions, and whether the op reads and writes them."""
    found: list[tuple[Region, bool, bool]] = []
    for f in marked(op, "arg"):
        how = f.metadata["reads"], f.metadata["writes"]
        if any(how):
            value = getattr(op, f.name)
            each = value if isinstance(value, tuple) else (value,)
            found += [(v, *how) for v in each if v is not None]
    return tuple(found)


@kept
def named_buffers(op: Op) -> tuple[Buffer, ...]:
    """Buffers that the op names, not counting its bodies."""
    found = [x.buffer if isinstance(x, Region) else x for x in operands(op)
             if isinstance(x, (Region, Buffer))]  # fmt: skip
    return tuple(dict.fromkeys([*found, *(load.buffer for load in op_loads(op))]))
