"""Warpgroups that take turns at the tensor core: where, in which order, with the same numbers, and
what comes of a turn that is lost."""

from __future__ import annotations

import re
from functools import cache

import numpy as np
import pytest

import tilewright as tw
import tilewright.language as T
from tests.cuda import test_zoo as zoo
from tests.passes.overlap import numbers
from tests.schedules.harness import load
from tilewright import machine
from tilewright.ir.expr import Const, Var, compare, const
from tilewright.ir.op import For, If, Intrinsic, Role, Sync, Turn, bodies, walk_ops
from tilewright.ir.rewrite import map_kernels, map_ops, rebuild
from tilewright.ir.target import Target
from tilewright.ir.text import parse_program, print_op, print_program
from tilewright.ir.verify import Stage, verify
from tilewright.machine import sync
from tilewright.passes.cuda_passes import LOWER
from tilewright.passes.overlap.ping_pong import order_warpgroups
from tilewright.passes.reasons import listening
from tilewright.passes.run import run_pipeline
from tilewright.support.errors import RunError, TilewrightError, VerifyError
from tilewright.targets.cuda.backend import lower
from tilewright.targets.cuda.kernel import CudaKernel
from zoo.attention.flash import flash_attention

# iterations as they are written
PLAIN = "cuda -arch=sm_90a -roles -order_warpgroups -persistent=off -skew=off -unswitch_guards=off"
OFF = PLAIN.replace("-order_warpgroups", "-order_warpgroups=off")
FULL = "cuda -arch=sm_90a -roles -order_warpgroups -persistent=off"


def attention(seq_q, seq_kv, causal, block_M=128, threads=256, dim=64, block_N=64, dtype="float16"):
    return flash_attention.prim_func(
        1, 1, 1, seq_q, seq_kv, dim, causal,
        block_M=block_M, block_N=block_N, threads=threads, dtype=dtype,
    ).program  # fmt: skip


@cache
def trace(target, *args):
    return lower(attention(*args), Target.parse(target))


def consumer(program):
    (found,) = [op for op in walk_ops(program.kernels[0])
                if isinstance(op, Role) and op.name == "consumer"]  # fmt: skip
    return found


def turns(program):
    return [op for k in program.kernels for op in walk_ops(k) if isinstance(op, Turn)]


SHOWN = r"turn|commit|wait|for|fence|gemm|map|reduce|arrive"


def outline(body, depth=0):
    """Turns, products, and what counts beside them: waits, arrivals and work."""
    for op in body:
        line = print_op(op).strip().split("\n")[0]
        word = re.match(SHOWN, line)
        if word:
            short = re.match(r"gemm .*? -> \w+|wait \w+|arrive \w+|map|reduce \w+ \w+", line)
            shown = re.sub(r"\[[^]]*\]", "", line if short is None else short.group())
            yield "  " * depth + shown
        for inner in bodies(op) if isinstance(op, (For, If)) else ():
            yield from outline(inner, depth + isinstance(op, For))


def test_golden_of_attention():
    """The last product of an iteration and the first of the next are one section."""
    found = trace(PLAIN, 256, 256, False).after("order_warpgroups")
    lines = list(outline(consumer(found).body))
    first = lines.index("turn begin")
    assert "\n".join(lines[first : lines.index("turn end") + 1]) == GOLDEN_PLAIN
    assert turns(found)[0].loc is not None


GOLDEN_PLAIN = """\
turn begin
for k in 0 .. 4 {
  wait K_shared_full
  fence wgmma
  gemm Q_shared, K_shared -> S
  commit wgmma
  turn end
  wait_group wgmma pending 0
  arrive K_shared_free
  arrive V_shared_free
  map
  reduce max S
  map
  map
  reduce sum S
  map
  map
  wait V_shared_full
  turn begin
  fence wgmma
  gemm P, V_shared -> acc
  commit wgmma
turn end"""


