"""Random arithmetic on extreme numbers: least and largest integers, shifts by more than the width,
signed zeros, subnormals, infinities and NaN, conversions between all types, bools that are numbers,
loops whose bounds and steps are known at run time, and guards whose sums wrap.

Every operation here has one right result, to the bit: products of wide floats are not added to, for
targets may fuse that, and minima of floats lose the sign of a zero, which no rule gives.
"""

from __future__ import annotations

from random import Random

from devtools.fuzz.recipe import Ex, Launch, Recipe, Stmt, Tensor, Tile

SIGNED = ("int8", "int16", "int32", "int64")
UNSIGNED = ("uint8", "uint16", "uint32", "uint64")
NARROW = ("float16", "bfloat16")
FLOATS = ("float32", "float64", *NARROW)
SMALL = ("float8_e4m3fn", "float8_e5m2")
KINDS = (*SIGNED, *SIGNED, *UNSIGNED, *FLOATS, *FLOATS, "bool")
N = 64
WHOLE = "sum sum times by by times_by shift shift shift bits bool unary power most"
MOST, LEAST = 2**31 - 1, -(2**31)
# start, stop and step of short loops, at the ends of int32, too
LOOPS = (
    (10, 0, -3), (0, 10, 3), (0, 10, -3), (10, 0, 3), (5, 5, 1), (5, 5, -1), (7, 8, MOST),
    (MOST - 5, MOST, 2), (MOST - 5, MOST, 1), (MOST, MOST - 5, -2), (LEAST + 5, LEAST, -2),
    (LEAST, LEAST + 4, 3), (LEAST, MOST, 2**30), (MOST, LEAST, -(2**30)), (MOST, LEAST, LEAST),
)  # fmt: skip

# conditions on data `a` and `b` that decide otherwise where a sum wraps; `c` is a small constant
GUARDS = (
    "{a} + {c} > {a}", "{a} - {c} < {a}", "{a} * 2 > {c}", "{a} + i >= {a}", "{a} - i <= {a}",
    "{a} + i > {c}", "i - {a} < {b}", "i + {a} < {b}", "i + {c} < {a} + {c}", "-{a} < {c}",
    "T.abs({a}) >= 0", "{a} * 4 // 4 == {a}", "T.min({a} + i, {a}) == {a}",
    "i < {a}", "i >= {a}", "{a} <= i - {c}",
    "({a} + i) % 2 == 0", "({a} + i) // 2 < {b}", "({a} << 1) > {b}", "{a} * i >= {b}",
    'i < T.cast({a} + {c}, "int64")', "i * 100000000 + {a} > {b}", "{a} + {b} > {b}",
)  # fmt: skip
WIDE = 256  # elements under a guard: some vectors for each thread


def bits(dtype: str) -> int:
    return int("".join(c for c in dtype.partition("_")[0] if c.isdigit()) or 8)


def ends(dtype: str) -> tuple[int, int]:
    width = bits(dtype)
    return (0, 2**width - 1) if dtype[0] == "u" else (-(2 ** (width - 1)), 2 ** (width - 1) - 1)


