"""What `target="auto"` means: what the environment says, else a GPU of use, else the CPU."""

import subprocess
import sys

import numpy as np
import pytest

import tilewright as tw
import tilewright.language as T
from tests.cuda.fake import FakeApi, Status
from tilewright.ir.target import Target
from tilewright.runtime.backends import resolve
from tilewright.support.errors import CompileError, LaunchError
from tilewright.targets.cuda import detect, driver, launch


class Api(FakeApi):
    """A GPU of some compute capability, or none."""

    def __init__(self, capability=(9, 0), devices=1):
        super().__init__(devices)
        self.capability = capability
        self.asked = 0

    def cuDeviceGetAttribute(self, name, device):
        self.asked += 1
        return Status(0), self.capability[name == "COMPUTE_CAPABILITY_MINOR"]

    def cuDevicePrimaryCtxRetain(self, device):
        raise AssertionError("asking makes no context")


@pytest.fixture
def machine(monkeypatch):
    """A function that puts a driver into this machine, or takes it away."""
    monkeypatch.delenv("TILEWRIGHT_TARGET", raising=False)
    monkeypatch.delenv("TILEWRIGHT_SANITIZE", raising=False)

    def has(api, bindings=True):
        monkeypatch.setattr(detect, "has_library", lambda: api is not None)
        monkeypatch.setattr(detect, "has_bindings", lambda: bindings)
        if api is not None:
            for user in (driver, launch):
                monkeypatch.setattr(user, "driver", lambda: driver.Driver(api))
        detect.gpu_target.cache_clear()

    yield has
    detect.gpu_target.cache_clear()


@pytest.mark.parametrize(
    ("api", "target"),
    [
        (Api((9, 0)), "cuda -arch=sm_90a"),
        (Api((8, 0)), "cuda -arch=sm_80"),
        (Api((8, 9)), "cuda -arch=sm_89"),
        (Api((10, 0)), "cuda -arch=sm_100a"),
        (Api((12, 0)), "cuda -arch=sm_120a"),
        (Api((13, 0)), "cuda -arch=compute_121"),  # PTX, which its driver finishes
        (Api((7, 5)), "cpu"),  # older than all that we compile for
        (Api(devices=0), "cpu"),
        (None, "cpu"),
    ],
)
def test_by_machine(machine, api, target):
    machine(api)
    assert str(resolve("auto")) == target


@pytest.mark.parametrize("named", ["cuda", "cuda -roles=off"])
def test_cuda_is_the_gpu_of_the_machine(machine, named):
    machine(Api((8, 6)))
    assert resolve(named).arch == "sm_86" and resolve(named).choice("roles") in ("auto", "off")
    assert resolve(f"{named} -arch=sm_80").arch == "sm_80"
    machine(None)
    assert resolve(named).arch == "sm_90a"


def test_without_what_launching_needs(machine):
    machine(Api(), bindings=False)
    assert str(resolve("auto")) == "cpu"


def test_the_environment_comes_first(machine, monkeypatch):
    api = Api()
    machine(api)
    monkeypatch.setenv("TILEWRIGHT_TARGET", "interp")
    assert str(resolve("auto")) == "interp" and not api.asked
    monkeypatch.setenv("TILEWRIGHT_TARGET", "cuda -arch=sm_80")
    assert resolve("auto").arch == "sm_80"


def test_asked_once_and_never_for_a_named_target(machine):
    api = Api()
    machine(api)
    assert resolve("cpu").kind == "cpu" and not api.asked
    assert resolve("auto") == resolve("auto") and api.asked == 2  # major and minor


def test_importing_and_asking_import_no_driver():
    code = (
        "import tilewright as tw, sys\n"
        "from tilewright.targets.cuda import detect\n"
        "assert not any(m.startswith('cuda') for m in sys.modules)\n"
        "detect.LIBRARY = 'libnothing.so.1'\n"
        "assert detect.gpu_target() is None\n"
        "assert not any(m.startswith('cuda') for m in sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@T.prim_func
def double(X: T.Tensor((64,), "float32"), Y: T.Tensor((64,), "float32")):
    with T.Kernel(1, threads=64):
        for i in T.Parallel(64):
            Y[i] = X[i] * 2


def test_arrays_in_host_memory_are_the_cpus(machine):
    machine(Api())
    kernel = tw.compile(double)
    assert kernel.target.kind == "cuda"
    x, y = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
    kernel(x, y)
    np.testing.assert_array_equal(y, x * 2)
    again = tw.compile(double, out_idx=[-1])
    np.testing.assert_array_equal(again(x), x * 2)


def test_who_asks_for_a_gpu_gets_an_error(machine, monkeypatch):
    machine(FakeApi(1, double={"params": (8, 8)}))
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
