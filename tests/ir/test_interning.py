"""Equal expressions are one object, whoever makes them."""

import sys
import threading

import pytest

from tilewright.ir.dtype import INT32
from tilewright.ir.expr import Const, Var


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
