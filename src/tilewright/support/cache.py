"""Compiled code on disk: one file per entry, named by a digest of everything that shaped it.

An entry is a line with a format mark and the SHA-256 of all that follows, a line of JSON (the
header), and the raw bytes. Whatever does not check out (a torn write, a flipped bit, another
version's format, a file that is not ours) counts as absent, so damage costs a compilation and never
an answer. Entries are written under another name and moved: readers see a whole one or none, and
nobody waits for anybody.

What was used least recently goes first when all of it exceeds TILEWRIGHT_CACHE_SIZE.
"""

from __future__ import annotations

import json
import os
import re
import stat
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO

from tilewright.support import env
from tilewright.support.errors import TilewrightError

_MARK = b"tilewright-entry-2"
_NEW = ".new-"
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
_READ = os.O_RDONLY
for _flag in ("O_NOFOLLOW", "O_NONBLOCK", "O_BINARY"):
    _READ |= getattr(os, _flag, 0)
_STALE = 3600.0  # seconds after which nobody is still writing
_TOUCH = 60.0  # uses that follow each other more closely are one
_MIB = 1 << 20
_LARGEST = 256 * _MIB  # a hundred times what a kernel takes
# what reading a file raises that is not an entry: not there, not JSON, or more than memory holds
_ABSENT = (OSError, ValueError, RecursionError, MemoryError)
# Looking at every entry takes 5 ms per thousand, so it is done once for each of these parts of the
# limit that is written; then a part more than one is made room for.
_PARTS = 32

Header = dict[str, Any]
# what reading a header raises that is whole and does not say what it should
UNREADABLE = (
    AttributeError, KeyError, IndexError, TypeError, ValueError, RecursionError, MemoryError,
    TilewrightError,
)  # fmt: skip


def digest(parts: Mapping[str, Any]) -> str:
    """The key of what `parts` (JSON values) determine.

    >>> digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})
    True
    """
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"))
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def default_root() -> Path:
    """TILEWRIGHT_CACHE_DIR, or `tilewright` in the user's cache folder."""
    if env.CACHE_DIR():
        return Path(env.CACHE_DIR()).expanduser()
    # the XDG specification: a relative path is invalid and to be ignored
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".cache") / "tilewright"


def default_store() -> Store | None:
    """The user's store; None where TILEWRIGHT_CACHE=0 or the user has no home."""
    if not env.CACHE.on():
        return None
    try:
        return Store(default_root(), size_limit())
    except RuntimeError:  # no home folder can be found
        return None


def size_limit() -> int:
    """Bytes that entries may take, from TILEWRIGHT_CACHE_SIZE (MiB); 0: no limit."""
    try:
        mib = float(env.CACHE_SIZE())
        if not 0 <= mib < 2**40:
            raise ValueError
    except ValueError:
        _warn(
            "size",
            f"{env.CACHE_SIZE.name} must be a number of MiB, not {env.CACHE_SIZE()!r}: "
            f"taking {env.CACHE_SIZE.default}",
        )
        mib = float(env.CACHE_SIZE.default)
    return int(mib * _MIB)


@dataclass(frozen=True)
class Entry:
    """One file of a store as `ls` shows it: `header` is None where none can be read."""

    path: Path
    bytes: int
    used: float  # when, in seconds since the epoch
    header: Header | None

    @property
    def key(self) -> str:
        return self.path.parent.name + self.path.name


