"""The host's compiler, and what is compiled once for all kernels."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

from devtools.host.asm import HERE, translated
from tilewright.targets.cuda.backend import headers
from tilewright.targets.cuda.emit import HEADER

UNITS = ("threads", "copies")
PARTS = ("threads.h", "blocks.h", "cuda.h", "ptx.h", *(f"{name}.cpp" for name in UNITS))
# Rounded once per operation, as the interpreter does; what nobody wrote is no number.
FLAGS = (
    "-std=c++20", "-O1", "-w", "-ffp-contract=off", "-fno-strict-aliasing",
    "-ftrivial-auto-var-init=pattern", "-fno-sanitize-recover=all",
    "-fsanitize=signed-integer-overflow,shift,integer-divide-by-zero,float-cast-overflow,bounds,"
    "alignment,bool,enum,return,unreachable,builtin",
)  # fmt: skip
KEPT = 16  # folders on this machine, of some 30 MB
# Fibers jump between stacks, which the checks that some compilers turn on take for an error.
RUNTIME = ("-std=c++20", "-O2", "-w", "-U_FORTIFY_SOURCE")
_SHARED = "extern __shared__ __align__(1024) uint8_t shared[];"


class NoCompiler(Exception):
    """There is no C++ compiler on this machine."""


class NotForHost(Exception):
    """The host's compiler refuses a source."""


@cache
def compiler() -> str:
    """The C++ compiler: `CXX`, g++ or clang++."""
    for name in (os.environ.get("CXX", ""), "g++", "clang++"):
        found = shutil.which(name) if name else None
        if found:
            return found
    raise NoCompiler("no C++ compiler (g++ or clang++) is found: emitted sources are not run here")


def _run(command: Sequence[str], text: str | None = None) -> str:
    done = subprocess.run(command, input=text, capture_output=True, text=True)
    if done.returncode:
        raise NotForHost(f"{' '.join(command)}\n{done.stderr[:4000]}")
    return done.stdout


Fill = Callable[[Path], None]


def _kept(inputs: Sequence[str], fill: Fill) -> Path:
    """The folder that `fill` makes of `inputs`, made once on this machine."""
    text = "\0".join([_run([compiler(), "--version"]), *inputs])
    folder = _room() / hashlib.sha256(text.encode()).hexdigest()[:20]
    if folder.exists():
        folder.touch()
        return folder
    for old in sorted(_room().iterdir(), key=lambda f: f.stat().st_mtime)[:-KEPT]:
        shutil.rmtree(old, ignore_errors=True)
    made = Path(tempfile.mkdtemp(prefix="new-", dir=folder.parent))
    try:
        fill(made)
        made.rename(folder)
    except OSError:  # somebody else was faster
        if not folder.exists():
            raise
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return folder


@cache
def objects() -> tuple[str, ...]:
    """The fibers, compiled."""

    def fill(made: Path) -> None:
        for name in UNITS:
            source = HERE / f"{name}.cpp"
            _run([compiler(), *RUNTIME, "-c", str(source), "-o", str(made / f"{name}.o")])

    folder = _kept([*RUNTIME, *((HERE / name).read_text() for name in PARTS)], fill)
    return tuple(str(folder / f"{name}.o") for name in UNITS)


@cache
def prepared(arch: int, replaced: tuple[tuple[str, str], ...] = ()) -> Path:
    """The folder of the header that kernels of `arch` (800, 900) include, precompiled.
    `replaced`: the texts of headers that are others than the package's."""
    texts = {**headers(), **dict(replaced)}

    def fill(made: Path) -> None:
        for name in PARTS:
            shutil.copy(HERE / name, made / name)
        for name, text in texts.items():
            (made / name).write_text(text)
        flags = ["-D__CUDACC_RTC__", f"-D__CUDA_ARCH__={arch}", "-nostdinc", "-x", "c++"]
        header = _run([compiler(), "-E", *flags, str(made / HEADER)])
        header = re.sub(r"^#pragma once$", "", header, flags=re.M).replace(f"{made}/", "")
        prelude = [
            '#include "ptx.h"',
            f"#define __CUDA_ARCH__ {arch}",
            translated(header),
            "#define TW_DEVICE __device__ __forceinline__",
            _CALL,
        ]
        whole, to = made / "prelude.h", made / "prelude.h.gch"
        whole.write_text("\n".join(prelude))
        _run([compiler(), *FLAGS, "-x", "c++-header", str(whole), "-o", str(to)])

    own = [(HERE / name).read_text() for name in (*PARTS, "asm.py", "build.py")]
    return _kept([str(arch), *FLAGS, *own, *texts.values()], fill)


def _room() -> Path:
    """A folder of the user's own."""
    room = Path(tempfile.gettempdir()) / f"tilewright-host-{os.getuid()}"
    room.mkdir(mode=0o700, exist_ok=True)
    if room.stat().st_uid != os.getuid():
        raise NoCompiler(f"{room} belongs to somebody else: emitted sources are not run here")
    return room


_CALL = """
namespace host {
template <class... P, size_t... I>
void call(void (*kernel)(P...), char* const* given, std::integer_sequence<size_t, I...>) {
  kernel(*reinterpret_cast<std::remove_cv_t<P>*>(given[I])...);
}
template <class... P>
void call(void (*kernel)(P...), char* const* given) {
  call(kernel, given, std::make_index_sequence<sizeof...(P)>());
}
}  // namespace host
"""


def host_text(source: str, kernels: Sequence[str]) -> str:
    """An emitted source as a program of the host."""
    text = source.replace(f'#include "{HEADER}"', "").replace(
        _SHARED, "uint8_t* const shared = host::shared();"
    )
    # a loop may wait for what another thread writes
    text = re.sub(r"^(\s*)while \((.*)\) \{$", r"\1while (host::turn(), \2) {", text, flags=re.M)
    rows = ", ".join(
        f'{{"{n}", [](char* const* given) {{ host::call({n}, given); }}}}' for n in kernels
    )
    return "\n".join([
        '#include "prelude.h"',
        translated(text),
        '#line 1 "main"',
        f"static const host::Kernel kernels[] = {{{rows}}};",
        "int main(int count, char** words) { return host::main(count, words, kernels); }",
        "",
    ])  # fmt: skip


def compiled(
    source: str, kernels: Sequence[str], arch: int, into: Path,
    replaced: tuple[tuple[str, str], ...] = (),
) -> Path:  # fmt: skip
    """The program of an emitted source, in folder `into`."""
    folder = prepared(arch, replaced)
    text, program = into / "kernel.cpp", into / "kernel"
    text.write_text(host_text(source, kernels))
    _run([compiler(), *FLAGS, f"-I{folder}", str(text), *objects(), "-o", str(program)])
    return program
