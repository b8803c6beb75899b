import numpy as np
import pytest

from zoo.case import normal, within
from zoo.loss.cross_entropy import cross_entropy_rows, reference


def walked(choice):
    """Sizes for rows that are read in pieces, here: the losses need no row twice."""
    if choice.get("variant") not in ("held", "pieces"):
        return choice
    threads = choice.get("threads", 32)
    return {"variant": "walked", "block_M": choice["block_M"], "threads": threads, "vectors": 1}


def test_cross_entropy_rows(target, sized):
    N, choice = sized
    choice = walked(choice)
    kernel = cross_entropy_rows(N, target=target, **choice)
    for M in (1, 5):
        x = normal(M, N, dtype="bfloat16") * 4
        labels = np.random.default_rng(N).integers(0, N, M)
        y = np.full(M, np.nan, np.float32)
        kernel(x, labels, y)
        within(y, reference(x, labels), relative=1e-5, absolute=1e-4)


@pytest.mark.parametrize("variant", ["rows", "walked"])
def test_labels(target, variant):
    x = normal(4, 50, dtype="bfloat16")
    x[0, 7] = -np.inf
    labels = np.array([7, 0, -100, 49], np.int32)
    y = np.full(4, np.nan, np.float32)
    cross_entropy_rows(50, labels="int32", target=target, variant=variant)(x, labels, y)
    want = reference(x, labels)
    assert want[0] == y[0] == np.inf and y[2] == 0
    within(y[1:], want[1:], relative=1e-5, absolute=1e-5)


def test_long_rows_are_read_once():
    """No row needs a cluster: there is nothing to come back for."""
    text = cross_entropy_rows(131072, target="interp").ir()
    assert "cluster=" not in text and "for k" in text
