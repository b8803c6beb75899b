"""Outputs of calls on a GPU, on a driver made of Python."""

import gc

import pytest

import tilewright as tw
import tilewright.language as T
import tilewright.math as tm
from tests.cuda.fake import fake_driver
from tilewright.ir.dtype import dtype
from tilewright.support.errors import LaunchError
from tilewright.targets import arrays as views
from tilewright.targets.arrays import ArrayView
from tilewright.targets.cuda import driver as driver_module
from tilewright.targets.cuda.driver import DeviceArray

TEXT = """
program add {
  dim m min=1
  dim n min=1
  param X: float32[m, n] global
  param Y: float32[n] global
  param Z: float32[m, n + 2] global
  param a: float32
  kernel main grid b in m threads t in 128 {
    if t < n { Z[b, t] = X[b, t] * a + Y[t] }
  }
}
"""


@pytest.fixture
def made(monkeypatch):
    kernel = tw.compile(tw.parse_ir(TEXT), target="cuda", out_idx=2)
    spec = kernel.executable.specs[0]
    api, found = fake_driver(**{spec.kernel: {"params": list(spec.sizes)}})
    api.contexts = [0xC0]
    kernel.executable.module._using = found
    monkeypatch.setattr(driver_module, "driver", lambda: found)
    return kernel, api


class Foreign:
    """An array of a library that has DLPack only."""

    def __init__(self, address, shape):
        self.address, self.shape = address, shape

    def __dlpack_device__(self):
        return 2, 0

    def __dlpack__(self, stream=None):
        from tilewright.targets.dlpack import export

        return export(self.address, self.shape, dtype("float32"), (2, 0), self)


def test_outputs_of_our_own(made):
    kernel, api = made
    x, y = Foreign(0x1000, (3, 4)), Foreign(0x9000, (4,))
    z = kernel(x, y, 2.0)
    assert isinstance(z, DeviceArray) and z.shape == (3, 6)
    assert api.done == [("allocate", 72, 0)]
    named = kernel(x, a=1.0, Y=y, stream=7)
    assert api.done[1:] == [("allocate", 72, 7)] and api.launches[-1].stream == 7
    assert named.memory.address != z.memory.address
    assert str(z) == "DeviceArray(float32 3×6, cuda:0)"
    del z
    gc.collect()  # the first import of PyTorch, in the middle of a launch, keeps frames
    assert api.done[-1] == ("free", 72, 0)


def test_a_consumer_is_made_to_wait_and_waited_for(made):
    kernel, api = made
    z = kernel(Foreign(0x1000, (3, 4)), Foreign(0x9000, (4,)), 2.0, stream=7)
    capsule = z.__dlpack__(stream=9)
    assert api.done[-1] == ("order", 7, 9)
    del z
    assert len(api.live) == 1  # the capsule has it
    del capsule
    assert api.done[-2:] == [("order", 9, 7), ("free", 72, 7)]
    assert not api.live


def test_pytorch_makes_its_own(made, monkeypatch):
    torch = pytest.importorskip("torch")
    kernel, api = made
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda _: 5, raising=False)

    def read(t, name, *_):
        return ArrayView(t.data_ptr(), tuple(t.shape), tuple(t.stride()), dtype(t.dtype), 0, 5)

    monkeypatch.setitem(views._READERS, "torch", read)
    for m in (3, 5, 3):
        z = kernel(torch.zeros(m, 4), torch.zeros(4), 2.0)
        assert type(z) is torch.Tensor and z.shape == (m, 6) and z.dtype == torch.float32
        assert z.data_ptr().to_bytes(8, "little") in api.launches[-1].params
    assert not api.done
    with pytest.raises(LaunchError, match="both n but differ"):
        kernel(torch.zeros(3, 4), torch.zeros(5), 2.0)
    with pytest.raises(LaunchError, match="takes 3 arguments, got 4"):
        kernel(torch.zeros(3, 4), torch.zeros(4), z, 2.0)


def test_arrays_in_other_shapes(monkeypatch):
    """A formula's kernel may take rows of rows as one row: nothing is reshaped for it."""
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda _: 5, raising=False)

    def read(t, name, *_):
        return ArrayView(t.data_ptr(), tuple(t.shape), tuple(t.stride()), dtype(t.dtype), 0, 5)

    monkeypatch.setitem(views._READERS, "torch", read)
    kernel = tw.math(lambda x, y: (x + y, tm.sum(x * y)), target="cuda -arch=sm_90a")
    x, y = torch.zeros(6, 8), torch.zeros(6, 8)
    made = kernel.made_for(x, y)
    known = made.kernel.compile(*made.shaped([x, y]))
    assert [p.rank for p in known.program.params] == [1, 1, 0, 1]
    specs = known.executable.specs
    api, found = fake_driver(**{spec.kernel: {"params": list(spec.sizes)} for spec in specs})
    api.contexts = [0xC0]
    for each in filter(None, (known.executable, known.executable.otherwise)):
        each.module._using = found
    for given in ((x, y), (y, x), (torch.zeros(6, 8), x)):
        z, total = made.run(list(given))
        assert (z.shape, total.shape) == ((6, 8), ())
        sent = b"".join(part for done in api.launches[-len(specs) :] for part in done.params)
        assert all(t.data_ptr().to_bytes(8, "little") in sent for t in (*given, z, total))
    with pytest.raises(LaunchError, match="Y must have 1 dimensions"):
        made.run([torch.zeros(4, 12), y[:5]])


@pytest.mark.parametrize("out_idx", ["Y", ["Y"], [1.0]])
def test_out_idx_is_a_position(out_idx):
    @T.prim_func
    def main(X: T.Tensor((8,), "float32"), Y: T.Tensor((8,), "float32")):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(8):
                Y[i] = X[i]

    with pytest.raises(tw.LaunchError, match="positions of parameters"):
        tw.compile(main, out_idx=out_idx, target="cpu")
