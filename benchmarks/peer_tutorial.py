"""Triton's tutorial 09 (persistent matmul), run from its own file: the fastest of its variants.

It multiplies float16 by a second factor that lies transposed. Its factors here have the same values
as everyone's (bfloat16 normal data is exact in float16), in the types and layouts that it is
written for.
"""

from __future__ import annotations

import contextlib
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from types import ModuleType
from typing import Any

from race import load

# naive, persistent and tma take as long to tune again and are slower on Hopper
VARIANTS = ("tma_persistent", "descriptor_persistent", "descriptor_persistent_ws")


@contextlib.contextmanager
def _without_extras() -> Iterator[None]:
    """Triton's profiler and its cuBLAS handle, which the file makes when imported and we do not
    use, may be missing: stand-ins meanwhile."""
    import triton

    try:
        import triton.profiler
    except Exception:  # an absent CUPTI shows as any of several errors
        stub = ModuleType("triton.profiler")
        stub.scope = lambda *args, **more: contextlib.nullcontext()  # type: ignore[attr-defined]
        sys.modules["triton.profiler"] = stub
        triton.profiler = stub
    blas = kept = None
    with contextlib.suppress(ImportError, AttributeError):
        from triton._C.libtriton import nvidia

        blas, kept = nvidia.cublas, nvidia.cublas.CublasLt
        blas.CublasLt = lambda workspace: None
    try:
        yield
    finally:
        if blas is not None:
            blas.CublasLt = kept


@cache
def tutorial(path: str) -> ModuleType:
    with _without_extras():
        return load(path, "triton_tutorial_09")


def variants(module: ModuleType, a: Any, b: Any) -> dict[str, Callable[[], Any]]:
    """Its functions on A (M×K) and the transposed B (N×K), by the names its own benchmark has."""
    found = {
        "naive": lambda: module.matmul(a, b.T),
        "persistent": lambda: module.matmul_persistent(a, b.T),
    }
    for name in ("tma", "tma_persistent", "descriptor_persistent"):
        function = getattr(module, f"matmul_{name}", None)
        for specialized in (False, True):
            # on Hopper the file itself leaves warp specialization to device-made descriptors
            if function is not None and not (specialized and name != "descriptor_persistent"):
                label = name + "_ws" * specialized
                found[label] = lambda f=function, ws=specialized: f(a, b, ws)
    return found


def best_variant(
    path: str, wanted: Sequence[str], sets: Sequence[tuple[Any, Any]]
) -> tuple[list[Callable[[], Any]], dict[str, Any]]:
    """Calls of the fastest variant, one for each pair of A (M×K) and B (K×N), each variant tuned by
    the file's own configurations; and what was found out: milliseconds, or why one did not run."""
    from tilewright.profiler import measure, rotate

    module = tutorial(path)
    every = [variants(module, a.half(), b.half().T.contiguous()) for a, b in sets]
    found: dict[str, Any] = {}
    able: dict[str, list[Callable[[], Any]]] = {}
    for name in wanted or VARIANTS:
        print(f"  tuning {name} of the tutorial", flush=True)
        try:
            every[0][name]()
        except Exception as error:  # a variant that this Triton cannot compile does not count
            found[name] = {"why": f"{type(error).__name__}: {error}".partition("\n")[0]}
        else:
            able[name] = [calls[name] for calls in every]
    if not able:
        raise RuntimeError(f"no variant of the tutorial runs: {found}")
    turns = {name: rotate(*calls) for name, calls in able.items()}
    times = measure(turns, rounds=5, budget=float("inf"), burst=2e-3)
    middle = {name: statistics.median(t) * 1e3 for name, t in times.items()}
    best = min(middle, key=lambda name: middle[name])
    return able[best], {"variant": best, "ms": middle, **found}
