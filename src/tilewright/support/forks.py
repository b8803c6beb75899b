"""Locks where processes fork."""

from __future__ import annotations

import os
from typing import Protocol, TypeVar


class _Lock(Protocol):
    def acquire(self) -> bool: ...

    def release(self) -> None: ...


LockT = TypeVar("LockT", bound=_Lock)


def free_in_children(lock: LockT) -> LockT:
    """The lock, which no forked child finds taken: a fork waits for who holds it. One that is taken
    while this one is held is passed here before it."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(
            before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release
        )
    return lock
