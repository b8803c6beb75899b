"""Locks where processes fork."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from threading import RLock


def fork_lock() -> AbstractContextManager[bool]:
    """A lock that no forked child finds taken: a fork waits for the thread that holds it. Of two
    that are held at once, the outer one is made last."""
    lock = RLock()
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(
            before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release
        )
    return lock