class Numbers:
    """Writes one program from a seed."""

    def __init__(self, seed: int) -> None:
        self.seed, self.r = seed, Random(f"numbers {seed}")
        self.guards = Random(f"guards {seed}")
        self.inputs: list[Tensor] = []

    # ── the program ──────────────────────────────────────────────────────────────────────────

    def recipe(self) -> Recipe:
        r = self.r
        kinds = [*r.sample(SIGNED, 2), *r.sample(FLOATS, 1), *r.sample(KINDS, 2)]
        for dtype in dict.fromkeys(kinds):
            shape, data = (str(N),), self.data(dtype)
            self.inputs.append(Tensor(f"A{len(self.inputs)}", shape, dtype, data=data))
        wide = (
            Tensor("K", (str(WIDE),), "int32", data=self.data("int32", WIDE)),
            Tensor("X", (str(WIDE),), "int32", data=f"np.arange(1, {WIDE + 1})"),
        )
        outputs: list[Tensor] = []
        tiles: list[Tile] = []
        body: list[Stmt] = []
        loops = r.sample(LOOPS, 3)
        for at in range(r.randint(4, 8)):
            dtype = r.choice(KINDS)
            out = Tensor(f"O{at}", (str(N),), dtype, data=f"np.zeros({N})")
            outputs.append(out)
            if r.random() < 0.6 and dtype in ("int32", "int64", "uint32"):
                tile = Tile(f"f{at}", r.choice(["fragment", "shared"]), (str(N),), dtype)
                tiles.append(tile)
                body += self.looped(tile, out)
            else:
                value = self.value(dtype, r.choice([1, 1, 2, 2, 3, 4]))
                store = Stmt(f"{out.name}[i] = {{0}}", (value,))
                body.append(Stmt(f"for i in T.Parallel({N}):", body=(store,)))
        for at in range(2):
            out, own, stmts = self.guarded(at)
            outputs.append(out)
            tiles += own
            body += stmts
        launch = Launch(("1",), ("bx",), r.choice(["32", "64", "128"]), tuple(tiles), tuple(body))
        scalars = ("start", "stop", "step", "n")
        cases = tuple(
            {
                **dict(zip(scalars, loop, strict=False)),
                "n": r.choice([0, 1, 7, 31, 40, MOST, MOST, LEAST, -1]),
            }
            for loop in loops
        )
        return Recipe(
            self.seed, "signed", {}, (), scalars, cases, (*self.inputs, *wide, *outputs), (launch,)
        )  # fmt: skip

    def data(self, dtype: str, count: int = N) -> str:
        if dtype == "bool":
            return f"rng.integers(0, 2, ({N},))"
        if dtype in FLOATS:
            odd = "0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 5e-324, -1e-45, 1e-40, 6e-8, "
            odd += "65504.0, 65520.0, -3.4e38, 1.7e308, 448.0, 464.0, 0.1, -2.5, 1.0625, 2.0**31, "
            odd += (
                "-(2.0**31), 2.0**63, 2.0**64, 2147483647.0, -128.5, 255.5, 1e9, 3.5, 0.0078125, "
            )
            # a NaN of all ones, which carries when it is rounded; just beyond a tie of narrow types
            odd += "np.uint64(2**63 - 1).view(np.float64), 1 + 2.0**-8 + 2.0**-40, "
            odd += "-1 - 2.0**-11 - 2.0**-40, 1 + 2.0**-4 + 2.0**-40, 3 + 2.0**-2 - 2.0**-40"
            exact = f"np.where(rng.random({N}) < 0.6, rng.choice([{odd}], {N}), "
            return exact + f"rng.standard_normal({N}) * 2.0 ** rng.integers(-20, 20, {N}))"
        low, high = ends(dtype)
        width = bits(dtype)
        odd_ones = [
            low,
            high,
            low + 1,
            high - 1,
            0,
            1,
            2,
            3,
            width - 1,
            width,
            width + 1,
            high // 3,
        ]
        odd_ones += [-1, -2, low // 2] if low else [high // 2 + 1]
        return f'rng.choice(np.array({odd_ones}, "{dtype}"), {count})'

    def looped(self, tile: Tile, out: Tensor) -> list[Stmt]:
        """A loop whose numbers are folded into every element of a tile."""
        r, f = self.r, tile.name
        fill = Stmt(f"for i in T.Parallel({N}):", body=(
            Stmt(f"{f}[i] = {{0}}", (self.value(tile.dtype, 1),)),
        ))  # fmt: skip
        a, b, s = r.choice(LOOPS)
        head = r.choice([
            "for j in range(start, stop, step):", "for j in T.serial(start, stop, step):",
            f"for j in range({a}, {b}, {s}):", "for j in range(stop, start, 0 - step):",
        ])  # fmt: skip
        if "0 - step" in head:  # -LEAST is LEAST
            head = "for j in range(start, stop, step):"
        more = Stmt(f'{f}[i] = {f}[i] * 31 + T.cast(j, "{tile.dtype}")')
        if r.random() < 0.5:
            loop = Stmt(head, body=(Stmt(f"for i in T.Parallel({N}):", body=(more,)),))
        else:
            loop = Stmt(f"for i in T.Parallel({N}):", body=(Stmt(head, body=(more,)),))
        return [fill, loop, Stmt(f"T.copy({f}, {out.name})")]

    def guarded(self, at: int) -> tuple[Tensor, list[Tile], list[Stmt]]:
        """Elements that a condition on data decides about: in a statement, a value, a reduction,
        a tile that threads or copies fill, an atomic."""
        r, out, tile = self.guards, f"G{at}", f"g{at}"
        scalar = f"k{at}"
        guard = self.guard(scalar)
        named = r.random() < 0.3
        cond, inner = ("c", [Stmt(f"c = {guard}")]) if named else (guard, [])
        value = r.choice(["5", "X[i]", "X[i] + 1"])
        space, dtype = "fragment", "int32"
        end = [Stmt(f"T.copy({tile}, {out})")]
        match r.choice("if if else value tile gather sum atomic".split()):
            case "if":
                inner.append(Stmt(f"if {cond}:", body=(Stmt(f"{out}[i] = {value}"),)))
                end = []
            case "else":
                other = (Stmt(f"{out}[i] = 3"),)
                inner.append(Stmt(f"if {cond}:", body=(Stmt(f"{out}[i] = {value}"),), orelse=other))
                end = []
            case "value":
                inner.append(Stmt(f"{out}[i] = T.if_then_else({cond}, {value}, 0)"))
                end = []
            case "tile":
                inner.append(Stmt(f"{tile}[i] = T.if_then_else({cond}, {value}, 7)"))
            case "gather":
                space = "shared"
                inner.append(Stmt(f"{tile}[i] = T.if_then_else({cond}, X[i], 0)"))
            case "sum":
                inner.append(Stmt(f"{tile}[i] = T.if_then_else({cond}, i + 1, 0)"))
                each = Stmt("for i in T.Parallel(1):", body=(Stmt(f"{out}[i] = s{at}[i]"),))
                end = [Stmt(f"T.reduce_sum({tile}, s{at}, dim=0)"), each]
            case "atomic":
                dtype = "float32"
                add = Stmt(f"T.atomic_add({out}[i], T.cast({value}, 'float32'))")
                inner.append(Stmt(f"if {cond}:", body=(add,)))
                end = []
        map_ = Stmt(f"for i in T.Parallel({WIDE}):", body=tuple(inner))
        stmts = [Stmt(f"{scalar} = K[{r.randint(0, 3)}]"), map_, *end]
        tensor = Tensor(out, (str(WIDE),), dtype, data=f"np.zeros({WIDE})")
        total = Tile(f"s{at}", "fragment", ("1",), "int32")
        return tensor, [Tile(tile, space, (str(WIDE),), dtype), total], stmts

    def guard(self, scalar: str) -> str:
        """A condition on scalar parameters and on numbers that are loaded."""
        r = self.guards
        data = ["n", "n", "start", "stop", "K[1]", "K[i]", scalar]
        text = r.choice(GUARDS).format(a=r.choice(data), b=r.choice(data), c=r.randint(1, 5))
        if r.random() < 0.3:
            limit = r.choice([8, 100, WIDE])
            text = f"({text}) {r.choice(['and', 'or'])} i < {limit}"
        return text

    # ── values ───────────────────────────────────────────────────────────────────────────────

    def ex(self, dtype: str, text: str, *kids: Ex) -> Ex:
        return Ex("cap", dtype, text, kids)

    def leaf(self, dtype: str) -> Ex:
        r = self.r
        found = [t for t in self.inputs if t.dtype == dtype]
        if found and r.random() < 0.75:
            return self.ex(dtype, f"{r.choice(found).name}[i]")
        if self.inputs and r.random() < 0.6:
            tensor = r.choice(self.inputs)
            return self.cast(self.ex(tensor.dtype, f"{tensor.name}[i]"), dtype)
        if dtype == "bool":
            return self.ex(dtype, f"(i % {r.randint(2, 5)} == 0)")
        if dtype in FLOATS:
            value = r.choice(["0.0", "-0.0", "1.0", "-2.0", "0.5", "3.0", "1e-3", "-1e4"])
            return self.ex(dtype, f'T.cast({value}, "{dtype}")')
        if r.random() < 0.3:
            return self.cast(self.ex("int32", r.choice(["n", "i", "i - 32"])), dtype)
        low, high = ends(dtype)
        number = r.choice([low, high, 0, 1, 2, 3, 7, high // 3, *([-1, -3] if low else [])])
        return self.ex(dtype, f'T.cast({number}, "{dtype}")')

    def cast(self, e: Ex, dtype: str) -> Ex:
        if e.dtype == dtype:
            return e
        return self.ex(dtype, f'T.cast({{0}}, "{dtype}")', e)

    def value(self, dtype: str, depth: int) -> Ex:
        r = self.r
        if depth <= 0:
            return self.leaf(dtype)
        if r.random() < 0.2:
            other = r.choice(KINDS)
            inner = self.leaf(other) if r.random() < 0.5 else self.value(other, depth - 1)
            if other in FLOATS and r.random() < 0.3:  # fp8 saturates, and keeps NaN
                inner = self.cast(inner, r.choice(SMALL))
            return self.cast(inner, dtype)
        if r.random() < 0.15:
            cond = self.condition(depth - 1)
            a, b = self.value(dtype, depth - 1), self.value(dtype, depth - 1)
            return self.ex(dtype, "T.if_then_else({0}, {1}, {2})", cond, a, b)
        if dtype == "bool":
            return self.condition(depth - 1)
        return (self.floats if dtype in FLOATS else self.whole)(dtype, depth)

    def condition(self, depth: int) -> Ex:
        dtype = self.r.choice(KINDS)
        a, b = self.value(dtype, depth), self.value(dtype, depth)
        if self.r.random() < 0.4 and dtype in SIGNED:  # what overflow that is undefined decides
            b = self.ex(dtype, f"({{0}} {self.r.choice('+-')} {self.r.randint(1, 3)})", a)
        op = self.r.choice(["<", "<=", "==", "!=", ">", ">="])
        return self.ex("bool", f"({{0}} {op} {{1}})", a, b)

    def whole(self, dtype: str, depth: int) -> Ex:
        r = self.r

        def make(more: int = 1) -> Ex:
            return self.value(dtype, depth - more)

        kind = r.choice(WHOLE.split())
        match kind:
            case "sum":
                return self.ex(dtype, f"({{0}} {r.choice('+-')} {{1}})", make(), make())
            case "times":
                return self.ex(dtype, "({0} * {1})", make(), make())
            case "by":
                if r.random() < 0.4:
                    c = r.choice([2, 3, 4, 7, *([-1, -3] if dtype[0] != "u" else [])])
                    return self.ex(dtype, f"({{0}} {r.choice(['//', '%'])} {c})", make())
                by = self.ex(dtype, "({0} | 1)", self.leaf(dtype))
                text = f"({{0}} {r.choice(['//', '%'])} {{1}})"
                text = "T.fmod({0}, {1})" if r.random() < 0.2 else text
                return self.ex(dtype, text, make(), by)
            case "times_by":
                k = r.choice([2, 3, 4, 8])
                other = r.choice([f"// {k}", f"% {k}", f"// {2 * k}", f"% {2 * k}"])
                return self.ex(dtype, f"(({{0}} * {k}) {other})", make())
            case "shift":
                way = r.choice(["<<", ">>"])
                if r.random() < 0.4:
                    count = r.choice([0, 1, bits(dtype) - 1, bits(dtype), 40, 100])
                    return self.ex(dtype, f"({{0}} {way} {count})", make())
                by = self.leaf(r.choice(UNSIGNED))
                if r.random() < 0.5:
                    by = self.ex("int32", '(T.cast({0}, "int32") & 127)', by)
                return self.ex(dtype, f"({{0}} {way} {{1}})", make(), by)
            case "bits":
                return self.ex(dtype, f"({{0}} {r.choice('&|^')} {{1}})", make(), make())
            case "bool":
                flag = self.value("bool", depth - 1)
                text = r.choice(["(-{0}) * {1}", "{0} + {1}", "{1} - {0}", "{0} * {1}",
                                 "({0} << 3) + {1}", "~{0} + {1}", "abs({0}) | {1}"])  # fmt: skip
                return self.cast(self.ex("mixed", f"({text})", flag, make()), dtype)
            case "unary":
                text = r.choice(["(-{0})", "(~{0})", "T.abs({0})", "T.popcount({0})", "T.clz({0})"])
                return self.ex(dtype, text, make())
            case "power":
                return self.ex(dtype, f"({{0}} ** {r.randint(0, 5)})", make())
        return self.ex(dtype, f"T.{r.choice(['min', 'max'])}({{0}}, {{1}})", make(), make())

    def floats(self, dtype: str, depth: int) -> Ex:
        r = self.r

        def make() -> Ex:
            # a product that is added to may be fused; one that is rounded to fewer bits is not
            return self.value(dtype, depth - 1) if dtype in NARROW else self.unfused(dtype, depth)

        match r.choice("sum sum times by rest unary unary fma most sign whole".split()):
            case "sum":
                return self.ex(dtype, f"({{0}} {r.choice('+-')} {{1}})", make(), make())
            case "times":
                return self.ex(dtype, "({0} * {1})", make(), make())
            case "by":
                return self.ex(dtype, "({0} / {1})", make(), make())
            case "rest":
                text = r.choice(["({0} // {1})", "({0} % {1})", "T.fmod({0}, {1})"])
                return self.ex(dtype, text, make(), make())
            case "unary":
                words = ["floor", "ceil", "trunc", "round", "sqrt", "abs"]
                word = r.choice([f"T.{w}({{0}})" for w in words] + ["(-{0})", "({0} ** -1)"])
                return self.ex(dtype, word, make())
            case "fma" if dtype not in NARROW:
                return self.ex(dtype, "T.fma({0}, {1}, {2})", make(), make(), make())
            case "sign":
                return self.ex(dtype, "T.copysign({0}, {1})", make(), self.leaf_of(dtype))
            case "whole":
                return self.cast(self.value(r.choice((*SIGNED, *UNSIGNED)), depth - 1), dtype)
        text = f"(T.{r.choice(['min', 'max'])}({{0}}, {{1}}) + 0.0)"
        return self.ex(dtype, text, make(), make())

    def unfused(self, dtype: str, depth: int) -> Ex:
        """A value that is no product and no sum of the type itself."""
        kind = self.r.random()
        if kind < 0.5:
            return self.leaf(dtype)
        inner = self.value(self.r.choice(KINDS), depth - 2)
        if inner.dtype == dtype or inner.dtype == "mixed":
            return self.leaf(dtype)
        return self.cast(inner, dtype)

    def leaf_of(self, dtype: str) -> Ex:
        """A number whose sign is known: that of a NaN is not."""
        return self.ex(dtype, f'T.cast({self.r.choice(["-1.0", "0.0", "-0.0"])}, "{dtype}")')


def make(seed: int) -> Recipe:
    """The program of a seed."""
    return Numbers(seed).recipe()
