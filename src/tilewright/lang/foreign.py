"""Foreign code in a kernel: PTX, functions of imported C++ source, and addresses for both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tilewright.ir.buffer import Buffer, Region, Space, element
from tilewright.ir.dtype import DType
from tilewright.ir.dtype import dtype as find_dtype
from tilewright.ir.expr import Expr, Load, Var, const, wrap
from tilewright.ir.op import Alloc, Intrinsic
from tilewright.ir.ptx_text import OPERAND, named_operands, written_operands
from tilewright.lang.builder import Builder, current, current_kernel
from tilewright.lang.handles import Access, Tile, Tiles, Variable, describe, region_of
from tilewright.support.errors import CompileError

NOTHING = ("handle", "void")  # the names of no result


@dataclass(frozen=True)
class Address:
    """`T.address_of(A[i])`: only foreign code takes it."""

    region: Region


def address_of(element: Any) -> Address:
    """The address of an element or a tile, for `ptx` and `call_extern`.

    Example, compiled for CUDA:
        T.import_source("__device__ void twice(int *p) { *p *= 2; }")
        t = T.get_thread_binding()
        if t < 64:
            T.call_extern("void", "twice", T.address_of(M[t]))
    """
    region = region_of(element, "address_of")
    if region.dtype.packed:
        raise CompileError(
            f"{region.buffer.name} is packed: its elements have no address",
            fix="pass the tile as another type: T.view(tile, dtype='uint8')",
        )
    return Address(region)


def access_ptr(base: Any, access_type: Any = "r", *extents: Any, **_: Any) -> Address:
    """`address_of`, with what the callee does there and how far, which is not used.

    Example, compiled for CUDA:
        T.import_source("__device__ void twice(int *p) { *p *= 2; }")
        t = T.get_thread_binding()
        if t < 64:
            T.call_extern("void", "twice", T.access_ptr(M[t], "rw"))
    """
    return address_of(base)


def _operand(value: Any) -> Expr | Region:
    if isinstance(value, Address):
        return value.region
    if isinstance(value, (Tile, Tiles)):
        return address_of(value).region
    return wrap(value)


# ── PTX ──────────────────────────────────────────────────────────────────────────────────────


def _register(builder: Builder, kind: DType) -> Buffer:
    """A variable of the thread that PTX writes."""
    buffer = Buffer(builder.fresh(builder.hint, "result"), (), kind, Space.LOCAL)
    builder.emit(Alloc(buffer, const(0, kind)))
    return buffer


def ptx(template: str, *args: Any, dtype: Any = None) -> Any:
    """PTX instructions: `$0` is the result when `dtype` is given, `$1` … the operands.

    A tuple of types gives several results, `$0` … in their order; the operands are numbered after
    them, and the results come back as a tuple. An operand that an instruction writes is a
    `T.alloc_var` or an element of a `T.alloc_local`: it keeps what was written. Runs on CUDA only.

    Example, compiled for CUDA:
        t = T.get_thread_binding()
        if t < 64:
            low, high = T.ptx(
                "mul.lo.s32 $0, $2, $3; mul.hi.s32 $1, $2, $3;",
                N[t], 1 << 20, dtype=("int32", "int32"),
            )
            M[t] = T.ptx("add.s32 $0, $1, $2;", low, high, dtype="int32")
    """
    if not isinstance(template, str):
        raise CompileError(
            "T.ptx needs the instruction's text",
            got=describe(template),
            fix='write it as a string: T.ptx("add.s32 $0, $1, $2;", a, b, dtype="int32")',
        )
    builder = current_kernel("ptx")
    several = isinstance(dtype, (tuple, list))
    kinds = [find_dtype(d) for d in (dtype if several else () if dtype is None else (dtype,))]
    first = max(len(kinds), 1)
    written = written_operands(template)
    _check_numbers(template, len(kinds), first + len(args))
    if several:
        registers = [_register(builder, kind) for kind in kinds]
        front = {n: element(b) for n, b in enumerate(registers)}
        result = None
    else:
        front = {}
        result = builder.var(builder.hint, kinds[0], "result") if kinds else None
    front |= {n: _written(args[n - first], n) for n in sorted(written) if n >= first}
    rest = {n: _operand(arg) for n, arg in enumerate(args, first) if n not in front}
    # $1 … are the operands of the IR's instruction, those that it may write in front
    order = {n: at for at, n in enumerate((*front, *rest), 1)}
    if result is not None:
        order[0] = 0
    text = OPERAND.sub(lambda found: f"${order.get(int(found[1]), found[1])}", template)
    operands = (*front.values(), *rest.values())
    builder.emit(Intrinsic("ptx", operands, result, text, width=len(front) or None))
    if several:
        return tuple(builder.let(Load(b, ()), b.name) for b in registers)
    return result


def _check_numbers(template: str, results: int, end: int) -> None:
    """The operands that the text names are there, and every result is written."""
    named = named_operands(template)
    for number in sorted(named):
        if number >= end or (number == 0 and not results):
            raise CompileError(
                f"T.ptx: the text names ${number}, which there is none of",
                expected=f"$0 … ${end - 1}" if results else f"$1 … ${end - 1}, and $0 with dtype=",
                fix="count the results from $0 and the operands after them; without results the "
                "operands begin with $1",
            )
    missing = [n for n in range(results) if n not in named]
    if missing:
        raise CompileError(
            f"T.ptx: no instruction writes ${missing[0]}, a result",
            got=f"dtype of {results} result{'s' * (results > 1)}",
            fix=f"write the result to ${missing[0]} in the text, or leave its dtype out",
        )


def _written(value: Any, number: int) -> Region:
    """Where an operand that PTX writes is kept: in a variable of the thread."""
    if isinstance(value, Variable) or (
        isinstance(value, Access) and value.tile.buffer.space is Space.LOCAL
    ):
        return region_of(value, "ptx")
    raise CompileError(
        f"T.ptx: an instruction writes ${number}, which is not a variable",
        expected="a T.alloc_var, or an element of a T.alloc_local",
        got=describe(value),
        fix='make it a variable, x = T.alloc_var("int32"), or a result: dtype=("int32", "int32")',
    )


# ── C++ ──────────────────────────────────────────────────────────────────────────────────────


def call_extern(name: str, *args: Any, dtype: Any = None) -> Var | None:
    """Call a function of the imported source. The return type may come first: `call_extern(
    "float32", "name", …)`, "handle" or "void" for none. Runs on CUDA only.

    Example, compiled for CUDA:
        T.import_source("__device__ int next(int x) { return x + 1; }")
        t = T.get_thread_binding()
        if t < 64:
            M[t] = T.call_extern("int32", "next", N[t])
    """
    if args and isinstance(args[0], str):
        kind, name, args = name, args[0], args[1:]
        dtype = kind if dtype is None else dtype
    builder = current_kernel("call_extern")
    if not isinstance(name, str) or not name.strip():
        raise CompileError(
            "T.call_extern needs the name of a function",
            got=describe(name),
            fix='write it as a string: T.call_extern("float32", "name", x)',
        )
    result = None
    if dtype is not None and dtype not in NOTHING:
        result = builder.var(builder.hint, find_dtype(dtype), "result")
    builder.emit(Intrinsic("call_extern", tuple(_operand(a) for a in args), result, name))
    return result


def import_source(code: str | None) -> None:
    """C++ source that `call_extern` calls into.

    Example, compiled for CUDA:
        T.import_source("__device__ int next(int x) { return x + 1; }")
        t = T.get_thread_binding()
        if t < 64:
            M[t] = T.call_extern("int32", "next", N[t])
    """
    if code is None:
        return
    builder = current("import_source")
    if code not in builder.sources:
        builder.sources.append(code)
