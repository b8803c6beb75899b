"""Every kernel of the zoo is tested on every target; with `-m gpu`, on a GPU."""

import pytest

from tests.roads import leave_if_lost, on_gpu

TARGETS = ("cpu", "interp", "interp -sanitize", *on_gpu())


def pytest_unconfigure():
    leave_if_lost()


@pytest.fixture(params=TARGETS)
def target(request):
    return request.param


# Sizes of a row kernel: what it chooses itself, rows that do not divide into blocks, a tail in the
# last block of a cluster, several rows of a cluster, and pieces read again or kept.
CHOICES = (
    (1, {}),
    (100, {}),
    (256, {}),
    (5000, {}),
    (18000, {}),
    (33, {"variant": "rows", "block_M": 2, "block_N": 40}),
    (96, {"variant": "held", "block_M": 1, "threads": 32}),
    (1050, {"variant": "held", "block_M": 2, "threads": 64, "cluster": 4}),
    (3000, {"variant": "held", "block_M": 1, "threads": 64, "vectors": 2, "cluster": 2}),
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
