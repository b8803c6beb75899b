"""Every kernel of the zoo on the CUDA road, as people wrote it: it compiles for sm_90a without
spills, its thread code computes what the tile program means, and its layouts are the ones that were
looked at. With Hopper's features, and with those of sm_80 alone."""

from __future__ import annotations

import os
from functools import cache, partial
from pathlib import Path

import numpy as np
import pytest

from tilewright import machine
from tilewright.ir.buffer import Buffer
from tilewright.ir.layout.fragment import Fragment
from tilewright.ir.op import Alloc, Copy, Gemm, Map, Program, Relayout, Role, walk_ops
from tilewright.ir.target import Target
from tilewright.targets.cuda.backend import lower
from tilewright.targets.cuda.kernel import CudaKernel
from zoo.attention.backward import keys_gradient, queries_gradient, row_products
from zoo.attention.flash import flash_attention
from zoo.elementwise.swiglu import swiglu_rows
from zoo.elementwise.vector_add import vector_add
from zoo.gemm.gemm import gemm_relu, gemm_transposed
from zoo.loss.cross_entropy import cross_entropy_rows
from zoo.mla.decode import mla_decode
from zoo.norm.layer_norm import layer_norm_rows
from zoo.norm.rms_norm import rms_norm_rows
from zoo.softmax.softmax import online_softmax, softmax, softmax_rows
from zoo.transpose.transpose import transpose, transpose_rows

HOPPER = Target.parse("cuda")
TARGETS = {
    "sm_90a": HOPPER,
    "sm_80": HOPPER.like("sm_80"),
}
GOLDEN = Path(__file__).parent / "golden_layouts"
PRODUCTS = ("gemm", "flash", "keys", "queries")
SIZES = {"m": 5}  # of sizes known at launch

KERNELS = {
    "gemm": lambda: gemm_relu.on("interp")(160, 136, 128),
    "gemm_two_warpgroups": lambda: gemm_relu.on("interp")(256, 256, 192, block_N=256, threads=256),
    "gemm_float32": lambda: gemm_relu.on("interp")(
        64, 64, 32, block_M=64, block_N=64, block_K=16, dtype="float32"
    ),
    "gemm_transposed": lambda: gemm_transposed.on("interp")(128, 128, 96),
    "gemm_both_transposed": lambda: gemm_transposed.on("interp")(128, 128, 96, True, True),
    "softmax": lambda: softmax.on("interp")(8, 1000),
    "softmax_long_row": lambda: softmax.on("interp")(4, 4096, block_M=1, threads=256),
    "softmax_online": lambda: online_softmax.on("interp")(8, 5000),
    "softmax_rows": lambda: softmax_rows(1000, target="interp"),
    "flash_causal": lambda: flash_attention.on("interp")(1, 2, 2, 128, 128, 128, causal=True),
    "flash_grouped": lambda: flash_attention.on("interp")(1, 2, 1, 100, 200, 64),
    "flash_two_warpgroups": lambda: flash_attention.on("interp")(
        1, 1, 1, 128, 256, 64, block_M=128, block_N=128, threads=256
    ),
    "row_products": lambda: row_products.on("interp")(1, 1, 100, 64),
    "keys_gradient": lambda: keys_gradient.on("interp")(
        1, 2, 1, 100, 130, 64, causal=True, dtype="bfloat16"
    ),
    "keys_gradient_two_warpgroups": lambda: keys_gradient.on("interp")(
        1, 1, 1, 192, 128, 128, block_N=128, threads=256, dtype="bfloat16"
    ),
    "queries_gradient": lambda: queries_gradient.on("interp")(
        1, 2, 1, 100, 130, 64, causal=True, dtype="bfloat16"
    ),
    "queries_gradient_two_warpgroups": lambda: queries_gradient.on("interp")(
        1, 1, 1, 128, 192, 128, block_M=128, threads=256, dtype="bfloat16"
    ),
    "mla": lambda: mla_decode.on("interp")(1, 64, 128),
    "mla_split": lambda: mla_decode.on("interp")(1, 64, 128, splits=2),
    "vector_add": lambda: vector_add.on("interp")(1000),
    "rms_norm": lambda: rms_norm_rows(1000, target="interp"),
    "layer_norm": lambda: layer_norm_rows(1000, target="interp"),
    "layer_norm_kept": lambda: layer_norm_rows(
        1100, target="interp", variant="kept", clusters=2, threads=64
    ),
    "cross_entropy": lambda: cross_entropy_rows(1000, target="interp"),
    "swiglu": lambda: swiglu_rows(1000, target="interp"),
    "transpose": lambda: transpose_rows(1000, target="interp"),
    "transpose_by_threads": lambda: transpose.on("interp")(
        136, 72, block_M=128, block_N=128, threads=256, padding=0, staged=True, moved="sync",
        dtype="bfloat16",
    ),
    "transpose_from_fronts": lambda: transpose.on("interp")(
        136, 272, block_M=128, block_N=128, threads=512, padding=0, staged=True, moved="sync",
        fronts=(3, 2), cache="evict_last", dtype="bfloat16",
    ),
}  # fmt: skip


