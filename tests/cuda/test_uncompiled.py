"""Without NVRTC a kernel for CUDA can be looked at, and says what is missing when it is run."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
import tilewright.language as T
from tilewright.targets.cuda import nvrtc


@T.prim_func
def add(A: T.Tensor((256,), "float32"), B: T.Tensor((256,), "float32")):
    with T.Kernel(2, threads=128) as bx:
        for i in T.Parallel(128):
            B[bx * 128 + i] = A[bx * 128 + i] + 1


@pytest.fixture
def kernel(monkeypatch):
    def missing():
        raise nvrtc.NoCompiler("compiling for CUDA needs NVRTC", fix=nvrtc.INSTALL)

    monkeypatch.setattr(nvrtc, "_nvrtc", missing)
    monkeypatch.setenv("TILEWRIGHT_CACHE", "0")
    return tw.compile(add, target="cuda")


def test_it_can_be_looked_at(kernel):
    assert "__global__" in kernel.get_kernel_source()
    assert "ld.global" in kernel.explain() or "parallel 128" in kernel.explain()
    assert "kernel add" in kernel.ir("infer_layouts")
    assert kernel.resources == {"threads": 128, "shared_bytes": 0, "cluster": 1}
    assert "pip install" in kernel.explain().partition("a block takes")[2]


@pytest.mark.parametrize(
    "use",
    [
        lambda k: k(np.zeros(256, np.float32), np.zeros(256, np.float32)),
        lambda k: k.ptx,
        lambda k: k.sass,
        lambda k: k.resources["registers"],
    ],
    ids=["a launch", "ptx", "sass", "registers"],
)
def test_more_needs_a_compiler(kernel, use):
    with pytest.raises(tw.CompileError, match="needs NVRTC") as caught:
        use(kernel)
    assert "pip install" in str(caught.value)
