"""What `kernel.explain()` says: word for word for three kernels, for every op of the zoo, and
against counts that can be done by hand."""

import json
import os
import re
from pathlib import Path

import pytest

import tilewright as tw
import tilewright.language as T
from tests.cuda.test_zoo import KERNELS as ZOO
from tests.cuda.test_zoo import TARGETS, lowered
from tests.runtime.explained_kernels import KERNELS
from tilewright.inspect.explain import explanation
from tilewright.inspect.transactions import transactions
from tilewright.ir.buffer import Space
from tilewright.ir.op import Alloc, Map, bodies
from tilewright.layout import repeat, spatial

GOLDEN = Path(__file__).parent / "golden_explain"


@pytest.mark.parametrize("name", KERNELS)
def test_text_is_golden(name):
    told = tw.compile(KERNELS[name], target="cuda").explain()
    # what the assembler of this machine makes of it
    told = re.sub(r"registers: \d+ of", "registers: N of", told)
    told = re.sub(r"\n  (a block takes|passes): .*", "", told) + "\n"
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("TILEWRIGHT_UPDATE_GOLDEN"):
        path.write_text(told)
    assert path.read_text() == told


def outside_maps(body):
    for op in body:
        yield op
        if not isinstance(op, Map):
            for inner in bodies(op):
                yield from outside_maps(inner)


@pytest.mark.parametrize("arch", TARGETS)
@pytest.mark.parametrize("name", ZOO)
def test_every_op_has_an_entry(name, arch):
    trace = lowered(name, arch)
    told = explanation(name, TARGETS[arch], trace, [])
    json.dumps(told)  # plain data
    laid = trace.after("place_shared").kernels
    for kernel, after, found in zip(trace[0].program.kernels, laid, told["kernels"], strict=True):
        lines = {(op["file"], op["line"]) for op in found["ops"]}
        for op in outside_maps(kernel.body):
            assert (op.loc.file, op.loc.line) in lines, op
        texts = [op["text"] for op in found["ops"]]
        for op in outside_maps(after.body):
            if isinstance(op, Alloc) and op.buffer.space in (Space.SHARED, Space.FRAGMENT):
                text = f"{op.buffer.space.value} {op.buffer.name}: "
                (entry,) = (o for o in found["ops"] if o["text"].startswith(text))
                assert entry["choices"]["layout"] and entry["choices"]["why"], texts
        for entry in found["ops"]:
            if entry["op"] == "map" and not entry["minor"]:
                assert entry["choices"]["why"]
            if entry["op"] in ("copy", "gemm"):
                assert entry["choices"]["instruction"]


def entries(kernel, kind):
    return [
        op
        for k in kernel.explain(as_dict=True)["kernels"]
        for op in k["ops"]
        if op["op"] == kind and not op["minor"]
    ]


def test_reasons():
    @T.prim_func
    def pinned(X: T.Tensor((32, 64), "float32"), Y: T.Tensor((32, 64), "float32")):
        with T.Kernel(1, threads=128):
            tile = T.alloc_shared((32, 64), "float32")
            x = T.alloc_fragment((32, 64), "float32")
            y = T.alloc_fragment((32, 64), "float32")
            z = T.alloc_fragment((32, 64), "float32")
            T.annotate_layout({tile: T.layout.make_swizzled_layout(tile)})
            T.annotate_layout({x: spatial(32, 4) * repeat(1, 16)})
            T.copy(X, tile)
            T.copy(tile, x)
            T.copy(x, y)
            for i, j in T.Parallel(32, 64):
                z[i, j] = y[i, j] * 2
            T.copy(z, Y)

    kernel = tw.compile(pinned, target="cuda")
    first = pinned.program.kernels[0].loc.line
    why = {op["text"].split(":")[0]: op["choices"]["why"] for op in entries(kernel, "alloc")}
    assert why == {
        "shared tile": f"pinned by annotate_layout at line {first + 5}",
        "fragment x": f"pinned by annotate_layout at line {first + 6}",
        "fragment y": f"follows x through the copy at line {first + 9}",
        "fragment z": f"follows y through the elementwise loop at line {first + 10}, "
        "where it is written",
    }
    (map_,) = entries(kernel, "map")
    assert map_["choices"]["why"] == "follows y, which it reads"
    assert map_["source"] == "for i, j in T.Parallel(32, 64):"


