"""Kernels of the zoo that live by memory, on a GPU: checked, then timed in turns with copies.

    python benchmarks/memory_bound.py --kernels softmax --out softmax.json
    python benchmarks/memory_bound.py --kernels layer_norm --columns 4096 65536 --quick
    python benchmarks/memory_bound.py --kernels softmax --tune --out tune.json
    python benchmarks/memory_bound.py summary softmax.json tune.json

Inputs are bfloat16, 1 GiB each unless `--elements` says otherwise. Our kernel first runs on
NaN-poisoned outputs and fresh data, small and odd shapes included; every element is compared with a
float64 result, and repeated runs must agree bit for bit (20 on the first shape of a family). Peers
are checked on their first rows, more loosely. Contenders: ours; plain copies of the same number of
bytes in several widths (sums, where little is written); PyTorch, also compiled; Triton, our text
and its tutorials' from their files; Quack, where it is installed. A peer that does not run is left
out, and the record says why.

`--tune` races sizes and variants of our kernel among themselves and the copies.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from copies import copies, sums
from race import ROOT, Race, command_line, main, same_every_time

sys.path.insert(0, str(ROOT))

COLUMNS = (256, 1024, 4096, 8192, 16384, 32768, 65536, 131072, 262144)
ODD = ((1, 256), (37, 1000), (37, 100), (3, 5000), (5, 50257))
ELEMENTS = 1 << 29  # 1 GiB of each, many times the 50 MB of L2 cache
ROUNDED = 2.0**-8 + 2.0**-13  # half a unit in the last place of bfloat16, and float32's own errors
TINY = 2.0**-120
PEER = 16.0  # times the bound: peers round in between, too

Arrays = tuple[Any, ...]
Call = Callable[[], Any]


@dataclass(frozen=True)
class Family:
    """`inputs(rows, columns)` and `output(rows, columns)` make arrays; `kernel(columns, **choice)`
    is ours, called on all of them; `eager(*inputs)` is PyTorch's.

    `wanted(*inputs)` in float64, with the error allowed beyond rounding. `moved`: elements for each
    of the first input. `beside`: bytes moved for each row besides. `by_row`: how many of the inputs
    go row by row. `across`: the output's rows are the input's columns.
    """

    inputs: Callable[[int, int], Arrays]
    output: Callable[[int, int], Any]
    kernel: Callable[..., Any]
    eager: Callable[..., Any]
    wanted: Callable[..., tuple[Any, Any]]
    quack: Callable[..., Any] | None = None
    moved: float = 2.0
    beside: int = 0
    by_row: int = 1
    across: bool = False
    usual: Mapping[str, Any] = field(default_factory=dict)  # of the kernel, for shapes not odd
    tunings: Callable[[int], Iterable[dict[str, Any]]] | None = None


# ------------------------------------------------------------------------------ the families


def _random(*shape: int) -> Any:
    import torch

    return torch.randn(shape, device="cuda", dtype=torch.bfloat16)


def _empty(*shape: int, dtype: str = "bfloat16") -> Any:
    import torch

    return torch.empty(shape, device="cuda", dtype=getattr(torch, dtype))


def _softmax() -> Family:
    import torch.nn.functional as F

    from zoo.softmax.softmax import softmax_rows

    def quack(x: Any) -> Any:
        from quack import softmax

        return softmax(x)

    return Family(
        lambda m, n: (_random(m, n) * 3,),
        _empty,
        lambda n, **choice: softmax_rows(n, target="cuda", **choice),
        lambda x: F.softmax(x, -1),
        lambda x: (x.softmax(-1), 0.0),
        quack,
        tunings=row_tunings,
    )


def _rms(x: Any, w: Any) -> Any:
    return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * w


def _rms_norm() -> Family:
    import torch.nn.functional as F

    from zoo.norm.rms_norm import rms_norm_rows

    def quack(x: Any, w: Any) -> Any:
        from quack import rmsnorm

        return rmsnorm(x, w, eps=1e-6)

    return Family(
        lambda m, n: (_random(m, n), _random(n)),
        _empty,
        lambda n, **choice: rms_norm_rows(n, target="cuda", **choice),
        lambda x, w: F.rms_norm(x, (x.shape[1],), w, 1e-6),
        lambda x, w: (_rms(x, w), 0.0),
        quack,
        tunings=row_tunings,
    )


def _rms_norm_silu() -> Family:
    import torch.nn.functional as F

    from zoo.norm.rms_norm import rms_norm_rows

    return Family(
        lambda m, n: (_random(m, n), _random(n)),
        _empty,
        lambda n, **choice: rms_norm_rows(n, target="cuda", silu=True, **choice),
        lambda x, w: F.silu(F.rms_norm(x, (x.shape[1],), w, 1e-6)),
        lambda x, w: (F.silu(_rms(x, w)), 0.0),
        tunings=row_tunings,
    )


def _layer_norm() -> Family:
    import torch.nn.functional as F

    from zoo.norm.layer_norm import layer_norm_rows

    def wanted(x: Any, w: Any, b: Any) -> tuple[Any, Any]:
        y = F.layer_norm(x, (x.shape[1],), w, None, 1e-5)
        return y + b, (y.abs() + b.abs()) * 2.0**-16  # the sum may be less than either

    def quack(x: Any, w: Any, b: Any) -> Any:
        try:
            from quack.rmsnorm import layernorm_fwd
        except ImportError:
            from quack.layernorm import layernorm as layernorm_fwd

        return layernorm_fwd(x, w.float(), b.float(), eps=1e-5)

    return Family(
        lambda m, n: (_random(m, n) + 1, _random(n), _random(n)),
        _empty,
        lambda n, **choice: layer_norm_rows(n, target="cuda", **choice),
        lambda x, w, b: F.layer_norm(x, (x.shape[1],), w, b, 1e-5),
        wanted,
        quack,
        tunings=norm_tunings,
    )


def _cross_entropy() -> Family:
    import torch
    import torch.nn.functional as F

    from zoo.loss.cross_entropy import cross_entropy_rows

    def wanted(x: Any, labels: Any) -> tuple[Any, Any]:
        total, one = x.logsumexp(-1), x.gather(1, labels.long()[:, None])[:, 0]
        return total - one, (total.abs() + one.abs() + 1) * 2.0**-17

    def quack(x: Any, labels: Any) -> Any:
        from quack.cross_entropy import cross_entropy_fwd

        return cross_entropy_fwd(x, labels)

    return Family(
        lambda m, n: (_random(m, n) * 3, torch.randint(n, (m,), device="cuda")),
        lambda m, n: _empty(m, dtype="float32"),
        lambda n, **choice: cross_entropy_rows(n, target="cuda", **choice),
        lambda x, labels: F.cross_entropy(x, labels, reduction="none"),
        wanted,
        quack,
        moved=1.0,
        beside=8 + 4,  # label and loss
        by_row=2,
        tunings=loss_tunings,
    )


def _swiglu() -> Family:
    import torch.nn.functional as F

    from zoo.elementwise.swiglu import swiglu_rows

    return Family(
        lambda m, n: (_random(m, n) * 3, _random(m, n)),
        _empty,
        lambda n, **choice: swiglu_rows(n, target="cuda", **choice),
        lambda a, b: F.silu(a) * b,
        lambda a, b: (F.silu(a) * b, 0.0),
        moved=3.0,
        by_row=2,
        tunings=tile_tunings,
    )


def _transpose() -> Family:
    from zoo.transpose.transpose import transpose_rows

    return Family(
        lambda m, n: (_random(m, n),),
        lambda m, n: _empty(n, m),
        lambda n, **choice: transpose_rows(n, target="cuda", **choice),
        lambda x: x.t().contiguous(),
        lambda x: (x, 0.0),
        across=True,
        usual={"aligned": True},
        tunings=transpose_tunings,
    )


FAMILIES = {
    "softmax": _softmax,
    "rms_norm": _rms_norm,
    "layer_norm": _layer_norm,
    "rms_norm_silu": _rms_norm_silu,
    "cross_entropy": _cross_entropy,
    "swiglu": _swiglu,
    "transpose": _transpose,
}


# -------------------------------------------------------------------------------- what to try


def row_tunings(n: int) -> Iterator[dict[str, Any]]:
    """Whole rows in registers, rows in shared memory, or pieces: what holds a row of `n`."""
    for threads in (128, 256, 512, 1024):
        for values in (8, 16, 32, 64):
            rows = threads * values // n
            if 1 <= rows <= 64:
                yield {"variant": "rows", "block_M": rows, "block_N": n, "threads": threads}
    for cluster in (1, 2, 4, 8, 16):
        for threads, vectors in ((128, 2), (256, 2), (256, 4), (512, 2)):
            for rows in (1, 2, 4):
                part = n // cluster
                if part >= 2048 and part * rows <= 32768 and part * rows >= threads * vectors * 8:
                    yield {
                        "variant": "held",
                        "block_M": rows,
                        "cluster": cluster,
                        "threads": threads,
                        "vectors": vectors,
                    }
    if n >= 8192:
        for threads, piece in ((256, 4096), (512, 8192), (512, 16384), (1024, 16384)):
            for staged in (False, True):
                if piece < n and not (staged and n * 2 > 220 * 1024):
                    yield {
                        "variant": "pieces",
                        "block_M": 1,
                        "block_N": piece,
                        "threads": threads,
                        "staged": staged,
                    }


def norm_tunings(n: int) -> Iterator[dict[str, Any]]:
    """Also clusters that stay, one or two blocks of them on a multiprocessor."""
    yield from row_tunings(n)
    for cluster, count in ((1, 132), (2, 66), (4, 30), (8, 15)):
        for threads, blocks in ((256, 2), (512, 1), (512, 2), (1024, 1)):
            part = n // cluster
            if part % (threads * 8) == 0 and part * blocks <= 32768:
                sizes = {"clusters": count * blocks, "cluster": cluster, "threads": threads}
                yield {"variant": "kept", **sizes, "vectors": 1}


def loss_tunings(n: int) -> Iterator[dict[str, Any]]:
    """Rows in registers, or walked by lanes."""
    yield from (c for c in row_tunings(n) if c["variant"] == "rows")
    for threads in (32, 64, 128, 256, 512):
        for vectors in (1, 2, 4, 8):
            if threads * vectors * 8 <= n:
                yield {"variant": "walked", "block_M": 1, "threads": threads, "vectors": vectors}


def tile_tunings(n: int) -> Iterator[dict[str, Any]]:
    for threads in (128, 256, 512, 1024):
        for values in (8, 16, 32):
            width = min(n, threads * values)
            yield {"block_M": threads * values // width, "block_N": width, "threads": threads}


def transpose_tunings(n: int) -> Iterator[dict[str, Any]]:
    for block_m, block_n in ((32, 32), (64, 64), (128, 64), (64, 128), (128, 128)):
        for threads in (128, 256, 512):
            tile = {"block_M": block_m, "block_N": block_n, "threads": threads}
            if block_m * block_n >= 8 * threads:
                yield {**tile, "through": "registers"}
                yield from ({**tile, "through": "shared", "padding": p} for p in (0, 2, 8))
                staged = {**tile, "through": "shared", "padding": 0, "staged": True}
                yield from (staged, {**staged, "moved": "sync"})


def named(choice: Mapping[str, Any]) -> str:
    """A choice in a word: what contenders of a tuning race are called."""
    short = {"block_M": "m", "block_N": "n", "threads": "t", "cluster": "c", "padding": "p",
             "vectors": "v"}  # fmt: skip
    words = []
    for name, value in choice.items():
        if isinstance(value, bool):
            words += [name] * value
        else:
            words.append(f"{short[name]}{value}" if name in short else str(value))
    return " ".join(words) or "ours"


# --------------------------------------------------------------------------------- the checks


def worst(family: Family, inputs: Arrays, y: Any, rows: int | None = None) -> float:
    """The largest error of the first `rows` rows as a part of what is allowed; inf for a NaN."""
    total, columns = inputs[0].shape
    rows = total if rows is None else min(rows, total)
    rounded = ROUNDED if y.element_size() == 2 else 2.0**-22
    if family.across:
        rounded = 0.0  # nothing is computed
    step = max(1, (1 << 24) // columns)
    most = 0.0
    for first in range(0, rows, step):
        part = slice(first, min(first + step, rows))
        given = [a[part] if i < family.by_row else a for i, a in enumerate(inputs)]
        want, slack = family.wanted(*(a.double() for a in given))
        got = (y[:, part].T if family.across else y[part]).double()
        error = ((got - want).abs() / (want.abs() * rounded + slack + TINY)).max().item()
        most = max(most, error if math.isfinite(error) else math.inf)
    return most


def check(
    family: Family, kernel: Any, shape: tuple[int, int], runs: int, inputs: Arrays | None = None
) -> dict[str, Any]:
    """Ours on poisoned outputs, on fresh data unless it is given."""
    import torch

    given = family.inputs(*shape) if inputs is None else inputs

    def run() -> tuple[Any]:
        made = family.output(*shape).fill_(math.nan)
        kernel(*given, made)
        return (made,)

    first = same_every_time(run, runs)
    if first is None:
        return {"shape": shape, "ok": False, "why": "runs differ"}
    error = worst(family, given, first[0])
    del first
    torch.cuda.empty_cache()
    return {"shape": shape, "ok": error <= 1.0, "error_of_bound": error, "runs": runs}


def check_peer(name: str, family: Family, inputs: Arrays, run: Call, y: Any) -> dict[str, Any]:
    """A peer's first rows, in what it returns or in the poisoned `y`."""
    y.fill_(math.nan)
    made = run()
    if isinstance(made, (tuple, list)):
        made = made[0]
    # whoever returns no tensor has written to `y`
    error = worst(family, inputs, made if hasattr(made, "element_size") else y, 64)
    return {"contender": name, "ok": error <= PEER, "error_of_bound": error, "allowed": PEER}


