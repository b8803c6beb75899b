"""Every kernel of the zoo is tested on every target that runs without a GPU."""

import pytest

TARGETS = ("cpu", "interp", "interp -sanitize")


@pytest.fixture(params=TARGETS)
def target(request):
    return request.param


# Sizes of a row kernel: what it chooses itself, rows of a block that do not divide, a tail in the
# last block of a cluster, and pieces read again or kept in shared memory.
CHOICES = (
    (1, {}),
    (100, {}),
    (256, {}),
    (5000, {}),
    (18000, {}),
    (33, {"variant": "rows", "block_M": 2, "block_N": 17, "cluster": 2}),
    (96, {"variant": "rows", "block_M": 1, "block_N": 24, "cluster": 4}),
    (300, {"variant": "pieces", "block_M": 2, "block_N": 128}),
    (256, {"variant": "pieces", "block_M": 1, "block_N": 64, "staged": True}),
    (257, {"variant": "pieces", "block_M": 3, "block_N": 64, "staged": True}),
)


@pytest.fixture(params=CHOICES, ids=lambda c: "-".join(map(str, (c[0], *c[1].values()))))
def sized(request, target):
    """The columns of a row, and the choice made for a kernel, where the target can run it."""
    columns, choice = request.param
    if target == "cpu" and "cluster" in choice:
        pytest.skip("a CPU has no clusters")
    return columns, choice
