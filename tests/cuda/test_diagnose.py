"""Diagnostic builds without a GPU: sites, code, and what the host says about a record."""

import ctypes
import re
import struct
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tests.cuda.fake import FakeApi, Status
from tests.cuda.fake import launch as launch_module
from tests.cuda.test_emit import NAMES
from tests.cuda.test_forms import product, sizes
from tilewright.ir.dtype import dtype
from tilewright.ir.op import Intrinsic, Sync, Wait, walk_ops
from tilewright.ir.target import Target
from tilewright.ir.text import parse_program
from tilewright.support.errors import HangError, LaunchError, RunError
from tilewright.targets.arrays import ArrayView
from tilewright.targets.cuda import driver as real
from tilewright.targets.cuda.backend import headers
from tilewright.targets.cuda.diagnose import RECORDS, DiagnosticModule, Record, Standing
from tilewright.targets.cuda.emit import HEADER
from tilewright.targets.cuda.kernel import CudaKernel, compile_program
from tilewright.targets.cuda.launch import CudaModule

SCHEDULES = Path(__file__).parent.parent / "schedules"


@cache
def built(name: str) -> CudaKernel:
    path = SCHEDULES / f"{name}.tw"
    program = parse_program(path.read_text(), str(path))
    return compile_program(program, Target.parse("cuda -diagnostic"))


# ── code ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", NAMES)
def test_every_wait_has_a_site_with_its_line(name):
    kernel = built(name)
    sites = kernel.module.sites
    before = [op for k in kernel.trace[0].program.kernels for op in walk_ops(k)]
    for kind in (Wait, Sync):
        lines = {
            op.loc.line
            for op in before
            if isinstance(op, kind) and not (kind is Sync and (op.arrive or op.scope == "warp"))
        }
        assert lines <= {s.op.loc.line for s in sites}
    lowered = [op for k in kernel.program.kernels for op in walk_ops(k)]
    waits = [
        op
        for op in lowered
        if isinstance(op, Wait) or (isinstance(op, Intrinsic) and op.name == "wait_cluster")
    ]
    assert [s.op for s in sites if s.barrier is not None] == waits
    calls = re.findall(
        r"tw::(wait|wait_cluster|wait_cluster_shared)\([^;]*, (\d+), (\w+)\);", kernel.source
    )
    assert [int(n) for _, n, _ in calls] == [i for i, s in enumerate(sites) if s.barrier]
    assert [first for *_, first in calls] == [s.barrier.name for s in sites if s.barrier]
    # nothing waits without a bound or a watch
    assert not re.search(
        r"__syncthreads|sync_cluster(?:_shared)?\(\)|sync_named\([^,]*, \d+\)", kernel.source
    )
    text = SCHEDULES.joinpath(f"{name}.tw").read_text().splitlines()
    for site in sites:
        if site.barrier is not None:
            assert site.role is not None and "wait " in text[site.op.loc.line - 1]


@pytest.mark.parametrize("name", NAMES)
def test_it_compiles(name):
    ptx = built(name).ptx
    assert "tw_report" in ptx and "trap;" in ptx and "globaltimer" in ptx


def test_the_header_means_the_same():
    found = re.search(r"enum Standing : uint32_t \{ (.*) \};", headers()[HEADER])
    assert found is not None
    assert found[1].split(", ") == [s.name.lower() for s in Standing]
    found = re.search(r"struct alignas\(32\) Record \{\s*uint32_t (.*);", headers()[HEADER])
    assert found is not None and len(found[1].split(", ")) == 8


TINY = """
program tiny {
  param X: float32[32] global
  kernel main grid b in 1 threads t in 32 { X[t] = 1.0 }
}
"""


def test_how_to_ask_for_one(monkeypatch):
    program = tw.parse_ir(TINY)
    plain = tw.compile(program, target="cuda")
    assert "DIAGNOSTIC" not in plain.get_kernel_source() and "tw_report" not in plain.ptx
    assert type(plain.executable.module) is CudaModule
    for kernel in (
        tw.compile(program, target="cuda -diagnostic"),
        tw.compile(program, target="cuda", pass_configs={"diagnostic": True}),
    ):
        assert "#define TW_DIAGNOSTIC" in kernel.get_kernel_source()
        assert isinstance(kernel.executable.module, DiagnosticModule)
        assert str(kernel.target) == "cuda -arch=sm_90a -diagnostic"
    monkeypatch.setenv("TILEWRIGHT_DIAGNOSTIC", "1")
    assert tw.compile(program, target="cuda").target.diagnostic
    assert not tw.compile(program, target="interp").target.diagnostic


