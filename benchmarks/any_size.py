"""Kernels whose sizes are all known at launch only, on a GPU: one binary for every shape here.

    python benchmarks/any_size.py --out any_size.json
    python benchmarks/any_size.py --products 4096x4096x4096 4099x4099x4099 --sums

Products and sums in bfloat16, of sizes that put rows on 16 bytes and of others, checked against
float64. Contenders: ours, with no word about sizes; the same with `multiple_of=8`, where the sizes
are such; the form for all sizes alone (`-rows=any`); PyTorch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

from race import Race, command_line, main, name_of, shape

PRODUCTS = (
    (8192, 8192, 8192), (4096, 4096, 4096), (4160, 4160, 4160), (4104, 4104, 4104),
    (4096, 4096, 4100), (4099, 4099, 4099),
)  # fmt: skip
SUMS = ((1, 1 << 28), (1, (1 << 28) + 5), (32768, 8192), (32768, 8200), (32768, 8191))
ROUNDED = 2.0**-8
TINY = 2.0**-120
STEP = 8  # elements of 16 bytes


def product(m: Any, n: Any, k: Any) -> Any:
    import tilewright.language as T

    @T.prim_func
    def product(
        A: T.Tensor((m, k), "bfloat16"), B: T.Tensor((n, k), "bfloat16"),
        C: T.Tensor((m, n), "bfloat16"),
    ):  # fmt: skip
        with T.Kernel(T.ceildiv(n, 256), T.ceildiv(m, 128), threads=256) as (bx, by):
            a = T.alloc_shared((128, 64), "bfloat16")
            b = T.alloc_shared((256, 64), "bfloat16")
            c = T.alloc_fragment((128, 256), "float32")
            T.clear(c)
            for step in T.Pipelined(T.ceildiv(k, 64), num_stages=3):
                T.copy(A[by * 128, step * 64], a)
                T.copy(B[bx * 256, step * 64], b)
                T.gemm(a, b, c, transpose_B=True)
            T.copy(c, C[by * 128, bx * 256])

    return product


def total(m: Any, n: Any) -> Any:
    import tilewright.language as T

    @T.prim_func
    def total(
        A: T.Tensor((m, n), "bfloat16"), B: T.Tensor((m, n), "bfloat16"),
        C: T.Tensor((m, n), "bfloat16"),
    ):  # fmt: skip
        with T.Kernel(T.ceildiv(n, 2048), m, threads=256) as (bx, by):
            for i in T.Parallel(2048):
                C[by, bx * 2048 + i] = A[by, bx * 2048 + i] + B[by, bx * 2048 + i]

    return total


def row(n: Any) -> Any:
    import tilewright.language as T

    @T.prim_func
    def row(
        A: T.Tensor((n,), "bfloat16"), B: T.Tensor((n,), "bfloat16"), C: T.Tensor((n,), "bfloat16")
    ):
        with T.Kernel(T.ceildiv(n, 2048), threads=256) as bx:
            for i in T.Parallel(2048):
                C[bx * 2048 + i] = A[bx * 2048 + i] + B[bx * 2048 + i]

    return row


@cache
def compiled(text: Callable[..., Any], names: str, target: str, **contract: int) -> Any:
    import tilewright as tw
    import tilewright.language as T

    return tw.compile(text(*(T.dynamic(name, **contract) for name in names)), target=target)


def kernels(text: Callable[..., Any], names: str, sizes: Sequence[int]) -> dict[str, Any]:
    """Ours, by what they are told."""
    found = {"ours": compiled(text, names, "cuda")}
    if not any(size % STEP for size in sizes):
        found["ours multiple_of=8"] = compiled(text, names, "cuda", multiple_of=STEP)
    found["ours rows=any"] = compiled(text, names, "cuda -rows=any")
    return found


def race(
    name: str,
    found: dict[str, Any],
    arrays: Callable[[], tuple[Any, Any, Any]],
    peer: Callable[..., Any],
    wanted: Callable[[Any, Any], Iterator[tuple[slice, Any, float]]],
    work: float,
    unit: str,
) -> Race:
    """`wanted(a, b)`: rows of the result, what they are, and the error that is allowed."""
    made: dict[str, Any] = {}

    def contenders() -> dict[str, Callable[[], Any]]:
        a, b, c = made["arrays"] = arrays()
        ours = {label: (lambda kernel=kernel: kernel(a, b, c)) for label, kernel in found.items()}
        return ours | {"torch": lambda: peer(a, b, c)}

    def checks() -> Iterator[dict[str, Any]]:
        a, b, c = made["arrays"]
        for label, kernel in found.items():
            c.fill_(math.nan)
            kernel(a, b, c)
            worst = 0.0
            for rows, want, allowed in wanted(a, b):
                error = (c[rows].double() - want).abs() / (want.abs() * ROUNDED + allowed)
                most = error.max().item()
                worst = max(worst, most if math.isfinite(most) else math.inf)
            yield {"contender": label, "ok": worst <= 1.0, "error_of_bound": worst}

    return Race(name, contenders, checks, work=work, unit=unit, ours=list(found))


def races(
    products: Sequence[tuple[int, ...]] = PRODUCTS,
    sums: Sequence[tuple[int, ...]] = SUMS,
) -> Iterator[Race]:
    import torch

    torch.manual_seed(0)

    def normal(*size: int) -> Any:
        return torch.randn(size, device="cuda", dtype=torch.bfloat16)

    def by_rows(a: Any, b: Any, of: Callable[[Any, slice], Any], allowed: float) -> Iterator[Any]:
        step = max(1, (1 << 24) // (b.shape[-1] if b.dim() > 1 else 1))
        for first in range(0, len(a), step):
            rows = slice(first, min(first + step, len(a)))
            yield rows, of(a[rows].double(), rows), allowed

    for m, n, k in products:
        yield race(
            name_of("product", (m, n, k)),
            kernels(product, "mnk", (m, n, k)),
            lambda m=m, n=n, k=k: (normal(m, k), normal(n, k), normal(m, n)),
            lambda a, b, c: torch.matmul(a, b.T, out=c),
            lambda a, b, k=k: by_rows(a, b, lambda x, _: x @ b.double().T, k**0.5 * 2.0**-16),
            2.0 * m * n * k,
            "FLOP",
        )
    for m, n in sums:
        text, names, sizes = (total, "mn", (m, n)) if m > 1 else (row, "n", (n,))
        yield race(
            name_of("sum", sizes),
            kernels(text, names, sizes[-1:]),
            lambda sizes=sizes: (normal(*sizes), normal(*sizes), normal(*sizes)),
            lambda a, b, c: torch.add(a, b, out=c),
            lambda a, b: by_rows(a, b, lambda x, rows: x + b[rows].double(), TINY),
            6.0 * m * n,
            "B",
        )


if __name__ == "__main__":
    parser = command_line(__doc__)
    parser.add_argument("--products", type=shape(3), nargs="*", default=PRODUCTS)
    parser.add_argument("--sums", type=shape(2), nargs="*", default=SUMS)
    raise SystemExit(main(__file__, parser))
