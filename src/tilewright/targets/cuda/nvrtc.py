"""CUDA C++ to machine code with NVRTC, and what its assembler says about the result."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from types import ModuleType
from typing import Any

from tilewright.ir.chips import PTX, machine_arch
from tilewright.support.cache import UNREADABLE, Store, default_store, digest
from tilewright.support.errors import CompileError, Loc
from tilewright.targets.cuda.names import quoted_path
from tilewright.targets.entries import from_json, to_json

INSTALL = "pip install 'tilewright[cuda]'"

# What the assembler's codes mean for us, and what to do about them.
CODES: dict[str, str] = {
    "C7508": "give __launch_bounds__(threads, 1), and each role one branch of a single if/else",
    "C7510": "inline every call made while matrix instructions are open",
    "C7511": "use fewer accumulators, and write none of them between instructions",
    "C7512": "use smaller tiles, or wait for products before the next iteration begins",
    "C7513": "wait for products before threads write what the next one reads from registers",
    "C7514": "wait before reading the accumulator",
    "C7515": "unroll, so that no branch chooses the accumulator",
    "C7517": "emit the wait before the first reader",
    "C7519": "emit wgmma.fence before the first instruction that uses these registers",
}


@dataclass(frozen=True)
class Resources:
    """What one kernel takes: `max_threads` is its launch bound (0: none), `params` the bytes of
    each parameter."""

    registers: int
    spill_bytes: int = 0
    local_bytes: int = 0
    static_shared: int = 0
    max_threads: int = 0
    params: tuple[int, ...] = ()


@dataclass(frozen=True)
class Complaint:
    """An assembler message with a C75xx code; `where` is the source line it comes from."""

    code: str
    text: str
    where: str = ""

    def __str__(self) -> str:
        return f"({self.code}) {self.text}" + (f" [{self.where}]" if self.where else "")


@dataclass(frozen=True)
class CompiledCuda:
    """Machine code with its PTX, the compilers' log and each kernel's resources."""

    name: str
    arch: str
    cubin: bytes = field(repr=False)
    ptx: str = field(repr=False)
    log: str = field(repr=False)
    resources: dict[str, Resources]
    warnings: tuple[Complaint, ...] = ()
    key: str = field(default="", compare=False, repr=False)  # where the cache has it

    @property
    def image(self) -> bytes:
        """What a driver loads: the machine code, or PTX that it finishes."""
        return self.ptx.encode() + b"\0" if self.arch.startswith(PTX) else self.cubin

    def problems(self) -> list[str]:
        """Why this is no fast code: assembler warnings, spills, local memory. Empty is good."""
        found = [str(w) for w in self.warnings]
        for kernel, r in self.resources.items():
            if r.spill_bytes:
                found.append(f"{kernel}: {r.spill_bytes} bytes of register spills")
            elif r.local_bytes:
                found.append(f"{kernel}: {r.local_bytes} bytes of local memory")
        return found


def compile_cuda(
    source: str,
    name: str,
    arch: str,
    options: Sequence[str] = (),
    headers: Mapping[str, str] | None = None,
    *,
    diagnostic: bool = False,
    store: Store | None = None,
) -> CompiledCuda:
    """Compile `source` for `arch`, `sm_90a` or `compute_90` (PTX, with the figures of machine code
    for sm_90); `headers` maps include names to their text.

    A C75xx message of the assembler is an error unless this is a diagnostic build. Results come
    from and go to `store`, by default the user's cache.
    """
    headers = dict(sorted((headers or {}).items()))
    machine = machine_arch(arch)
    flags = [f"--gpu-architecture={machine}", "--std=c++17", "--ptxas-options=-v", *options]
    if not {"-G", "--device-debug"} & set(flags) and _names_lines():
        flags.insert(1, "--generate-line-info")
    store = store or default_store()
    key = digest(
        {
            "format": 4,
            "tilewright": getattr(sys.modules.get("tilewright"), "__version__", ""),
            "nvrtc": nvrtc_version(),
            "source": source,
            "name": name,
            "arch": arch,
            "flags": flags,
            "headers": headers,
        }
    )
    compiled = None if store is None else load(store, key)
    if compiled is None:
        cubin, ptx, log = _run(source, name, flags, headers)
        compiled = CompiledCuda(
            name, arch, cubin, ptx, log, read_resources(log, ptx), read_warnings(log, ptx)
        )
        if store is not None and _save(store, key, compiled):
            compiled = replace(compiled, key=key)
    if compiled.warnings and not diagnostic:
        raise _refusal(compiled)
    return compiled


def _names_lines() -> bool:
    """Whether PTX can name the current folder, as NVRTC has it do with line information."""
    try:
        file = os.path.join(os.getcwd(), "main.cu")
    except OSError:  # it was removed
        return True
    return quoted_path(file) == file.replace(os.sep, "/")


NO_WARPGROUPS = "no warpgroups"  # a remedy: products by single warps, which nothing serializes


class Serialized(CompileError):
    """The assembler kept the meaning of a kernel, but not the overlap of its products."""


@dataclass(frozen=True)
class Remedied:
    """What the assembler said against products by warpgroups, and what helped."""

    message: str
    fix: str
    remedy: str


def _refusal(compiled: CompiledCuda) -> Serialized:
    first = compiled.warnings[0]
    return Serialized(
        f"the assembler could not keep {compiled.name} as it was written: {first}",
        expected="no C75xx message: each of them costs most of the matrix units' speed",
        notes=tuple(str(w) for w in compiled.warnings[1:]),
        fix=CODES.get(first.code, ""),
    )


# ---------------------------------------------------------------------------------- the store


def _save(store: Store, key: str, compiled: CompiledCuda) -> bool:
    texts = [compiled.ptx.encode(), compiled.log.encode()]
    header = {
        "kind": "code",
        "kernel": compiled.name,
        "target": compiled.arch,
        "cubin": len(compiled.cubin),
        "ptx": len(texts[0]),
        "found": to_json((compiled.resources, compiled.warnings)),
    }
    return store.put(key, header, b"".join([compiled.cubin, *texts]))


def load(store: Store, key: str) -> CompiledCuda | None:
    """What `compile_cuda` has stored under `key`."""
    entry = store.get(key)
    if entry is None:
        return None
    header, data = entry
    try:
        name, arch = header["kernel"], header["target"]
        if not (isinstance(name, str) and isinstance(arch, str)):
            return None
        start, end = header["cubin"], header["cubin"] + header["ptx"]
        texts = data[start:end].decode(), data[end:].decode()
        resources, warnings = from_json(header["found"], Resources, Complaint)
        return CompiledCuda(name, arch, data[:start], *texts, resources, warnings, key)
    except UNREADABLE:
        return None


# ------------------------------------------------------------------------------------ running


class NoCompiler(CompileError):
    """NVRTC is not installed."""

    code = "nvrtc"


@cache
def _nvrtc() -> ModuleType:
    try:
        from cuda.bindings import nvrtc

        nvrtc.nvrtcVersion()  # loads the library
    except (ImportError, RuntimeError) as error:
        raise NoCompiler(
            "compiling for CUDA needs NVRTC, NVIDIA's run-time compiler",
            got=str(error).partition("\n")[0],
            fix=INSTALL,
        ) from None
    module: ModuleType = nvrtc
    return module


@cache
def nvrtc_version() -> str:
    """Version and size of the library in use: patch releases share a version number."""
    _, major, minor = _nvrtc().nvrtcVersion()
    return f"{major}.{minor}/{library()[1]}"


@cache
def library() -> tuple[str, int, int]:
    """Path, size and time of the library in use; '', 0, 0 if nobody knows."""
    try:
        from cuda.pathfinder import load_nvidia_dynamic_lib

        path = str(load_nvidia_dynamic_lib("nvrtc").abs_path)
        status = os.stat(path)
    except (ImportError, OSError, RuntimeError, TypeError):
        return "", 0, 0
    return path, status.st_size, status.st_mtime_ns


def is_there(known: Sequence[Any]) -> bool:
    """Whether the library that `library` once described still is what it was."""
    path, size, time = known
    try:
        status = os.stat(path) if path else None
    except OSError:
        return False
    return status is None or (status.st_size, status.st_mtime_ns) == (size, time)


# what decides which library is found
_SEARCHED = ("LD_PRELOAD", "LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH", "CONDA_PREFIX")
_PACKAGES = ("nvidia_cuda_nvrtc", "cuda_bindings")


def installed() -> dict[str, Any]:
    """What can be said about the library without loading it: the packages that bring one, and
    where it would be looked for."""
    return {
        "prefix": sys.prefix,
        "packages": _packages(tuple(sys.path)),
        "searched": [os.environ.get(name, "") for name in _SEARCHED],
    }


@cache
def _packages(folders: Sequence[str]) -> list[str]:
    found = []
    for folder in folders:
        if folder.endswith("-packages") and os.path.isdir(folder):
            names = (name for name in os.listdir(folder) if name.endswith(".dist-info"))
            found += [name for name in names if name.startswith(_PACKAGES)]
    return sorted(found)


def _run(
    source: str, name: str, flags: Sequence[str], headers: Mapping[str, str]
) -> tuple[bytes, str, str]:
    nvrtc = _nvrtc()
    text = [h.encode() for h in headers.values()]
    names = [n.encode() for n in headers]
    program = _call(
        nvrtc.nvrtcCreateProgram(source.encode(), name.encode(), len(text), text, names)
    )
    try:
        # what its own cache answers comes without the assembler's report
        _, major, _ = nvrtc.nvrtcVersion()
        options = [*flags, *["--no-cache"] * (major >= 13)]
        (status,) = nvrtc.nvrtcCompileProgram(program, len(options), [f.encode() for f in options])
        log = _text(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program)
        if int(status):
            if "invalid value for --gpu-architecture" in log:
                raise _unknown_arch(flags[0].partition("=")[2])
            raise _failure(name, log or str(status))
        ptx = _text(nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX, program)
        cubin = _bytes(nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN, program)
    finally:
        nvrtc.nvrtcDestroyProgram(program)
    return cubin, ptx, log


def _call(result: tuple[Any, ...]) -> Any:
    status, *values = result
    if int(status):
        raise CompileError(f"NVRTC failed: {status.name}")
    return values[0] if values else None


def _bytes(size: Any, get: Any, program: Any) -> bytes:
    buffer: bytes = b" " * _call(size(program))
    _call(get(program, buffer))
    return buffer


def _text(size: Any, get: Any, program: Any) -> str:
    return _bytes(size, get, program).rstrip(b"\0").decode(errors="replace").strip()


def supported_archs() -> list[str]:
    """The architectures this NVRTC compiles for, without the suffixes of features."""
    return [f"sm_{number}" for number in _call(_nvrtc().nvrtcGetSupportedArchs())]


def _unknown_arch(arch: str) -> CompileError:
    """The library is older than the chip."""
    version, _, _ = nvrtc_version().partition("/")
    known = supported_archs()
    return CompileError(
        f"NVRTC {version} does not know {arch}",
        expected="one of " + ", ".join(known),
        fix="install a newer one (pip install -U nvidia-cuda-nvrtc), or compile PTX for the driver "
        f'to finish: target="cuda -arch={PTX}{known[-1].removeprefix("sm_")}"',
        code="target",
    )


_ERROR = re.compile(r"^(?P<file>.+?)\((?P<line>\d+)\): (?:catastrophic )?error: (?P<text>.*)$")
_PTXAS_ERROR = re.compile(r"^\s*ptxas .*?(?:error|fatal)\s*: (?P<text>.*)$")


def _failure(name: str, log: str) -> CompileError:
    lines = log.splitlines()
    for line in lines:
        if match := _ERROR.match(line):
            return CompileError(
                f"generated CUDA does not compile: {match['text']}",
                loc=Loc(match["file"], int(match["line"])),
                notes=(log,),
            )
    for line in lines:
        if match := _PTXAS_ERROR.match(line):
            return CompileError(f"{name} does not assemble: {match['text']}", notes=(log,))
    return CompileError(f"{name} does not compile", notes=(log,))


# ------------------------------------------------------------------------- reading the reports

_ENTRY = re.compile(r"Compiling entry function '(\w+)'")
_PROPERTIES = re.compile(r"Function properties for (\w+)")
_FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")
_STACK = re.compile(r"(\d+) bytes cumulative stack size")
_CODE = re.compile(r"\((C75\d\d)\) (.*)$")
_LINE = re.compile(r"\bline (\d+)\b")


def read_resources(log: str, ptx: str) -> dict[str, Resources]:
    """Each kernel's figures from the assembler's `-v` report and the PTX.

    Functions that were not inlined report a frame of their own; the kernel's cumulative stack
    covers them.
    """
    found: dict[str, Resources] = {}
    bounds = read_entries(ptx)
    entry, function, spill, local = "", "", 0, 0
    for line in log.splitlines():
        if match := _ENTRY.search(line):
            entry, spill, local = match[1], 0, 0
        elif match := _PROPERTIES.search(line):
            function = match[1]
        elif match := _FRAME.search(line):
            if function == entry:
                local = int(match[1])
                spill = int(match[2]) + int(match[3])
        elif entry and (match := _USED.search(line)):
            shared, stack = _SHARED.search(line), _STACK.search(line)
            threads, params = bounds.get(entry, (0, ()))
            found[entry] = Resources(
                registers=int(match[1]),
                spill_bytes=spill,
                local_bytes=max(local, int(stack[1]) if stack else 0),
                static_shared=int(shared[1]) if shared else 0,
                max_threads=threads,
                params=params,
            )
    return found


def read_warnings(log: str, ptx: str) -> tuple[Complaint, ...]:
    """The C75xx messages, each with the source line its PTX line came from."""
    found = []
    for line in log.splitlines():
        if match := _CODE.search(line):
            at = _LINE.search(match[2])
            where = source_line(ptx, int(at[1])) if at else ""
            found.append(Complaint(match[1], match[2].strip(), where))
    return tuple(dict.fromkeys(found))


_LOC = re.compile(r"^\s*\.loc\s+(\d+)\s+(\d+)")
_FILE = re.compile(r'^\s*\.file\s+(\d+)\s+"([^"]*)"', re.M)


def source_line(ptx: str, number: int) -> str:
    """`file:line` of the source behind a line of PTX, or '' without line information."""
    files = dict(_FILE.findall(ptx))
    for line in reversed(ptx.splitlines()[:number]):
        if match := _LOC.match(line):
            return f"{files.get(match[1], '?')}:{match[2]}"
    return ""


_ENTRY_HEAD = re.compile(r"\.entry\s+(\w+)\s*(?:\(([^)]*)\))?([^{]*)\{")
_PARAM = re.compile(r"\.param\s+(?:\.align\s+\d+\s+)?\.[a-z](\d+)[^\[,]*?(?:\[(\d+)\])?\s*(?:,|$)")
_NTID = re.compile(r"\.(?:max|req)ntid\s+([\d, ]+)")


def read_entries(ptx: str) -> dict[str, tuple[int, tuple[int, ...]]]:
    """Kernel → (launch bound in threads or 0, bytes of each parameter), from its PTX header."""
    found = {}
    for name, params, directives in _ENTRY_HEAD.findall(ptx):
        sizes = []
        for part in (params or "").split(","):
            if match := _PARAM.search(part.strip()):
                sizes.append(int(match[1]) // 8 * int(match[2] or 1))
        threads = 0
        if match := _NTID.search(directives):
            threads = 1
            for extent in match[1].split(","):
                threads *= int(extent)
        found[name] = (threads, tuple(sizes))
    return found
