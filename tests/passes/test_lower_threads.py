"""Tile ops as thread code: addresses and registers element by element, descriptors against their
canonical layouts, syncs before arrivals, and refusals with positions."""

from itertools import groupby

import numpy as np
import pytest

from tilewright.ir.expr import Bin, Const, Load, Var
from tilewright.ir.layout.fragment import wgmma_accumulator
from tilewright.ir.op import Arrive, Commit, Fence, If, Intrinsic, Sync, WaitGroup, walk_ops
from tilewright.ir.target import Target
from tilewright.ir.text import parse_program, print_op
from tilewright.ir.verify import Stage
from tilewright.machine import run
from tilewright.passes.cuda_passes import LOWER
from tilewright.passes.run import run_pipeline
from tilewright.support.errors import CompileError
from tilewright.targets.cuda.backend import lower

TARGET = Target.parse("cuda")

HEAD = """program p {
  param C: bfloat16[4096, 4096] global
  kernel main grid bx in 4 threads tx in 128 {
"""
SWIZZLED = '"S<3,3,3> o 0 o (64,(64,2)):(64,(1,4096))"'


def lowered(body, head=HEAD):
    program = parse_program(head + body + "}\n}\n", "p.tw")
    return run_pipeline(program, TARGET, LOWER, stage=Stage.LAID_OUT).result


def intrinsics(program, name):
    found = [op for op in walk_ops(program.kernels[0]) if isinstance(op, Intrinsic)]
    return [op for op in found if op.name == name]


def value(expr, env):
    """`expr` over NumPy arrays."""
    if isinstance(expr, Const):
        return np.int64(expr.value)
    if isinstance(expr, Var):
        return env[expr.name]
    assert isinstance(expr, Bin), expr
    a, b = value(expr.a, env), value(expr.b, env)
    operations = {
        "+": np.add, "-": np.subtract, "*": np.multiply, "//": np.floor_divide,
        "%": np.remainder, "&": np.bitwise_and, "^": np.bitwise_xor, ">>": np.right_shift,
        "<<": np.left_shift, "|": np.bitwise_or,
    }  # fmt: skip
    return operations[expr.op](a, b)


def run_stmatrix(program, fragment, env):
    """What the stmatrix ops of `program` leave in shared memory: tile indices of the source."""
    kernel = program.kernels[0]
    memory = {}
    registers = fragment.table()  # [thread, value] -> tile index

    def go(body, env):
        env = dict(env)
        for op in body:
            kind = type(op).__name__
            if kind == "Let":
                env[op.var.name] = value(op.value, env)
            elif kind == "For":
                for i in range(int(op.start), int(op.stop), int(op.step)):
                    go(op.body, {**env, op.var.name: np.int64(i)})
            elif kind == "Role":
                go(op.body, env)
            elif kind == "Intrinsic" and op.name == "stmatrix":
                where = np.broadcast_to(value(op.args[0].starts[0], env), 128)
                for q, packed in enumerate(op.args[1:]):
                    low, high = packed.args
                    assert isinstance(low, Load) and isinstance(high, Load)
                    pair = [int(value(x.indices[0], env)) for x in (low, high)]
                    for warp in range(4):
                        for lane in range(32):
                            # lane 4r + c holds columns 2c, 2c + 1 of row r of every matrix
                            row_lane = warp * 32 + q * 8 + lane // 4
                            at = int(where[row_lane]) + lane % 4 * 2
                            for i, register in enumerate(pair):
                                memory[at + i] = int(registers[warp * 32 + lane, register])

    go(kernel.body, env)
    return memory


def test_stmatrix_puts_every_element_in_its_place():
    fragment = wgmma_accumulator(64, 128)
    program = lowered(f"""
    alloc out: bfloat16[64, 128] shared layout={SWIZZLED}
    role r warps 0 + 4 {{
      alloc acc: float32[64, 128] fragment layout="{fragment}"
      copy acc -> out atom=stmatrix
    }}
""")
    memory = run_stmatrix(program, fragment, {"tx": np.arange(128)})
    from tilewright.ir.layout.layout import parse_layout

    layout = parse_layout(SWIZZLED.strip('"'))
    assert len(memory) == 64 * 128
    for row in range(64):
        for column in range(128):
            assert memory[layout(row, column)] == row * 128 + column


