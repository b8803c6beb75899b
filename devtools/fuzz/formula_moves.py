"""What a random formula does next: operations on arrays, and whole scenes such as attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from devtools.fuzz.formula_draw import Draw, Formula

_UNARY = [
    "tm.exp(tm.minimum({}, 2.5))", "tm.tanh({})", "tm.sigmoid({})", "tm.sin({})", "tm.cos({})",
    "tm.relu({})", "tm.abs({})", "tm.square({})", "tm.sqrt(tm.abs({}) + 0.1)",
    "tm.log(tm.abs({}) + 0.5)", "tm.gelu({})", "tm.silu({})", "tm.softplus({})", "-{}",
    "tm.erf({})", "tm.floor({})", "tm.sign({})", "tm.expm1(tm.minimum({}, 2.0))",
    "tm.log1p(tm.abs({}))", "tm.rsqrt(tm.square({}) + 0.3)", "1 / (1.5 + tm.abs({}))",
    "tm.clip({}, -0.7, 0.9)", "tm.round({})", "tm.trunc({})", "tm.astype({}, tm.float16)",
    "tm.astype({}, tm.bfloat16)", "tm.astype(tm.astype({}, tm.float16), tm.float32)",
    "{} ** 2", "{} ** 3", "{} * 0.5", "{} + 1", "2 - {}",
    "{} / 3", "tm.ceil({})", "tm.atan({})", "tm.reciprocal(tm.abs({}) + 0.5)",
    "(tm.abs({}) + 0.2) ** 0.5", "(tm.square({}) + 0.2) ** -0.5", "tm.where(tm.isnan({}), 0, 1.5)",
    "{} % 2", "{} // 1", "tm.astype({}, tm.int32)", "tm.logaddexp({}, 0.5)",
]  # fmt: skip
_BINARY = [
    "{} + {}", "{} - {}", "{} * {}", "{} * {}", "{} / (1.2 + tm.abs({}))", "tm.maximum({}, {})",
    "tm.minimum({}, {})", "tm.atan2({}, {} + 5)", "tm.hypot({}, {})", "tm.logaddexp({}, {})",
    "tm.copysign({}, {} + 0.01)", "tm.exp(tm.minimum({} - {}, 2))", "tm.where({} > {}, 1.0, -0.5)",
]  # fmt: skip
_INTEGER = [
    "{} + {}", "{} - {}", "{} * {}", "{} & {}", "{} | {}", "{} ^ {}", "tm.maximum({}, {})",
    "tm.minimum({}, {})", "{} // ({} + 5)", "{} % (tm.abs({}) + 3)",
]  # fmt: skip
_COMPARE = ["<", "<=", ">", ">=", "==", "!="]


def unary(d: Draw) -> str:
    return d.add(d.rng.choice(_UNARY).format(d.pick()))


def binary(d: Draw) -> str:
    a = d.pick()
    pair = [a, d.matching(a)]
    d.rng.shuffle(pair)
    return d.add(d.rng.choice(_BINARY).format(*pair))


def integers(d: Draw) -> str:
    a = d.pick("i")
    pair = [a, d.matching(a, "i")]
    d.rng.shuffle(pair)
    if d.rng.random() < 0.3:
        x = d.matching(a)
        return d.add(f"{x} * {a}" if d.rng.random() < 0.5 else f"{a} + {x}")
    return d.add(d.rng.choice(_INTEGER).format(*pair))


def where(d: Draw) -> str:
    a = d.pick()
    b, c = d.matching(a), d.matching(a)
    if d.rng.random() < 0.3:
        condition = d.matching(a, "b")
        if d.rng.random() < 0.4:
            condition = f"~{condition}"
    else:
        condition = f"{a} {d.rng.choice(_COMPARE)} {d.rng.choice([b, '0', '0.5'])}"
        if d.rng.random() < 0.3:
            condition = f"({condition}) {d.rng.choice('&|^')} ({c} > 0)"
    if d.rng.random() < 0.15:
        return d.add(condition)
    return d.add(f"tm.where({condition}, {d.rng.choice([a, b, '0.25'])}, {c})")


def _axis(d: Draw, name: str) -> int:
    rank = len(d.shape(name))
    return d.rng.choice([d.rng.randrange(rank), d.rng.randrange(-rank, 0)])


def _slice(d: Draw, extent: int) -> str:
    r = d.rng
    if extent < 2 or r.random() < 0.4:
        return ":"
    low, high = sorted(r.sample(range(extent + 1), 2))
    return r.choice(
        [
            f"{low}:{high}",
            f"{low}:",
            f":{high}",
            f"::{r.choice([2, 3])}",
            "::-1",
            f"-{extent - low}:",
            f"{low}:{high}:2",
            str(low),
            f"-{high}",
            f":-{low or 1}",
        ]
    )


def view(d: Draw) -> str:
    r = d.rng
    x = d.pick(r.choice("fffi"), least=1)
    shape = d.shape(x)
    axis, other = _axis(d, x), _axis(d, x)
    match r.randrange(17):
        case 0 | 1:
            return d.add(f"{x}.mT" if len(shape) > 1 else f"{x}[:, None]")
        case 2:
            order = list(range(len(shape)))
            r.shuffle(order)
            return d.add(f"tm.permute_dims({x}, {tuple(order)})")
        case 3 | 4 | 5:
            keys = [_slice(d, n) for n in shape]
            if r.random() < 0.3:
                keys.insert(r.randrange(len(keys) + 1), "None")
            return d.add(f"{x}[{', '.join(keys)}]")
        case 6:
            return d.add(f"{x}[{r.choice(['..., None', 'None', 'None, ..., None'])}]")
        case 7 | 8:
            return d.add(f"tm.reshape({x}, {_other_shape(d, shape)})")
        case 9:
            return d.add(f"tm.flip({x}, axis={axis})")
        case 10:
            return d.add(f"tm.roll({x}, {r.choice([1, -1, 2])}, axis={axis})")
        case 11:
            return d.add(f"tm.repeat({x}, {r.choice([2, 3])}, axis={axis})")
        case 12:
            return d.add(f"tm.moveaxis({x}, {axis}, {other})")
        case 13:
            return d.add(f"tm.broadcast_to({x}, {(d.size(), *shape)})")
        case 14:
            return d.add(f"tm.diff({x}, axis={axis})" if shape[axis] > 1 else f"tm.tile({x}, 2)")
        case 15:
            word = r.choice(["tril", "triu"])
            if len(shape) < 2:
                return ""
            return d.add(f"tm.{word}({x}, k={r.choice([-1, 0, 1])})")
    return d.add(f"tm.expand_dims({x}, axis={r.choice([0, -1])})")


def _other_shape(d: Draw, shape: tuple[int, ...]) -> tuple[int, ...]:
    r = d.rng
    found = list(shape)
    for _ in range(2):
        at = r.randrange(len(found)) if found else 0
        if len(found) > 1 and at + 1 < len(found) and r.random() < 0.6:
            found[at : at + 2] = [found[at] * found[at + 1]]
        elif found:
            parts = [n for n in (2, 3, 4, 5) if found[at] % n == 0]
            if parts:
                n = r.choice(parts)
                found[at : at + 1] = r.choice([[n, found[at] // n], [found[at] // n, n]])
    if r.random() < 0.15:
        return (-1,)
    return tuple(found)


def join(d: Draw) -> str:
    x = d.pick(least=1)
    axis = _axis(d, x)
    if d.rng.random() < 0.4:
        return d.add(f"tm.stack([{x}, {d.matching(x)}], axis={axis})")
    others = d.names("f", lambda s: len(s) == len(d.shape(x)))
    parts = [x, d.rng.choice([*others, x]), *([f"-{x}"] if d.rng.random() < 0.3 else [])]
    return d.add(f"tm.concat([{', '.join(parts)}], axis={axis})")


def _axes(d: Draw, name: str) -> str:
    r, rank = d.rng, len(d.shape(name))
    if rank == 0 or r.random() < 0.15:
        return ""
    if rank > 1 and r.random() < 0.3:
        axes = r.sample(range(rank), r.randrange(2, rank + 1))
        return f", axis={tuple(axes)}"
    return f", axis={_axis(d, name)}"


def reduce(d: Draw) -> str:
    r = d.rng
    kind = r.choice("ffffffib")
    x = d.pick(kind, least=r.choice([0, 1, 1, 1]))
    words = {
        "f": ["sum", "sum", "mean", "mean", "max", "min", "var", "std", "logsumexp"],
        "i": ["sum", "max", "min", "prod"],
        "b": ["any", "all", "sum", "count_nonzero"],
    }
    word = r.choice(words[kind])
    keep = ", keepdims=True" if r.random() < 0.4 else ""
    if kind == "f" and r.random() < 0.08:
        return d.add(f"tm.prod(tm.cos({x}){_axes(d, x)}{keep})")
    if kind == "f" and r.random() < 0.1:
        return d.add(f"tm.{r.choice(['any', 'all'])}({x} > 0{_axes(d, x)}{keep})")
    if word in ("var", "std") and r.random() < 0.3 and all(n > 2 for n in d.shape(x)):
        keep += ", correction=1"
    return d.add(f"tm.{word}({x}{_axes(d, x)}{keep})")


def scan(d: Draw) -> str:
    x = d.pick(d.rng.choice("fffi"), least=1)
    if d.rng.random() < 0.15 and d.kind(x) == "f":
        return d.add(f"tm.cumulative_prod(tm.cos({x}), axis={_axis(d, x)})")
    initial = ", include_initial=True" if d.rng.random() < 0.15 else ""
    return d.add(f"tm.cumulative_sum({x}, axis={_axis(d, x)}{initial})")


_MONOIDS = [  # of one number, and of two, of which one is taken
    ("tm.monoid(-tm.inf, tm.maximum)", "{}", ""), ("tm.monoid(0.0, tm.add)", "{}", ""),
    ("tm.monoid((1.0, 0.0), lambda a, b: (a[0] * b[0], a[1] * b[0] + b[1]))", "(tm.sin({}), {})",
     "[1]"),
    ("tm.monoid((-tm.inf, 0), lambda a, b: tuple(tm.where(a[0] >= b[0], p, q) for p, q in "
     "zip(a, b)))", "({}, tm.indices({}, -1))", "[{n}]"),
    ("tm.monoid((-tm.inf, -tm.inf), lambda a, b: (tm.maximum(a[0], b[0]), tm.maximum("
     "tm.minimum(a[0], b[0]), tm.maximum(a[1], b[1]))))", "({}, -tm.inf)", "[0]"),
]  # fmt: skip


def monoid(d: Draw) -> str:
    """A fold or a scan by a function, or the largest elements."""
    r = d.rng
    x = d.pick(least=1)
    axis = _axis(d, x)
    if r.random() < 0.4:
        k = r.randrange(1, min(4, d.shape(x)[axis]) + 1)
        return d.add(f"tm.top_k({x}, {k}, axis={axis})[{r.randrange(2)}]")
    made, of, part = r.choice(_MONOIDS)
    word = r.choice(["reduce", "reduce", "scan"])
    return d.add(
        f"tm.{word}({made}, {of.format(x, x)}, axis={axis}){part.format(n=r.randrange(2))}"
    )


def argument(d: Draw) -> str:
    x = d.pick(d.rng.choice("fffi"), least=1)
    keep = ", keepdims=True" if d.rng.random() < 0.4 else ""
    axis = "" if d.rng.random() < 0.1 else f", axis={_axis(d, x)}"
    at = d.add(f"tm.{d.rng.choice(['argmax', 'argmin'])}({x}{axis}{keep})")
    if at and keep and axis and d.rng.random() < 0.6:
        return d.add(f"tm.take_along_axis({x}, {at}{axis})")
    return at


def softmax(d: Draw) -> str:
    x = d.pick(least=1)
    word = d.rng.choice(["softmax", "softmax", "log_softmax"])
    return d.add(f"tm.{word}({x}, axis={_axis(d, x)})")


def normal(d: Draw) -> str:
    """Norms: of layers, of roots, of groups."""
    x = d.pick(least=1)
    axes = _axes(d, x) or ", axis=-1"
    if d.rng.random() < 0.5:
        m = d.add(f"tm.mean({x}{axes}, keepdims=True)")
        v = d.add(f"tm.mean(({x} - {m}) ** 2{axes}, keepdims=True)") if m else ""
        found = d.add(f"({x} - {m}) / ({v} + 0.01) ** 0.5") if v else ""
    else:
        v = d.add(f"tm.mean({x} * {x}{axes}, keepdims=True)")
        found = d.add(f"{x} * tm.rsqrt({v} + 0.01)") if v else ""
    if found and d.rng.random() < 0.6:
        return d.add(f"{found} * {d.matching(found)}")
    return found


def product(d: Draw) -> str:
    r = d.rng
    x = d.pick(least=1)
    shape = d.shape(x)
    n, k = d.size(), shape[-1]
    if len(shape) == 1 and r.random() < 0.5:
        return d.add(f"{x} @ {d.param((k,))}")
    batch = shape[:-2] if r.random() < 0.4 else tuple(1 for _ in shape[1:-2])
    if r.random() < 0.4:
        w = f"{d.param((*batch, n, k))}.mT"
    elif r.random() < 0.15:
        w = d.param((k,))
    else:
        w = d.param((*batch, k, n))
    if r.random() < 0.2 and len(shape) > 1:
        other = d.param((*batch, n, shape[-2]))
        return d.add(f"{other} @ {x}")
    return d.add(f"{x} @ {w}")


def einsum(d: Draw) -> str:
    r = d.rng
    letters = "abcde"
    sizes = {c: d.size() for c in letters}
    terms: list[str] = []
    for _ in range(r.choice([1, 2, 2, 2, 3])):
        terms.append("".join(r.sample(letters[: r.choice([3, 4])], r.choice([1, 2, 2, 3]))))
    used = sorted(set("".join(terms)))
    result = r.sample(used, r.randrange(len(used) + 1))[:3]
    given = [d.param(tuple(sizes[c] for c in t)) for t in terms]
    return d.add(f'tm.einsum("{",".join(terms)}->{"".join(result)}", {", ".join(given)})')


def gather(d: Draw) -> str:
    r = d.rng
    x = d.pick(least=1)
    shape = d.shape(x)
    match r.randrange(4):
        case 0:
            i = d.param(d.some_shape(r.choice([1, 1, 2])), "i", max(1, shape[0]))
            return d.add(f"{x}[{i}]")
        case 1:
            axis = _axis(d, x)
            i = d.param((d.size(),), "i", shape[axis])
            return d.add(f"tm.take({x}, {i}, axis={axis})")
        case 2 if len(shape) > 1:
            i = d.param(shape[:1], "i", shape[1])
            return d.add(f"{x}[tm.arange({shape[0]}), {i}]")
    axis = _axis(d, x)
    own = list(shape)
    own[axis] = d.size()
    i = d.param(tuple(own), "i", shape[axis])
    return d.add(f"tm.take_along_axis({x}, {i}, axis={axis})")


def positions(d: Draw) -> str:
    r = d.rng
    x = d.pick(least=2)
    i, j = _fresh_pair(d)
    if not d.add(f"{i}, {j} := tm.indices({x}, -2, -1)"):
        return ""
    mask = r.choice([f"{j} <= {i}", f"{i} > {j} - 2", f"tm.abs({i} - {j}) < 3", f"{j} < 3",
                     f"({i} + {j}) % 2 == 0", f"({j} <= {i}) & ({j} > {i} - 4)"])  # fmt: skip
    other = r.choice(["0", "-0.5", d.matching(x)])
    if r.random() < 0.7:
        return d.add(f"tm.where({mask}, {x}, {other})")
    *_, m, n = d.shape(x)
    flat = f"({i} * {n + n % 2} + {j})"  # the index of rows one after another, or none
    return d.add(f"{x} * ({i} - {j})" if m % 2 else f"{x} + 0.01 * {flat}")


def _fresh_pair(d: Draw) -> tuple[str, str]:
    for pair in (("i", "j"), ("i1", "j1"), ("i2", "j2"), ("i3", "j3"), ("rows", "columns")):
        if not any(n in d.space for n in pair):
            return pair
    n = len(d.lines)
    return f"row{n}", f"column{n}"


def convolution(d: Draw) -> str:
    r = d.rng
    n, c, o = r.choice([1, 2, 3]), r.choice([1, 2, 3, 5]), r.choice([1, 2, 4, 5])
    k, stride, by, pad = (r.choice([1, 2, 3]), r.choice([1, 1, 2]), r.choice([1, 1, 2]),
                          r.choice([0, 1]))  # fmt: skip
    w = r.choice([7, 9, 12])
    out = (w + 2 * pad - by * (k - 1) - 1) // stride + 1
    across = f"t * {stride} + s * {by} - {pad}".replace(" * 1", "").replace(" - 0", "")
    if r.random() < 0.5:
        x, f = d.param((n, c, w)), d.param((o, c, k))
        return d.add(f"tm.array(({n}, {o}, {out}), lambda b, o, t: tm.sum(({c}, {k}), "
                     f"lambda c, s: {x}[b, c, {across}] * {f}[o, c, s]))")  # fmt: skip
    h, kh = r.choice([5, 6]), r.choice([1, 2, 3])
    x = d.param((n, c, h, w))
    if r.random() < 0.3:
        return d.add(f"tm.array(({n}, {c}, {h - kh + 1}, {out}), lambda b, c, u, t: "
                     f"tm.max(({kh}, {k}), lambda r, s: {x}[b, c, u + r, {across}]))")  # fmt: skip
    if r.random() < 0.4:
        f = d.param((c, kh, k))
        return d.add(f"tm.array(({n}, {c}, {h - kh + 1}, {out}), lambda b, c, u, t: tm.sum(({kh}, "
                     f"{k}), lambda r, s: {x}[b, c, u + r, {across}] * {f}[c, r, s]))")  # fmt: skip
    f = d.param((o, c, kh, k))
    return d.add(
        f"tm.array(({n}, {o}, {h - kh + 1}, {out}), lambda b, o, u, t: tm.sum(({c}, {kh}, {k}), "
        f"lambda c, r, s: {x}[b, c, u + r, {across}] * {f}[o, c, r, s]))"
    )


def comprehension(d: Draw) -> str:
    r = d.rng
    x = d.pick(rank=2)
    (m, n), shift = d.shape(x), r.choice([0, 1, -1, 2])
    word = r.choice(["sum", "max", "min", "prod"])
    body = r.choice([f"{x}[a, b + {shift}]", f"{x}[a, {n - 1} - b] * 0.5", f"{x}[a, b] - {x}[a, 0]",
                     f"tm.where(b <= a, {x}[a, b], 0)", f"{x}[a // 2, b]"])  # fmt: skip
    if r.random() < 0.4:
        return d.add(f"tm.array(({m}, {n}), lambda a, b: {body})")
    if word == "prod":
        body = f"tm.cos({body})"
    return d.add(f"tm.array(({m},), lambda a: tm.{word}(({n},), lambda b: {body}))")


# ── scenes ───────────────────────────────────────────────────────────────────────────────────


def attention(d: Draw) -> str:
    r = d.rng
    dims = r.choice([(), (2,), (3,), (2, 3), (1, 2)])
    m, n, depth, wide = r.choice([1, 5, 17, 40]), r.choice([7, 17, 33, 50]), r.choice([4, 8, 16]), \
        r.choice([3, 8, 16])  # fmt: skip
    if r.random() < 0.4:
        n = m
    q, k, v = d.param((*dims, m, depth)), d.param((*dims, n, depth)), d.param((*dims, n, wide))
    keys, values = k, v
    if dims and r.random() < 0.25:  # heads that share keys
        q = d.param((*dims, 2, m, depth))
        keys, values = f"{k}[..., None, :, :]", f"{v}[..., None, :, :]"
    scale = r.choice([" * 0.25", f" / {depth} ** 0.5", f" * {q}.shape[-1] ** -0.5", ""])
    s = d.add(f"{q} @ tm.matrix_transpose({keys}){scale}")
    if s and r.random() < 0.2:
        s = d.add(f"5 * tm.tanh({s} / 5)")
    if s and r.random() < 0.2:
        s = d.add(
            f"{s} + {d.param((m, n) if r.random() < 0.5 else (*dims, *d.shape(s)[len(dims) :]))}"
        )
    if not s:
        return ""
    if r.random() < 0.55:
        s = _masked(d, s, m, n)
    if not s:
        return ""
    way = r.random()
    if way < 0.65:
        p = d.add(f"tm.softmax({s}, axis=-1)")
    elif way < 0.7:
        p = d.add(f"tm.sigmoid({s})")
    elif way < 0.75:  # rows of which nothing is left are zero
        top = d.add(f"tm.max({s}, axis=-1, keepdims=True)", bounded=False)
        e = d.add(f"tm.exp({s} - tm.where({top} == -tm.inf, 0.0, {top}))") if top else ""
        p = d.add(f"{e} / tm.maximum(tm.sum({e}, axis=-1, keepdims=True), 0.001)") if e else ""
    elif way < 0.85:
        e = d.add(f"tm.exp({s} - tm.max({s}, axis=-1, keepdims=True))")
        p = d.add(f"{e} / tm.sum({e}, axis=-1, keepdims=True)") if e else ""
    else:
        p = d.add(f"tm.relu({s}) ** 2")
    if p and r.random() < 0.1:
        d.add(f"tm.{r.choice(['logsumexp', 'max'])}({s}, axis=-1)")
    return d.add(f"{p} @ {values}") if p else ""


def _masked(d: Draw, s: str, m: int, n: int) -> str:
    r = d.rng
    i, j = _fresh_pair(d)
    if not d.add(f"{i}, {j} := tm.indices({s}, -2, -1)"):
        return ""
    off, wide = r.choice([0, 0, 3, n]), r.choice([2, 5, 9])
    word, by = min(r.randrange(14), 10), r.choice([2, 3, 8])
    mask = [
        f"{j} <= {i} + {off}", f"({j} <= {i}) & ({j} > {i} - {wide})", f"({j} <= {i}) | ({j} < 4)",
        f"tm.abs({i} - {j}) < {wide}", f"({j} < 2) | (({j} <= {i}) & ({j} > {i} - {wide}))",
        f"{j} >= {i} - {off}", f"{i} >= {j}", f"({j} % 2 == 0) | ({j} == {i})",
        f"{i} // {by} == {j} // {by}", f"({j} // {by} <= {i} // {by}) | ({i} + 1 == {j})", "",
    ][word]  # fmt: skip
    if word == 10:
        if r.random() < 0.5 and len(d.shape(s)) > 2:
            slopes = d.param((d.shape(s)[-3],))
            return d.add(f"{s} + {slopes}[:, None, None] * ({j} - {i}) * 0.1")
        mask = _read_mask(d, m, n, i, j)
    if word in (1, 3, 5, 8, 9) and m > n:  # every row keeps something
        mask = f"({mask}) | ({j} == 0)"
    return d.add(f"tm.where({mask}, {s}, -tm.inf)", bounded=False)


def _read_mask(d: Draw, m: int, n: int, i: str, j: str) -> str:
    """A mask that reads what it compares; most rows keep something."""
    r = d.rng
    causal = r.choice(["", f" & ({j} <= {i})"]) if m == n else ""
    match r.randrange(6):
        case 0 | 1 if m == n:  # documents
            x = d.param((m,), "i", r.choice([3, n]))
            return f"({x}[:, None] == {x}[None, :]){causal}"
        case 2:  # lengths
            x = d.param((1,), "i", n + 3)
            return f"({j} {r.choice(['<', '<='])} {x}[0]) | ({j} == 0)"
        case 3:  # an end for each row, which may leave it empty
            x = d.param((m,), "i", n + r.choice([0, 0, 2]))
            return f"{j} {r.choice(['<=', '>='])} {x}[:, None]"
        case 4:  # windows
            x = d.param((1,), "i", n)
            return f"(tm.abs({i} - {j}) <= {x}[0]) | ({j} == {n - 1})"
    x = d.param((n,), "i", 5)
    return f"({x}[None, :] < 1) | ({j} == 3)"


def gated(d: Draw) -> str:
    x = d.pick(least=2)
    k, n = d.shape(x)[-1], d.size()
    up, gate = d.param((k, n)), d.param((n, k))
    a = d.add(f"{x} @ {up}")
    b = d.add(f"{x} @ {gate}.T")
    word = d.rng.choice(["silu", "gelu", "sigmoid", "relu"])
    return d.add(f"tm.{word}({a}) * {b}") if a and b else ""


def weighted(d: Draw) -> str:
    """Sums of one pass: means by weights, moments, losses, normalised products."""
    r = d.rng
    x = d.pick(least=2)
    y = d.matching(x)
    match r.randrange(6):
        case 0:
            w = d.add(f"tm.exp(tm.minimum({y}, 2)) + 0 * {x}")
            return d.add(f"tm.sum({w} * {x}, axis=-1) / tm.sum({w}, axis=-1)") if w else ""
        case 1:
            p = d.add(f"tm.softmax({x}, axis=-1)")
            return d.add(f"-tm.sum({p} * tm.log({p} + 1e-3), axis=-1)") if p else ""
        case 2:
            p = d.add(f"tm.softmax({x}, axis=-1)")
            return d.add(f"tm.sum({p} * {y}, axis=-1)") if p else ""
        case 3:
            return d.add(f"tm.logsumexp({x}, axis=-1) - tm.mean({x}, axis=-1)")
        case 4:
            w = d.param((d.shape(x)[-1], d.size()))
            p = d.add(f"tm.softmax({x}, axis=-1)")
            return d.add(f"{p} @ {w}") if p else ""
    w = d.param((d.shape(x)[-1], d.size()))
    norm = d.add(f"tm.sqrt(tm.sum({x} ** 2, axis=-1, keepdims=True) + 0.1)")
    return d.add(f"({x} / {norm}) @ {w}") if norm else ""


def long(d: Draw) -> str:
    """Loops that blocks share: products along a long axis, and the keys of one query."""
    r = d.rng
    n, k = r.choice([2050, 2300]), r.choice([1, 2, 3])
    if r.random() < 0.5:
        x = d.param((n, k))
        if r.random() < 0.5:
            x = d.add(f"{x} / (tm.sqrt(tm.sum({x} * {x}{r.choice(['', ', axis=0'])})) + 0.1)") or x
        s = d.add(f"{x}.mT @ {d.matching(x)} / {n}" if r.random() < 0.7 else f"{x}.mT @ {x} / {n}")
        return d.add(f"tm.sum({s}{r.choice(['', ', axis=0'])}) + tm.mean({x})") if s else ""
    heads, wide = r.choice([(), (2,)]), r.choice([1, 3])
    q, x, v = d.param((*heads, k)), d.param((*heads, n, k)), d.param((*heads, n, wide))
    s = d.add(f"tm.sum({q}[..., None, :] * {x}, axis=-1)")
    if s and r.random() < 0.5:
        s = d.add(f"tm.where(tm.indices({s}, -1) < {r.choice([100, n - 7])}, {s}, -tm.inf)", False)
    p = d.add(f"tm.softmax({s}, axis=-1)") if s else ""
    return d.add(f"tm.sum({p}[..., None] * {v}, axis=-2)") if p else ""


def both_ways(d: Draw) -> str:
    """A loss of what two sides have in common, a square array and its transposed one."""
    r = d.rng
    m, k, n = d.size(), r.choice([4, 8]), d.size()
    s = d.add(f"{d.param((m, k))} @ {d.param((n, k))}.mT / {k} ** 0.5")
    if not s:
        return ""
    word = r.choice(["logsumexp", "max", "min"])
    rows, columns = (d.add(f"tm.{word}({s}, axis={axis})") for axis in (1, 0))
    if m == n and r.random() < 0.5:
        s = d.add(f"0.5 * ({s} + {s}.mT)")
        if s and r.random() < 0.6:
            return d.add(f"tm.einsum('ij,ik->kj', {d.param((m, m))} / 3, {s} @ {s}) * 0.02")
    i, j = _fresh_pair(d)
    if not (s and rows and columns and d.add(f"{i}, {j} := tm.indices(({m}, {n}), 0, 1)")):
        return ""
    same = d.add(f"tm.sum(tm.where({i} == {j}, {s}, 0.0), axis={r.randrange(2)})")
    return d.add(f"tm.mean({rows}) + tm.mean({columns}) - tm.mean({same})") if same else ""


MOVES: list[tuple[Callable[[Draw], str], int]] = [
    (unary, 8), (binary, 9), (integers, 2), (where, 4), (view, 8), (join, 2), (reduce, 9),
    (scan, 2), (argument, 2), (softmax, 3), (normal, 3), (product, 5), (einsum, 3), (gather, 2),
    (positions, 2), (convolution, 1), (comprehension, 2), (attention, 2), (gated, 1),
    (weighted, 3), (monoid, 2),
]  # fmt: skip
SCENES: list[Callable[[Draw], Any]] = [
    attention, attention, attention, convolution, gated, weighted, weighted, normal, product,
    einsum, softmax, long, both_ways,
]  # fmt: skip


def make(seed: int) -> Formula:
    """The formula of a seed."""
    d = Draw(seed)
    moves, weights = zip(*MOVES, strict=True)
    if d.rng.random() < 0.4:
        d.rng.choice(SCENES)(d)
    count = d.rng.choice([1, 2, 3, 4, 6, 8])
    if len(d.lines) >= count and d.rng.random() < 0.5:
        count = len(d.lines) + d.rng.choice([1, 2, 3])  # something behind the scene
    for _ in range(60):
        if len(d.lines) >= count and d.lines:
            break
        d.rng.choices(moves, weights)[0](d)
    return d.formula()
