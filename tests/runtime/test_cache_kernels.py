"""Compiled kernels come back from the disk as they were, or are compiled again."""

from __future__ import annotations

import ast
import json
import os
import py_compile
import random
import re
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

import tilewright as tw
import tilewright.language as T
from tests.cuda.fake import fake_driver
from tests.runtime.cache_stress import DAMAGES
from tilewright.ir.dtype import dtype
from tilewright.ir.target import Target
from tilewright.ir.text import parse_program, print_program
from tilewright.support import env, sources
from tilewright.support.cache import Store, default_store
from tilewright.support.errors import Loc
from tilewright.support.sources import Sources
from tilewright.targets import entries
from tilewright.targets.cuda import backend, nvrtc
from tilewright.targets.cuda import kernel as cuda
from tilewright.targets.cuda.launch import Record
from tilewright.targets.dlpack import export
from zoo.gemm.gemm import gemm_relu

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def store(tmp_path, monkeypatch):
    """A cache of its own; that somebody edits the sources meanwhile is no matter of these tests."""
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("TILEWRIGHT_DUMP", raising=False)
    monkeypatch.setattr(entries, "compiler", lambda kind: Fixed())
    monkeypatch.setattr(nvrtc, "_run", run_once)
    return Store(tmp_path / "cache")


_run, _done = nvrtc._run, {}


def run_once(source, name, flags, headers):
    """NVRTC takes a while, and gives the same again."""
    given = (source, name, tuple(flags))
    if given not in _done:
        _done[given] = _run(source, name, flags, headers)
    return _done[given]


class Fixed:
    def digest(self, store):
        return "this one"

    def unchanged(self):
        return True


def product(M=64, N=64, K=64):
    return gemm_relu.prim_func(M, N, K, 32, 32, 32)


def from_disk(kernel):
    """The passes have not run."""
    return "trace" not in vars(kernel.executable)


def run_product(kernel):
    dice = np.random.default_rng(0)
    a, b = (dice.integers(-3, 4, (64, 64)).astype("float16") for _ in range(2))
    c = np.zeros((64, 64), "float16")
    kernel(a, b, c)
    np.testing.assert_array_equal(c, np.maximum(a.astype(int) @ b.astype(int), 0))


@tw.jit(target="cpu")
def rows(scratch=False):
    """Sizes known at launch, a scalar, functions of the C library."""
    n, m = T.dynamic("n"), T.dynamic("m")

    @T.prim_func
    def main(X: T.Tensor((n, m), "float32"), s: T.float32, Y: T.Tensor((n, m), "float32")):
        with T.Kernel(T.ceildiv(n, 4), threads=32) as bx:
            for i in T.serial(4):
                if bx * 4 + i < n:
                    for j in T.serial(m):
                        Y[bx * 4 + i, j] = T.exp(X[bx * 4 + i, j]) * s

    return main


def launched(kernel):
    """What a driver made of Python is given for float16 arrays of 64×64."""
    api, driver = fake_driver(**{s.kernel: {"params": list(s.sizes)} for s in kernel.specs})
    api.contexts = [0xC0]
    kernel.module._using = driver
    args = [Foreign(0x10000 * (n + 1)) for n in range(len(kernel.given.params))]
    kernel.caller()(*args)
    assert api.launches
    return api.launches, api.encoded, api.limits_raised


class Foreign:
    def __init__(self, address):
        self.address = address

    def __dlpack_device__(self):
        return 2, 0

    def __dlpack__(self, stream=None):
        return export(self.address, (64, 64), dtype("float16"), (2, 0), self)


# ── hits ────────────────────────────────────────────────────────────────────────────────────


def test_cpu_hit():
    first = tw.compile(product(), target="cpu")
    again = tw.compile(product(), target="cpu")
    assert not from_disk(first) and from_disk(again)
    run_product(first)
    run_product(again)
    assert from_disk(again)
    assert again.get_kernel_source() == first.get_kernel_source() and from_disk(again)
    assert again.executable.assembly() == first.executable.assembly()
    for stage, _ in first.executable.trace:
        assert again.ir(stage) == first.ir(stage)
    assert again.explain() == first.explain()


