"""Expressions over the axes of a kernel as Python text in tile values.

Every piece of text knows the axes of its dimensions, in the one order of its kernel; where two
meet, the one that lacks a dimension gets a `None` there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence, Set
from dataclasses import replace
from functools import reduce
from typing import TypeGuard

from tilewright.formula.matrices import Product, product_of, split
from tilewright.formula.tiles.kernels import Apart, KernelPlan
from tilewright.formula.tiles.order import order_of
from tilewright.formula.tiles.pieces import (
    AND,
    ATOM,
    COMPARE,
    INDENT,
    OR,
    PLUS,
    POWER,
    SHIFT,
    TIMES,
    UNARY,
    XOR,
    Names,
    Piece,
    choices,
    holds,
    literal,
)
from tilewright.formula.tiles.spell import spell
from tilewright.formula.tiles.windows import MERGE
from tilewright.formula.tiles.windows import ROLE as WINDOW
from tilewright.ir.core import *
from tilewright.ir.dtype import DType, promote
from tilewright.ir.formula import NEUTRAL, Array, Extent, Monoid, extents, listed, vars_of
from tilewright.ir.simplify import simplify

_BINARY = {
    "+": PLUS, "-": PLUS, "*": TIMES, "/": TIMES, "//": TIMES, "%": TIMES, "&": AND, "|": OR,
    "^": XOR, "<<": SHIFT, ">>": SHIFT,
}  # fmt: skip
_LOGIC = {"and": "&", "or": "|"}
_WORDS = {"min": "T.minimum", "max": "T.maximum"}
_PREFIX = {"neg": "-", "not": "~", "invert": "~"}
_SHORT = {"exp": "e", "exp2": "e", "log": "l", "sqrt": "root", "rsqrt": "r"}
_SHORT |= dict.fromkeys(("neg", "max_nan", "min_nan"), "x")


class Writer:
    """The lines of one kernel: before its loop, inside, and after. What stays the same in the
    loop is written before it."""

    def __init__(
        self,
        kernel: KernelPlan,
        names: Names,
        tensors: dict[str, str],
        sizes: Callable[[Var], str],
        given: Collection[str],
        fast: bool,
        function: Callable[[Monoid], str],
    ) -> None:
        self.given, self.fast = given, fast  # the names of arguments; whether words may be fast
        self.kernel, self.names, self.tensors, self.size = kernel, names, tensors, sizes
        self.function = function  # the name of the function that a monoid combines by
        self.before: list[str] = []
        self.inside: list[str] = []
        self.behind: list[str] = []
        self.section = self.before
        self.bound: dict[Var, Piece] = {}  # state of the loop, under the names it has right now
        self.running: set[Var] = set()  # what changes from one iteration to the next
        self.folds: dict[str, Piece] = {}
        self.windows: list[list[str]] = []  # the lines of loops over their places
        self.left: dict[str, Expr] = {}  # what the loop's folds are when it has ended
        self.after: set[str] = set()  # folds that need them, they among those
        self.known: dict[tuple[int, Expr], Piece] = {}
        self.sure: dict[Expr, Expr] = {}  # conditions, and what asks them where it is not known
        self.uses: Counter[Expr] = Counter()
        self.rounded: list[str] = []
        self.order = order_of(kernel)
        self.products: dict[str, Product] = {
            f.name: p for f in kernel.folds if (p := product_of(f)) is not None
        }

    # -- what is printed

    def count(self, exprs: Iterable[Expr]) -> None:
        """Say what will be printed, so that what occurs twice gets a name."""
        seen: set[Expr] = set()
        for root in exprs:
            self.uses.update(_printed(root))
            for node in walk(root):
                if node in seen:
                    continue
                seen.add(node)
                if not isinstance(node, Load) and not _widens(node):
                    self.uses.update(part for c in _operands(node) for part in _printed(c))

    def count_operands(self, levels: Iterable[Array]) -> None:
        """Tiles that products of a step read too: they are copied once for all of them."""
        own = {f.name for f in levels}
        for name, p in self.products.items():
            sides = () if name in own else (p.left, p.right)
            self.uses.update(s.a if _widens(s) else s for s in sides)

    def spelt(self, expr: Expr, exponent: bool = False) -> Expr:
        """`expr` in the words in which it is written; names go with it."""
        if not self.fast:
            return expr
        found = spell(expr, self.dims_of, exponent, self.products)
        if expr in self.kernel.named:
            self.kernel.named.setdefault(found, self.kernel.named[expr])
        return found

    def line(self, text: str) -> None:
        self.section.append(text)

    def dims_of(self, expr: Expr) -> tuple[Var, ...]:
        """The dimensions of its value, which are not those of batches."""
        found: set[Var] = set()
        for var in variables(expr):
            if var in self.bound:
                found |= set(self.bound[var].dims)
            elif self.kernel.roles.get(var) in ("tile", "whole") or self.is_streamed(var):
                found.add(var)
        return tuple(v for v in self.order if v in found)

    def is_streamed(self, var: Var) -> bool:
        return bool(self.kernel.stream) and var is self.kernel.stream[-1].var

    def value(self, expr: Expr) -> Piece:
        """The text of `expr`: a name where it has one, gets one, or is needed twice."""
        running = not self.running.isdisjoint(variables(expr)) or any(
            load.buffer.name in self.after for load in loads(expr)
        )
        # what only the end needs is computed there: it would take registers through the loop
        home = self.section if running or self.section is self.behind else self.before
        found = self.known.get((id(home), expr)) or self.known.get((id(self.before), expr))
        if found is not None:
            return found
        outer, self.section = self.section, home
        piece = self._written(expr)
        name = self._name(expr, piece, hoisted=home is not outer)
        if name is not None:
            name = self.names.fresh(name)
            self.line(f"{name} = {self._loaded(expr, piece)}")
            piece = Piece(name, piece.dims)
        self.section = outer
        self.known[id(home), expr] = piece
        return piece

    def _loaded(self, expr: Expr, piece: Piece) -> str:
        inner = expr.a if isinstance(expr, Cast) else expr
        is_tile = isinstance(inner, Load) and inner.buffer.name in self.tensors
        text, turned = piece.text.removesuffix(".T"), piece.text.endswith(".T")
        if not is_tile or not text.endswith("]"):
            return piece.text
        return f"T.load({text}).T" if turned else f"T.load({text})"

    def _name(self, expr: Expr, piece: Piece, hoisted: bool) -> str | None:
        """The name of a value that is used twice, or that the user named."""
        if isinstance(expr, (Const, Var)) or (piece.binds == ATOM and piece.text.isidentifier()):
            return None
        inner = expr.a if isinstance(expr, Cast) else expr
        if isinstance(inner, Load):
            if not piece.dims and not hoisted:
                return None
            named = hoisted or self.uses[expr] > 1 or self.uses[inner] > 1 or self._is_row(piece)
            name = self.tensors.get(inner.buffer.name, inner.buffer.name)
            return name.lower() if named else None
        if expr in self.kernel.named and expr not in self.sure:
            return self.kernel.named[expr]
        is_read = hoisted and any(x.buffer.name in self.tensors for x in loads(expr))
        again = self.uses[expr] > 1 or (hoisted and expr.dtype.is_float)  # in each step
        if (again and piece.dims and not _widens(expr)) or is_read:
            called = expr.name.lstrip("_") if isinstance(expr, Call) else "x"
            return _SHORT.get(called, called)
        return None

    def _is_row(self, piece: Piece) -> bool:
        """Whether it is one number for each index of the loop's tile, beside products of a step:
        copied ahead like their operands, it takes no registers from one step to the next."""
        along = self.section is self.inside and piece.dims == (self.kernel.stream[-1].var,)
        inner = self.products.keys() - {f.name for f in self.kernel.levels}
        return along and bool(inner) and piece.text.endswith("]")

    # -- expressions

    def _written(self, expr: Expr) -> Piece:
        match expr:
            case Const(value=value, dtype=dtype):
                return literal(value, dtype)
            case Var():
                return self._variable(expr)
            case Load(buffer=buffer) if buffer.name in self.tensors:
                return self._element(expr)
            case Load(buffer=buffer) if buffer.name in self.left:
                return self.value(self.spelt(self.left[buffer.name]))
            case Load(buffer=buffer):
                return self._fold(buffer.name)
            case Cast(dtype=dtype, a=a):
                return self._cast(dtype, a)
            case Select():
                return self._chosen("T.where", expr)
            case Cmp(op=op, a=a, b=b):
                return self._infix(op, a, b, COMPARE)
            case Bin(op=op) if op in _WORDS:
                return self._chosen(_WORDS[op] if self.dims_of(expr) else f"T.{op}", expr)
            case Bin(op=op, a=a, b=b):
                sign = _LOGIC.get(op, op)
                return self._wrapped(expr, self._infix(sign, a, b, _BINARY[sign]))
            case Call(name=name, args=args) if name in _PREFIX:
                (piece,) = self._aligned(args)
                if name == "not" and not (variables(expr) or loads(expr)):
                    # of Python's constants: ~True is -2
                    return Piece(f"{piece.inside(XOR)} ^ True", piece.dims, XOR)
                text = f"{_PREFIX[name]}{piece.inside(UNARY)}"
                return self._wrapped(expr, Piece(text, piece.dims, UNARY))
            case Call(name="pow", args=(a, b)):
                return self._wrapped(expr, self._infix("**", a, b, POWER))
            case Call(name="max_nan" | "min_nan" as name, args=(a, b)):
                return self._keeping_nan(">" if name == "max_nan" else "<", a, b)
            case Call(name=name, args=args):
                return self._call(f"T.{name}", list(args))
        raise AssertionError(type(expr))

    def _variable(self, var: Var) -> Piece:
        if var in self.bound:
            return self.bound[var]
        role = self.kernel.roles[var]
        if role in ("each", WINDOW) or (role == "stream" and not self.is_streamed(var)):
            return Piece(var.name)
        if role == "whole":
            return Piece(f"T.arange({self.size(var)})", (var,))
        return Piece(f"{var.name}.index", (var,))

    def _aligned(self, exprs: Iterable[Expr]) -> list[Piece]:
        """The pieces with dimensions of one where others have more."""
        pieces = [self.value(e) for e in exprs]
        union = {v for p in pieces for v in p.dims}
        dims = tuple(v for v in self.order if v in union)
        return [self.aligned(p, dims) for p in pieces]

    def aligned(self, piece: Piece, dims: tuple[Var, ...]) -> Piece:
        """`piece` where it meets a value of `dims`; leading dimensions may be missing."""
        if not piece.dims or piece.dims == dims[len(dims) - len(piece.dims) :]:
            return Piece(piece.text, dims, piece.binds)
        first = dims.index(piece.dims[0])
        marks = [":" if v in piece.dims else "None" for v in dims[first:]]
        return Piece(f"{piece.inside(ATOM)}[{', '.join(marks)}]", dims)

    def _computing(self, exprs: Sequence[Expr]) -> list[Piece]:
        """The pieces, aligned: values compute in float32, scalars in their own type."""
        pieces = self._aligned(exprs)
        if any(p.dims for p in pieces):
            return pieces
        return [self._widened(e, p, e.dtype) for e, p in zip(exprs, pieces, strict=True)]

    def _widened(self, expr: Expr, piece: Piece, kind: DType) -> Piece:
        own = self._type_of(expr)
        wide = kind == FLOAT32 and own.is_float and own.bits < 32
        return Piece(f'T.cast({piece.text}, "float32")', piece.dims) if wide else piece

    def _infix(self, op: str, a: Expr, b: Expr, binds: int) -> Piece:
        x, y = self._computing([a, b])
        left, right = (binds + 1, binds) if op == "**" else (binds, binds + 1)
        return Piece(f"{x.inside(left)} {op} {y.inside(right)}", x.dims or y.dims, binds)

    def _call(self, word: str, args: list[Expr]) -> Piece:
        pieces = self._computing(args)
        dims = max((p.dims for p in pieces), key=len)
        return Piece(f"{word}({', '.join(p.text for p in pieces)})", dims)

    def _keeping_nan(self, op: str, a: Expr, b: Expr) -> Piece:
        """`T.maximum` takes the number beside a NaN, formulas keep the NaN."""
        if isinstance(a, Const):
            a, b = b, a
        if isinstance(b, Const):
            return self._written(select(compare(op, b, a), b, a))
        first = Bin("or", compare(op, a, b), Call("isnan", (a,), BOOL))
        return self._written(select(first, a, b))

    def _wrapped(self, expr: Expr, piece: Piece) -> Piece:
        """Integers of fewer than 32 bits wrap; values compute in 32."""
        if expr.dtype.is_int and expr.dtype.bits < 32:
            return Piece(f'T.cast({piece.text}, "{expr.dtype}")', piece.dims)
        return piece

    def _cast(self, dtype: DType, a: Expr) -> Piece:
        piece = self.value(a)
        inner = a.a if _widens(a) else a
        read = isinstance(inner, Load) and inner.buffer.name in self.tensors
        if _widens(Cast(dtype, a)) or (read and inner.dtype == dtype):  # which has that type
            return piece
        return Piece(f'T.cast({piece.text}, "{dtype}")', piece.dims)

    # -- elements

    def _element(self, load: Load) -> Piece:
        tensor = self.tensors[load.buffer.name]
        sizes = zip(load.indices, extents(load.buffer), strict=True)
        plain = [self._plain_index(i, n) for i, n in sizes]
        if not load.indices:
            return Piece(f"{tensor}[()]")
        if all(p is not None for p in plain):
            dims = tuple(p.dims[0] for p in plain if p is not None and p.dims)
            if len(set(dims)) == len(dims):
                text = f"{tensor}[{', '.join(p.text for p in plain if p is not None)}]"
                return self._ordered(Piece(text, dims), load)
        pieces = self._aligned(load.indices)
        dims = max((p.dims for p in pieces), key=len)
        pieces = [self.aligned(self.value(i), dims) for i in load.indices]
        return Piece(f"{tensor}[{', '.join(p.text for p in pieces)}]", dims)

    def _plain_index(self, index: Expr, extent: Extent) -> Piece | None:
        """An index that is a tile, all of a dimension, a part of it, or a number; a tile may be
        shifted. `extent` is the length of the dimension."""
        if not self.dims_of(index):
            return self.value(index)
        match index:
            case Var() if index not in self.bound:
                if self.kernel.roles[index] != "whole":
                    return Piece(index.name, (index,))
                part = self.kernel.extents[index] != extent
                return Piece(f"0 : {self.size(index)}" if part else ":", (index,))
            case _ if index.dtype == INT32 and len(self.dims_of(index)) == 1:
                (var,) = self.dims_of(index)
                shift = simplify(index - var)
                if var in self.bound or self.dims_of(shift):
                    return None
                if self.kernel.roles[var] != "whole":
                    by = self.value(shift)
                    return Piece(
                        f"{var.name} + {by.inside(PLUS)}".replace("+ -", "- "), (var,), PLUS
                    )
                start = self.value(shift).inside(PLUS)
                return Piece(f"{start} : {start} + {self.size(var)}", (var,))
        return None

    def _ordered(self, piece: Piece, load: Load) -> Piece:
        """With its dimensions in the order of the kernel."""
        dims = tuple(v for v in self.order if v in piece.dims)
        if dims == piece.dims:
            return piece
        if len(dims) == 2:
            return Piece(f"{piece.text}.T", dims)
        indices = []
        for i in load.indices:
            indices.append(self.aligned(self.value(i), dims) if self.dims_of(i) else self.value(i))
        return Piece(f"{self.tensors[load.buffer.name]}[{', '.join(p.text for p in indices)}]",
                     dims)  # fmt: skip

    # -- folds

    def _fold(self, name: str) -> Piece:
        """A fold of this kernel that is not state of its loop."""
        if name in self.folds:
            return self.folds[name]
        fold = next(f for f in self.kernel.folds if f.name == name)
        product = self.products.get(name)
        try:
            if product is not None:
                piece = self.product(product)
            elif fold.by is not None:
                return self._parts_of(fold, fold.by)[name]
            elif self.kernel.roles[fold.over[-1].var] == WINDOW:
                return self._window(fold)
            else:
                body = self.spelt(fold.body)
                piece = self.folded(fold.monoid, body, fold.folded, fold.scan)
        except Apart as wrong:
            raise Apart(wrong.array or name, wrong.reason) from wrong
        name = self.names.fresh(fold.name.split(".")[-1])
        self.line(f"{name} = {piece.text}")
        found = Piece(name, piece.dims)
        if self.section is self.before:
            self.folds[fold.name] = found
        return found

    def _window(self, fold: Array) -> Piece:
        """A fold over one place of its windows after the other."""
        dims = tuple(v for v in self.order if v in fold.vars)
        name, kind = self.names.fresh(fold.name.split(".")[-1]), fold.body.dtype
        start = literal(float(NEUTRAL[fold.monoid]), FLOAT32).text
        how = f', "{kind}"' if kind.bits >= 32 and kind != FLOAT32 else ""
        shape = self.shape(dims)
        new = f"T.full({shape}, {start}{how})" if NEUTRAL[fold.monoid] else f"T.zeros({shape}{how})"
        home, places = self.section, vars_of(fold.over)
        lines: list[str] = []
        self.windows.append(lines)
        self.section, self.running = lines, self.running | {*places}
        term = self.aligned(self.value(self.spelt(fold.body)), dims)
        self.section, self.running = home, self.running - {*places}
        self.line(f"{name} = {new}")
        for depth, v in enumerate(places):
            self.line(f"{INDENT * depth}for {v.name} in range({self.size(v)}):")
        inner = INDENT * len(places)
        for line in (*lines, MERGE[fold.monoid].format(name, term.text)):
            self.line(inner + line)
        self.folds[fold.name] = Piece(name, dims)
        return self.folds[fold.name]

    def _parts_of(self, fold: Array, by: Monoid) -> dict[str, Piece]:
        """The elements of a fold by the user's monoid that somebody needs."""
        needed = {f.by.part: f for f in self.kernel.folds if f.by and f.is_beside(fold)}
        piece = self.reduced(by, self.spelt(fold.body), vars_of(fold.over), fold.scan)
        parts = [needed.get(n) for n in range(len(by.identity))]
        names = [self.names.fresh(f.name) if f else "_" for f in parts]
        self.line(f"{', '.join(names)} = {piece.text}")
        found = {f.name: Piece(n, piece.dims) for f, n in zip(parts, names, strict=True) if f}
        for f in needed.values():
            self.known[id(self.section), f.element] = found[f.name]
        if self.section is self.before:
            self.folds |= found
        return found

    def reduced(self, by: Monoid, body: Expr, over: Sequence[Var], scan: bool = False) -> Piece:
        """What the user's monoid folds along `over`, the last axis first: that keeps the order."""
        pieces = [self.value(e) for e in body.children]
        union = {*over, *(v for piece in pieces for v in piece.dims)}
        dims = tuple(v for v in self.order if v in union)
        texts = [
            (p if p.dims == dims else self._spread(p, e.dtype, dims)).text
            for p, e in zip(pieces, body.children, strict=True)
        ]
        text = f"({', '.join(texts)})" if len(texts) > 1 else texts[0]
        for var in (v for v in reversed(over) if v in dims):
            word = "T.scan" if scan else "T.reduce"
            text = f"{word}({text}, {self.function(by)}, dim={dims.index(var)})"
            dims = dims if scan else tuple(v for v in dims if v is not var)
        return Piece(text, dims)

    def folded(self, monoid: str, body: Expr, over: Set[Var], scan: bool = False) -> Piece:
        """`body` folded along the dimensions of `over`."""
        piece = self.value(body)
        union = {*piece.dims, *(v for v in over if v in self.order)}
        dims = tuple(v for v in self.order if v in union)
        if dims != piece.dims:  # what does not depend on the axis is the same along it
            piece = self._spread(piece, body.dtype, dims)
        along = [p for p, v in enumerate(dims) if v in over]
        if scan:
            word = {"sum": "T.cumsum", "prod": "T.cumprod"}.get(monoid)
            how = f"{word}({piece.text}" if word else f'T.scan({piece.text}, "{monoid}"'
            return Piece(f"{how}, dim={along[0]})", piece.dims)
        dim = str(along[0]) if len(along) == 1 else str(tuple(along))
        dims = tuple(v for v in piece.dims if v not in over)
        return Piece(f"T.{monoid}({piece.text}, dim={dim})", dims)

    def _spread(self, piece: Piece, dtype: DType, dims: tuple[Var, ...]) -> Piece:
        """`piece` with all of `dims`."""
        neutral, op = ("True", "&") if dtype == BOOL else ("0", "+")
        kind = "int32" if dtype.is_int and dtype.bits < 32 else dtype
        kind = "float32" if dtype.is_float and dtype.bits < 32 else kind
        text = f'T.full({self.shape(dims)}, {neutral}, "{kind}")'
        return Piece(f"{self.aligned(piece, dims).inside(PLUS + 1)} {op} {text}", dims, AND)

    def shape(self, dims: tuple[Var, ...]) -> str:
        """A shape as it is written."""
        return listed(self.size(v) if self.kernel.roles[v] == "whole" else v.name for v in dims)

    def summed(self, term: Expr) -> Piece:
        """`term` summed along the loop's tile: a product of matrices where it is one."""
        along = self.kernel.stream[-1].var
        axes = {v: frozenset(self.dims_of(v)) for v in variables(term)}
        rest = [v for v in self.dims_of(term) if v is not along]
        product = split(term, [along], rest, axes)
        sides = () if product is None else (product.rows, product.columns)
        if product is not None and not product.batch and all(len(side) == 1 for side in sides):
            return self.product(product)
        return self.folded("sum", term, {along})

    def product(self, p: Product) -> Piece:
        """`left @ right`, rounded to a type that both have."""
        p = _scaled_side(p)
        kind = self._operand_type(p.left, p.right)
        sides = [[v for v in side if v in self.order] for side in (p.depth, p.rows, p.columns)]
        if any(len(side) != 1 for side in sides):
            raise Apart("", "is a product of more than two dimensions")
        (depth,), (row,), (column,) = sides
        left = self._operand(p.left, (row, depth), kind)
        right = self._operand(p.right, (depth, column), kind)
        dims = tuple(v for v in self.order if v in (row, column))
        if dims != (row, column):
            left, right = (self._operand(p.right, (column, depth), kind),
                           self._operand(p.left, (depth, row), kind))  # fmt: skip
        piece = Piece(f"{left.inside(TIMES)} @ {right.inside(UNARY)}", dims, TIMES)
        if p.scale is None:
            return piece
        scale = self.aligned(self.value(p.scale), dims)
        return Piece(f"{piece.text} * {scale.inside(UNARY)}", dims, TIMES)

    def _operand_type(self, a: Expr, b: Expr) -> DType:
        """The type in which both are multiplied: that in which arguments are stored, and, for what
        is computed, that of the other or of what it is computed from."""

        def stored(expr: Expr) -> DType | None:
            inner = expr.a if _widens(expr) else expr
            given = isinstance(inner, Load) and inner.buffer.name in self.given
            return inner.dtype if given else None

        if a.dtype.is_int:
            narrow = {_narrowed(a).dtype, _narrowed(b).dtype}
            return narrow.pop() if len(narrow) == 1 else a.dtype
        kinds = [k for k in (stored(a), stored(b)) if k is not None]
        if not kinds:
            reading = (*loads(a), *loads(b))
            kinds = [x.dtype for x in reading if x.dtype.is_float and x.buffer.name in self.given]
        return reduce(promote, kinds) if kinds else a.dtype

    def _type_of(self, expr: Expr) -> DType:
        """The type that the text of `expr` has: what is read, or chosen from what is read, has
        that in which it is stored; what is computed has 32 bits."""
        inner = expr.a if _widens(expr) else expr
        if isinstance(inner, Load):
            computed = inner.buffer.name not in self.tensors and inner.dtype.is_float
            return promote(inner.dtype, FLOAT32) if computed else inner.dtype
        parts = choices(inner)
        if parts and inner.dtype == FLOAT32:
            kinds = {self._type_of(p) for p in parts if not isinstance(p, Const)}
            numbers = [p.value for p in parts if isinstance(p, Const)]
            if len(kinds) == 1 and all(holds(kind, x) for kind in kinds for x in numbers):
                return kinds.pop()
        return inner.dtype

    def _chosen(self, word: str, expr: Expr) -> Piece:
        """A choice keeps the stored type of its parts, unless a number among them does not fit."""
        kind = self._type_of(expr)
        parts = zip(expr.children, self._aligned(expr.children), strict=True)
        pieces = [self._widened(part, piece, kind) for part, piece in parts]
        dims = max((p.dims for p in pieces), key=len)
        return Piece(f"{word}({', '.join(p.text for p in pieces)})", dims)

    def _operand(self, expr: Expr, dims: tuple[Var, Var], kind: DType) -> Piece:
        narrow = _narrowed(expr)
        expr = narrow if narrow.dtype == kind else expr
        has = self._type_of(expr)
        piece = self.value(expr)
        if set(piece.dims) != set(dims):
            raise Apart("", "an operand lacks a dimension")
        if has != kind:
            piece = Piece(f'T.cast({piece.text}, "{kind}")', piece.dims)
            if kind.bits < has.bits:
                self.rounded.append(f"{self.value(expr).text} is rounded to {kind} for a product")
        if piece.dims != dims:
            is_turned = piece.binds == ATOM and piece.text.endswith(".T")
            turned = piece.text[:-2] if is_turned else f"{piece.inside(ATOM)}.T"
            piece = Piece(turned, dims)
        return piece


