"""Vector clocks: who knows of what.

Time is one counter that goes on at every release. Entities are the knowers (threads; three for an
agent that runs tiles), then barriers and groups of asynchronous ops: a barrier's clock counts
phases, a group's counts commits. `u` knows of what `t` did at time `g` when `known[u, t] >= g`.
Whether an access knows of a conflicting one before it follows from the program, not from the
interleaving that happened to run, so a missing barrier is found whatever the seed.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tilewright.machine.memory import Array

NEVER = np.int32(2**31 - 1)


class Party(NamedTuple):
    """Threads of an agent that do something together, as the clocks see them."""

    agent: object
    size: int
    lanes: Array  # those that count: an agent that runs tiles counts once
    ids: Array  # whose time goes on when they release
    shares: Array  # whose knowledge they release
    knows: Array  # whose knowledge counts where something must be known
    learns: Array  # who learns what they wait for
    whole: bool  # all threads of the agent


class Clocks:
    """What the knowers of a cluster know."""

    def __init__(self, knowers: int, *, watching: bool) -> None:
        self.entities = self.knowers = knowers
        self.watching = watching  # or nobody keeps account
        rows = knowers if self.watching else 1
        self.known: Array = np.zeros((rows, rows + 32), np.int32)
        self.now = 1

    def entity(self, *, knows: bool = False) -> int:
        """A new column, for a barrier or a group; with a row where it `knows` something."""
        self.entities += 1
        rows, columns = self.known.shape
        need = max(rows, self.entities if knows else 0)
        if self.watching and (need > rows or self.entities > columns):
            wider = np.zeros((need, max(columns, 2 * self.entities)), np.int32)
            wider[:rows, :columns] = self.known
            self.known = wider
        return self.entities - 1

    def fresh(self) -> Array:
        return np.zeros(self.known.shape[1], np.int32)

    def fit(self, vector: Array) -> Array:
        """`vector`, from a time when there were fewer entities, as wide as rows are now."""
        if vector.size < self.known.shape[1]:
            wide = self.fresh()
            wide[: vector.size] = vector
            return wide
        return vector

    def union(self, a: Array, b: Array) -> Array:
        """The later of both, entry by entry."""
        out: Array = np.maximum(self.fit(a), self.fit(b))
        return out

    def release(self, ids: Array, rows: Array | None = None) -> Array:
        """What `ids` did, and they (or `rows`) know, for others to learn."""
        if not self.watching:
            return self.fresh()
        self.known[ids, ids] = self.now
        self.now += 1
        out: Array = self.known[ids if rows is None else rows].max(axis=0)
        return out

    def learn(self, rows: Array, more: Array) -> None:
        if self.watching:
            self.known[rows] = np.maximum(self.known[rows], self.fit(more))

    def note(self, rows: Array, entity: int, time: int) -> None:
        if self.watching:
            self.known[rows, entity] = np.maximum(self.known[rows, entity], time)

    def meet(self, groups: list[Array]) -> None:
        """The threads of each group learn what the group knows."""
        if not self.watching:
            return
        for ids in groups:
            self.known[ids, ids] = self.now
        self.now += 1
        for ids in groups:
            self.known[ids] = self.known[ids].max(axis=0)

    def common(self, rows: Array) -> Array:
        """What every one of them knows."""
        if not self.watching:
            return self.fresh()
        out: Array = self.known[rows].min(axis=0)
        return out

    def has(self, rows: Array, entity: int, time: int) -> bool:
        """Whether any of them knows of that."""
        return not self.watching or bool((self.known[rows, entity] >= time).any())

    def all_have(self, rows: Array, entity: int, time: int) -> bool:
        """Whether each of them knows of that."""
        return not self.watching or bool((self.known[rows, entity] >= time).all())