def skewed():
    """Attention whose iterations issue the next scores and this product back to back, as text; it
    stands for what a pass leaves."""
    layout = "frag{tile=(128,128) tv=((4,8,8),(2,2,16)):((2,128,2048),(1,1024,8))}"
    tile = "S<3,3,3> o 0 o (128,(64,2)):(64,(1,8192))"
    return f"""program skewed {{
  param n: int32
  kernel main grid bx in 1 threads tx in 384 {{
    alloc q: float16[128, 128] shared layout="{tile}"
    alloc k: float16[128, 128] shared layout="{tile}"
    alloc k_full: barrier[1] barrier
    alloc v_full: barrier[1] barrier
    alloc free: barrier[1] barrier
    barrier_init k_full count 1
    barrier_init v_full count 1
    barrier_init free count 8
    fence barrier_init
    sync block
    role consumer warps 0 + 8 {{
      alloc s: float32[128, 128] fragment layout="{layout}"
      alloc p: float16[128, 128] fragment layout="{layout}"
      alloc o: float32[128, 128] fragment layout="{layout}"
      wait k_full[0] phase 0
      fence wgmma
      gemm q, k -> s clear=true atom=wgmma
      commit wgmma
      wait_group wgmma pending 0
      copy s -> p atom=threads
      for i in 1 .. n {{
        wait k_full[0] phase i % 2
        fence wgmma
        gemm q, k -> s clear=true atom=wgmma
        commit wgmma
        wait v_full[0] phase (i + 1) % 2
        gemm p, k -> o atom=wgmma
        commit wgmma
        wait_group wgmma pending 1
        arrive free[0] count=8 by=warps
        map (r, c) in (128, 128) layout="{layout}" {{ s[r, c] = exp2(s[r, c]) }}
        wait_group wgmma pending 0
        copy s -> p atom=threads
      }}
      wait v_full[0] phase 0
      fence wgmma
      gemm p, k -> o atom=wgmma
      commit wgmma
      wait_group wgmma pending 0
    }}
    role producer warps 8 + 4 {{
      arrive k_full[0]
      arrive v_full[0]
    }}
  }}
}}"""


def turned(text, target=PLAIN):
    program = parse_program(text)
    return map_kernels(program, lambda kernel: order_warpgroups(kernel, Target.parse(target)))


def test_golden_of_skewed_attention():
    """Waits may stand in a section; the peeled iteration takes turns, the last product does not."""
    found = turned(skewed())
    verify(found, Stage.LAID_OUT)
    assert "\n".join(outline(consumer(found).body)) == GOLDEN_SKEWED


GOLDEN_SKEWED = """\
wait k_full
turn begin
fence wgmma
gemm q, k -> s
commit wgmma
turn end
wait_group wgmma pending 0
for i in 1 .. n {
  wait k_full
  turn begin
  fence wgmma
  gemm q, k -> s
  commit wgmma
  wait v_full
  gemm p, k -> o
  commit wgmma
  turn end
  wait_group wgmma pending 1
  arrive free
  map
  wait_group wgmma pending 0
wait v_full
fence wgmma
gemm p, k -> o
commit wgmma
wait_group wgmma pending 0"""


def test_text_round_trip():
    found = trace(PLAIN, 256, 256, True).after("order_warpgroups")
    text = print_program(found)
    assert text.count("turn begin") == text.count("turn end") == 2
    again = parse_program(text)
    assert print_program(again) == text and len(turns(again)) == 4


# ── where there are none ─────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("for i in 1", "for i in 1 + 0 * tx", "its control flow differs between threads"),
        ("copy s -> p atom=threads\n      }", "sync named id=1 threads=256\n      }",
         "its warpgroups meet in every iteration"),
        ("map (r, c) in (128, 128)", "map (r, c) in (128, 32)",
         "threads have little to do between its gemms"),
        ("wait v_full[0] phase 0", "intrinsic ptx text=\"bar.sync 2, 256;\"",
         "foreign code may have barriers of its own"),
        ("copy s -> p atom=threads\n      }", "if i == 3 { break }\n      }",
         "loops are left early"),
        ("role consumer", "role mine", None),
        (" by=warps", "", None),
    ],
)  # fmt: skip
def test_refused(old, new, why):
    text = skewed()
    assert old in text
    with listening() as said:
        found = turned(text.replace(old, new))
    assert not turns(found)
    assert (why is None and not said) or any(why in reason for reason in said.values())


def test_choices():
    assert not turns(turned(skewed(), OFF))
    light = skewed().replace("map (r, c) in (128, 128)", "map (r, c) in (128, 32)")
    assert not turns(turned(light)) and len(turns(turned(skewed()))) == 4
    assert not turns(turned(skewed(), PLAIN.replace("-order_warpgroups ", "")))


