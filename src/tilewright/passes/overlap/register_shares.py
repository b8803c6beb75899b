"""What a producer's threads and those of its consumers have of a block's registers."""

from __future__ import annotations

UNIT = 8  # registers change hands by as many
MOST = 240  # that a thread is given; it can use 255
KEPT = (24, 32, 40)  # by a producer's thread
WARP, WARPGROUP = 32, 128
# where a producer finds the places of single rows: more for it, as far as the consumers' fragments,
# of so many registers at the most, leave some
GATHERING = {
    2: {144: (88, 208), 192: (56, 224), 255: (40, 232)},
    3: {80: (80, 144), 255: (56, 152)},
}


def handed_over(consumers: int, registers: int = 65536) -> tuple[int | None, int | None]:
    """Registers of a thread of the producer and of `consumers` warpgroups, of a block's
    `registers`: the consumers get what they can, the producer keeps what they cannot use. With one
    consumer both are born with all that a thread can have.

    >>> handed_over(1, 65536), handed_over(2, 65536), handed_over(3, 65536)
    ((None, None), (24, 240), (32, 160))
    """
    groups = consumers + 1
    born = registers // (groups * WARPGROUP) // UNIT * UNIT
    if born >= MOST:
        return None, None

    def left(kept: int) -> int:
        return min((born * groups - kept) // consumers // UNIT * UNIT, MOST)

    most = max(left(kept) for kept in KEPT)
    return max(kept for kept in KEPT if left(kept) == most), most


def gathering(consumers: int, held: int) -> tuple[int | None, int | None]:
    """The same where the producer gathers, and fragments of a consumer hold `held` registers.

    >>> gathering(1, 64), gathering(2, 64), gathering(2, 160)
    ((None, None), (88, 208), (56, 224))
    """
    if consumers not in GATHERING:
        return None, None
    choices = GATHERING[consumers]
    return next((choices[most] for most in sorted(choices) if held <= most), choices[255])