# ---------------------------------------------------------------------------------- the peers


def peer_makers(
    name: str, family: Family, inputs: Arrays, y: Any, options: Mapping[str, Any]
) -> Iterator[tuple[str, Callable[[], tuple[Call, str]]]]:
    """Peers by name: functions that make a call and say which configuration it is."""
    import torch

    def compiled(mode: str) -> tuple[Call, str]:
        torch._dynamo.reset()  # another shape is another function, not a dynamic one
        more = {} if mode == "default" else {"mode": mode}
        fn = torch.compile(family.eager, dynamic=False, **more)
        return (lambda: fn(*inputs)), mode

    def triton() -> tuple[Call, str]:
        from peer_triton_rows import best_rows

        return best_rows(name, *inputs, y)

    def tutorial(path: str) -> tuple[Call, str]:
        from peer_triton_rows import tutorial_call

        return tutorial_call(name, path, *inputs), "its own"

    def quack() -> tuple[Call, str]:
        assert family.quack is not None
        return (lambda: family.quack(*inputs)), "its own"

    for mode in options["compile_modes"]:
        label = "torch.compile" + ("" if mode == "default" else f" {mode}")
        yield label, lambda mode=mode: compiled(mode)
    yield "triton", triton
    path = options["tutorials"].get(name)
    if path:
        yield "triton_tutorial", lambda: tutorial(path)
    if family.quack is not None:
        yield "quack", quack


