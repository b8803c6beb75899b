"""Which names stand for the same memory: views of a buffer, and buffers placed over one another."""

from __future__ import annotations

from tilewright.ir.core import *


class Aliases(dict[str, str]):
    """By the name of each view, the buffer whose memory it shows; any other name stands for itself.

    >>> found = Aliases(v="u", u="tile")
    >>> found["v"], found["tile"], sorted(found.viewed)
    ('tile', 'tile', ['tile', 'u', 'v'])
    """

    def __init__(self, *args: dict[str, str], **sources: str) -> None:
        super().__init__(*args, **sources)
        for view in self:
            while (root := self[self[view]]) != self[view]:
                self[view] = root

    def __missing__(self, name: str) -> str:
        return name

    @property
    def viewed(self) -> set[str]:
        """Buffers whose memory has more than one name."""
        return {*self, *self.values()}


def aliases(code: Op | Body) -> Aliases:
    """The views in `code`."""
    return _of_op(code) if isinstance(code, Op) else Aliases(_sources(code))


@kept
def _of_op(op: Op) -> Aliases:
    return Aliases(_sources((op,)))


def _sources(body: Body) -> dict[str, str]:
    return {op.buffer.name: op.source.name for op in walk_ops(body, View)}


def places(kernel: Kernel) -> dict[Buffer, int]:
    """Where buffers begin in shared memory, as far as that is decided."""
    return {op.buffer: op.place for op in walk_ops(kernel, Alloc) if op.place is not None}


def sharing(kernel: Kernel) -> dict[str, str]:
    """Of placed buffers that share bytes with others: by name, one that stands for all of them."""
    groups: list[tuple[int, list[str]]] = []
    spans = sorted((at, at + b.shared_bytes, b.name) for b, at in places(kernel).items())
    for start, end, name in spans:
        if groups and start < groups[-1][0]:
            last, names = groups.pop()
            groups.append((max(end, last), [*names, name]))
        else:
            groups.append((end, [name]))
    return {name: names[0] for _, names in groups if len(names) > 1 for name in names}