CONFLICTS = """program p {
  param X: float32[32, 32] global
  param Y: float32[32, 32] global
  kernel k grid b in 1 threads t in 32 {
    alloc s: float32[1056] shared place=0
    for v in 0 .. 32 kind=unroll {
      s[v * 32 + t] = X[v, t]
    }
    sync block
    for v_1 in 0 .. 32 kind=unroll {
      Y[t, v_1] = s[t * PITCH + v_1]
    }
  }
}
"""


@pytest.mark.parametrize(("pitch", "wavefronts"), [(32, 1024), (33, 32), (16, 512)])
def test_counts_are_those_of_hand(pitch, wavefronts):
    program = tw.parse_ir(CONFLICTS.replace("PITCH", str(pitch)))
    found = {(a.buffer, a.writes): a for a in transactions(program)["k"]}
    filled, loaded = found["s", True], found["X", False]
    assert (filled.each, filled.requests, filled.units, filled.ideal) == (32, 32, 32, 32)
    assert (loaded.requests, loaded.units, loaded.ideal) == (32, 128, 128)  # rows of 128 bytes
    read, stored = found["s", False], found["Y", True]
    assert (read.requests, read.units, read.ideal) == (32, wavefronts, 32)
    assert (stored.units, stored.ideal) == (1024, 128)  # a column: a sector for four bytes
    assert "12% used" in stored.words()


def test_conversions_cost_something():
    @T.prim_func
    def turned(X: T.Tensor((32, 32), "float32"), Y: T.Tensor((32, 32), "float32")):
        with T.Kernel(1, threads=128):
            x = T.alloc_fragment((32, 32), "float32")
            y = T.alloc_fragment((32, 32), "float32")
            T.copy(X, x)
            for i, j in T.Parallel(32, 32):
                y[i, j] = x[i, j] + x[j, i]
            T.copy(y, Y)

    kernel = tw.compile(turned, target="cuda")
    (moved,) = entries(kernel, "relayout")
    assert moved["text"] == "conversion x → x_moved: through shared memory"
    assert "about " in moved["choices"]["cost"] and "barriers" in moved["choices"]["cost"]
    assert any(key.startswith("writes scratch") for key in moved["choices"])
    told = kernel.explain(as_dict=True)["kernels"][0]
    assert told["conversions"] == 1 and told["registers"]["binary"] > 0
    assert [b["buffer"] for b in told["shared"]["buffers"]] == ["scratch"]


def test_products_say_what_faster_instructions_refuse():
    @T.prim_func
    def small(
        A: T.Tensor((32, 32), "float16"),
        B: T.Tensor((32, 32), "float16"),
        C: T.Tensor((32, 32), "float32"),
    ):
        with T.Kernel(1, threads=64):
            a = T.alloc_shared((32, 32), "float16")
            b = T.alloc_shared((32, 32), "float16")
            c = T.alloc_fragment((32, 32), "float32")
            T.copy(A, a)
            T.copy(B, b)
            T.gemm(a, b, c, clear_accum=True)
            T.copy(c, C)

    (product,) = entries(tw.compile(small, target="cuda"), "gemm")
    assert product["choices"]["instruction"].startswith("mma m16n8k16")
    assert product["choices"]["why"] == "no wgmma: 64 threads are not whole warpgroups of 128"


def test_other_targets():
    for target in ("cpu", "interp"):
        kernel = tw.compile(KERNELS["softmax"], target=target)
        assert "fragment x: float32 4×1000" in kernel.explain()
        assert entries(kernel, "reduce")
