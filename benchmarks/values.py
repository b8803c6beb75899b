"""Kernels over tile values against the same kernels written with allocations and copies, on a GPU.

    python benchmarks/values.py --out values.json
    python benchmarks/values.py --seed 7 --count 3 --kernels attention gradients

Both texts have the same tiles, threads and schedule; sizes are drawn by the seed. Both are checked
against torch first, which races too where it has the kernel. The bar: a value text is as fast
as the other one.
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from race import Race, command_line, main, name_of

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # the zoo

BOUND = 3e-2  # of an error, relative to one more than the reference's element


def _tensors(made: Any) -> tuple[Any, ...]:
    return tuple(made) if isinstance(made, (tuple, list)) else (made,)


def race(
    name: str,
    inputs: Sequence[Any],
    values: Any,
    words: Callable[..., Any],
    want: Callable[..., Any],
    work: float,
    unit: str = "FLOP",
    settings: Sequence[Any] = (),
    rival: bool = True,
) -> Race:
    """`values` is called with the inputs and its compile-time `settings`, `words` with the inputs
    and arrays for the outputs; `want` gives the outputs, and races too if it is a `rival`."""
    import torch

    kernel = values.compile(*inputs, *settings)  # a call of the function itself looks it up
    like = _tensors(kernel(*inputs))

    def by_words() -> tuple[Any, ...]:
        made = tuple(torch.empty_like(x) for x in like)  # as values do
        words(*inputs, *made)
        return made

    def checks() -> Iterator[dict[str, Any]]:
        reference = _tensors(want(*inputs))
        for label, run in (("values", lambda: kernel(*inputs)), ("words", by_words)):
            error = max(
                ((got.float() - right.float()).abs() / (right.float().abs() + 1)).max().item()
                for got, right in zip(_tensors(run()), reference, strict=True)
            )
            yield {"contender": label, "ok": error < BOUND, "error": error}

    def contenders() -> dict[str, Callable[[], Any]]:
        found = {"values": lambda: kernel(*inputs), "words": by_words}
        return found | ({"torch": lambda: want(*inputs)} if rival else {})

    return Race(name, contenders, checks, work=work, unit=unit, ours=["values"])


def normal(*size: int) -> Any:
    import torch

    return torch.randn(size, device="cuda", dtype=torch.bfloat16)


# ── products ─────────────────────────────────────────────────────────────────────────────────────


def products(rng: random.Random) -> Iterator[Race]:
    import torch
    from values_words import product

    from zoo.gemm import values
    from zoo.gemm.gemm import gemm_relu, gemm_transposed

    m, n, k = (rng.randrange(16, 65) * 128 for _ in range(3))
    tiles, work = {"m": 128, "n": 256, "k": 64}, 2.0 * m * n * k
    given = normal(m, k), normal(k, n)
    one = product(1, m, n, k)
    yield race(
        name_of("matmul", (m, n, k)),
        given,
        values.matmul.with_schedule(tiles=tiles, threads=256),
        lambda a, b, c: one(a[None], b[None], c[None]),
        torch.matmul,
        work,
    )
    yield race(
        name_of("matmul_relu", (m, n, k)),
        given,
        values.matmul_relu.with_schedule(tiles=tiles, threads=256, stages=4),
        gemm_relu.with_schedule(stages=4)(m, n, k, 128, 256, 64, 256, dtype="bfloat16"),
        lambda a, b: torch.relu(a @ b),
        work,
    )
    b, m, n, k = rng.randrange(4, 17), *(rng.randrange(8, 33) * 128 for _ in range(3))
    yield race(
        name_of("matmul_batched", (b, m, n, k)),
        (normal(b, m, k), normal(b, k, n)),
        values.matmul_batched.with_schedule(tiles=tiles, threads=256),
        product(b, m, n, k),
        torch.bmm,
        2.0 * b * m * n * k,
    )
    m, n, k = (rng.randrange(8, 33) * 128 for _ in range(3))
    for flip_a, flip_b in ((False, True), (True, False), (True, True)):
        pinned: dict[str, Any] = {"stages": 3, "ping_pong": False}
        yield race(
            name_of(f"matmul_{'NT'[flip_a]}{'NT'[flip_b]}", (m, n, k)),
            (normal(k, m) if flip_a else normal(m, k), normal(n, k) if flip_b else normal(k, n)),
            values.matmul_transposed.with_schedule(
                tiles={"m": 128, "n": 128, "k": 64}, threads=128, **pinned
            ),
            gemm_transposed.with_schedule(**pinned)(
                m, n, k, flip_a, flip_b, 128, 128, 64, dtype="bfloat16"
            ),
            lambda a, b, ta=flip_a, tb=flip_b: (a.T if ta else a) @ (b.T if tb else b),
            2.0 * m * n * k,
            settings=(flip_a, flip_b),
        )


def scaled(rng: random.Random) -> Iterator[Race]:
    import torch

    from zoo.gemm import values
    from zoo.gemm.scaled import gemm_scaled

    m, n, k = (rng.randrange(16, 49) * 128 for _ in range(3))

    def expected(a: Any, b: Any, a_scale: Any, b_scale: Any) -> Any:
        left = a.float() * a_scale.repeat_interleave(128, 1)
        right = b.float() * b_scale.repeat_interleave(128, 0).repeat_interleave(128, 1)
        return left @ right.T

    yield race(
        name_of("matmul_scaled", (m, n, k)),
        (
            normal(m, k).to(torch.float8_e4m3fn),
            normal(n, k).to(torch.float8_e4m3fn),
            torch.rand(m, k // 128, device="cuda") / 8,
            torch.rand(n // 128, k // 128, device="cuda") / 8,
        ),
        values.matmul_scaled.with_schedule(tiles={"m": 128, "n": 256}, threads=256, stages=3),
        gemm_scaled.with_schedule(stages=3)(m, n, k, 128, 256),
        expected,
        2.0 * m * n * k,
        rival=False,
    )


def grouped(rng: random.Random) -> Iterator[Race]:
    import torch
    from values_words import grouped as words

    from zoo.gemm import values

    experts, k, n = rng.choice((8, 16, 64)), *(rng.randrange(8, 33) * 128 for _ in range(2))
    sizes = [rng.randrange(0, 2 * 16384 // experts) for _ in range(experts)]
    ends = [sum(sizes[:e]) for e in range(experts + 1)]
    rows, most = ends[-1], max(sizes)

    def expected(a: Any, b: Any, _: Any) -> Any:
        return torch.cat([a[ends[e] : ends[e + 1]] @ b[e] for e in range(experts)])

    yield race(
        name_of("grouped", (experts, rows, n, k)),
        (normal(rows, k), normal(experts, k, n), torch.tensor(ends, dtype=torch.int32).cuda()),
        values.grouped.with_schedule(tiles={"m": 128, "n": 256, "k": 64}, threads=256),
        words(rows, experts, k, n, most),
        expected,
        2.0 * rows * n * k,
        settings=(most,),
    )


def convolution(rng: random.Random) -> Iterator[Race]:
    import torch
    from values_words import convolution as words

    from zoo.gemm import values

    batch, side, c, o = (
        rng.randrange(8, 33), rng.randrange(14, 57), *(64 * rng.randrange(2, 9) for _ in range(2))
    )  # fmt: skip
    shape = batch, side, side, c, o

    def expected(x: Any, f: Any) -> Any:
        found = torch.nn.functional.conv2d(x.permute(0, 3, 1, 2), f.permute(3, 2, 0, 1), padding=1)
        return found.permute(0, 2, 3, 1)

    yield race(
        name_of("convolution", shape),
        (normal(*shape[:4]), normal(3, 3, c, o) / math.sqrt(9 * c)),
        values.convolution.with_schedule(tiles={"p": 128, "o": 128, "c": 64}, threads=256),
        words(*shape),
        expected,
        2.0 * batch * side * side * 9 * c * o,
    )


# ── attention ────────────────────────────────────────────────────────────────────────────────────


def _attended(causal: bool) -> Callable[..., Any]:
    import torch

    def run(q: Any, k: Any, v: Any) -> Any:
        return torch.nn.functional.scaled_dot_product_attention(
            q, k, v, is_causal=causal, enable_gqa=q.shape[1] != k.shape[1]
        )

    return run


def attention(rng: random.Random) -> Iterator[Race]:
    from zoo.attention import values
    from zoo.attention.flash import flash_attention

    for causal, head, rows in ((True, 128, 128), (False, 128, 128), (True, 64, 192)):
        batch, length = rng.randrange(1, 5), rng.randrange(8, 65) * 128
        groups = rng.randrange(4, 9)
        heads = groups * rng.choice((1, 4))
        yield race(
            name_of(f"attention{'_causal' * causal}", (batch, heads, groups, length, head)),
            tuple(normal(batch, count, length, head) for count in (heads, groups, groups)),
            values.attention.with_schedule(tiles={"i": rows, "j": 128}, threads=2 * rows),
            flash_attention(
                batch, heads, groups, length, length, head, causal=causal, block_M=rows,
                block_N=128, threads=2 * rows, dtype="bfloat16",
            ),
            _attended(causal),
            (2.0 if causal else 4.0) * batch * heads * length**2 * head,
            settings=(causal,),
        )  # fmt: skip


def gradients(rng: random.Random) -> Iterator[Race]:
    import torch

    from zoo.attention import backward, values

    for causal in (True, False):
        batch, heads, length = rng.randrange(1, 4), rng.randrange(8, 25), rng.randrange(8, 49) * 128
        shape = (batch, heads, heads, length, length, 128)
        q, k, v, do = (normal(batch, heads, length, 128) for _ in range(4))
        forward = values.attention_with_sums.with_schedule(tiles={"i": 128, "j": 128}, threads=256)
        o, sums = forward(q, k, v, causal)
        given: dict[str, Any] = {"causal": causal, "threads": 256, "dtype": "bfloat16"}
        rows = backward.row_products(batch, heads, length, 128, dtype="bfloat16")
        keys = backward.keys_gradient(*shape, block_M=64, block_N=128, **given)
        queries = backward.queries_gradient(*shape, block_M=128, block_N=64, **given)

        def words(*args: Any, rows: Any = rows, keys: Any = keys, queries: Any = queries) -> None:
            q, k, v, o, do, sums, dq, dk, dv = args
            d = torch.empty_like(sums)
            rows(do, o, d)
            keys(q, k, v, do, sums, d, dk, dv)
            queries(q, k, v, do, sums, d, dq)

        leaves = [x.detach().clone().requires_grad_() for x in (q, k, v)]
        out = _attended(causal)(*leaves)

        def expected(*args: Any, out: Any = out, leaves: Any = leaves) -> Any:
            return torch.autograd.grad(out, leaves, args[4], retain_graph=True)

        yield race(
            name_of(f"gradients{'_causal' * causal}", (batch, heads, length, 128)),
            (q, k, v, o, do, sums),
            values.attention_gradients.with_schedule(
                tiles={"m": 64, "n": 128, "i": 128, "j": 64, "r": 64}, threads=256, stages=2
            ),
            words,
            expected,
            (5.0 if causal else 10.0) * batch * heads * length**2 * 128,
            settings=(causal,),
        )


def mla(rng: random.Random) -> Iterator[Race]:
    import torch

    from zoo.mla import values
    from zoo.mla.decode import mla_decode

    for splits, batches in ((1, (64, 129)), (4, (4, 17))):
        batch, length = rng.randrange(*batches), rng.randrange(16, 65) * 128

        def expected(q: Any, q_rope: Any, kv: Any, k_rope: Any) -> Any:
            scores = q.float() @ kv.float().mT + q_rope.float() @ k_rope.float().mT
            return torch.softmax(scores * 576**-0.5, -1) @ kv.float()

        yield race(
            name_of("mla_decode", (batch, 128, length, splits)),
            (
                normal(batch, 128, 512), normal(batch, 128, 64),
                normal(batch, length, 512), normal(batch, length, 64),
            ),
            values.mla_decode.with_schedule(
                tiles={"h": 64, "j": 64, "runs": splits}, threads=256
            ),
            mla_decode(batch, 128, length, splits=splits, dtype="bfloat16"),
            expected,
            2.0 * batch * 128 * length * (2 * 512 + 64),
            rival=False,
        )  # fmt: skip


# ── memory ───────────────────────────────────────────────────────────────────────────────────────


def moves(rng: random.Random) -> Iterator[Race]:
    import torch

    from zoo import values
    from zoo.elementwise.swiglu import swiglu_rows
    from zoo.elementwise.vector_add import vector_add
    from zoo.norm.layer_norm import layer_norm_whole
    from zoo.softmax.softmax import softmax
    from zoo.transpose.transpose import transpose_rows

    n = rng.randrange(8, 65) * 128
    m = (1 << 27) // n // 8 * 8
    x, y = normal(m, n), normal(m, n)
    rows: dict[str, Any] = {"tiles": {"r": 1}, "threads": 256}
    yield race(
        name_of("softmax", (m, n)),
        (x,),
        values.softmax.with_schedule(**rows),
        softmax(m, n, block_M=1, threads=256, dtype="bfloat16"),
        lambda x: torch.softmax(x, -1),
        4.0 * m * n,
        "B",
    )
    yield race(
        name_of("layer_norm", (m, n)),
        (x, normal(n), normal(n)),
        values.layer_norm.with_schedule(**rows),
        layer_norm_whole(m, n, block_M=1, threads=256, dtype="bfloat16"),
        lambda x, w, b: torch.nn.functional.layer_norm(x, (n,), w, b),
        4.0 * m * n,
        "B",
    )
    width = min(2048, 1 << (n - 1).bit_length())
    yield race(
        name_of("swiglu", (m, n)),
        (x, y),
        values.swiglu.with_schedule(tiles={"m": 2048 // width, "n": width}, threads=256),
        swiglu_rows(n),
        lambda a, b: torch.nn.functional.silu(a) * b,
        6.0 * m * n,
        "B",
    )
    yield race(
        name_of("transpose", (m, n)),
        (x,),
        values.transpose.with_schedule(tiles={"m": 128, "n": 128}, threads=512),
        transpose_rows(n, aligned=True),
        lambda x: x.T.contiguous(),
        4.0 * m * n,
        "B",
    )
    size = 1 << 27
    a, b = (torch.randn(size, device="cuda") for _ in range(2))
    yield race(
        name_of("vector_add", (size,)),
        (a, b),
        values.vector_add.with_schedule(tiles={"n": 1024}, threads=256),
        vector_add(size),
        torch.add,
        12.0 * size,
        "B",
    )


KERNELS = {
    f.__name__: f
    for f in (products, scaled, grouped, convolution, attention, gradients, mla, moves)
}


def races(seed: int = 0, count: int = 1, kernels: Sequence[str] = ()) -> Iterator[Race]:
    import torch

    torch.manual_seed(seed)
    for name in kernels or KERNELS:
        rng = random.Random(f"{name} {seed}")
        for _ in range(count):
            yield from KERNELS[name](rng)
            torch.cuda.empty_cache()


if __name__ == "__main__":
    parser = command_line(__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=1)
    parser.add_argument("--kernels", nargs="+", default=[], choices=KERNELS)
    raise SystemExit(main(__file__, parser))