def test_unrolled_slices_are_register_offsets():
    fragment = wgmma_accumulator(64, 128)
    program = lowered(f"""
    alloc out: bfloat16[2, 64, 64] shared layout="S<3,3,3> o 0 o (2,64,64):(4096,64,1)"
    role r warps 0 + 4 {{
      alloc acc: float32[64, 128] fragment layout="{fragment}"
      for c in 0 .. 2 kind=unroll {{ copy acc[:, c * 64:+64] -> out[c, :, :] atom=stmatrix }}
    }}
""")
    memory = run_stmatrix(program, fragment, {"tx": np.arange(128)})
    from tilewright.ir.layout.layout import parse_layout

    layout = parse_layout("S<3,3,3> o 0 o (2,64,64):(4096,64,1)")
    for c in range(2):
        for row in range(64):
            for column in range(64):
                want = row * 128 + c * 64 + column
                assert memory[layout(c, row, column)] == want


GEMM = """
    alloc a: bfloat16[64, 64] shared layout="{a}"
    alloc b: bfloat16[{bk}, {bn}] shared layout="{b}"
    role r warps 0 + 4 {{
      alloc acc: float32[64, 64] fragment \
        layout="frag{{tile=(64,64) tv=((4,8,4),(2,2,8)):((2,64,1024),(1,512,8))}}"
      fence wgmma
      gemm a, b -> acc clear=true {flags} atom=wgmma
      commit wgmma
      wait_group wgmma pending 0
    }}
"""
K_MAJOR = "S<3,3,3> o 0 o (64,64):(64,1)"


@pytest.mark.parametrize(
    "layout, flags, text, step",
    [
        (K_MAJOR, "transpose_b", "leading=1 stride=64 swizzle=1", 2),
        (K_MAJOR, "", "leading=0 stride=64 swizzle=1", 128),
        ("S<2,3,3> o 0 o (64,(32,2)):(32,(1,2048))", "transpose_b", "swizzle=2", 2),
        ("S<2,3,3> o 0 o (64,(32,2)):(32,(1,2048))", "", "leading=256 stride=32 swizzle=2", 64),
        ("((8,8),(8,8)):((8,512),(1,64))", "transpose_b", "leading=8 stride=64 swizzle=0", 16),
    ],
)
def test_descriptors_say_the_layout(layout, flags, text, step):
    program = lowered(GEMM.format(a=K_MAJOR, b=layout, bk=64, bn=64, flags=flags))
    b_text = intrinsics(program, "descriptor")[0].text
    assert text in b_text
    calls = intrinsics(program, "wgmma")
    assert len(calls) == 4
    moves = [op.args[2] for op in calls]
    assert [int(m.b.value) if isinstance(m, Bin) else 0 for m in moves][:2] == [0, step]
    assert [op.args[3].value for op in calls] == [0, 1, 1, 1]


@pytest.mark.parametrize(
    "layout, flags",
    [("(64,64):(64,1)", "transpose_b"), ("S<3,3,3> o 0 o (64,64):(72,1)", "transpose_b"),
     ("S<3,2,3> o 0 o (64,64):(64,1)", "transpose_b"), ("(64,64):(1,64)", "")],
)  # fmt: skip
def test_layouts_without_a_descriptor_are_refused(layout, flags):
    with pytest.raises(CompileError, match="no matrix descriptor says the layout of b") as error:
        lowered(GEMM.format(a=K_MAJOR, b=layout, bk=64, bn=64, flags=flags))
    assert error.value.loc is not None and error.value.loc.line == 10


def test_accumulators_are_pinned_after_their_wait():
    program = lowered(GEMM.format(a=K_MAJOR, b=K_MAJOR, bk=64, bn=64, flags=""))
    names = [
        op.name if isinstance(op, Intrinsic) else type(op).__name__
        for op in walk_ops(program.kernels[0])
    ]
    assert names.index("pin") == names.index("WaitGroup") + 1


