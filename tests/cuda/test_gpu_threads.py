"""Thread-level kernels of `examples/threads.py`: everywhere, and with C++ and PTX inside on a GPU.
`pytest -m gpu`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
import tilewright.language as T
from examples.threads import GPU_ONLY, examples
from tests.roads import on_gpu, on_threads
from tilewright.support.errors import RunError
from tilewright.targets.cuda.guard import run_guarded

ROOT = Path(__file__).parents[2]
EXAMPLES = examples()
ANYWHERE = ["cpu", "interp -sanitize", *on_threads()]
GPU = on_gpu("gpu-sm_90a", "gpu-sm_80")


def check(name, target):
    factory, sizes, args, want = EXAMPLES[name]
    given = [array.copy() for array in args]
    factory.on(target)(*sizes)(*given)
    for at, expected in want.items():
        np.testing.assert_array_equal(given[at], expected)


@pytest.mark.parametrize("target", [*ANYWHERE, *GPU])
@pytest.mark.parametrize("name", [n for n in EXAMPLES if n not in GPU_ONLY])
def test_portable(name, target):
    check(name, target)


@pytest.mark.parametrize("target", GPU)
@pytest.mark.parametrize("name", GPU_ONLY)
def test_foreign(name, target):
    check(name, target)


@pytest.mark.parametrize("target", ANYWHERE)
@pytest.mark.parametrize("name", GPU_ONLY)
def test_foreign_code_is_refused_elsewhere(name, target):
    with pytest.raises(tw.TilewrightError, match="cannot run"):
        check(name, target)


# what each must contain: SASS does not lie about which instruction was made
INSTRUCTIONS = {
    "vector_add": r"ld\.global",
    "block_sums": r"shfl\.sync\.bfly",
    "keep_positive": r"vote\.sync\.ballot|vote\.ballot",
    "histogram": r"atom\.shared|red\.shared",
    "look": r"vprintf",
    "int8_products": r"dp4a\.s32\.s32",
    "mma_by_hand": r"mma\.sync\.aligned\.m16n8k16",
}


@pytest.mark.parametrize("arch", ["sm_90a", "sm_80"])
@pytest.mark.parametrize("name", EXAMPLES)
def test_instructions(name, arch):
    factory, sizes, *_ = EXAMPLES[name]
    kernel = factory.on(f"cuda -arch={arch}")(*sizes)
    assert re.search(INSTRUCTIONS[name], kernel.ptx), kernel.ptx
    assert kernel.resources["spill_bytes"] == 0


def script(*command, target):
    return subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": f"src{os.pathsep}.", "TILEWRIGHT_TARGET": target},
        capture_output=True,
        text=True,
        timeout=240,
    )


@pytest.mark.parametrize("target", ["cpu", "interp", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_the_examples_are_scripts(target):
    done = script("examples/threads.py", target=target)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(f"right on {target}") == len(EXAMPLES) - 2 * (target != "cuda")
    assert "thread three is here" in done.stdout
    assert re.search(r"twice A\[3\] = -?\d", done.stdout)


@pytest.mark.gpu
def test_the_reference_kernel():
    done = script("examples/matmul.py", target="cuda")
    assert done.returncode == 0, done.stderr
    assert "on cuda" in done.stdout


@T.prim_func
def careful(A: T.Tensor((64,), "int32")):
    with T.Kernel(1, threads=64):
        tx = T.get_thread_binding()
        T.device_assert(A[tx] < 50, "a value of fifty")
        A[tx] = A[tx] + 1


@pytest.mark.parametrize("target", ANYWHERE)
def test_an_assertion(target):
    kernel = tw.compile(careful, target=target)
    a = np.zeros(64, np.int32)
    kernel(a)
    assert (a == 1).all()
    a[5] = 50
    told = r"device_assert failed in block \(0,\) thread 5: a value of fifty"
    with pytest.raises(RunError, match=told):
        kernel(a)


def run_assertion():
    import torch

    kernel = tw.compile(careful, target="cuda")
    a = torch.zeros(64, dtype=torch.int32, device="cuda")
    kernel(a)
    torch.cuda.synchronize()
    assert bool((a == 1).all())
    a[5] = 50
    kernel(a)
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return "stopped"
    return "went on"


@pytest.mark.gpu
def test_an_assertion_stops_a_kernel(capfd):
    assert run_guarded(run_assertion, timeout=120) == "stopped"
    told = "device_assert failed in block (0,) thread 5: a value of fifty"
    assert told in capfd.readouterr().out
