"""Exchanges between warps: where their scratch lies, which barriers are left around them, and that
each of those is needed."""

from __future__ import annotations

import dataclasses
import random
from functools import cache

import numpy as np
import pytest

from tests.passes.overlap import HOPPER, run
from tilewright import machine
from tilewright.ir.analysis.aliases import places as places_of
from tilewright.ir.buffer import Space
from tilewright.ir.expr import const
from tilewright.ir.op import (
    Alloc,
    For,
    Kernel,
    Op,
    Program,
    Role,
    Sync,
    While,
    bodies,
    walk_ops,
)
from tilewright.ir.rewrite import map_body, map_kernels, program_names, rebuild, rename_unique
from tilewright.ir.target import Target
from tilewright.ir.text import parse_program
from tilewright.ir.verify import Stage
from tilewright.passes.cuda_passes import LOWER
from tilewright.passes.run import run_pipeline
from tilewright.passes.sync.insert_syncs import insert_syncs
from tilewright.support.errors import CompileError, RunError
from tilewright.targets.cuda.backend import lower
from zoo.mla.decode import mla_decode
from zoo.norm.layer_norm import layer_norm_rows
from zoo.softmax.softmax import softmax

# f: a column in each thread; g: a part of a row; their results m, n: all rows everywhere, or where
# the row is. A reduction of f crosses warps, one of g does not.
HEAD = """program p {
  param X: int32[8, 128] global
  param Y: int32[8, 128] global
  param N: int32
  kernel k grid bx in 1 threads tx in 128 {
    alloc s: int32[8, 128] shared layout="(8,128):(128,1)"
    alloc t: int32[8, 128] shared layout="(8,128):(128,1)"
    EXTRA
    alloc f: int32[8, 128] fragment layout="frag{tile=(8,128) tv=(128,8):(1,128)}"
    alloc g: int32[8, 128] fragment layout="frag{tile=(8,128) tv=((16,8),8):((8,128),1)}"
    alloc m: int32[8] fragment layout="frag{tile=(8) tv=(128,8):(0,1)}"
    alloc o: int32[8] fragment layout="frag{tile=(8) tv=(128,8):(0,1)}"
    alloc n: int32[8] fragment layout="frag{tile=(8) tv=((16,8),1):((0,1),0)}"
    fill s = 1
    fill t = 2
    fill m = 0
    fill o = 0
    fill n = 0
    copy X -> f atom=threads
    copy X -> g atom=threads
"""
TAIL = "copy f -> Y atom=threads\n}\n}\n"
COLUMNS = 'layout="frag{tile=(8,128) tv=(128,8):(1,128)}"'
PARTS = 'layout="frag{tile=(8,128) tv=((16,8),8):((8,128),1)}"'
MAX, SUM = "reduce max f -> m dim 1\n", "reduce sum f -> o dim 1\n"
USE = f"map (i, j) in (8, 128) {COLUMNS} {{ f[i, j] = f[i, j] * 3 + m[i] - o[i] }}\n"


def ordered(body: str, extra: str = "") -> Program:
    given = parse_program(HEAD.replace("EXTRA", extra) + body + TAIL)
    return map_kernels(given, lambda kernel: insert_syncs(kernel, HOPPER))


def threads_of(given: Program) -> Program:
    return run_pipeline(given, HOPPER, LOWER, stage=Stage.LAID_OUT).result


def arguments(n: int) -> dict[str, object]:
    rng = np.random.default_rng(3)
    return {"X": rng.integers(-9, 9, (8, 128)).astype(np.int32), "N": n,
            "Y": np.zeros((8, 128), np.int32)}  # fmt: skip