PRODUCTS = """
    alloc a: bfloat16[64, 64] shared layout="{a}"
    alloc full: barrier[1] barrier
    barrier_init full count 1
    fence barrier_init
    sync block
    role r warps 0 + 4 {{
      alloc s: float32[64, 64] fragment layout="{acc}"
      alloc p: bfloat16[64, 64] fragment layout="{acc}"
      alloc o: float32[64, 64] fragment layout="{acc}"
      alloc old: float32[64] fragment layout="frag{{tile=(64) tv=((4,8,4),2):((0,1,16),8)}}"
      alloc sum: float32[64] fragment layout="frag{{tile=(64) tv=((4,8,4),2):((0,1,16),8)}}"
      fill o = 0
      fill p = 0
      arrive full[0]
      fence wgmma
      gemm a, a -> s clear=true transpose_b atom=wgmma
      commit wgmma
      {between}
      gemm p, a -> o atom=wgmma
      commit wgmma
      wait_group wgmma pending 1
      map r in 64 {{ old[r] = sum[r]; sum[r] = old[r] * 2 }}
      map (i, j) in (64, 64) {{ s[i, j] = s[i, j] * old[i] }}
      reduce sum s -> sum dim 1 clear=false
      wait_group wgmma pending 0
      copy s -> p atom=threads
    }}
"""


def _order(between):
    """The matrix instructions of `PRODUCTS`, a run of them as one, and what orders them."""
    acc = wgmma_accumulator(64, 64)
    program = lowered(PRODUCTS.format(a=K_MAJOR, acc=acc, between=between))
    found = []
    for op in walk_ops(program.kernels[0]):
        if isinstance(op, Intrinsic) and op.name in ("pin", "settle", "wgmma"):
            found.append(f"{op.name} {op.args[0].buffer.name}")
        elif isinstance(op, (Commit, WaitGroup)) or (isinstance(op, Fence) and op.kind == "wgmma"):
            found.append(type(op).__name__)
    return [word for word, _ in groupby(found)]


def test_a_fence_stands_in_the_same_run_of_code_as_its_instructions():
    first = ["pin s", "pin p", "pin o", "Fence", "wgmma s", "Commit"]
    assert _order("")[:7] == [*first, "wgmma o"]
    assert _order("sync named id=2 threads=128")[:7] == [*first, "wgmma o"]
    # a wait is a loop; s is being added to and may not be named
    again = ["pin p", "pin o", "Fence", "wgmma o"]
    assert _order("wait full[0] phase 0")[:10] == [*first, *again]
    assert _order("fence wgmma")[:10] == [*first, *again]
    assert _order("for k in 0 .. 3 { fence wgmma }")[9:13] == again


def test_what_is_computed_under_a_product_is_done_before_its_wait():
    order = _order("")
    last = len(order) - order[::-1].index("WaitGroup") - 1
    # old went into sum, s was folded into sum: sum alone stands for all of it
    assert order[last - 2 :] == ["pin s", "settle sum", "WaitGroup", "pin s", "pin o"]
    # what a loop computes for itself has no name behind it
    frag = "frag{tile=(64) tv=((4,8,4),2):((0,1,16),8)}"
    inner = f'alloc w: float32[64] fragment layout="{frag}"\nmap r in 64 {{ w[r] = sum[r] }}'
    assert "settle w" not in _order(f"for k in 0 .. 3 {{ {inner} }}")


COPY_BACK = """
    alloc tile: bfloat16[64, 128] shared layout={layout}
    alloc done: barrier[1] barrier
    barrier_init done count 1
    fence barrier_init
    sync block
    role r warps 0 + 4 {{
      alloc acc: float32[64, 128] fragment layout="{fragment}"
      copy acc -> tile atom=stmatrix
      {between}
      arrive done[0]
      wait done[0] phase 0
    }}
"""


@pytest.mark.parametrize(
    "between, syncs", [("", 1), ("sync named id=3 threads=128", 1), ("fence proxy_async", 1)]
)
def test_threads_meet_before_they_announce(between, syncs):
    program = lowered(
        COPY_BACK.format(layout=SWIZZLED, fragment=wgmma_accumulator(64, 128), between=between)
    )
    ops = list(walk_ops(program.kernels[0]))
    named = [op for op in ops if isinstance(op, Sync) and op.scope == "named"]
    assert len(named) == syncs
    assert ops.index(named[0]) < next(i for i, op in enumerate(ops) if isinstance(op, Arrive))
    assert named[0].threads == 128


def test_one_thread_arrives():
    program = lowered(
        COPY_BACK.format(layout=SWIZZLED, fragment=wgmma_accumulator(64, 128), between="")
    )
    guards = [op for op in walk_ops(program.kernels[0]) if isinstance(op, If)]
    assert any(any(isinstance(i, Arrive) for i in g.then) and "leader" in print_op(g)
               for g in guards)  # fmt: skip


