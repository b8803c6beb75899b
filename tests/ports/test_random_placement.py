"""Random statements on random warpgroups: the text's order holds wherever they run."""

import random

import numpy as np
import pytest

import tilewright as tw
import tilewright.language as T
from tests.roads import on_threads

PLACES = (None, None, (0,), (1,), (2,), (0, 1), (1, 2))
SIZE = 32


def statements(rng, depth=0):
    """A few statements: loops, branches, placed runs of tile operations."""
    found = []
    for _ in range(rng.randint(2, 4)):
        kind = rng.random()
        if depth < 2 and kind < 0.25:
            found.append(("for", rng.randint(1, 3), statements(rng, depth + 1)))
        elif depth < 2 and kind < 0.35:
            found.append(("if", rng.randint(0, 3), statements(rng, depth + 1)))
        else:
            run = [
                (
                    rng.choice(("load", "move", "move", "add", "turn", "sum", "store")),
                    rng.randrange(5),
                    rng.randrange(5),
                )
                for _ in range(rng.randint(1, 3))
            ]
            found.append(("run", rng.choice(PLACES), run))
    return found


def program(seed):
    text = statements(random.Random(seed))

    @T.macro
    def one(kind, a, b, n, X, Y, tiles, rows):
        if kind == "load":
            T.copy(X[(n + a) % 4, :, :], tiles[a])
        elif kind == "move":
            T.copy(tiles[b], tiles[a])
        elif kind == "add":
            for i, j in T.Parallel(SIZE, SIZE):
                tiles[a][i, j] = tiles[a][i, j] + 1 + n
        elif kind == "turn" and a != b and a < 3 and b < 3:
            for i, j in T.Parallel(SIZE, SIZE):
                tiles[a][i, j] = tiles[b][j, i] * 2 % 7
        elif kind == "sum":
            T.reduce_max(tiles[b], rows, dim=1)
            for i, j in T.Parallel(SIZE, SIZE):
                tiles[a][i, j] = rows[i] - tiles[a][i, j]
        elif kind == "store":
            T.copy(tiles[b], Y[a % 2, :, :])

    @T.macro
    def several(ops, n, X, Y, tiles, rows):
        for kind, what, inner in ops:
            if kind == "for":
                for k in T.serial(what):
                    several(inner, n + k, X, Y, tiles, rows)
            elif kind == "if":
                if (n + what) % 3 != 0:
                    several(inner, n, X, Y, tiles, rows)
            elif what is None:
                for op, a, b in inner:
                    one(op, a, b, n, X, Y, tiles, rows)
            else:
                with T.ws(*what):
                    for op, a, b in inner:
                        one(op, a, b, n, X, Y, tiles, rows)

    @T.prim_func
    def main(X: T.Tensor((4, SIZE, SIZE), "float32"), Y: T.Tensor((7, SIZE, SIZE), "float32")):
        with T.Kernel(1, threads=384):
            tiles = [T.alloc_shared((SIZE, SIZE), "float32") for _ in range(3)]
            tiles += [T.alloc_fragment((SIZE, SIZE), "float32") for _ in range(2)]
            rows = T.alloc_fragment((SIZE,), "float32")
            for tile in tiles:
                T.copy(X[0, :, :], tile)
            start = T.alloc_var("int32", init=1)
            several(text, start, X, Y, tiles, rows)
            for number, tile in enumerate(tiles):
                T.copy(tile, Y[2 + number, :, :])

    return main


@pytest.mark.parametrize("target", on_threads())
@pytest.mark.parametrize("seed", [*range(6), 118, 131])  # the last two once did not compile
def test_random_placement(seed, target):
    made = program(seed)
    x = np.random.default_rng(seed).integers(-4, 5, (4, SIZE, SIZE)).astype(np.float32)
    want, got = np.zeros((7, SIZE, SIZE), np.float32), np.zeros((7, SIZE, SIZE), np.float32)
    tw.compile(made, target="interp")(x, want)
    tw.compile(made, target=target)(x, got)
    np.testing.assert_array_equal(got, want)