def judge(body: str, extra: str = "", turns: tuple[int, ...] = (3,), seeds: int = 2) -> Program:
    """Thread code of `body`, which means what the tiles mean and has no race."""
    given = ordered(body, extra)
    code = threads_of(given)
    for n in turns:
        plain = parse_program(HEAD.replace("EXTRA", extra) + body + TAIL)
        want = run(plain, arguments(n))["Y"].tobytes()
        assert run(given, arguments(n), explicit=True)["Y"].tobytes() == want
        for seed in range(seeds):
            got = arguments(n)
            machine.run_threads(code, got, seed=seed)
            assert got["Y"].tobytes() == want, (n, seed)
    return code


def meetings(body: tuple[Op, ...], looped: bool = False) -> int:
    """Barriers of more than a warp, in loops alone where `looped`."""
    total = 0
    for op in body:
        if isinstance(op, Sync) and op.scope != "warp" and not op.arrive and not looped:
            total += 1
        inside = looped and not isinstance(op, (For, While))
        total += sum(meetings(b, inside) for b in bodies(op))
    return total


def count(code: Program) -> tuple[int, int]:
    """All barriers, and those in loops."""
    kernel = code.kernels[0]
    return meetings(kernel.body), meetings(kernel.body, looped=True)


def places(code: Program) -> list[int]:
    kernel = code.kernels[0]
    return [
        place for buffer, place in places_of(kernel).items() if buffer.name.startswith("scratch")
    ]


def repeated(body: str) -> str:
    return f"for k in 0 .. N {{ {body} }}\n"


# ── places and barriers ──────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("body", "all_of_them", "in_loops", "spots"),
    [
        (MAX + USE, 1, 0, 1),
        (MAX + SUM + USE, 2, 0, 2),
        (MAX + SUM + USE + MAX + USE, 3, 0, 2),
        # the same place again, and nobody met in between
        (repeated(MAX + USE), 2, 2, 1),
        # each meets for the other
        (repeated(MAX + SUM + USE), 2, 2, 2),
        (repeated(MAX + USE + MAX + USE + SUM + USE), 3, 3, 3),
        # a barrier of the program's
        (repeated(MAX + USE + "sync block\n"), 2, 2, 1),
        # the other one may be skipped
        (repeated(MAX + USE + f"if k > 1 {{ {SUM} }}\n" + USE), 3, 3, 2),
        (repeated(MAX + USE + f"if k > 1 {{ {SUM} }} else {{ sync block }}\n" + USE), 3, 3, 2),
        (repeated(f"if k > 1 {{ {MAX} }} else {{ {SUM} }}\n" + USE), 4, 4, 1),
        # behind a loop that may run not at all
        (MAX + repeated(SUM + USE) + MAX + USE, 4, 2, None),
        # a scan tells one total of each line and warp, like a reduction
        (repeated(MAX + USE + "scan sum f -> f dim 1\n"), 2, 2, 2),
        (repeated("relayout f -> g\nrelayout g -> f\n"), 4, 4, 1),
    ],
)  # fmt: skip
def test_how_many(body, all_of_them, in_loops, spots):
    code = judge(body, turns=(0, 1, 3))
    assert count(code) == (all_of_them, in_loops)
    if spots is not None:
        assert len(set(places(code))) == spots


def big(total: int) -> str:
    """Shared memory of `total` bytes, with what the others take."""
    size = total - 8192
    return f'alloc big: int8[{size}] shared layout="({size}):(1)"'


def test_one_place_where_memory_is_full():
    body = repeated(MAX + SUM + USE)
    room = judge(body, big(232_448 - 256))
    assert count(room) == (2, 2) and len(set(places(room))) == 2
    full = judge(body, big(232_448 - 128))
    assert count(full) == (4, 4) and len(set(places(full))) == 1
    with pytest.raises(CompileError, match="exchanges more between warps"):
        judge(body, big(232_448))


def test_places_cost_no_block_of_a_multiprocessor():
    # two of 115,712 bytes each fit, with the 1,024 that each takes besides
    body = repeated(MAX + SUM + USE)
    for left, spots in ((256, 2), (128, 1)):
        code = judge(body, big(115_712 - left))
        assert len(set(places(code))) == spots, left