@cache
def program(name: str) -> Program:
    return KERNELS[name]().program


@cache
def compiled(name: str, arch: str) -> CudaKernel:
    return CudaKernel(program(name), TARGETS[arch])


def lowered(name: str, arch: str):
    return compiled(name, arch).trace


def arguments(p: Program) -> dict[str, object]:
    rng = np.random.default_rng(0)
    made: dict[str, object] = {}
    for param in p.params:
        if not isinstance(param, Buffer):
            made[param.name] = 1
            continue
        shape = tuple(SIZES.get(getattr(s, "name", "")) or int(s) for s in param.shape)
        low = 0 if param.dtype.is_int else -2
        made[param.name] = rng.integers(low, 3, shape).astype(np.float32).astype(param.dtype.numpy)
    return made


def copies(args: dict[str, object]) -> dict[str, object]:
    return {k: v.copy() if isinstance(v, np.ndarray) else v for k, v in args.items()}


@pytest.mark.parametrize("arch", TARGETS)
@pytest.mark.parametrize("name", KERNELS)
def test_thread_code_means_the_tile_program(name: str, arch: str):
    args = arguments(program(name))
    want, got = copies(args), copies(args)
    machine.run(program(name), want)
    machine.run(lowered(name, arch).result, got, seed=1, threads=True)
    for key, value in want.items():
        if isinstance(value, np.ndarray) and value.dtype.kind != "i":
            a, b = (np.asarray(x[key]).astype(np.float64) for x in (got, want))
            # sums may be added in another order; results of 16 bits may then round differently
            unit = 2.0**-8 if value.dtype.itemsize == 2 else 2.0**-20
            np.testing.assert_allclose(a, b, rtol=2 * unit, atol=unit / 64, err_msg=key)


DRAWN = {
    "layer": layer_norm_rows,
    "root": rms_norm_rows,
    "silu": partial(rms_norm_rows, silu=True),
}


@pytest.mark.parametrize("family", DRAWN)
@pytest.mark.parametrize("columns, cluster", [(512, 1), (1024, 4), (700, 2), (600, 8)])
def test_rows_that_clusters_draw(family: str, columns: int, cluster: int):
    """Blocks of equal parts, one with a tail, and one with nothing left: no race, however blocks
    and threads interleave."""
    sizes = {"clusters": 2, "threads": 32, "cluster": cluster}
    given = DRAWN[family](columns, target="interp", variant="kept", **sizes).program
    made = lower(given, HOPPER)
    args = arguments(given)
    want = copies(args)
    machine.run(given, want)
    for seed in range(2):
        got = copies(args)
        machine.run(made.result, got, seed=seed, threads=True)
        a, b = (np.asarray(x["Y"]).astype(np.float64) for x in (got, want))
        np.testing.assert_allclose(a, b, rtol=2.0**-7, atol=2.0**-14)


