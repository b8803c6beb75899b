"""Equal expressions are one object, whoever makes them."""

import copy
import pickle
import sys
import threading

import pytest

from tilewright.ir.dtype import FLOAT32, INT32
from tilewright.ir.expr import Call, Cast, Const, Select, Var


@pytest.fixture
def hasty():
    """Threads take turns after every few instructions."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_threads_that_make_the_same_share_it(hasty):
    made = [None] * 4
    for turn in range(50):
        together = threading.Barrier(len(made))

        def work(n, turn=turn, together=together):
            together.wait()
            made[n] = [Const(turn * 1000 + i, INT32) + Var("i") for i in range(100)]

        threads = [threading.Thread(target=work, args=(n,)) for n in range(len(made))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert all(len(set(map(id, same))) == 1 for same in zip(*made, strict=True))


@pytest.mark.parametrize(
    "again", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))]
)
def test_copies_are_the_same(again):
    i, nan = Var("i"), Const(float("nan"), FLOAT32)
    for made in (i, nan, i * 3 + 1, Select(i < 2, i, i), Call("exp", (Cast(i, FLOAT32),), FLOAT32)):
        assert again(made) is made