def test_guarded_wgmma_fence_stands_on_every_path():
    body = GEMM.format(a=K_MAJOR, b=K_MAJOR, bk=64, bn=64, flags="")
    program = lowered(body.replace("fence wgmma", "if bx == 0 { fence wgmma }"))
    guards = [op for op in walk_ops(program.kernels[0]) if isinstance(op, If)]
    assert not any(isinstance(i, Fence) for g in guards for i in g.then)


def test_bulk_copies_are_cut_into_boxes():
    program = lowered("""
    alloc tile: bfloat16[64, 256] shared layout="S<3,3,3> o 0 o (64,(64,4)):(64,(1,4096))"
    role r warps 0 + 4 {
      copy tile -> C[bx * 64:+64, 256:+256] atom=bulk_store
      commit bulk
      wait_group bulk pending 0
    }
""")
    stores = intrinsics(program, "bulk_store")
    assert [print_op(s).split("(")[1].split(")")[0] for s in stores] == [
        "&tile[0:+4096], 256, bx * 64",
        "&tile[4096:+4096], 320, bx * 64",
        "&tile[8192:+4096], 384, bx * 64",
        "&tile[12288:+4096], 448, bx * 64",
    ]


def test_bulk_copies_start_at_multiples_of_16_bytes():
    with pytest.raises(CompileError, match="multiple of 16 bytes along the innermost") as error:
        lowered("""
    alloc tile: bfloat16[64, 64] shared layout="S<3,3,3> o 0 o (64,64):(64,1)"
    role r warps 0 + 4 {
      copy tile -> C[bx:+64, bx * 100:+64] atom=bulk_store
      commit bulk
      wait_group bulk pending 0
    }
""")
    assert error.value.loc is not None and error.value.loc.line == 7


def test_register_index_needs_an_unrolled_loop():
    with pytest.raises(CompileError, match="depends on c, which is known only at run time"):
        lowered(f"""
    alloc out: bfloat16[64, 64] shared layout="{K_MAJOR}"
    role r warps 0 + 4 {{
      alloc acc: float32[64, 128] fragment layout="{wgmma_accumulator(64, 128)}"
      for c in 0 .. 2 {{ copy acc[:, c * 64:+64] -> out atom=stmatrix }}
    }}
""")


def test_too_much_shared_memory_is_refused_with_figures():
    with pytest.raises(CompileError, match="more shared memory than a block has") as error:
        lowered('alloc big: bfloat16[4096, 64] shared layout="(4096,64):(64,1)"\nsync block\n')
    assert "524288" in str(error.value)


# ── what a thread of a role does for itself ──────────────────────────────────────────────────


def handshake(giver: str):
    return parse_program(f"""
program p {{
  param X: float32[64] global
  param Y: float32[64] global
  kernel main grid b in 1 threads t in 64 {{
    alloc full: barrier[1] barrier
    alloc s: float32[32] shared
    barrier_init full count 1
    fence barrier_init
    sync block
    role giver warps 1 + 1 {{ {giver} }}
    role taker warps 0 + 1 {{
      wait full[0] phase 0
      Y[t] = X[t]
    }}
  }}
}}
""")


@pytest.mark.parametrize(
    "giver",
    [
        "if t == 40 { arrive full[0] }",
        "if X[t] == 40.0 { arrive full[0] }",
        "for k in 0 .. t - 62 { arrive full[0] }",
        "let lane = t % 32\nif lane == 8 { arrive full[0] }",
        "arrive full[0]",
    ],
)
def test_an_arrival_of_any_thread(giver):
    """A role whose ops one thread may do runs in its leader, unless threads do them apart."""
    program, x, y = handshake(giver), np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
    for each in (program, lower(program, Target.parse("cuda")).result):
        run(each, {"X": x, "Y": y})
        assert (y[:32] == x[:32]).all()
        y[:] = 0


@pytest.mark.parametrize("copy", ["atom=bulk_store", "", "atom=threads"])
def test_a_copy_that_some_threads_reach(copy):
    ends = "\ncommit bulk\nwait_group bulk pending 0" if "bulk" in copy else ""
    program = handshake(f"arrive full[0]\nif t == 40 {{ copy s -> Y[0:+32] {copy} }}{ends}")
    with pytest.raises(CompileError) as caught:
        lower(program, Target.parse("cuda"))
    assert caught.value.message.startswith("a copy is done by all threads together")
    assert caught.value.loc.line == 12
