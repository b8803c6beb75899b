"""Programs that are compared with the interpreter on the CPU are compared on the CUDA road too."""

import pytest

from tests.cpu import common
from tests.roads import THREADS, on_gpu

SHARED = ("test_numbers", "test_threads", "test_tiles")


def pytest_generate_tests(metafunc):
    if metafunc.module.__name__.rpartition(".")[2] not in SHARED:
        return
    if "check" in metafunc.function.__code__.co_names:
        threads = pytest.param(THREADS["threads-sm_90a"], id="threads", marks=pytest.mark.slow)
        roads = [pytest.param(common.CPU, id="cpu"), threads, *on_gpu()]
        metafunc.parametrize("road", roads, indirect=True)


@pytest.fixture(autouse=True)
def road(request, monkeypatch):
    """The target that `common.check` compares with the interpreter."""
    monkeypatch.setattr(common, "ROAD", getattr(request, "param", common.CPU))