def without(code: Program, victim: Op) -> Program:
    def fewer(kernel: Kernel) -> Kernel:
        return rebuild(kernel, body=map_body(kernel.body, lambda op: () if op is victim else None))

    return map_kernels(code, fewer)


@pytest.mark.parametrize(
    "body",
    [
        repeated(MAX + USE),
        repeated(MAX + SUM + USE),
        repeated(MAX + USE + f"if k > 1 {{ {SUM} }}\n" + USE),
        repeated(MAX + USE + "copy f -> s atom=threads\n"
                 f"map (i, j) in (8, 128) {COLUMNS} {{ f[i, j] = f[i, j] + s[7 - i, 127 - j] }}\n"),
    ],
)  # fmt: skip
def test_every_barrier_that_is_left_is_needed(body):
    code = judge(body)
    syncs = [op for op in walk_ops(code.kernels[0]) if isinstance(op, Sync) and op.scope != "warp"]
    assert syncs
    for sync in syncs:
        with pytest.raises(RunError, match="race"):
            for seed in range(4):
                machine.run_threads(without(code, sync), arguments(4), seed=seed)


# ── exchanges as barriers ────────────────────────────────────────────────────────────────────

TURNED = f"map (i, j) in (8, 128) {COLUMNS} {{ f[i, j] = f[i, j] + s[7 - i, 127 - j] }}\n"


@pytest.mark.parametrize(
    ("between", "syncs"),
    [
        (USE, 1),
        (MAX, 0),
        ("scan sum f -> f dim 1\n", 0),
        ("relayout f -> g\n", 0),
        ("reduce max g -> n dim 1\n", 1),  # each row in half a warp
        ("relayout g -> g2\n", 1),  # lanes of a warp
        (f"if N > 1 {{ {MAX} }}\n", 1),
        (f"for k in 0 .. N {{ {MAX} }}\n", 1),
    ],
)
def test_an_exchange_is_a_barrier(between, syncs):
    extra = (
        'alloc g2: int32[8, 128] fragment layout="frag{tile=(8,128) tv=((8,2,8),8):((1,64,128),8)}"'
    )
    given = "copy f -> s atom=threads\n" + between + TURNED
    code = ordered(given, extra)
    found = sum(isinstance(op, Sync) for op in walk_ops(code.kernels[0]))
    first = 1  # `fill s` before `copy f -> s`
    assert found == syncs + first
    judge(given, extra, turns=(0, 1, 2))


def test_what_it_reads_itself_comes_before_its_barrier():
    body = "copy f -> s atom=threads\nscan sum s -> t dim 1\n" + TURNED.replace("s[", "t[")
    given = ordered(body)
    names = [type(op).__name__ for op in given.kernels[0].body]
    at = names.index("Scan")
    assert names[at - 1] == "Sync" and names[at + 1] == "Sync"
    judge(body)


MATRIX = """program p {{
  param X: float16[64, 64] global
  param Y: float32[64, 64] global
  kernel k grid bx in 1 threads tx in 256 {{
    alloc a: float16[64, 64] shared layout="S<3,3,3> o 0 o (64,64):(64,1)"
    alloc c: float32[64, 64] fragment SPREAD
    alloc d: float32[64, 64] fragment SPREAD
    alloc top: float32[64] fragment layout="frag{{tile=(64) tv=((4,8,4,2),2):((0,1,16,0),8)}}"
    fill c = 0.0
    fill d = 1.0
    copy X -> a atom=threads
    for k in 0 .. 3 {{
      fence wgmma
      gemm a, a -> c policy=full_col atom=wgmma
      {}
      copy d -> a atom=threads
    }}
    copy c -> Y atom=threads
  }}
}}
"""  # fmt: skip
TOP = "reduce max {} -> top dim 1\n"