def test_a_product_alone_takes_no_turns():
    given = zoo.program("gemm_two_warpgroups")
    found = lower(given, Target.parse(FULL))
    assert not turns(found.after("order_warpgroups"))
    said = " ".join(why for (_, about), why in found.reasons.items() if "warpgroups of" in about)
    assert "threads have little to do between its gemms" in said


@pytest.mark.parametrize("name", ["flash_attention", "gemm_pingpong", "mla_seesaw"])
def test_roles_written_by_hand_stay(name):
    given = load(name)
    for choice in ("", " -order_warpgroups=on"):
        found = map_kernels(given, lambda k, c=choice: order_warpgroups(k, Target.parse(FULL + c)))
        assert print_program(found) == print_program(given)


def test_explain():
    kernel = tw.compile(attention(256, 256, False), target=PLAIN)
    said = " ".join(kernel.explain().split())
    assert (
        "order ordered: 1 section in an iteration of k, "
        "one from its last products to the next one's first" in said
    )


# ── the same numbers ─────────────────────────────────────────────────────────────────────────


def run(program, args, threads=True, **more):
    copies = {k: v.copy() for k, v in args.items()}
    (machine.run_threads if threads else machine.run)(program, copies, **more)
    return copies["O"]


GROUPS = [(128, 256), (192, 384)]  # two and three warpgroups
# (queries in tiles, keys, causal): several iterations, one, and none in the first tile
SIZES = [(1, 256, False), (1, 64, False), (2, 192, True), (2, 0, True)]


CASES = [(PLAIN, *case) for case in SIZES] + [(FULL, *SIZES[0]), (FULL, *SIZES[3])]


@pytest.mark.parametrize(("block", "threads"), GROUPS)
@pytest.mark.parametrize(("target", "tiles", "keys", "causal"), CASES)
def test_attention(target, block, threads, tiles, keys, causal):
    sizes = (tiles * block, keys or block, causal, block, threads)
    given, found = attention(*sizes), trace(target, *sizes)
    args = {
        t.name: numbers(*(int(s) for s in t.shape), seed=i) for i, t in enumerate(given.tensors)
    }
    assert turns(found.after("order_warpgroups"))
    without = lower(given, Target.parse(target + " -order_warpgroups=off")).result
    want = run(without, args)
    for seed in range(3):
        assert run(found.result, args, seed=seed).tobytes() == want.tobytes()
    before, after = (run(found.after(p), args, False) for p in ("part_roles", "order_warpgroups"))
    assert before.tobytes() == after.tobytes()
    meant = run(given, args, False)
    np.testing.assert_allclose(want.astype(float), meant.astype(float), 5e-3, 5e-3)


def chained(threads=256):
    """Tiles one after the other, each with as many iterations as a tensor says."""
    M = threads // 2

    @T.prim_func
    def main(A: T.Tensor((4, M, 64), "float16"), B: T.Tensor((5, 64, 64), "float16"),
             N: T.Tensor((4,), "int32"), O: T.Tensor((4, M, 64), "float32")):  # fmt: skip
        with T.Kernel(1, threads=threads):
            a = T.alloc_shared((M, 64), "float16")
            b = T.alloc_shared((64, 64), "float16")
            s = T.alloc_fragment((M, 64), "float32")
            p = T.alloc_fragment((M, 64), "float16")
            o = T.alloc_fragment((M, 64), "float32")
            for t in T.serial(4):
                T.copy(A[t, 0, 0], a)
                T.clear(o)
                for k in T.Pipelined(N[t], num_stages=2):
                    T.copy(B[k, 0, 0], b)
                    T.gemm(a, b, s, clear_accum=True)
                    for i, j in T.Parallel(M, 64):
                        s[i, j] = s[i, j] / 8 + k
                    T.copy(s, p)
                    T.gemm(p, b, o)
                T.copy(o, O[t, 0, 0])

    return main.program


@pytest.mark.parametrize("threads", [256, 384])
def test_the_count_runs_on_across_loops(threads):
    given = chained(threads)
    found = lower(given, Target.parse(PLAIN))
    assert len(turns(found.after("order_warpgroups"))) >= 2
    M = threads // 2
    args = {"A": numbers(4, M, 64), "B": numbers(5, 64, 64), "O": np.zeros((4, M, 64), np.float32)}
    args["N"] = np.array([3, 0, 1, 5], np.int32)
    want = run(
        lower(given, Target.parse(OFF)).result,
        args,
    )
    np.testing.assert_allclose(want, run(given, args, False), 1e-2)
    for seed in range(3):
        assert run(found.result, args, seed=seed).tobytes() == want.tobytes()


