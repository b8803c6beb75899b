"""Handlers on a GPU: called by a frame that is made by hand and, where JAX has the GPU, by JAX."""

from __future__ import annotations

import numpy as np
import pytest

from tests.export.library import PROGRAMS
from tests.export.test_export_cuda import array
from tests.frameworks.frame import Frame
from tests.frameworks.test_jax_cuda import handler_for
from tilewright.frameworks import jax_frame
from tilewright.targets.cuda.driver import driver
from tilewright.tools.export.collect import collect

pytestmark = pytest.mark.gpu


class Memory:
    """Arrays on the GPU."""

    def __init__(self) -> None:
        self.found = driver()
        self.device = self.found.device(0)
        self.found.make_current(self.device)

    def put(self, x: np.ndarray) -> int:
        address = self.found.allocate(self.device, max(x.nbytes, 1), 0)
        self.found.call(self.found.api.cuMemcpyHtoD(address, x.ctypes.data, x.nbytes))
        return address

    def get(self, address: int, like: np.ndarray) -> np.ndarray:
        found = np.empty_like(like)
        self.found.read(address, found.ctypes.data, found.nbytes, 0)
        return found


def small(*shape, seed=0):
    return np.random.default_rng(seed).integers(-2, 3, shape).astype(np.float16)


def test_frames_by_hand(monkeypatch):
    monkeypatch.setattr(jax_frame, "version", lambda: (0, 1))
    names = ["open_product", "clustered", "two_steps"]
    arch = driver().device(0).arch
    found, _ = collect(str(PROGRAMS), names, ["N=256", "width=256"], [f"cuda -arch={arch}"])
    builds = {each.name: each.builds[0] for each in found}
    memory = Memory()

    def run(name, inputs, output, scratch=()):
        at = [memory.put(x) for x in (*inputs, output)]
        views = [
            array(x.dtype.name, x.shape, a) for x, a in zip((*inputs, output), at, strict=True)
        ]
        made, (given, addresses, bits), count = handler_for(builds[name], views, memory.found)
        addresses += [memory.put(np.zeros(s, np.uint8)) for s in scratch]
        assert len(addresses) == count
        frame = Frame(given, addresses, bits)
        assert frame.call(made), frame.message
        memory.found.synchronize(0)
        return memory.get(at[-1], output)

    for m, n, k in ((256, 512, 64), (100, 264, 72), (3, 5, 7)):
        a, b = small(m, k), small(n, k, seed=1)
        found = run("open_product", [a, b], np.zeros((m, n), np.float16))
        assert (found == (a.astype(np.float32) @ b.astype(np.float32).T)).all(), (m, n, k)
    a = small(256, 256)
    found = run("clustered", [a], np.zeros((256, 256), np.float16))
    assert (found == (a.astype(np.float32) @ a.astype(np.float32))).all()
    a = small(256, 64)
    found = run("two_steps", [a], np.zeros((256, 64), np.float32), [256 * 64 * 4])
    assert (found == a.astype(np.float32)[::-1, ::-1] * 2 + 1).all()


def test_inside_jit():
    jax = pytest.importorskip("jax")
    if jax.default_backend() != "gpu":
        pytest.skip("JAX has no GPU here")
    import tilewright.jax
    from tests.export import programs

    a = jax.numpy.asarray(small(512, 256))
    b = jax.numpy.asarray(small(256, 384, seed=1))
    run = jax.jit(lambda a, b: tilewright.jax.call(programs.product, a * 2, b) + 1)
    want = (2 * a.astype("float32")) @ b.astype("float32") + 1
    assert (run(a, b) == want).all()
    x = jax.random.normal(jax.random.key(0), (40, 24))

    def ours(x):
        return (tilewright.jax.call(programs.softmax, x) ** 2).sum()

    slope = jax.jit(jax.grad(ours))(x)
    want = jax.grad(lambda x: (jax.nn.softmax(x, -1) ** 2).sum())(x)
    np.testing.assert_allclose(slope, want, rtol=1e-4, atol=1e-6)
