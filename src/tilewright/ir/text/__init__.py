r"""The IR's text form: what passes dump, what goldens compare, and what people write by hand.

    program gemm {
      dim m min=1 max=8192 multiple_of=8            # a size known at launch
      param A: float16[m, 4096] global              # strides=[8192, 1] when not row-major
      param C: float16[m, 4096] global
      param scale: float32                          # no space word: a scalar
      scratch W: float32[m, 16] global
      source "__device__ int f();"                  # C++ for the target; a JSON string

      kernel main grid (bx, by) in (32, (m + 127) // 128) threads tx in 384 cluster=(2, 1) rank=r {
        alloc As: float16[4, 128, 64] shared layout="S<3,4,3> o 0 o (4,128,64):(8192,64,1)"
        alloc acc: float32[128, 128] fragment
        alloc full: barrier[4] barrier
        alloc row: float32[128] fragment
        alloc n: int32 local init=0                 # a scalar variable (rank 0)
        view flat: float16[32768] shared of As offset=0

        barrier_init full count 1                   # a bare name is the whole buffer
        fence barrier_init
        sync block
        role producer warps 8 + 4 registers=24 {    # also instances=2 var=wg
          for ko in 0 .. 64 kind=pipelined stages=3 {         # step=2, order=(0, 1), stage=(0, 0)
            let s = ko % 4                          # typed by its value; or `let x: float32 = 1`
            wait full[s] phase (ko // 4 + 1) % 2
            arrive full[s]@(r ^ 1) bytes=16384 count=1        # @rank: a cluster peer's
            copy A[by * 128:+128, ko * 64:+64] -> As[s, :, :] barrier=full[s] atom=bulk_load
            n = n + 1                               # store to a scalar variable; reading is `n`
          }
        }
        gemm As[0, :, :], flat[0:+64] -> acc clear=tx == 0 transpose_b=true atom=wgmma
        commit wgmma
        wait_group wgmma pending 0
        map (i, j) in (128, 128) {
          acc[i, j] = max(acc[i, j] * scale, 0.0) if i < m - by * 128 else -inf
        }
        reduce max acc -> row dim 1 clear=false
        scan sum row -> row dim 0
        fill acc = 0
        atomic add C[0, 0] value=1 result=old: float16
        intrinsic print (&acc, tx + 1) text="acc"   # &: a region, not an element's value
        if tx < 32 { sync warp } else if tx == 64 { break } else { continue }
        sync named id=1 threads=256 arrive=true     # true may be left out: `arrive`
        hint swizzle detail=(4, "row")
      }
    }

Lines end statements (so does `;`), except inside `(` and `[`; `\` at the end of a line joins it
to the next; `#` begins a comment. Indentation is free. Every op reads as its `syntax` in `op.py`;
fields that the syntax leaves out follow as `name=value`, in any order.

Regions are `A[start:+extent, index, :]`: an index alone has extent 1, `:` is the whole dimension.
Expressions are Python's: `or and not < <= == != > >= | ^ & << >> + - * / // % -x ~x`,
`a if c else b`, `a < b < c`, `min max`, the functions of `intrinsics.py`, `float16(x)` to
convert, `reinterpret(x, int32)` where the result type must be said. Both sides of an operator
have one type; nothing converts by itself. A numeral takes the type of what it meets (`x + 1`,
`v * 0.5`), else it is int32 or float32; `int64(5)` says otherwise. Expressions mean what they
say, `2 * 64` stays a product, except in shapes and extents, where constants fold.

A variable is int32 unless declared `name: type`. A name is visible in the body that declares it;
names that the text uses again in another body get a suffix, as names are unique in a program.
Names that are not identifiers, or are reserved (`and or not if else true false inf nan`, types),
are written in backquotes.
"""

from __future__ import annotations

from tilewright.ir.text.parse import *
from tilewright.ir.text.printer import *
