"""Operations on the ends of every type: least and largest integers, NaN, both zeros, subnormals,
infinities, halves between two values. A program per type, a kernel per expression; what the host
computes from the emitted source is compared with the interpreter, to the last bit where no function
of a library is called.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from random import Random
from typing import Any

import numpy as np

from devtools.compare import lowered
from devtools.fuzz.check import load
from devtools.host import judge
from devtools.host.target import arch_of, is_host, road
from tilewright.ir.dtype import DTYPES, DType
from tilewright.ir.op import Program
from tilewright.runtime.kernel import CompiledKernel
from tilewright.support.errors import TilewrightError
from tilewright.tools.compare import run_kernel

Array = np.ndarray[Any, np.dtype[Any]]
Run = Callable[[str], Array]
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
FLOATS = ("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
KINDS = (*INTEGERS, *FLOATS, "bool")


@dataclass(frozen=True)
class Row:
    """An expression of `a` and `b`, one element each of two tensors, and the type it is stored
    as. `zeros`: whether the sign of a zero is said (that of the least of two zeros is not)."""

    name: str
    text: str
    out: str
    zeros: bool = True


# ── values ───────────────────────────────────────────────────────────────────────────────────


def values(kind: DType) -> Array:
    """The ends of a type, and what lies around them."""
    if kind.is_bool:
        return np.array([False, True])
    if kind.is_int:
        least, most = int(kind.min_value), int(kind.max_value)
        small = (-3, -2, -1, 0, 1, 2, 3, 5, 7, 8, 31, 32, 33, 40, 63, 64, 100)
        found = {least, least + 1, most // 2 + 1, most - 1, most} | {*small}
        return np.array(sorted(v for v in found if least <= v <= most), kind.numpy)
    sizes = [0.0, 5e-324, 1e-310, 2.0**-149, 2.0**-126, 2.0**-24, 2.0**-14, 2.0**-9, 3 * 2.0**-10]
    sizes += [0.3, 0.5, 1.0, 1.0625 + 2.0**-40, 1.5, 2.5, 3.0, 127.5, 255.5, 448.0, 464.0, 65504.0]
    sizes += [65520.0, 2.0**31, 2.0**32, 2.0**63, 2.0**64, 3.4e38, 1.7e308, np.inf]
    with np.errstate(all="ignore"):
        made = np.array([*sizes, *(-s for s in sizes), np.nan]).astype(kind.numpy)
    bits = made.view(f"u{made.itemsize}")
    return made[np.unique(bits, return_index=True)[1]]


def pairs(kind: DType) -> tuple[Array, Array]:
    found = values(kind)
    a, b = np.meshgrid(np.arange(len(found)), np.arange(len(found)), indexing="ij")
    return found[a.ravel()], found[b.ravel()]


# ── expressions ──────────────────────────────────────────────────────────────────────────────


def _constant(value: int, kind: str) -> str:
    return f'T.cast({value}, "{kind}")'


def rows(kind: str) -> Iterator[Row]:
    """Every operation of a type."""
    found = DTYPES[kind]
    for word in ("<", "<=", "==", "!=", ">", ">="):
        yield Row(f"a {word} b", f"T.if_then_else(a {word} b, 1, 0)", "int32")
    for other in KINDS:
        yield Row(f"cast {other}", f'T.cast(a, "{other}")', other)
    if found.is_bool:
        yield from (Row(f"a {word} b", f"a {word} b", "bool") for word in ("and", "or"))
        return
    yield from (Row(f"a {op} b", f"a {op} b", kind) for op in "+-*")
    yield from (Row(name, f"T.{name}(a, b)", kind, False) for name in ("min", "max"))
    yield Row("-a", "-a", kind)
    yield Row("abs a", "T.abs(a)", kind)
    if found.is_float:
        yield Row("a / b", "a / b", kind)
        yield Row("a / 3", f"a / {_constant(3, kind)}", kind)
        for name in ("sqrt", "floor", "ceil", "trunc", "round"):
            yield Row(name, f"T.{name}(a)", kind)
        for name in ("isnan", "isinf", "isfinite"):
            yield Row(name, f"T.if_then_else(T.{name}(a), 1, 0)", "int32")
        return
    one, nonzero = _constant(1, kind), f"T.if_then_else(b == 0, {_constant(1, kind)}, b)"
    count = f"T.if_then_else(b < 0, {_constant(0, kind)}, b)" if found.kind == "int" else "b"
    yield from (Row(f"a {op} b", f"a {op} ({nonzero})", kind) for op in ("//", "%"))
    yield from (Row(f"a {op} b", f"a {op} b", kind) for op in "&|^")
    yield from (Row(f"a {op} b", f"a {op} ({count})", kind) for op in ("<<", ">>"))
    yield Row("~a", "~a", kind)
    yield Row("a + 1 > a", f"T.if_then_else(a + {one} > a, 1, 0)", "int32")
    yield Row("a * 2 // 2", f"(a * {_constant(2, kind)}) // {_constant(2, kind)}", kind)
    yield Row("a * b + a", "a * b + a", kind)
    yield Row("popcount", "T.popcount(a)", kind)
    yield Row("clz", "T.clz(a)", kind)


def drawn(kind: str, seed: int, count: int = 8) -> list[Row]:
    """Random expressions of a few operations; casts there and back among them."""
    r = Random(f"{kind} {seed}")
    known = [row.text for row in rows(kind) if row.out == kind and row.zeros]

    def grow(depth: int) -> str:
        if depth == 0 or r.random() < 0.15:
            return r.choice("ab")
        if r.random() < 0.2:
            return f'T.cast(T.cast({grow(depth - 1)}, "{r.choice(KINDS)}"), "{kind}")'
        text, a, b = r.choice(known), grow(depth - 1), grow(depth - 1)
        return "(" + "".join({"a": f"({a})", "b": f"({b})"}.get(w, w) for w in _words(text)) + ")"

    return [Row(f"drawn {seed}.{n}", grow(2), kind) for n in range(count)]


def _words(text: str) -> list[str]:
    return re.findall(r'"\w+"|\w+|\W', text)


# ── programs ─────────────────────────────────────────────────────────────────────────────────

# an iteration of a map for each element, or a thread
FORMS = {
    "parallel": ("for i in T.Parallel(N):", "    {store}"),
    "threads": (
        "t = T.get_thread_binding(0)",
        "for s in range(STEPS):",
        "    i = s * 64 + t",
        "    if i < N:",
        "        {store}",
    ),
}


def source(kind: str, table: Sequence[Row], form: str = "parallel") -> str:
    """The program's text: a kernel for each row, which stores to a tensor of its own."""
    n = len(values(DTYPES[kind])) ** 2
    tensors = [f'A: T.Tensor((N,), "{kind}")', f'B: T.Tensor((N,), "{kind}")']
    tensors += [f'C{i}: T.Tensor((N,), "{row.out}")' for i, row in enumerate(table)]
    lines = ["import tilewright.language as T", "", f"N, STEPS = {n}, {-(-n // 64)}", ""]
    lines += ["@T.prim_func", f"def program({', '.join(tensors)}):"]
    words = {"a": "A[i]", "b": "B[i]"}
    for i, row in enumerate(table):
        text = "".join(words.get(w, w) for w in _words(row.text))
        lines.append("    with T.Kernel(1, threads=64):")
        lines += ["        " + line.format(store=f"C{i}[i] = {text}") for line in FORMS[form]]
    return "\n".join(lines) + "\n"