@pytest.mark.parametrize(
    ("between", "syncs"),
    [
        ("", 2),  # before the copy and behind it
        (TOP.format("c"), 1),  # the product is waited for before it is reduced
        (TOP.format("d"), 2),  # still under way when the warpgroups meet
    ],
)
def test_products_that_are_not_waited_for_are_not_over(between, syncs):
    spread = "tile=(64,64) tv=((4,8,4,2),(2,2,4)):((2,64,1024,32),(1,512,8))"
    text = MATRIX.format(between).replace("SPREAD", f'layout="frag{{{spread}}}"')
    given = parse_program(text)
    found = map_kernels(given, lambda kernel: insert_syncs(kernel, HOPPER))
    loop = next(op for op in walk_ops(found.kernels[0]) if isinstance(op, For))
    assert sum(isinstance(op, Sync) for op in walk_ops(loop.body)) == syncs
    rng = np.random.default_rng(0)
    args = {"X": rng.integers(-2, 3, (64, 64)).astype(np.float16),
            "Y": np.zeros((64, 64), np.float32)}  # fmt: skip
    x = args["X"].astype(np.float32)
    want = x @ x + 2 * 64
    assert run(found, args, explicit=True)["Y"].tobytes() == want.tobytes()
    code = threads_of(found)
    for seed in range(3):
        got = {k: v.copy() for k, v in args.items()}
        machine.run_threads(code, got, seed=seed)
        assert got["Y"].tobytes() == want.tobytes()


def test_lowering_meets_where_passes_rely_on_it(monkeypatch):
    monkeypatch.setattr("tilewright.passes.lower.threads.meets_inside", lambda op, threads: True)
    with pytest.raises(CompileError, match="do not meet"):
        threads_of(ordered("reduce max g -> n dim 1\n"))


# ── kernels of the zoo ───────────────────────────────────────────────────────────────────────


@cache
def zoo(name: str) -> Program:
    made = {
        "mla": lambda: mla_decode.on("interp")(1, 64, 192),
        "softmax": lambda: softmax.on("interp")(4, 4096, block_M=1, threads=256),
        "layer_norm": lambda: layer_norm_rows(1000, target="interp"),
    }
    return made[name]().program


@pytest.mark.parametrize(
    ("name", "target", "expected"),
    [
        ("mla", "cuda", (4, 3)),
        ("mla", "cuda -roles=off", None),
        ("softmax", "cuda", (2, 0)),
        ("layer_norm", "cuda", (2, 0)),
    ],
)
def test_the_zoo(name, target, expected):
    code = lower(zoo(name), Target.parse(target)).result
    if expected is not None:
        assert count(code) == expected
    rng = np.random.default_rng(1)
    args = {}
    for tensor in zoo(name).tensors:
        shape = tuple(int(s) if str(s).isdigit() else 5 for s in tensor.shape)
        args[tensor.name] = rng.integers(-2, 3, shape).astype(tensor.dtype.numpy)
    runs = []
    for seed in range(3):
        got = {k: v.copy() for k, v in args.items()}
        machine.run_threads(code, got, seed=seed)
        runs.append({k: v.tobytes() for k, v in got.items()})
    assert all(r == runs[0] for r in runs)


# ── random programs ──────────────────────────────────────────────────────────────────────────