# ── what the host says ───────────────────────────────────────────────────────────────────────


class HangingApi(FakeApi):
    """`answers` are the statuses of cuStreamQuery, in turn; the last one stays. `write` fills the
    records when the kernel is first asked after."""

    CU_MEMHOSTALLOC_PORTABLE, CU_MEMHOSTALLOC_DEVICEMAP = 1, 2

    def __init__(self, answers, records, **kernels):
        super().__init__(1, **kernels)
        self.answers, self.records = list(answers), records
        self.memory, self.globals, self.capturing = None, [], 0

    def cuMemHostAlloc(self, size, flags):
        assert flags == 3
        self.memory = ctypes.create_string_buffer(size)
        return Status(0), ctypes.addressof(self.memory)

    def cuMemHostGetDevicePointer(self, host, flags):
        return Status(0), host

    def cuModuleGetGlobal(self, module, name):
        assert name == b"tw_report"
        return Status(0), 0xD000, 24

    def cuMemcpyHtoD(self, to, data, size):
        self.globals.append(data)
        return (Status(0),)

    def cuStreamIsCapturing(self, stream):
        return Status(0), self.capturing

    def cuStreamQuery(self, stream):
        words = np.frombuffer(self.memory, np.uint32).reshape(RECORDS, 8)
        for slot, record in self.records.items():
            words[slot] = record
        return (self.answers.pop(0) if len(self.answers) > 1 else self.answers[0],)


def launch(answers, records):
    kernel = built("gemm_pingpong")
    (spec,) = kernel.specs
    api = HangingApi(answers, records, **{spec.kernel: {"params": spec.sizes, "NUM_REGS": 168}})
    module = DiagnosticModule(b"\x7fELF", [spec], kernel.module.sites, using=real.Driver(api))
    bf16 = dtype("bfloat16")
    views = {n: ArrayView(0x10000 * (i + 1), (256, 256), (256, 1), bf16, 0)
             for i, n in enumerate("ABC")}  # fmt: skip
    sizes = {"m": 256, "n": 256, "k": 256}
    launch_module(module, {**views, "blocks": 2}, sizes, stream=0x77)
    return api


def site(wanted):
    """The number and line of the first site whose text begins so."""
    lines = (SCHEDULES / "gemm_pingpong.tw").read_text().splitlines()
    for number, s in enumerate(built("gemm_pingpong").module.sites):
        if lines[s.op.loc.line - 1].strip().startswith(wanted):
            return number, s.op.loc.line
    raise AssertionError(wanted)


