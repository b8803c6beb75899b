"""Plain copies of contiguous memory, in a few widths: what memory-bound kernels are held against.

A block of `threads` threads moves `vectors` times 16 bytes a thread and ends. Blocks that come and
go keep what is open of memory small and in order, and copy faster than blocks that stay: on an
H200 4.29 TB/s at 256 threads and one vector, against 4.06 at best for rings of bulk copies.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

# threads a block, vectors of 16 bytes a thread
SHAPES = ((256, 1), (512, 1), (1024, 1), (256, 2), (1024, 4))

TEXT = """program copy_{threads}_{vectors} {{
  dim m min=1
  param X: bfloat16[m, {size}] global
  param Y: bfloat16[m, {size}] global
  kernel main grid bx in m threads tx in {threads} {{
    role all warps 0 + {warps} {{
      alloc x: bfloat16[{size}] fragment \\
        layout="frag{{tile=({size}) tv=({threads},(8,{vectors})):(8,(1,{stride}))}}"
      copy X[bx, :] -> x atom=threads
      copy x -> Y[bx, :] atom=threads
    }}
  }}
}}
"""


def copies(source: Any, result: Any) -> dict[str, Callable[[], None]]:
    """Contenders that copy one contiguous tensor of 16-bit elements to another of its size."""
    from tilewright.ir.target import Target
    from tilewright.ir.text import parse_program
    from tilewright.targets.cuda.backend import compile_program

    found: dict[str, Callable[[], None]] = {"copy": lambda: result.copy_(source)}
    for threads, vectors in SHAPES:
        size = threads * vectors * 8
        if source.numel() % size:
            continue
        text = TEXT.format(
            threads=threads, vectors=vectors, size=size, warps=threads // 32, stride=threads * 8
        )
        call = compile_program(parse_program(text), Target.parse("cuda")).caller()
        x, y = source.view(-1, size), result.view(-1, size)

        def run(call: Any = call, x: Any = x, y: Any = y) -> None:
            call(x, y)

        found[f"copy {threads}x{vectors}"] = run
    return found