def built(kind: str, table: Sequence[Row], form: str = "parallel") -> Program:
    found: Program = load(source(kind, table, form), f"extremes_{kind}.py")["program"].program
    return found


def arguments(kind: str, table: Sequence[Row]) -> dict[str, Array]:
    a, b = pairs(DTYPES[kind])
    outs = {f"C{i}": np.zeros(len(a), DTYPES[row.out].numpy) for i, row in enumerate(table)}
    return {"A": a, "B": b, **outs}


def wrong(row: Row, want: Array, got: Array) -> str:
    """What differs, in words, or ''. NaNs are equal; zeros are not where the sign is another."""
    if want.dtype.kind in "biu":
        same = want == got
    else:
        with np.errstate(all="ignore"):
            x, y = want.astype(np.float64), got.astype(np.float64)
            same = (x == y) & ((not row.zeros) | (np.signbit(x) == np.signbit(y)))
            same |= np.isnan(x) & np.isnan(y)
    if same.all():
        return ""
    at = int(np.argmin(same))
    return f"{int((~same).sum())} of {same.size}, first at {at}: {got[at]!r}, not {want[at]!r}"


def findings(
    kind: str,
    target: str = "host",
    table: Sequence[Row] | None = None,
    form: str = "parallel",
    change: Callable[[str], str] = str,
    replaced: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """What is wrong with each expression of a type on `target`, by its name: a host's, the CPU, a
    GPU. `change` and `replaced` alter a host's source, as a bug would."""
    table = list(rows(kind) if table is None else table)
    program = built(kind, table, form)
    given = arguments(kind, table)
    want = {name: array.copy() for name, array in given.items()}
    with np.errstate(all="ignore"):
        CompiledKernel(program, target="interp")(**want)
    run: Run
    if is_host(target):
        thread_code = lowered(program, road(target)).result
        made = judge.ready(program, thread_code, arch_of(target), change, replaced)
        run = partial(_one_by_one, made, given)
    else:
        copies = {name: array.copy() for name, array in given.items()}
        every = run_kernel(CompiledKernel(program, target=target), copies, program)
        run = every.__getitem__
    found: dict[str, str] = {}
    for number, row in enumerate(table):
        try:
            got = run(f"C{number}")
        except judge.Fault as error:
            found[row.name] = str(error)
            continue
        told = wrong(row, want[f"C{number}"], got)
        if told:
            at = int(told.split("first at ")[1].split(":")[0])
            found[row.name] = f"{told} (a = {want['A'][at]!r}, b = {want['B'][at]!r})"
    return found


def _one_by_one(made: judge.Ready, given: Mapping[str, Array], name: str) -> Array:
    """What the kernel leaves in tensor `name`: one that faults takes no other along."""
    return made(given, only=(int(name[1:]),))[name]


def run_command(count: int, seed: int, targets: Sequence[str]) -> int:
    """All tables, then `count` random programs; prints what is wrong. 0 where nothing is."""
    total = 0
    jobs = [(kind, form, list(rows(kind))) for kind, form in product(KINDS, FORMS)]
    kinds = (*INTEGERS, *FLOATS)
    jobs += [
        (kind := kinds[(seed + n) % len(kinds)], [*FORMS][n % 2], drawn(kind, seed + n))
        for n in range(count)
    ]
    for (kind, form, table), target in product(jobs, targets):
        try:
            found = findings(kind, target, table, form)
        except TilewrightError as error:
            print(f"{kind} {form} {target}: refused: {error.message}", flush=True)
            continue
        total += len(found)
        texts = {row.name: row.text for row in table}
        for name, told in found.items():
            print(f"{kind} {form} {target}: {texts[name]}: {told}", flush=True)
    print(f"{len(jobs) * len(targets)} programs, {total} findings")
    return int(total > 0)