def _scaled_side(p: Product) -> Product:
    """With a number that scales the product in the side that is computed anyway."""
    if not isinstance(p.scale, Const):
        return p
    for side in ("left", "right"):
        expr = getattr(p, side)
        if not isinstance(expr, (Load, Cast)):
            return replace(p, scale=None, **{side: expr * p.scale})
    return p


def _widens(expr: Expr) -> TypeGuard[Cast]:
    """Casts that texts leave out: values compute in float32."""
    return (
        isinstance(expr, Cast) and expr.dtype == FLOAT32 and expr.a.dtype.is_float
        and expr.a.dtype.bits < 32
    )  # fmt: skip


def _printed(expr: Expr) -> tuple[Expr, ...]:
    """What is printed where `expr` is used: a cast that texts leave out is what it is of."""
    return (expr, expr.a) if _widens(expr) else (expr,)


def _operands(expr: Expr) -> tuple[Expr, ...]:
    """The parts of `expr`, each as often as its text has it."""
    match expr:
        case Call(name="max_nan" | "min_nan", args=args):  # a comparison and a choice
            return args * 2
    return expr.children


def _narrowed(expr: Expr) -> Expr:
    """What a cast takes from memory, or makes 8-bit integers wide that are multiplied as such."""
    if isinstance(expr, Cast):
        small = expr.a.dtype.is_int and expr.a.dtype.bits == 8 and expr.dtype == INT32
        if isinstance(expr.a, Load) or (small and isinstance(expr.a, Cast)):
            return expr.a
    return expr