def summed(work, threads=256):
    """A chain of products whose iteration ends with sums of rows, `work` times the same."""
    M = threads // 2

    @T.prim_func
    def main(A: T.Tensor((M, 64), "float16"), B: T.Tensor((5, 64, 64), "float16"),
             n: T.int32, O: T.Tensor((M, 64), "float32"),
             R: T.Tensor((M,), "float32")):  # fmt: skip
        with T.Kernel(1, threads=threads):
            a = T.alloc_shared((M, 64), "float16")
            b = T.alloc_shared((64, 64), "float16")
            v = T.alloc_shared((64, 64), "float16")
            s = T.alloc_fragment((M, 64), "float32")
            p = T.alloc_fragment((M, 64), "float16")
            o = T.alloc_fragment((M, 64), "float32")
            part = T.alloc_fragment((M,), "float32")
            row = T.alloc_fragment((M,), "float32")
            T.copy(A, a)
            T.clear(o)
            T.clear(row)
            for k in T.Pipelined(n, num_stages=2):
                T.copy(B[k, 0, 0], b)
                T.copy(B[4 - k, 0, 0], v)
                T.gemm(a, b, s, clear_accum=True)
                for i, j in T.Parallel(M, 64):
                    s[i, j] = s[i, j] / 8 + k
                T.copy(s, p)
                T.gemm(p, v, o)
                for _ in tuple(range(work)):
                    T.reduce_sum(s, part, dim=1)
                for i in T.Parallel(M):
                    row[i] = row[i] * 2 + part[i]
            T.copy(o, O)
            T.copy(row, R)

    return main.program


@pytest.mark.parametrize("work, count", [(1, 1), (4, 2)])
def test_work_under_the_last_products_stands_in_their_section(work, count):
    """Sums of rows behind the last product run under it, and keep nobody waiting."""
    given = summed(work)
    code = lower(given, Target.parse(PLAIN + " -split_stages=off"))
    (loop,) = [
        op
        for op in walk_ops(consumer(code.after("order_warpgroups")).body)
        if isinstance(op, For) and any(isinstance(i, Turn) for i in op.body)
    ]
    kinds = [op.edge for op in loop.body if isinstance(op, Turn)]
    assert kinds == (["end", "begin"] if count == 1 else ["begin", "end"] * 2)
    for n in (0, 1, 4):
        args = {"A": numbers(128, 64), "B": numbers(5, 64, 64, seed=1), "n": n}
        empty = {"O": np.zeros((128, 64), np.float32), "R": np.zeros(128, np.float32)}
        want = {**args, **{k: v.copy() for k, v in empty.items()}}
        machine.run(given, want)
        for seed in range(3):
            got = {**args, **{k: v.copy() for k, v in empty.items()}}
            machine.run_threads(code.result, got, seed=seed)
            for name in empty:
                np.testing.assert_array_equal(got[name], want[name])


@pytest.mark.parametrize("stages", [1, 3])
def test_several_sections(stages):
    """Three runs of products in an iteration; what is between them cannot be joined."""

    @T.prim_func
    def main(A: T.Tensor((128, 64), "float16"), B: T.Tensor((5, 64, 64), "float16"),
             O: T.Tensor((128, 64), "float32")):  # fmt: skip
        with T.Kernel(1, threads=256):
            a = T.alloc_shared((128, 64), "float16")
            b = T.alloc_shared((64, 64), "float16")
            s = T.alloc_fragment((128, 64), "float32")
            p = T.alloc_fragment((128, 64), "float16")
            o = T.alloc_fragment((128, 64), "float32")
            T.copy(A, a)
            T.clear(o)
            for k in T.Pipelined(5, num_stages=stages):
                T.copy(B[k, 0, 0], b)
                T.gemm(a, b, s, clear_accum=True)
                for i, j in T.Parallel(128, 64):
                    s[i, j] = s[i, j] / 8 + k
                T.copy(s, p)
                T.gemm(p, b, s, clear_accum=True)
                for i, j in T.Parallel(128, 64):
                    s[i, j] = s[i, j] / 4
                T.copy(s, p)
                T.gemm(p, b, o)
                for i, j in T.Parallel(128, 64):
                    o[i, j] = o[i, j] / 2
            T.copy(o, O)

    found = lower(main.program, Target.parse(PLAIN))
    assert len(turns(found.after("order_warpgroups"))) == 6
    args = {"A": numbers(128, 64), "B": numbers(5, 64, 64), "O": np.zeros((128, 64), np.float32)}
    want = run(
        lower(main.program, Target.parse(OFF)).result,
        args,
    )
    for seed in range(3):
        assert run(found.result, args, seed=seed).tobytes() == want.tobytes()


