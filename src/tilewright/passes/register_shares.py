"""What a producer's threads and those of its consumers have of a block's registers."""

from __future__ import annotations

UNIT = 8  # registers change hands by as many
MOST = 240  # that a thread is given; it can use 255
KEPT = (24, 32, 40)  # by a producer's thread
WARP, WARPGROUP = 32, 128


def handed_over(consumers: int, registers: int) -> tuple[int | None, int | None]:
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