@pytest.mark.parametrize("arch", TARGETS)
@pytest.mark.parametrize("name", KERNELS)
def test_compiles_without_spills(name: str, arch: str):
    kernel = compiled(name, arch)
    assert kernel.serialized is None
    for function, used in kernel.resources.items():
        assert (used.spill_bytes, used.local_bytes) == (0, 0), function


def described(p: Program) -> str:
    """The layouts of fragments and maps, and the instructions, of a laid-out program."""
    lines = []
    for op in (op for kernel in p.kernels for op in walk_ops(kernel)):
        if isinstance(op, Alloc) and op.buffer.layout is not None:
            lines.append(f"{op.buffer.name}: {op.buffer.layout!r}")
        elif isinstance(op, Map) and isinstance(op.layout, Fragment):
            lines.append(f"map {'×'.join(map(str, op.extents))}: {op.layout!r}")
        elif isinstance(op, (Copy, Gemm)):
            places = (op.src, op.dst) if isinstance(op, Copy) else (op.a, op.b, op.c)
            named = " ".join(r.buffer.name for r in places)
            lines.append(f"{type(op).__name__.lower()} {named}: {op.atom}")
        elif isinstance(op, Relayout):
            lines.append(f"relayout {op.src.buffer.name} {op.dst.buffer.name}")
    count = sum(isinstance(op, Relayout) for k in p.kernels for op in walk_ops(k))
    return "\n".join([*lines, f"conversions: {count}"]) + "\n"


@pytest.mark.parametrize("arch", TARGETS)
@pytest.mark.parametrize("name", KERNELS)
def test_layouts_are_golden(name: str, arch: str):
    found = described(lowered(name, arch).after("insert_syncs"))
    path = GOLDEN / f"{name}_{arch}.txt"
    if os.environ.get("TILEWRIGHT_UPDATE_GOLDEN"):
        path.write_text(found)
    assert path.read_text() == found


@pytest.mark.parametrize("arch", TARGETS)
@pytest.mark.parametrize("name", [n for n in KERNELS if n.startswith(PRODUCTS)])
def test_products_and_attention_need_no_conversion(name: str, arch: str):
    assert described(lowered(name, arch).after("insert_syncs")).endswith("conversions: 0\n")


@pytest.mark.parametrize(("dim", "causal"), [(128, False), (128, True), (64, True)])
@pytest.mark.parametrize("made", [keys_gradient, queries_gradient], ids=lambda f: f.fn.__name__)
def test_gradients_of_two_warpgroups_have_a_producer(made, dim, causal):
    blocks = {"block_M": 64, "block_N": 128} if made is keys_gradient else {"block_M": 128}
    sizes = (2, 16, 16, 8192, 8192, dim, causal)
    given = made.prim_func(*sizes, **blocks, threads=256, dtype="bfloat16").program
    kernel = CudaKernel(given, HOPPER)
    assert kernel.serialized is None and not kernel.compiled.problems()
    assert "wgmma.mma_async" in kernel.ptx and "mma.sync" not in kernel.ptx
    roles = [op.name for op in kernel.trace.after("part_roles").kernels[0].body if type(op) is Role]
    assert roles == ["consumer", "producer"]


def test_what_the_assembler_would_serialize_runs_by_single_warps(monkeypatch):
    from tilewright.targets.cuda import backend
    from tilewright.targets.cuda.nvrtc import Serialized

    compile_cuda = backend.compile_cuda

    def strict(source, *args, **kwargs):
        if "wgmma" in source:
            raise Serialized("the assembler could not keep main.cu as it was written: (C7514) …")
        return compile_cuda(source, *args, **kwargs)

    monkeypatch.setattr(backend, "compile_cuda", strict)
    kernel = CudaKernel(program("gemm"), HOPPER)
    assert kernel.serialized is not None and "mma.sync" in kernel.ptx
    assert any("not wgmma: the assembler" in why for why in kernel.trace.reasons.values())