class Maker:
    """Random sequences of exchanges, ordinary accesses, branches and loops."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.names = 0

    def fresh(self, stem: str) -> str:
        self.names += 1
        return f"{stem}{self.names}"

    def map(self, layout: str, store: str) -> str:
        i, j = self.fresh("i"), self.fresh("j")
        return f"map ({i}, {j}) in (8, 128) {layout} {{ {store.format(i=i, j=j)} }}\n"

    def cond(self, loops: list[str]) -> str:
        k = self.rng.choice([*loops, "N"])
        return self.rng.choice([f"{k} > 1", f"{k} % 2 == 0", f"{k} < 3"])

    def statement(self, depth: int, loops: list[str]) -> str:
        rng = self.rng
        kind = rng.randrange(17)
        if kind < 3:
            return rng.choice([MAX, SUM, "reduce sum f -> m dim 1 clear=false\n"])
        if kind == 3:
            return rng.choice(["reduce sum g -> n dim 1\n", "reduce max s -> m dim 1\n",
                               "reduce sum f -> t[0, 0:+8] dim 1\n"])  # fmt: skip
        if kind == 4:
            return rng.choice(["relayout f -> g\n", "relayout g -> f\n"])
        if kind == 5:
            return rng.choice(["scan sum f -> f dim 1\n", "scan max s -> t dim 1\n",
                               "scan sum t -> t dim 0\n"])  # fmt: skip
        if kind == 6:
            return self.map(COLUMNS, "f[{i}, {j}] = f[{i}, {j}] * 3 + m[{i}] - o[{i}]")
        if kind == 7:
            return self.map(PARTS, "g[{i}, {j}] = g[{i}, {j}] * 5 - n[{i}]")
        if kind in (8, 9):
            tile = rng.choice("st")
            return rng.choice([f"copy f -> {tile} atom=threads\n",
                               f"copy g -> {tile} atom=threads\n"])  # fmt: skip
        if kind in (10, 11):
            tile = rng.choice("st")
            return self.map(
                COLUMNS, f"f[{{i}}, {{j}}] = f[{{i}}, {{j}}] + {tile}[7 - {{i}}, {{j}}]"
            )
        if kind == 12:
            return "sync block\n"
        if depth >= 3:
            return MAX
        if kind in (13, 14):
            other = f" else {{ {self.body(depth + 1, loops)} }}" if rng.random() < 0.5 else ""
            return f"if {self.cond(loops)} {{ {self.body(depth + 1, loops)} }}{other}\n"
        k = self.fresh("k")
        stop = rng.choice(["N", "2", "3", "N - 1"])
        inner = self.body(depth + 1, [*loops, k])
        if rng.random() < 0.25:
            jump = rng.choice(["break", "continue"])
            inner += f"if {k} == 1 {{ {jump} }}\n" + self.body(depth + 1, [*loops, k])
        return f"for {k} in 0 .. {stop} {{ {inner} }}\n"

    def body(self, depth: int, loops: list[str]) -> str:
        return "".join(self.statement(depth, loops) for _ in range(self.rng.randrange(1, 5)))


def random_body(seed: int) -> str:
    return Maker(seed).body(0, []) + Maker(10_000 + seed).body(0, [])


@pytest.mark.parametrize("seed", range(8))
def test_random_programs(seed):
    judge(random_body(seed), turns=(0, 3), seeds=1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8, 60))
def test_more_random_programs(seed):
    judge(random_body(seed), turns=(0, 2, 3))


def in_two_roles(given: Program) -> Program:
    """Four warps of eight do it, and then once more in another role; the others do nothing."""
    kernel = given.kernels[0]
    outside = [
        op for op in kernel.body if isinstance(op, Alloc) and op.buffer.space is Space.SHARED
    ]
    inside = tuple(op for op in kernel.body if op not in outside)

    def among_them(op: Op) -> Op | None:
        return Sync("named", const(1), 128, loc=op.loc) if isinstance(op, Sync) else None

    last = Sync("named", const(1), 128)
    work = (*map_body(inside, among_them), last)
    again = rename_unique(work, program_names(given))
    roles = (Role("work", 0, 4, work), Role("work", 0, 4, again))
    new = rebuild(kernel, threads=(256,), body=(*outside, *roles))
    return dataclasses.replace(given, kernels=(new,))


@pytest.mark.parametrize("seed", (1, 4, 6))
def test_random_programs_in_roles(seed):
    body = "sync block\n" + random_body(seed)
    code = threads_of(in_two_roles(ordered(body)))
    want = run(parse_program(HEAD.replace("EXTRA", "") + body + TAIL), arguments(3))["Y"].tobytes()
    for number in range(2):
        got = arguments(3)
        machine.run_threads(code, got, seed=number)
        assert got["Y"].tobytes() == want