def test_cpu_hit_with_sizes_known_at_launch():
    for _ in range(2):
        kernel = tw.compile(rows.prim_func(), target="cpu")
        x = np.linspace(-1, 1, 15, dtype="float32").reshape(5, 3)
        y = np.zeros_like(x)
        kernel(x, 2.0, y)
        np.testing.assert_allclose(y, 2 * np.exp(x), rtol=1e-5)
    assert from_disk(kernel)


def test_cuda_hit():
    first = tw.compile(product(), target="cuda")
    again = tw.compile(product(), target="cuda")
    assert not from_disk(first) and from_disk(again)
    one, other = first.executable, again.executable
    assert other.compiled == one.compiled and other.record == one.record
    assert [s.loc for s in other.specs] == [s.loc for s in one.specs]
    assert again.resources == first.resources and again.ptx == first.ptx
    assert again.get_kernel_source() == first.get_kernel_source() and from_disk(again)
    assert launched(one) == launched(other) and from_disk(again)
    for stage, _ in one.trace:
        assert again.ir(stage) == first.ir(stage)
    assert again.explain() == first.explain()


ALONE = """
import json, sys
import tilewright as tw
from zoo.gemm.gemm import gemm_relu
kernel = tw.compile(gemm_relu.prim_func(64, 64, 64, 32, 32, 32), target=sys.argv[1])
loaded = [m for m in sys.modules if m.startswith("cuda.")]
loaded += [m for m in sys.modules if m.endswith((".passes.run", ".emit", ".backend"))]
print(json.dumps([kernel.get_kernel_source(), sorted(loaded)]))
"""


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_another_process_loads_no_compiler(target, tmp_path):
    """Neither passes nor emitters nor NVRTC."""
    more = {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    said = []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", ALONE, target], capture_output=True, text=True, timeout=200,
            env={**os.environ, **more, "PYTHONHASHSEED": "0"},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        said.append(json.loads(done.stdout))
    (source, compiling), (again, loaded) = said
    if loaded and Sources(str(ROOT / "src" / "tilewright"), "").state().files() != FILES:
        pytest.skip("somebody is editing the compiler")
    assert "tilewright.passes.run" in compiling
    assert again == source and loaded == []


FILES = Sources(str(ROOT / "src" / "tilewright"), "").state().files()


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_a_hit_is_little_work(target):
    """Counted, not timed: 5,000 calls of Python functions are 1 ms to 2 ms."""
    tw.compile(product(), target=target)
    given, calls = product(), 0
    tw.compile(product(), target=target)  # imports

    def count(frame: FrameType, event: str, arg: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        kernel = tw.compile(given, target=target)
    finally:
        sys.setprofile(None)
    assert from_disk(kernel) and calls < 6000


# ── damage ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("damage", dict.fromkeys(DAMAGES), ids=lambda d: d.__name__)
def test_damage_means_another_compilation(damage, store):
    dice = random.Random(3)
    want = tw.compile(product(), target="cuda").executable.cubin
    run_product(tw.compile(product(), target="cpu"))
    for _ in range(3):
        for entry in store.entries():
            if entry.path.stat().st_size:
                damage(entry.path, dice)
        run_product(tw.compile(product(), target="cpu"))
        assert len(tw.compile(product(), target="cuda").executable.cubin) == len(want)
    assert from_disk(tw.compile(product(), target="cpu"))


@pytest.mark.parametrize("kind", ["kernel", "code"])
def test_entries_that_say_something_else(store, kind):
    """Whole, under the right key, and not what was expected: of another version, say."""
    for target in ("cpu", "cuda"):
        tw.compile(product(), target=target)
    for entry in store.entries():
        if entry.header["kind"] == kind:
            header, data = store.get(entry.key)
            for name in set(header) - {"kind", "made"}:
                less = {k: v for k, v in header.items() if k != name}
                store.put(entry.key, less, data)
                run_product(tw.compile(product(), target="cpu"))
                assert tw.compile(product(), target="cuda").executable.cubin
                store.put(entry.key, {**less, name: [1]}, data)
                assert tw.compile(product(), target="cuda").executable.cubin


def test_half_a_kernel(store):
    """The machine code went, what says how to launch it stayed."""
    tw.compile(product(), target="cuda")
    (code,) = [e for e in store.entries() if e.header["kind"] == "code"]
    code.path.unlink()
    assert not from_disk(tw.compile(product(), target="cuda"))
    assert from_disk(tw.compile(product(), target="cuda"))


# ── keys ────────────────────────────────────────────────────────────────────────────────────


def key(program, target="cuda", toolchain=None, lines=True):
    return entries.Kept(program, Target.parse(target), toolchain or {}, lines=lines).key


def moved_away(program):
    """The same text, of which a line stands elsewhere."""
    (kernel,) = program.kernels
    body = (replace(kernel.body[0], loc=Loc("x.py", 7)), *kernel.body[1:])
    return replace(program, kernels=(replace(kernel, body=body),))


def test_what_shapes_the_code_is_in_the_key(monkeypatch):
    program = product().program
    targets = ["cpu", "cuda", "cuda -arch=sm_80", "cuda -roles", "cuda -roles=off", "cuda -skew"]
    found = [key(program, target) for target in targets]
    hopper = Target.parse("cuda")
    (feature, *_) = sorted(hopper.features)
    found.append(key(program, hopper.without(feature)))
    found.append(key(product(M=128).program))
    found.append(key(program, toolchain={"nvrtc": "another"}))
    moved = moved_away(program)
    found.append(key(moved))
    assert print_program(moved) == print_program(program)
    monkeypatch.setenv("TILEWRIGHT_PRINT_LIMIT", "7")
    found.append(key(program))
    monkeypatch.setattr(Fixed, "digest", lambda *_: "another one")
    found.append(key(program))
    assert len(set(found)) == len(found)


def test_what_does_not_is_not():
    program = product().program
    assert key(product().program) == key(program)
    moved = moved_away(program)
    assert key(moved, lines=False) == key(program, lines=False)


# asked for by the compiler, or by what it made while it runs
ASKED = {"DUMP", "DIAGNOSTIC", "WAIT_SECONDS", "NUM_THREADS", "LIMITS"}


def test_flags_that_compilers_read():
    """Whoever lets a flag shape code says so where it is declared."""
    for room in ("ir", "passes", "targets"):
        for path in (ROOT / "src" / "tilewright" / room).rglob("*.py"):
            for name in re.findall(r"\benv\.([A-Z_]+)\b", path.read_text()):
                if name != "FLAGS":
                    assert getattr(env, name).shapes or name in ASKED, (path, name)


def test_another_nvrtc_compiles_again(monkeypatch, tmp_path):
    library = tmp_path / "libnvrtc.so"
    library.write_bytes(b"")
    status = library.stat()
    monkeypatch.setattr(nvrtc, "library", lambda: (str(library), 0, status.st_mtime_ns))
    tw.compile(product(), target="cuda")
    assert from_disk(tw.compile(product(), target="cuda"))
    library.write_bytes(b"newer")
    assert not from_disk(tw.compile(product(), target="cuda"))
    monkeypatch.setattr(nvrtc, "library", lambda: ("", 0, 0))
    tw.compile(product(), target="cuda")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/elsewhere")
    assert not from_disk(tw.compile(product(), target="cuda"))


def test_another_cpu_compiles_again(monkeypatch):
    from tilewright.targets.cpu import kernel

    tw.compile(product(), target="cpu")
    told = kernel.toolchain()
    assert {"llvmlite", "llvm", "cpu", "features", "triple"} <= set(told) and all(told.values())
    monkeypatch.setattr(kernel, "toolchain", lambda: {**told, "features": "+none"})
    assert not from_disk(tw.compile(product(), target="cpu"))


# ── sources ─────────────────────────────────────────────────────────────────────────────────


TEXTS = {
    "targets/cpu/kernel.py": "def build():\n    from tilewright.passes import (\n     one,\n    )",
    "targets/cpu/header.cuh": "// header",
    "targets/cuda/kernel.py": "from tilewright.passes import two\n",
    "passes/__init__.py": "",
    "passes/one.py": "from tilewright.ir.deep.below import name\n",
    "passes/two.py": "2",
    "ir/deep/__init__.py": "",
    "ir/deep/below.py": "name = 1",
    "runtime/above.py": "import tilewright.targets.cpu.kernel",
}


@pytest.fixture
def package(tmp_path):
    folder = tmp_path / "package"
    for name, text in TEXTS.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def later(package):
    """As a process sees them that imports them now."""
    return Sources(str(package), "targets/cpu/", since=2**63)


def pause():
    """The clock of files ticks, and folders that changed just now are not remembered."""
    time.sleep(2e-9 * sources._TICK)


def test_compilers_are_told_apart_by_their_files(package, store):
    first = later(package).digest(store)
    assert first is not None and later(package).digest(store) == first
    (package / "runtime" / "above.py").write_text("other")
    (package / "passes" / "two.py").write_text("another target's")
    (package / "passes" / "__pycache__").mkdir()
    (package / "passes" / "__pycache__" / "one.pyc").write_text("")
    assert later(package).digest(store) == first
    os.utime(package / "passes" / "one.py")
    assert later(package).digest(store) == first  # what counts is what it says
    header = package / "targets" / "cpu" / "header.cuh"
    header.write_text("// HEADER")
    second = later(package).digest(store)
    header.rename(package / "targets" / "cpu" / "renamed.cuh")
    assert len({first, second, later(package).digest(store)}) == 3


OTHERS = ("targets/cuda/kernel.py", "passes/two.py", "runtime/above.py")


@pytest.mark.parametrize("name", [name for name in TEXTS if name not in OTHERS])
def test_every_file_that_is_imported_counts(package, store, name):
    """Remembered or not, with its old size and time or not."""
    pause()
    first = later(package).digest(store)
    file = package / name
    text, old = file.read_text(), file.stat()
    file.write_text("#" + text[1:])
    os.utime(file, ns=(old.st_atime_ns, old.st_mtime_ns))
    assert later(package).digest(store) != first
    file.write_text(text)
    assert later(package).digest(store) == first


def test_files_are_remembered(package, store, monkeypatch):
    pause()
    first = later(package).digest(store)
    with monkeypatch.context() as patch:
        patch.setattr(Sources, "state", None)
        patch.setattr(Sources, "_contents", None)
        assert later(package).digest(store) == first
    for entry in store.entries():
        assert entry.header["kind"] == "sources"
        key, names = entry.key, entry.header["names"]
        for header, data in (
            ({}, b""),
            ({"names": names, "digest": "x"}, b"123"),
            ({"names": 1, "digest": "x"}, b""),
        ):
            store.put(key, header, data)
            assert later(package).digest(store) == first


@pytest.mark.parametrize(
    "name", ["targets/cpu/more.py", "passes/one/__init__.py", "passes/name.py"]
)
def test_files_that_come_are_seen(package, store, name):
    """In the target's folder, in place of an imported one, and one that was no module before."""
    (package / "targets" / "cpu" / "kernel.py").write_text(
        "from tilewright.passes import one, name"
    )
    pause()
    first = later(package).digest(store)
    (package / name).parent.mkdir(exist_ok=True)
    (package / name).write_text("1")
    second = later(package).digest(store)
    (package / name).unlink()
    assert second != first and later(package).digest(store) == first


def test_a_file_in_another_ones_place(package, store):
    """As an editor or an installer puts it there, with the time it had elsewhere."""
    file, new = package / "passes" / "one.py", package / "new.py"
    new.write_text(file.read_text().replace("name", "mane"))
    os.utime(new, ns=(file.stat().st_atime_ns, file.stat().st_mtime_ns))
    pause()
    first = later(package).digest(store)
    new.rename(file)
    assert later(package).digest(store) != first


def test_files_that_changed_under_a_process(package, store):
    """What it compiles is then neither the old compiler's code nor the new one's."""
    changed = (package / "passes" / "one.py").stat().st_ctime_ns
    old = Sources(str(package), "targets/cpu/", since=changed - 1)
    assert old.digest(store) is None
    sources_ = later(package)
    assert not sources_.unchanged()  # nothing is known yet
    assert sources_.digest(store) is not None and sources_.unchanged()
    (package / "passes" / "__pycache__").mkdir()
    assert sources_.unchanged()
    (package / "passes" / "one.py").write_text("new")
    assert not sources_.unchanged()
    assert Sources(str(package / "nothing"), "targets/cpu/").digest(store) is None


def test_files_that_changed_within_the_second_of_their_compiled_modules(package, store):
    """Python takes those for theirs where the size is the same."""
    file = package / "passes" / "one.py"
    second = 1_000_000_000
    compiled = Path(py_compile.compile(str(file), doraise=True))
    at = file.stat().st_mtime_ns // second * second
    os.utime(file, ns=(at, at + 300))
    os.utime(compiled, ns=(at, at + 200))
    assert later(package).digest(store) is None
    os.utime(compiled, ns=(at, at + 400))
    assert later(package).digest(store) is not None


def test_nothing_is_kept_by_a_compiler_that_changed(monkeypatch, store):
    monkeypatch.setattr(Fixed, "unchanged", lambda self: False)
    tw.compile(product(), target="cpu")
    assert store.size() == (0, 0)
    monkeypatch.setattr(Fixed, "digest", lambda *_: None)
    run_product(tw.compile(product(), target="cpu"))
    assert store.size() == (0, 0)


WANT = {
    "cpu": {
        "ir/op.py",
        "passes/run.py",
        "passes/canonicalize/fuse_maps.py",
        "support/cache.py",
    },
    "cuda": {
        "ir/op.py",
        "passes/run.py",
        "passes/overlap/roles.py",
        "targets/cuda/tilewright.cuh",
    },
}
BUILD = """
import sys
from tilewright.ir.target import Target
from tilewright.ir.text import parse_program
from tilewright.targets.{kind}.kernel import compile_program
text = "program p {{ param A: float32[4] global\\n kernel k grid b in 1 threads t in 32 {{" \
    "map i in 4 {{ A[i] = 1.0 }} }} }}"
kernel = compile_program(parse_program(text), Target.parse("{kind}"))
assert kernel.trace and kernel.source
for name, module in sys.modules.items():
    if name.startswith("tilewright."):
        print(module.__file__)
"""


@pytest.mark.parametrize("kind", WANT)
def test_our_own_files(kind, monkeypatch):
    """All that a process loads to compile is among them."""
    package = ROOT / "src" / "tilewright"
    own = sources.compiler(f"targets/{kind}/")
    assert own.package == str(package)
    names = set(own.state().names)
    assert WANT[kind] <= names
    assert not any(name.startswith(("runtime", "lang", "interp", "tools")) for name in names)
    data = {
        f for f, _ in FILES if not f.endswith(".py") and not f.startswith(("targets/", "tools/"))
    }
    # only a target's own folder, and tools, which compile nothing, may have what nobody imports
    assert data <= {"py.typed"}
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    done = subprocess.run(
        [sys.executable, "-c", BUILD.format(kind=kind)], capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    loaded = {str(Path(line).relative_to(package)) for line in done.stdout.splitlines()}
    assert len(loaded) > 40 and loaded <= names


@pytest.mark.parametrize("kind", WANT)
def test_imports_are_found_as_python_finds_them(kind):
    own = sources.compiler(f"targets/{kind}/")
    package = Path(own.package)
    names = set(own.state().names)
    for name in names:
        if not name.endswith(".py"):
            continue
        for node in ast.walk(ast.parse((package / name).read_text())):
            modules = []
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0 and node.module, f"{name}: {ast.unparse(node)}"
                modules = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            for module in (m for m in modules if m.startswith("tilewright.")):
                path = module.replace(".", "/").removeprefix("tilewright/")
                for file in (f"{path}.py", f"{path}/__init__.py"):
                    assert file in names or not (package / file).exists(), f"{name}: {module}"
        assert "import_module" not in (package / name).read_text()


# ── when it is not used ─────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_switched_off(target, monkeypatch, store):
    monkeypatch.setenv("TILEWRIGHT_CACHE", "0")
    for _ in range(2):
        assert not from_disk(tw.compile(product(), target=target))
    assert store.size() == (0, 0) and default_store() is None


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_dumps_are_of_passes_that_run(target, monkeypatch, tmp_path):
    tw.compile(product(), target=target)
    monkeypatch.setenv("TILEWRIGHT_DUMP", str(tmp_path / "dump"))
    kernel = tw.compile(product(), target=target)
    assert not from_disk(kernel)
    assert len(list((tmp_path / "dump").rglob("*.tw"))) == len(kernel.executable.trace)


def test_diagnostic_builds_are_not_kept(store):
    for _ in range(2):
        kernel = tw.compile(product(), target="cuda -diagnostic")
        assert not from_disk(kernel)
    assert all(entry.header["kind"] == "code" for entry in store.entries())


def test_kernels_that_report_are_compiled(capsys):
    @T.prim_func
    def main(X: T.Tensor((4,), "float32")):
        with T.Kernel(1, threads=32) as bx:
            T.device_assert(X[0] < 5, "too much")
            X[1] = X[0]

    for _ in range(2):
        kernel = tw.compile(main, target="cpu")
        kernel(np.array([1, 2, 3, 4], "float32"))
        with pytest.raises(tw.RunError, match="too much"):
            kernel(np.array([9, 2, 3, 4], "float32"))


def test_a_cache_that_cannot_be_written(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "file" / "cache"))
    run_product(tw.compile(product(), target="cpu"))
    assert tw.compile(product(), target="cuda").executable.cubin


# ── records ─────────────────────────────────────────────────────────────────────────────────

# those that are plain are for the interpreter: what others are compared with
PROGRAMS = sorted(
    path for path in (ROOT / "tests" / "schedules").glob("*.tw") if not path.stem.endswith("_plain")
)


def recorded(program, target="cuda") -> Record:
    trace = backend.lower(program, Target.parse(target))
    emitted = backend.emit_program(trace.result)
    spilling = {source.name: nvrtc.Resources(255, spill_bytes=8) for source in emitted.kernels}
    code = nvrtc.CompiledCuda(program.name, target, b"", "", "", spilling)
    record = backend.Built(trace, emitted, code).record(program)
    assert sum("8 bytes of register spills" in cost.text for cost in record.costs) == len(spilling)
    return record


def same_again(record: Record) -> None:
    text: Any = json.loads(json.dumps(record.to_json()))
    again = Record.from_json(text)
    assert again == record and [s.loc for s in again.specs] == [s.loc for s in record.specs]


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda p: p.stem)
def test_records_of_schedules(path):
    same_again(recorded(parse_program(path.read_text(), path.name)))


TWO = """program two {
  dim n min=1 multiple_of=8
  param A: float16[n, 64] global strides=[128, 1]
  param count: int32
  param B: float32[n] global
  scratch W: float32[n // 8 + 1, 3] global
  kernel one grid b in (n + 31) // 32 + count threads t in 32 {
    if b * 32 + t < n { W[b, 0] = float32(A[b * 32 + t, 1]) }
  }
  kernel other grid (b, c) in (n, 2) threads t in 32 {
    if t == 0 { B[b] = W[b // 8, c] }
  }
}"""


def test_records_of_sizes_and_scratch():
    record = recorded(parse_program(TWO, "two.tw"))
    same_again(record)
    assert len(record.specs) == 2 and [b.name for b in record.scratch] == ["W"]


def test_records_of_derived_kernels():
    same_again(recorded(product(256, 256, 256).program))
    same_again(recorded(rows.prim_func().program))


def test_a_record_that_cannot_be_kept(monkeypatch, store):
    """Then the passes run each time."""
    monkeypatch.setattr(cuda.Record, "from_json", staticmethod(lambda value: None))
    for _ in range(2):
        assert not from_disk(tw.compile(product(), target="cuda"))
    assert all(entry.header["kind"] == "code" for entry in store.entries())


def test_what_the_assembler_serialized_is_remembered(monkeypatch):
    compile_cuda = backend.compile_cuda

    def strict(source, *args, **kwargs):
        if "wgmma" in source:
            raise nvrtc.Serialized("the assembler could not keep main.cu: (C7514) …", fix="wait")
        return compile_cuda(source, *args, **kwargs)

    monkeypatch.setattr(backend, "compile_cuda", strict)
    given = gemm_relu.prim_func(128, 128, 64)
    first, again = (tw.compile(given, target="cuda") for _ in range(2))
    assert from_disk(again) and "mma.sync" in again.ptx
    said, before = again.executable.serialized, first.executable.serialized
    assert (said.message, said.fix) == (before.message, "wait")
    assert again.explain() == first.explain() and "not wgmma" in again.explain()
