"""Which compiler this is: a digest of its source files, so that code of another one is not used."""

from __future__ import annotations

import os
import re
import time
from array import array
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from itertools import chain
from operator import attrgetter
from typing import NamedTuple

from tilewright.support import LOADED_AT
from tilewright.support.cache import UNREADABLE, Header, Store

# the clock of files ticks every few milliseconds
_TICK = 20_000_000
_SECOND = 1_000_000_000
_NEVER = 2**63
# What shows that a file's contents are others: its size, when they and when anything about it
# changed. One that takes another's place changes the folder.
_LOOK = attrgetter("st_size", "st_mtime_ns", "st_ctime_ns")
_IMPORT = re.compile(
    r"^ *(?:from|import) +tilewright\b\.?([\w.]*)(?: +import +(\([^)]*\)|.*))?", re.MULTILINE
)


class State(NamedTuple):
    """Folders (their names end in a slash) and files, and what `_LOOK` says of each, one after the
    other; nothing where some could not be looked at."""

    names: list[str]
    looks: list[int]

    def changed(self, *, folders: bool) -> int:
        """When anything about any of the files changed last, or also about the folders."""
        times = zip(self.names, self.looks[2::3], strict=False)
        return max((at for name, at in times if folders or name[-1] != "/"), default=_NEVER)

    def files(self) -> list[tuple[str, tuple[int, ...]]]:
        looks = zip(*[iter(self.looks)] * 3, strict=False)
        return [pair for pair in zip(self.names, looks, strict=False) if pair[0][-1] != "/"]


@dataclass
class Sources:
    """The files of a package that turn programs into code: all that is in the folder `start`, and
    every module of the package that one of these files imports."""

    package: str
    start: str
    since: int = LOADED_AT  # nanoseconds: when the first of them was imported
    _known: tuple[State, str | None] | None = field(default=None, init=False)

    def digest(self, store: Store) -> str | None:
        """What their contents are. None if they are no files, or have changed since they were
        imported: nobody can then say what this process compiles with.

        Finding and reading them takes 15 to 40 ms, a look at known ones 3 µs each: `store`
        remembers them and their digest. What comes or goes changes a folder, which is looked at.
        """
        if self._known is None:
            now = time.time_ns()
            key = sha256(os.fsencode(f"sources {self.package} {self.start}")).hexdigest()
            state, found = _remembered(store.get(key))
            if found is None or self._look(state.names) != state.looks:
                state, found = self.state(), None
            if state.changed(folders=False) > self.since - _TICK:
                found = None
            elif found is None and not any(map(self._is_overtaken, state.names)):
                found = self._contents(state.names)
                # what a folder that changed just now gets next may not show in its times
                if state.changed(folders=True) < now - _TICK:
                    header = {"kind": "sources", "names": state.names, "digest": found}
                    store.put(key, header, array("q", state.looks).tobytes())
            self._known = (state, found)
        return self._known[1]

    def unchanged(self) -> bool:
        """Whether the files still are those that `digest` has seen. To be asked before something
        is stored: modules may have been imported since."""
        if self._known is None:
            return False
        seen = self._known[0]
        # compiled modules of Python's change a folder, too
        return self._look(seen.names) == seen.looks or self.state().files() == seen.files()

    def state(self) -> State:
        """The files that there are now, and the folders they are in."""
        there = set(self._inside(""))
        left = [name for name in there if name.startswith(self.start)]
        names: set[str] = set()
        while left:
            name = left.pop()
            if name not in names:
                names.add(name)
                if name.endswith(".py"):
                    left += there.intersection(self._imported(name))
        found = sorted(names | {f"{os.path.dirname(name) or '.'}/" for name in names})
        return State(found, self._look(found))

    def _inside(self, folder: str) -> Iterator[str]:
        """Everything in a folder of the package, with slashes after folders."""
        with suppress(OSError), os.scandir(os.path.join(self.package, folder)) as entries:
            for entry in entries:
                if entry.name.startswith(".") or entry.name == "__pycache__":
                    continue
                yield (name := folder + entry.name + "/" * entry.is_dir())
                if name[-1] == "/":
                    yield from self._inside(name)

    def _imported(self, name: str) -> Iterator[str]:
        """Where the modules would be that a file names in imports anywhere in its text, and the
        packages that hold them. The package's own `__init__`, which finds public names, is none."""
        with suppress(OSError), open(os.path.join(self.package, name), "rb") as file:
            for module, words in _IMPORT.findall(file.read().decode("utf-8", "replace")):
                path = ""
                for part in filter(None, module.split(".")):
                    path += part
                    yield from (f"{path}.py", f"{path}/__init__.py")
                    path += "/"
                for word in re.findall(r"\w+", words):
                    yield from (f"{path}{word}.py", f"{path}{word}/__init__.py")

    def _is_overtaken(self, name: str) -> bool:
        """Whether Python runs what a file was before: it takes the compiled module of a file whose
        size is the same and that was written in the same second."""
        if not name.endswith(".py"):
            return False
        from importlib.util import cache_from_source

        path = os.path.join(self.package, name)
        with suppress(OSError, NotImplementedError):
            file, compiled = os.stat(path), os.stat(cache_from_source(path))
            same_second = file.st_mtime_ns // _SECOND == compiled.st_mtime_ns // _SECOND
            return same_second and compiled.st_mtime_ns < file.st_mtime_ns
        return False

    def _look(self, names: list[str]) -> list[int]:
        # from the package's folder on where that can be said: the way to it takes a third as long
        start, at = f"{self.package}/", None
        try:
            if os.stat in os.supports_dir_fd:
                start, at = "", os.open(self.package, os.O_RDONLY)
            found = [os.stat(start + name, dir_fd=at) for name in names]
        except OSError:
            return []
        finally:
            if at is not None:
                os.close(at)
        return list(chain.from_iterable(map(_LOOK, found)))

    def _contents(self, names: list[str]) -> str:
        total = sha256()
        for name in names:
            if name[-1] != "/":
                with open(os.path.join(self.package, name), "rb") as file:
                    total.update(f"{name}\0{sha256(file.read()).hexdigest()}\n".encode())
        return total.hexdigest()


def _remembered(entry: tuple[Header, bytes] | None) -> tuple[State, str | None]:
    """What `store` has; another version may have left something else there."""
    with suppress(*UNREADABLE):
        if entry is not None:
            header, data = entry
            names, looks = list(map(str, header["names"])), memoryview(data).cast("q").tolist()
            return State(names, looks), str(header["digest"])
    return State([], []), None


@cache
def compiler(folder: str) -> Sources:
    """What is in a folder of this package, and all that it imports: what its results depend on,
    besides programs and targets."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    return Sources(package, folder)
