"""A child that hangs, fails or dies is an error of its parent, in time."""

import os
import time

import pytest

from tilewright.support.errors import RunError
from tilewright.targets.cuda.guard import run_guarded


def double(x):
    return 2 * x


def fail():
    raise ValueError("no such luck")


def die():
    os._exit(3)


def hang():
    time.sleep(600)


def test_results_and_failures_come_back():
    assert run_guarded(double, 21) == 42
    with pytest.raises(RunError, match="no such luck"):
        run_guarded(fail)
    with pytest.raises(RunError, match="exit code 3"):
        run_guarded(die)


def test_a_hang_is_killed():
    started = time.monotonic()
    with pytest.raises(RunError, match="did not finish within 1 s"):
        run_guarded(hang, timeout=1)
    assert time.monotonic() - started < 20
