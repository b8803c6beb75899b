"""Compiled code on disk: one file per entry, named by a digest of everything that shaped it.

An entry is a line with a format mark and the SHA-256 of all that follows, a line of JSON, and the
raw bytes. Whatever does not check out (a torn write, a flipped bit, another version's format, a
file that is not ours) counts as absent, so damage costs a compilation and never an answer.
"""

from __future__ import annotations

import json
import os
import stat
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from tilewright.support import env

_MARK = b"tilewright-entry-1"


def digest(parts: Mapping[str, Any]) -> str:
    """The key of what `parts` (JSON values) determine.

    >>> digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})
    True
    """
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"))
    return sha256(text.encode()).hexdigest()


def default_root() -> Path:
    """TILEWRIGHT_CACHE_DIR, or `tilewright` in the user's cache folder."""
    if env.CACHE_DIR():
        return Path(env.CACHE_DIR()).expanduser()
    # the XDG specification: a relative path is invalid and to be ignored
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".cache") / "tilewright"


@dataclass(frozen=True)
class Store:
    """A folder of entries. Caching is a help, not a duty: no method raises for a disk's sake."""

    root: Path

    @staticmethod
    def default(kind: str) -> Store:
        return Store(default_root() / kind)

    def path(self, key: str) -> Path:
        return self.root / key[:2] / key[2:]

    def get(self, key: str) -> tuple[dict[str, Any], bytes] | None:
        """The header and bytes stored under `key`, or None if there are none to be trusted."""
        try:
            raw = _read_own(self.path(key))
            mark, _, rest = raw.partition(b"\n")
            if mark != b"%s %s" % (_MARK, sha256(rest).hexdigest().encode()):
                return None
            line, _, data = rest.partition(b"\n")
            header = json.loads(line)
        except (OSError, ValueError):
            return None
        if header.pop("key", None) != key:  # a file moved to another entry's name
            return None
        return header, data

    def put(self, key: str, header: Mapping[str, Any], data: bytes) -> bool:
        """Store an entry; False where the folder cannot be used."""
        rest = json.dumps({**header, "key": key}, sort_keys=True).encode() + b"\n" + data
        mark = b"%s %s\n" % (_MARK, sha256(rest).hexdigest().encode())
        path = self.path(key)
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not (_private(self.root) and _private(path.parent)):
                return False
            handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".new-")
        except OSError:
            return False
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(mark + rest)
            # readers see the old entry or the new one; two writers of one key wrote the same
            os.replace(temporary, path)
        except OSError:
            with suppress(OSError):
                os.unlink(temporary)
            return False
        return True


def _private(folder: Path) -> bool:
    """Ours, and nobody else can put code of theirs there."""
    if not hasattr(os, "geteuid"):
        return True
    status = folder.stat()
    return status.st_uid == os.geteuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _read_own(path: Path) -> bytes:
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0))
    with os.fdopen(handle, "rb") as file:
        status = os.fstat(handle)
        ours = not hasattr(os, "geteuid") or (
            status.st_uid == os.geteuid() and _private(path.parent)
        )
        if not ours or not stat.S_ISREG(status.st_mode):
            raise PermissionError(path)
        return file.read()
