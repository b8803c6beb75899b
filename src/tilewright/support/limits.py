"""How large a kernel may be. What is larger is refused at its line, before it takes a machine's
time or memory; every limit stands here, with its reason.

`TILEWRIGHT_LIMITS=4` makes all of them four times as large. What a chip can hold is not among
them: that is the target's to know, and nothing raises it.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.support import env
from tilewright.support.errors import CompileError, Loc


@dataclass(frozen=True)
class Limit:
    """The most of `what` that a kernel may have."""

    usual: int
    what: str
    reason: str

    def __call__(self) -> int:
        try:
            return int(self.usual * max(1.0, float(env.LIMITS())))
        except ValueError:
            raise CompileError(
                "TILEWRIGHT_LIMITS is not a number", expected="a factor such as 4", got=env.LIMITS()
            ) from None

    def check(
        self, count: int, message: str, *, fix: str, got: str = "", loc: Loc | None = None
    ) -> None:
        """Refuse a kernel with `count` of them if these are too many."""
        if count <= self.usual or count <= self():
            return
        raise CompileError(
            message,
            loc=loc,
            expected=f"at most {self():,} {self.what}".replace(",", " "),
            got=got,
            fix=fix,
            notes=(f"{self.reason}; TILEWRIGHT_LIMITS=4 allows four times as much",),
            code="too-large",
        )


STEPS = Limit(
    10_000,
    "statements, unrolled iterations and macro calls",
    "tracing takes 50 µs for each of them, and compiling far more",
)
ITEMS = Limit(1_000_000, "items", "Python makes a few million in a second, and keeps each of them")
NESTING = Limit(
    64, "loops and branches inside each other", "passes walk nested bodies by recursion"
)
MACROS = Limit(64, "macros inside each other", "every one of them is a part of the kernel's text")
EXPRESSION = Limit(
    16_384,
    "operations in one expression",
    "an expression is written out wherever it is used; a value with a name is computed once",
)
DEPTH = Limit(
    160, "operations inside each other in one expression", "passes walk expressions by recursion"
)
TEXT_DEPTH = Limit(
    320,
    "operations inside each other in one expression of IR text",
    "passes, which write deeper expressions than kernels have, walk them by recursion",
)
UNROLLED = Limit(
    65_536,
    "statements once T.unroll and T.vectorized loops are written out",
    "compilers take minutes for so much straight code",
)
PARALLEL = Limit(
    2**24,
    "iterations",
    "layouts of maps are chosen by looking at every iteration, 10 million in a second",
)
STAGES = Limit(64, "stages", "every stage is a copy of the loop's tiles")
TILE_BYTES = Limit(
    2**28,
    "bytes in one tile",
    "tiles live in the memory next to the threads, of which no chip has as much",
)
INTEGER_BITS = Limit(4096, "bits in a number of the compile-time text", "types hold 64 of them")
