"""Plain copies and sums of contiguous memory, in a few widths: what memory-bound kernels are held
against.

A block of `threads` threads moves `vectors` times 16 bytes a thread and ends. Blocks that come and
go keep what is open of memory small and in order, and copy faster than blocks that stay: on an
H200 4.29 TB/s at 256 threads and one vector, against 4.06 at best for rings of bulk copies. Loads
whose lines the L2 cache gives up last make that 1.018 times as fast, also of data that nobody reads
again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

# threads a block, vectors of 16 bytes a thread
SHAPES = ((256, 1), (512, 1), (1024, 1), (256, 2), (1024, 4))
# what the L2 cache is told of loads and of stores, by what a copy is called; only where a thread
# moves one vector, which is faster anyway
HINTS = {"": (None, None), " el": ("evict_last", None), " el ef": ("evict_last", "evict_first")}
# reading alone has more under way with more vectors a thread
SUM_SHAPES = ((256, 1), (1024, 1), (256, 2), (256, 4), (512, 4), (1024, 4), (256, 8))

COPY = """program copy_{threads}_{vectors} {{
  dim m min=1
  param X: bfloat16[m, {size}] global
  param Y: bfloat16[m, {size}] global
  kernel main grid bx in m threads tx in {threads} {{
    role all warps 0 + {warps} {{
      alloc x: bfloat16[{size}] fragment \\
        layout="frag{{tile=({size}) tv=({threads},(8,{vectors})):(8,(1,{stride}))}}"
      copy X[bx, :] -> x atom=threads{load}
      copy x -> Y[bx, :] atom=threads{store}
    }}
  }}
}}
"""

# A number for each warp: nothing is exchanged beyond a warp, and 4 bytes are written for 512 read.
# A warp's vectors lie as in the copy: each is the block's next stretch of memory.
SUM = """program sum_{threads}_{vectors} {{
  dim m min=1
  param X: bfloat16[m, {vectors}, {warps}, 256] global
  param Y: float32[m, {warps}] global
  kernel main grid bx in m threads tx in {threads} {{
    role all warps 0 + {warps} instances={warps} var=g {{
      alloc x: bfloat16[{vectors}, 256] fragment \\
        layout="frag{{tile=({vectors},256) tv=(32,(8,{vectors})):(8,(1,256))}}"
      alloc v: float32[{vectors}, 256] fragment \\
        layout="frag{{tile=({vectors},256) tv=(32,(8,{vectors})):(8,(1,256))}}"
      alloc column: float32[256] fragment layout="frag{{tile=(256) tv=(32,8):(8,1)}}"
      alloc s: float32[1] fragment layout="frag{{tile=(1) tv=(32,1):(0,0)}}"
      copy X[bx, :, g, :] -> x atom=threads
      copy x -> v atom=threads
      reduce sum v -> column dim 0
      reduce sum column -> s dim 0
      copy s -> Y[bx, g] atom=threads
    }}
  }}
}}
"""


def _compiled(text: str, threads: int, vectors: int, **hints: str | None) -> Callable[..., None]:
    from tilewright.ir.target import Target
    from tilewright.ir.text import parse_program
    from tilewright.targets.cuda.kernel import compile_program

    words = {
        "threads": threads,
        "vectors": vectors,
        "size": threads * vectors * 8,
        "warps": threads // 32,
        "stride": threads * 8,
        **{name: f" cache={hint}" if hint else "" for name, hint in hints.items()},
    }
    return compile_program(parse_program(text.format(**words)), Target.parse("cuda")).caller()


def copies(
    source: Any, result: Any, shapes: Sequence[tuple[int, int]] = SHAPES
) -> dict[str, Callable[[], None]]:
    """Contenders that copy one contiguous tensor of 16-bit elements to another of its size."""
    found: dict[str, Callable[[], None]] = {"copy": lambda: result.copy_(source)}
    for threads, vectors in shapes:
        size = threads * vectors * 8
        if source.numel() % size:
            continue
        x, y = source.view(-1, size), result.view(-1, size)
        for label, (load, store) in HINTS.items() if vectors == 1 else [("", (None, None))]:
            call = _compiled(COPY, threads, vectors, load=load, store=store)

            def run(call: Any = call, x: Any = x, y: Any = y) -> None:
                call(x, y)

            found[f"copy {threads}x{vectors}{label}"] = run
    return found


def sums(source: Any) -> dict[str, Callable[[], Any]]:
    """Contenders that read a contiguous bfloat16 tensor once and add it up, partly or wholly."""
    import torch

    whole = torch.empty((), device=source.device, dtype=torch.float32)
    flat = source.flatten()
    found: dict[str, Callable[[], Any]] = {
        "sum": lambda: torch.sum(flat, dim=0, dtype=torch.float32, out=whole)
    }
    for threads, vectors in SUM_SHAPES:
        size = threads * vectors * 8
        if source.numel() % size:
            continue
        call = _compiled(SUM, threads, vectors)
        x = source.view(-1, vectors, threads // 32, 256)
        y = torch.empty(len(x), threads // 32, device=source.device, dtype=torch.float32)

        def run(call: Any = call, x: Any = x, y: Any = y) -> None:
            call(x, y)

        found[f"sum {threads}x{vectors}"] = run
    return found
