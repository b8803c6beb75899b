"""What `target="auto"` means: what the environment says, else a GPU of use, else the CPU."""

import subprocess
import sys

import numpy as np
import pytest

import tilewright as tw
import tilewright.language as T
from tests.cuda.fake import FakeApi
from tilewright.ir.target import Target
from tilewright.runtime.backends import resolve
from tilewright.support.errors import CompileError, LaunchError
from tilewright.targets.cuda import detect, driver, launch


class Library:
    """The driver's library on a machine with a GPU of some compute capability, or with none."""

    def __init__(self, capability=(9, 0), devices=1, broken=False):
        self.capability = capability
        self.devices = devices
        self.broken = broken  # as in a container that was given no device
        self.asked = 0
        self.inited = False

    def cuInit(self, flags):
        self.inited = not self.broken
        return 100 * self.broken

    def cuDeviceGet(self, device, ordinal):
        assert self.inited
        device._obj.value = ordinal
        return 0 if ordinal < self.devices else 101

    def cuDeviceGetAttribute(self, value, attribute, device):
        self.asked += 1
        value._obj.value = self.capability[{75: 0, 76: 1}[attribute]]
        return 0


class Untouched(FakeApi):
    def cuDevicePrimaryCtxRetain(self, device):
        raise AssertionError("this makes no context")


@pytest.fixture
def machine(monkeypatch):
    """A function that puts a driver into this machine, or takes it away; `api` is what launches."""
    monkeypatch.delenv("TILEWRIGHT_TARGET", raising=False)
    monkeypatch.delenv("TILEWRIGHT_SANITIZE", raising=False)

    def has(library, bindings=True, api=None):
        monkeypatch.setattr(detect, "library", lambda: library)
        monkeypatch.setattr(detect, "has_bindings", lambda: bindings)
        if api is not None:
            for user in (driver, launch):
                monkeypatch.setattr(user, "driver", lambda: driver.Driver(api))
        detect.gpu_target.cache_clear()

    yield has
    detect.gpu_target.cache_clear()


@pytest.mark.parametrize(
    ("library", "target"),
    [
        (Library((9, 0)), "cuda -arch=sm_90a"),
        (Library((8, 0)), "cuda -arch=sm_80"),
        (Library((8, 9)), "cuda -arch=sm_89"),
        (Library((10, 0)), "cuda -arch=sm_100a"),
        (Library((12, 0)), "cuda -arch=sm_120a"),
        (Library((13, 0)), "cuda -arch=compute_121"),  # PTX, which its driver finishes
        (Library((7, 5)), "cpu"),  # older than all that we compile for
        (Library(devices=0), "cpu"),
        (Library(broken=True), "cpu"),
        (None, "cpu"),
    ],
)
def test_by_machine(machine, library, target):
    machine(library)
    assert str(resolve("auto")) == target


@pytest.mark.parametrize("named", ["cuda", "cuda -roles=off"])
def test_cuda_is_the_gpu_of_the_machine(machine, named):
    machine(Library((8, 6)))
    assert resolve(named).arch == "sm_86" and resolve(named).schedule.roles in ("auto", False)
    assert resolve(f"{named} -arch=sm_80").arch == "sm_80"
    machine(None)
    assert resolve(named).arch == "sm_90a"


def test_without_what_launching_needs(machine):
    machine(Library(), bindings=False)
    assert str(resolve("auto")) == "cpu"


def test_the_environment_comes_first(machine, monkeypatch):
    library = Library()
    machine(library)
    monkeypatch.setenv("TILEWRIGHT_TARGET", "interp")
    assert str(resolve("auto")) == "interp" and not library.asked
    monkeypatch.setenv("TILEWRIGHT_TARGET", "cuda -arch=sm_80")
    assert resolve("auto").arch == "sm_80"


def test_asked_once_and_never_for_a_named_target(machine):
    library = Library()
    machine(library)
    assert resolve("cpu").kind == "cpu" and not library.asked
    assert resolve("auto") == resolve("auto") and library.asked == 2  # major and minor


def test_importing_and_asking_import_no_driver():
    code = (
        "import tilewright as tw, sys\n"
        "from tilewright.targets.cuda import detect\n"
        "assert not any(m.startswith('cuda') for m in sys.modules)\n"
        "detect.LIBRARY = 'libnothing.so.1'\n"
        "assert detect.gpu_target() is None\n"
        "assert not any(m.startswith('cuda') for m in sys.modules)\n"
        "class Library: cuInit = cuDeviceGet = cuDeviceGetAttribute = lambda *_: 0\n"
        "detect.library = Library\n"
        "detect.gpu_target.cache_clear()\n"
        "assert detect.gpu_target() is None\n"  # of compute capability 0.0
        "assert not any(m.startswith('cuda.') for m in sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@T.prim_func
def double(X: T.Tensor((64,), "float32"), Y: T.Tensor((64,), "float32")):
    with T.Kernel(1, threads=64):
        for i in T.Parallel(64):
            Y[i] = X[i] * 2


def test_arrays_in_host_memory_are_the_cpus(machine):
    machine(Library(), api=Untouched(1))
    kernel = tw.compile(double)
    assert kernel.target.kind == "cuda"
    x, y = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
    kernel(x, y)
    np.testing.assert_array_equal(y, x * 2)
    again = tw.compile(double, out_idx=[-1])
    np.testing.assert_array_equal(again(x), x * 2)


def test_who_asks_for_a_gpu_gets_an_error(machine, monkeypatch):
    machine(Library(), api=FakeApi(1, double={"params": (8, 8)}))
    x, y = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
    for kernel in (tw.compile(double, target="cuda"), in_environment(monkeypatch)):
        with pytest.raises(LaunchError, match="X is in host memory") as error:
            kernel(x, y)
        assert 'target="cpu"' in str(error.value)


def in_environment(monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_TARGET", "cuda")
    return tw.compile(double)


def test_an_option_that_there_is_not_is_named():
    with pytest.raises(CompileError, match="unknown option '-rolse'") as raised:
        Target.parse("cuda -rolse")
    assert "-roles" in str(raised.value)