@pytest.mark.parametrize(("block", "threads"), GROUPS)
def test_products_come_in_turns(block, threads, monkeypatch):
    """Whatever the interleaving, warpgroups issue their sections in the order of their numbers."""
    sizes = (block, 256, False, block, threads)
    given = attention(*sizes)
    args = {
        t.name: numbers(*(int(s) for s in t.shape), seed=i) for i, t in enumerate(given.tensors)
    }
    log = []
    commit = sync.Groups.commit

    def noted(groups):
        if groups.unit == "wgmma":
            log.append(int(groups.owners[0]) // 128)
        commit(groups)

    monkeypatch.setattr(sync.Groups, "commit", noted)
    code, groups = trace(PLAIN, *sizes).result, threads // 128
    for seed in range(4):
        log.clear()
        run(code, args, seed=seed)
        order = [g for g, before in zip(log, [None, *log], strict=False) if g != before]
        # four iterations are five sections: the first and the last have one product
        assert order == [*range(groups)] * 5 and len(log) == 8 * groups


# ── mistakes ─────────────────────────────────────────────────────────────────────────────────


def is_turn(op):
    return isinstance(op, Sync) and op.id is not None and not isinstance(op.id, Const)


def is_advance(op):
    return isinstance(op, If) and len(op.then) == 1 and isinstance(op.then[0], Sync)


def mutant(program, rule):
    return map_kernels(program, lambda kernel: map_ops(kernel, rule))


def lost(program, pick):
    """Without the turn-taking op number `pick`."""
    victim = [op for op in walk_ops(program.kernels[0]) if is_turn(op)][pick]
    return mutant(program, lambda op: () if op is victim else None)


def test_lost_turns_are_reported():
    """Who waits, where, and for whom."""
    sizes = (128, 256, False)
    given, code = attention(*sizes), trace(PLAIN, *sizes).result
    args = {
        t.name: numbers(*(int(s) for s in t.shape), seed=i) for i, t in enumerate(given.tensors)
    }
    count = sum(is_turn(op) for op in walk_ops(code.kernels[0]))
    assert count == 4  # two sections, one of them across the loop's end
    ends = [k for k, op in enumerate(o for o in walk_ops(code.kernels[0]) if is_turn(o))
            if op.arrive]  # fmt: skip
    with pytest.raises(RunError, match="deadlock") as caught:
        run(lost(code, ends[0]), args)
    notes = "\n".join(caught.value.diagnostic.notes)
    assert re.search(r"consumer\[1\] of block .* named barrier 3 \(128 of 256 threads", notes)
    assert "consumer[0]" in notes

    # the arrival in advance at the other one's barrier, by a warpgroup that then waits there, or
    # not at all
    def to_other(op):
        return rebuild(op, then=(rebuild(op.then[0], id=const(3)),)) if is_advance(op) else None

    def by_first(op):
        return rebuild(op, cond=compare("==", Var("warp") // 4, 0)) if is_advance(op) else None

    def dropped(op):
        return () if is_advance(op) else None

    for rule in (to_other, by_first, dropped):
        with pytest.raises(TilewrightError) as caught:
            for seed in range(3):
                run(mutant(code, rule), args, seed=seed)
        said = str(caught.value)
        assert "named barrier" in said and "consumer[" in said


def role(body, warps="0 + 8", outside=""):
    return f"""program p {{
  param n: int32
  kernel main grid bx in 1 threads tx in 384 {{
    {outside}
    role consumer warps {warps} {{
{body}
    }}
  }}
}}"""


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        (role("turn begin"), 6, "this turn may still last at the end of role consumer"),
        (role("turn end"), 6, "a turn ends that has not begun"),
        (role("turn begin\nturn begin\nturn end"), 7, "a turn begins inside another"),
        (role("if n > 0 {\nturn begin\n}\nturn end"), 6,
         "a turn begins or ends on one side of this branch only"),
        (role("for i in 0 .. n {\nturn begin\n}\nturn end"), 6,
         "an iteration of this loop begins a turn that it does not end"),
        (role("turn begin\nfor i in 0 .. n {\nturn end\n}"), 7,
         "an iteration of this loop ends a turn and does not begin the next one"),
        (role("for i in 0 .. n {\nturn begin\nif i > 2 { break }\nturn end\n}"), 8,
         "break in the middle of a turn"),
        (role("turn middle"), 6, "unknown edge of a turn 'middle'"),
        (role("turn begin\nturn end", "0 + 4"), 6,
         "turns are taken by whole warpgroups, two or more"),
        (role("turn begin\nturn end", "2 + 8"), 6,
         "turns are taken by whole warpgroups, two or more"),
        (role("turn begin\nturn end", "0 + 8 instances=2 var=w"), 6,
         "turns are for warpgroups that run a role together"),
        (role("", outside="turn begin"), 4, "a turn outside a role"),
    ],
)  # fmt: skip
def test_the_verifier(text, line, message):
    with pytest.raises(VerifyError, match=re.escape(message)) as caught:
        verify(parse_program(text, file="t.tw"), Stage.LAID_OUT)
    assert caught.value.diagnostic.loc.line == line


@pytest.mark.parametrize(
    "body",
    [
        "turn begin\nturn end\nturn begin\nturn end",
        "turn begin\nfor i in 0 .. n {\nturn end\nif i > 3 { turn begin\ncontinue }\n"
        "turn begin\n}\nturn end",
        "if n > 0 { turn begin } else { turn begin }\nturn end",
    ],
)
def test_what_alternates(body):
    program = parse_program(role(body))
    verify(program, Stage.LAID_OUT)
    for n in (0, 1, 6):
        machine.run(program, {"n": n})
    with pytest.raises(VerifyError, match="Turn may not stand in a program at stage THREAD"):
        verify(program, Stage.THREAD)


def test_no_barrier_left():
    busy = "\n".join(f"sync named id={i} threads=256" for i in range(1, 15) if i not in (3, 8))
    program = parse_program(role(f"{busy}\nturn begin\nturn end"), file="t.tw")
    with pytest.raises(TilewrightError, match="too few named barriers are left") as caught:
        run_pipeline(program, Target.parse(FULL), LOWER, stage=Stage.LAID_OUT)
    assert caught.value.diagnostic.loc.line == 18


# ── machine code ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("target", [PLAIN, FULL])
@pytest.mark.parametrize("causal", [False, True])
def test_it_compiles_without_spills(target, causal):
    given = flash_attention.prim_func(
        2, 16, 16, 8192, 8192, 128, causal,
        block_M=128, block_N=128, threads=256, dtype="bfloat16",
    ).program  # fmt: skip
    kernel = CudaKernel(given, Target.parse(target))
    assert kernel.serialized is None and "C75" not in kernel.compiled.log
    assert turns(kernel.trace.after("order_warpgroups"))
    (found,) = kernel.resources.values()
    assert found.spill_bytes == 0 and found.registers <= 168
    assert "tw::arrive_named(2, 256);" in kernel.source  # in advance
    assert "tw::sync_named((warp >> 2) + 2, 256);" in kernel.source


def test_three_warpgroups_compile():
    given = attention(1024, 1024, False, 192, 384, 64, 128, "bfloat16")
    kernel = CudaKernel(given, Target.parse(PLAIN))
    assert kernel.serialized is None and turns(kernel.trace.after("order_warpgroups"))
    assert all(r.spill_bytes == 0 for r in kernel.resources.values())
    instructions = [op for k in kernel.program.kernels for op in walk_ops(k)
                    if isinstance(op, Intrinsic) and op.name == "wgmma"]  # fmt: skip
    assert instructions


@pytest.mark.parametrize(
    "dim, causal, given", [(64, False, False), (256, False, True), (256, True, True)]
)
def test_unasked_where_the_tensor_core_is_busier(dim, causal, given):
    """Masks that few iterations apply count for nothing."""
    target = Target.parse("cuda -arch=sm_90a -roles -persistent=off")
    found = lower(attention(128, 512, causal, dim=dim), target)
    assert bool(turns(found.after("order_warpgroups"))) == given