# ---------------------------------------------------------------------------------- the races


def race(
    name: str,
    family: Family,
    shape: tuple[int, int],
    choices: Sequence[Mapping[str, Any]],
    runs: int,
    odd: bool,
    options: Mapping[str, Any],
) -> Race:
    """`choices` of our kernel, each a contender; without any, its own."""
    columns = shape[1]
    tune = bool(choices)
    ours = {f"ours {named(c)}" if tune else "ours": dict(c) for c in choices or [{}]}
    kernels: dict[str, Any] = {}
    others: dict[str, Call] = {}
    left_out: dict[str, str] = {}
    about: dict[str, Any] = {"kernel": name, "shape": shape, "left_out": left_out}
    about.update(configurations={}, compiled={}, tuning=tune)
    made: dict[str, Any] = {}

    def contenders() -> dict[str, Call]:
        import torch

        inputs, y = family.inputs(*shape), family.output(*shape)
        made.update(inputs=inputs, y=family.output(*shape))
        found: dict[str, Call] = {}
        for label, choice in ours.items():
            try:
                kernel = family.kernel(columns, **family.usual, **choice)
                kernel(*inputs, y)
                torch.cuda.synchronize()
            except Exception as error:  # what does not compile is reported by the check
                left_out[label] = f"{type(error).__name__}: {error}"
                continue
            kernels[label] = kernel
            found[label] = lambda kernel=kernel: kernel(*inputs, y)
            about["compiled"][label] = kernel.resources
        moved = int(family.moved * inputs[0].numel() / 2) >> 15 << 15
        if family.moved == 1.0:
            found.update(sums(_random((moved * 2 + shape[0] * family.beside // 2) >> 15 << 15)))
        elif family.moved == 2.0:
            found.update(copies(inputs[0].flatten()[:moved], made["y"].flatten()[:moved]))
        else:
            found.update(copies(_random(moved), _empty(moved)))
        others["torch"] = lambda: family.eager(*inputs)
        if not tune:
            for label, make in peer_makers(name, family, inputs, made["y"], options):
                if label in options["without"]:
                    left_out[label] = "asked for"
                    continue
                try:
                    call, about["configurations"][label] = make()
                    call()
                    torch.cuda.synchronize()
                except Exception as error:  # absent, or not able to do this shape
                    left_out[label] = f"{type(error).__name__}: {error}".partition("\n")[0]
                else:
                    others[label] = call
        return found | others

    def checks() -> Iterator[dict[str, Any]]:
        for label in ours:
            if label not in kernels:
                yield {"contender": label, "ok": tune, "why": left_out[label]}
        if odd and "ours" in kernels:
            for one in ODD:
                kernel = family.kernel(one[1])
                yield {"contender": "ours", **check(family, kernel, one, 3)}
        small = (min(shape[0], 304), columns)
        for label, kernel in kernels.items():
            if tune or options["quick"]:
                found = check(family, kernel, small, 2)
            else:
                found = check(family, kernel, shape, runs, made["inputs"])
            yield {"contender": label, **found}
        for label, call in others.items():
            yield check_peer(label, family, made["inputs"], call, made["y"])

    return Race(
        f"{name} {shape[0]}x{shape[1]}" + " tuning" * tune,
        contenders,
        checks,
        work=shape[0] * (family.moved * shape[1] * 2 + family.beside),
        unit="B",
        ours=list(ours),
        about=about,
    )


def races(
    kernels: Sequence[str] = tuple(FAMILIES),
    columns: Sequence[int] = COLUMNS,
    elements: int = ELEMENTS,
    quick: bool = False,
    tune: bool = False,
    compile_modes: Sequence[str] = ("default",),
    without: Sequence[str] = (),
    triton_softmax: str = "",
    triton_layer_norm: str = "",
) -> Iterator[Race]:
    import torch

    torch.manual_seed(0)
    options = {
        "quick": quick,
        "compile_modes": compile_modes,
        "without": without,
        "tutorials": {"softmax": triton_softmax, "layer_norm": triton_layer_norm},
    }
    for name in kernels:
        family = FAMILIES[name]()
        for i, n in enumerate(columns):
            choices = [{}, *family.tunings(n)] if tune and family.tunings else []
            shape = (max(1, elements // n), n)
            yield race(name, family, shape, choices, 3 if i else 20, not (i or tune), options)


# --------------------------------------------------------------------------------- in a table


def summary(files: Sequence[str]) -> int:
    """What the races in these files came to: a line each, or the ranking of a tuning."""
    for file in files:
        for record in json.loads(Path(file).read_text())["races"]:
            times = {k: v["ms"] for k, v in record.get("contenders", {}).items()}
            bad = [f"{c.get('contender')}: {c.get('why', c.get('error_of_bound'))}"
                   for c in record.get("checks", ()) if not c.get("ok", True)]  # fmt: skip
            rates = {k: v.get("terabytes_per_second", 0.0) for k, v in record["contenders"].items()
                     } if times else {}  # fmt: skip
            plain = {k: t for k, t in times.items() if k.split()[0] in ("copy", "sum")}
            print(record["race"], "" if record["ok"] else "NOT OK", *bad[:4], sep="  ")
            if not plain:
                print("   ", record.get("failed", "nothing was timed"))
                continue
            best = min(plain, key=lambda k: plain[k])
            if record.get("tuning"):
                for label in sorted((k for k in times if k not in plain), key=lambda k: times[k])[
                    :8
                ]:
                    print(f"    {rates[label]:.2f} TB/s  {plain[best] / times[label]:.3f}  {label}")
                print(f"    {rates[best]:.2f} TB/s  {best}")
                continue
            ours = times.get("ours")
            against = {best: plain[best], **{k: t for k, t in times.items() if k not in plain}}
            print("   ", "  ".join(
                f"{k} {rates[k]:.2f} TB/s" + (f" ({t / ours:.3f})" if ours and k != "ours" else "")
                for k, t in against.items()
            ))  # fmt: skip
            for label, why in record.get("left_out", {}).items():
                print(f"    without {label}: {why[:120]}")
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["summary"]:
        raise SystemExit(summary(sys.argv[2:]))
    parser = command_line(__doc__)
    parser.add_argument("--kernels", nargs="+", default=list(FAMILIES), choices=list(FAMILIES))
    parser.add_argument("--columns", type=int, nargs="+", default=list(COLUMNS))
    parser.add_argument("--elements", type=int, default=ELEMENTS, help="of an input")
    parser.add_argument("--quick", action="store_true", help="check few rows of each shape")
    parser.add_argument("--tune", action="store_true", help="race our own sizes and variants")
    parser.add_argument("--compile-modes", nargs="*", default=["default"], help="of torch.compile")
    parser.add_argument("--without", nargs="*", default=[], help="peers that are left out")
    parser.add_argument("--triton-softmax", default="", help="Triton's 02-fused-softmax.py")
    parser.add_argument("--triton-layer-norm", default="", help="Triton's 05-layer-norm.py")
    raise SystemExit(main(__file__, parser))