def test_an_expired_wait_is_told(monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_WAIT_SECONDS", "1.5")
    full, line = site("wait full[s]")
    empty, other = site("wait empty[s]")
    meet, third = site("if turn > 0 { sync named id=1")
    records = {
        70: (Standing.EXPIRED, full, 1, 2 | 3 << 16, 266, 3 << 1 | 1, 1000, 9),
        64: (Standing.WAITING, empty, 1, 0, 0, 2 << 1, 2_001_000, 9),
        66: (Standing.MEETING, meet, 1, 0, 128, 1, 1000, 9),
        67: (Standing.MEETING, meet, 1, 0, 160, 1, 1000, 9),
    }
    with pytest.raises(HangError) as error:
        launch([600, 719], records)
    text = str(error.value)
    assert error.value.message == "`wait full[3] phase 1` did not end within 1.5 s"
    assert error.value.loc is not None and error.value.loc.line == line
    assert f"{line} |           wait full[s] phase it // 4 % 2" in text
    assert "kernel main, role consumer instance 1, block (1, 2, 3), thread 266" in text
    assert "`wait empty[2] phase 0` also stands, since 2.000 ms later" in text
    assert f"gemm_pingpong.tw:{other}:" in text and "role producer" in text
    assert "`sync named id=1 threads=256` also stands" in text and "1 other warps" in text
    assert f"gemm_pingpong.tw:{third}:" in text
    assert f"full takes 1 arrivals, and bytes, from line {other + 1}, line {other + 2}, " in text
    assert "context is lost" in text and "TILEWRIGHT_WAIT_SECONDS" in text


def test_who_waits_longest_is_named():
    full, _ = site("wait full[s]")
    empty, line = site("wait empty[s]")
    records = {
        5: (Standing.EXPIRED, full, 0, 0, 130, 0, 900, 7),
        4: (Standing.WAITING, empty, 0, 0, 0, 1 << 1 | 1, 4_000_000_000, 6),
    }
    with pytest.raises(HangError, match=r"wait empty\[1\] phase 1") as error:
        launch([719], records)
    assert error.value.loc is not None and error.value.loc.line == line


def test_threads_that_never_meet_are_told(monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_WAIT_SECONDS", "0.05")
    meet, line = site("if turn > 0 { sync named id=3")
    with pytest.raises(HangError, match="sync named id=4 threads=256") as error:
        launch([600], {9: (Standing.MEETING, meet, 7, 0, 288, 4, 5, 0)})
    assert error.value.loc is not None and error.value.loc.line == line
    assert "role consumer instance 1, block (7, 0, 0), thread 288" in str(error.value)
    assert "end this process" in str(error.value)


def test_other_failures_and_success():
    api = launch([600, 600, 0], {})
    assert len(api.launches) == 1
    (data,) = api.globals
    assert data == struct.pack("<QQQ", ctypes.addressof(api.memory), RECORDS, 2_000_000_000)
    with pytest.raises(RunError, match="gemm_pingpong_main was waited for") as error:
        launch([719], {})
    assert not isinstance(error.value, HangError)


def test_refusals(monkeypatch):
    monkeypatch.setattr(HangingApi, "cuStreamIsCapturing", lambda *_: (Status(0), 1))
    with pytest.raises(LaunchError, match="no graph can capture it"):
        launch([0], {})
    monkeypatch.undo()
    for wrong in ("soon", "0", "-1", "1e9"):
        monkeypatch.setenv("TILEWRIGHT_WAIT_SECONDS", wrong)
        with pytest.raises(LaunchError, match="TILEWRIGHT_WAIT_SECONDS must be"):
            launch([0], {})


def test_a_record_is_eight_words():
    record = Record.read((2, 5, 7, 65535 | 9 << 16, 33, 1, 2, 1))
    assert record.since == 2 + 2**32
    assert record.block == (7, 65535, 9) and record.standing is Standing.EXPIRED


def test_callers_of_a_diagnostic_build_wait(monkeypatch):
    kernel = built("gemm_pingpong")
    (spec,) = kernel.specs
    api = HangingApi([0], {}, **{spec.kernel: {"params": spec.sizes, "NUM_REGS": 168}})
    monkeypatch.setattr(kernel.module, "_using", real.Driver(api))
    monkeypatch.setattr(kernel.module, "_loaded", {})
    monkeypatch.setattr(kernel.module, "_reports", {})
    monkeypatch.setattr(kernel.module, "cubin", b"\x7fELF")
    bf16 = dtype("bfloat16")
    views = [ArrayView(0x100000 * (i + 1), (256, 256), (256, 1), bf16, 0) for i in range(3)]
    kernel.caller()(*views, 2, stream=0x77)
    assert [done.grid for done in api.launches] == [(2, 1, 1)]
    with pytest.raises(LaunchError, match="wrong dtype"):
        wrong = ArrayView(0x900000, (256, 256), (256, 1), dtype("float32"), 0)
        kernel.caller()(wrong, *views[1:], 2, stream=0x77)


def test_the_form_that_is_launched_is_the_one_that_reports(monkeypatch):
    aligned = compile_program(
        product(*sizes("m", "n", "k")).program, Target.parse("cuda -diagnostic")
    )
    kernels = aligned, aligned.otherwise
    (spec,) = aligned.specs
    api = HangingApi([0], {}, **{spec.kernel: {"params": spec.sizes, "NUM_REGS": 168}})
    for kernel in kernels:
        monkeypatch.setattr(kernel.module, "_using", real.Driver(api))
        monkeypatch.setattr(kernel.module, "cubin", b"\x7fELF")
    views = [
        ArrayView(0x100000 * (i + 1), (64, 64), (64, 1), dtype("float16"), 0) for i in range(3)
    ]
    aligned.caller()(*views, stream=0x77)
    assert len(api.launches) == 1
    assert [bool(kernel.module._reports) for kernel in kernels] == [True, False]