@dataclass(frozen=True)
class Store:
    """A folder of entries, which may take `limit` bytes (0: any number). Caching is a help, not a
    duty: no method raises for a disk's sake."""

    root: Path
    limit: int = 0

    def path(self, key: str) -> Path:
        return self.root / key[:2] / key[2:]

    def get(self, key: str, *, touch: bool = True) -> tuple[Header, bytes] | None:
        """The header and bytes stored under `key`, or None if there are none to be trusted. Without
        `touch` this does not count as a use."""
        try:
            entry = _checked(_read_own(self.path(key), self.root, touch))
        except _ABSENT:
            return None
        if entry is None or entry[0].pop("key", None) != key:  # moved to another entry's name
            return None
        return entry

    def put(self, key: str, header: Mapping[str, Any], data: bytes) -> bool:
        """Store an entry; False where the folder cannot be used."""
        line = json.dumps({**header, "key": key, "made": int(time.time())}, sort_keys=True)
        rest = line.encode() + b"\n" + data
        mark = b"%s %s\n" % (_MARK, sha256(rest).hexdigest().encode())
        path = self.path(key)
        try:
            _make_private(self.root)
            _make_private(path.parent)
            if not (_is_private(self.root) and _is_private(path.parent)):
                return False
            temporary = path.parent / f"{_NEW}{os.getpid()}-{os.urandom(8).hex()}"
            handle = os.open(temporary, _CREATE, 0o600)
        except OSError:
            return False
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(mark + rest)
            # two writers of one key wrote the same
            os.replace(temporary, path)
        except OSError:
            _unlink(temporary)
            return False
        # keys are as good as dice, and every process throws them alike
        if self.limit and int(key[:8], 16) * self.limit < 2**32 * _PARTS * (len(mark) + len(rest)):
            self.sweep()
        return True

    # ── looking after it ─────────────────────────────────────────────────────────────────────

    def sweep(self) -> None:
        """Remove what writers left behind when they were killed, and the least recently used
        entries beyond the limit."""
        found, total = [], 0
        for path, status in self._files():
            if path.name.startswith(_NEW) and time.time() - status.st_mtime > _STALE:
                _unlink(path)
                continue
            total += status.st_size
            if not path.name.startswith(_NEW):
                found.append((status.st_mtime, status.st_size, path))
        if not self.limit or total <= self.limit:
            return
        for _, size, path in sorted(found):
            if total <= self.limit - self.limit // _PARTS:
                break
            _unlink(path)
            total -= size

    def entries(self) -> list[Entry]:
        """All of them, the last used first."""
        found = [
            Entry(path, status.st_size, status.st_mtime, _header_of(path))
            for path, status in self._files()
            if not path.name.startswith(_NEW)
        ]
        return sorted(found, key=lambda entry: -entry.used)

    def size(self) -> tuple[int, int]:
        """How many files there are and what they take, in bytes."""
        sizes = [status.st_size for _, status in self._files()]
        return len(sizes), sum(sizes)

    def damaged(self) -> list[Path]:
        """Entries that `get` would not give."""
        return [
            path
            for path, _ in self._files()
            if not path.name.startswith(_NEW)
            and self.get(path.parent.name + path.name, touch=False) is None
        ]

    def clear(self) -> int:
        """Remove every entry and what writers left behind; how many files that were."""
        paths = [path for path, _ in self._files()]
        for path in paths:
            _unlink(path)
        for folder in {path.parent for path in paths}:
            with suppress(OSError):  # somebody is writing
                folder.rmdir()
        return len(paths)

    def _files(self) -> Iterator[tuple[Path, os.stat_result]]:
        """Entries and unfinished ones; what else may lie in the folder is not ours."""
        with suppress(OSError):
            for path in sorted(self.root.glob("[0-9a-f][0-9a-f]/*")):
                if path.name.startswith(_NEW) or re.fullmatch("[0-9a-f]{62}", path.name):
                    with suppress(OSError):
                        yield path, path.lstat()


def _checked(raw: bytes) -> tuple[Header, bytes] | None:
    mark, _, rest = raw.partition(b"\n")
    if mark != b"%s %s" % (_MARK, sha256(rest).hexdigest().encode()):
        return None
    line, _, data = rest.partition(b"\n")
    header = json.loads(line)
    return (header, data) if isinstance(header, dict) else None


def _header_of(path: Path) -> Header | None:
    """Without a look at the bytes that follow it."""
    try:
        with _opened(path) as file:
            mark, line = file.readline(1024), file.readline(64 * _MIB)
        header = json.loads(line) if mark.startswith(_MARK) else None
    except _ABSENT:
        return None
    return header if isinstance(header, dict) else None


def _unlink(path: Path) -> None:
    with suppress(OSError):
        path.unlink()


# ── whose files these are ────────────────────────────────────────────────────────────────────

_warned: set[str] = set()


def _warn(about: str, text: str) -> None:
    """Once: what is wrong with one entry is mostly wrong with all of them."""
    if about not in _warned:
        _warned.add(about)
        warnings.warn(text, RuntimeWarning, stacklevel=2)


def _make_private(folder: Path) -> None:
    if not folder.is_dir():
        _make_private(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)


def _is_private(path: Path, status: os.stat_result | None = None) -> bool:
    """Ours, and nobody else can put code of theirs there; else a warning, once."""
    if not hasattr(os, "geteuid"):
        return True
    status = status or path.stat()
    if status.st_uid != os.geteuid():
        _warn("owner", f"{path} is not used as a cache: it is another user's. Set {_ELSEWHERE}")
        return False
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        _warn(
            "owner",
            f"{path} is not used as a cache: others may write to it. Run `chmod go-w` on it, or "
            f"set {_ELSEWHERE}",
        )
        return False
    return True


_ELSEWHERE = f"{env.CACHE_DIR.name} to a folder of your own, or {env.CACHE.name}=0 to do without"


def _read_own(path: Path, root: Path, touch: bool) -> bytes:
    with _opened(path) as file:
        status = os.fstat(file.fileno())
        if not (_is_private(root) and _is_private(path.parent) and _is_private(path, status)):
            raise PermissionError(path)
        if touch and time.time() - status.st_mtime > _TOUCH:
            with suppress(OSError):
                os.utime(file.fileno() if os.utime in os.supports_fd else path)
        return file.read(_LARGEST)


def _opened(path: Path) -> BinaryIO:
    """A plain file of a size that an entry may have: no link, and nothing that makes a reader wait,
    such as a pipe."""
    handle = os.open(path, _READ)
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode) or status.st_size > _LARGEST:
            raise PermissionError(path)
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise
