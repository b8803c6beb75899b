"""Imports point one way:
support ← ir ← {lang, passes, machine} ← targets ← {choose, inspect} ← runtime ←
{tune, formula} ← {frameworks, ops} ← tools.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from devtools.imports import drawing, files
from devtools.imports import imports as nodes

ROOT = Path(__file__).resolve().parents[1]
SRC = ROOT / "src"

ORDER = [
    ["support"],
    ["ir"],
    ["lang", "passes", "machine"],
    ["targets"],
    ["choose", "inspect"],
    ["runtime"],
    ["tune", "formula"],
    ["frameworks", "ops"],
    ["tools"],
]
BELOW = {
    room: {below for row in ORDER[:depth] for below in row}
    for depth, rooms in enumerate(ORDER)
    for room in rooms
}
PUBLIC = {
    "tilewright", "tilewright.autotuner", "tilewright.language", "tilewright.layout",
    "tilewright.interp", "tilewright.jax", "tilewright.math", "tilewright.profiler",
    "tilewright.torch",
}  # fmt: skip
TEXTS = {"ops"}  # written in public words, as a user's would be
# The wheel holds none of these.
OUTSIDE = {"devtools", "zoo", "tests", "examples", "benchmarks"}
HEAVY = {"torch", "jax", "cupy", "llvmlite", "hypothesis", "click", "rich", "matplotlib"}


def absolute(module: str, level: int, package: list[str]) -> str:
    """`from ..ir import x` in tilewright.passes → tilewright.ir."""
    if level == 0:
        return module
    base = package[: max(0, len(package) - level + 1)]
    return ".".join([*base, *filter(None, [module])])


def split_root(module: str, names: list[str]) -> Iterator[str]:
    """`from tilewright import ir, jit` means tilewright.ir and the root package itself."""
    if module != "tilewright":
        yield module
        return
    for name in names:
        is_module = name in BELOW or f"tilewright.{name}" in PUBLIC
        yield f"tilewright.{name}" if is_module else module


def imports(path: Path, base: Path) -> Iterator[tuple[int, str]]:
    """(line, absolute module) of every import in the file, at any depth."""
    package = list(path.relative_to(base).parent.parts)
    for node in nodes(path.read_text(encoding="utf-8")):
        match node:
            case ast.Import(names=names):
                for alias in names:
                    yield node.lineno, alias.name
            case ast.ImportFrom(module=module, names=names, level=level):
                source = absolute(module or "", level, package)
                for target in split_root(source, [alias.name for alias in names]):
                    yield node.lineno, target
            case ast.Call(
                func=ast.Name(id="import_module" | "__import__")
                | ast.Attribute(attr="import_module"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                module = name.lstrip(".")
                yield node.lineno, absolute(module, len(name) - len(module), package)


def refuse_in_package(room: str | None, module: str) -> str | None:
    """Why a file of `room` (None: a top-level module) may not import `module`."""
    top, _, rest = module.partition(".")
    if top in OUTSIDE:
        return f"the package may not import {module}: it is not in the wheel"
    if top != "tilewright" or room is None:
        return None
    target = rest.partition(".")[0]
    if target == room or target in BELOW[room] or (room in TEXTS and module in PUBLIC):
        return None
    if target not in BELOW:
        return f"{room} may not import the public module {module}: import the room that defines it"
    return f"{room} may not import {module}: {target} is not below {room}"


def check_package(src: Path) -> list[str]:
    found = []
    for path in sorted((src / "tilewright").rglob("*.py")):
        parts = path.relative_to(src / "tilewright").parts
        room = parts[0] if len(parts) > 1 else None
        if room is not None and room not in BELOW:
            found.append(f"{path.relative_to(src)}:1: no such room: {room}")
            continue
        for line, module in imports(path, src):
            if reason := refuse_in_package(room, module):
                found.append(f"{path.relative_to(src)}:{line}: {reason}")
    return found


def files_in_a_circle(src: Path) -> list[str]:
    """Files that import each other, however late: the first circle, or nothing."""
    try:
        TopologicalSorter(files(src)).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def check_zoo(root: Path) -> list[str]:
    return [
        f"{path.relative_to(root)}:{line}: zoo may not import {module}: "
        f"only {', '.join(sorted(PUBLIC))} are public"
        for path in sorted((root / "zoo").rglob("*.py"))
        for line, module in imports(path, root)
        if module.partition(".")[0] == "tilewright" and module not in PUBLIC
    ]


def test_package_imports_point_down() -> None:
    found = check_package(SRC)
    assert not found, "\n" + "\n".join(found)


def test_no_files_import_each_other() -> None:
    assert not files_in_a_circle(SRC)


def test_the_drawing_is_current() -> None:
    drawn = (ROOT / "docs" / "imports.svg").read_text(encoding="utf-8")
    assert drawn == drawing(SRC), "python -m devtools imports docs/imports.svg"


def test_files_that_import_each_other_are_found(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("def f():\n    import b\n")
    (tmp_path / "b.py").write_text("if TYPE_CHECKING:\n    import a\n")
    assert set(files_in_a_circle(tmp_path)) == {"a", "b"}


def test_zoo_imports_public_names_only() -> None:
    found = check_zoo(ROOT)
    assert not found, "\n" + "\n".join(found)


def test_import_is_light() -> None:
    package = SRC / "tilewright"
    if not (package / "__init__.py").exists():
        pytest.skip("src/tilewright/__init__.py does not exist yet")
    modules = [
        m
        for m in sorted(PUBLIC)
        if m != "tilewright.torch"  # which registers itself with PyTorch
        if m == "tilewright" or (SRC / (m.replace(".", "/") + ".py")).exists()
    ]
    code = (
        "import sys; before = set(sys.modules)\n"
        f"import {', '.join(modules)}\n"
        "print(*{name.partition('.')[0] for name in set(sys.modules) - before})"
    )
    path = os.pathsep.join(filter(None, [str(SRC), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert done.returncode == 0, done.stderr
    assert not HEAVY & set(done.stdout.split())


UPWARD = [
    ("ir/a.py", "import tilewright.passes.fuse"),
    ("ir/a.py", "from tilewright.passes import fuse"),
    ("ir/a.py", "from tilewright import support, passes"),
    ("ir/a.py", "from ..passes import fuse"),
    ("ir/a.py", "from .. import passes"),
    ("ir/__init__.py", "from ..lang import trace"),
    ("ir/a.py", "def f():\n    from ..passes.fuse import fuse"),
    ("ir/a.py", "if TYPE_CHECKING:\n    from tilewright.lang import trace"),
    ("ir/a.py", "importlib.import_module('tilewright.passes')"),
    ("ir/a.py", "import_module('..passes', __package__)"),
    ("lang/a.py", "from ..machine import run"),
    ("passes/a.py", "from ..lang import trace"),
    ("interp/a.py", "from ..passes import fuse"),
    ("targets/cuda/a.py", "from ...runtime import jit"),
    ("runtime/a.py", "from ..tools import cli"),
    ("tools/a.py", "import tilewright"),
    ("tools/a.py", "from tilewright import jit"),
    ("tools/a.py", "from .. import __version__"),
    ("tools/a.py", "import tilewright.language as T"),
    ("tools/a.py", "from ..layout import Layout"),
    ("tools/a.py", "import zoo.gemm"),
    ("extra/a.py", ""),
]
DOWNWARD = [
    ("ir/a.py", "import numpy\nfrom ..support import errors\nfrom . import expr\nfrom .b import c"),
    ("ir/__init__.py", "from .expr import Expr\nfrom ..support.errors import Loc"),
    ("targets/cuda/a.py", "from ..cpu import x\nfrom ...passes import fuse\nfrom . import emit"),
    ("ops/a.py", "import tilewright as tw, tilewright.math as tm\nfrom ..formula import function"),
    ("tools/a.py", "from .. import runtime, ir\nfrom tilewright.targets.cpu import emit"),
    ("__init__.py", "from .runtime import jit\nfrom . import language"),
    ("language.py", "from tilewright.lang import copy\nfrom . import layout"),
]
IN_ZOO_REFUSED = [
    "import tilewright.ir",
    "from tilewright import runtime",
    "from tilewright.lang.trace import x",
]
IN_ZOO_ALLOWED = [
    "import numpy, torch\nfrom zoo.gemm import matmul\nfrom . import reference",
    "import tilewright as tw\nimport tilewright.language as T\nfrom tilewright import jit, layout",
]


def plant(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True)
    path.write_text(text)


@pytest.mark.parametrize(("path", "text"), UPWARD)
def test_checker_refuses(tmp_path: Path, path: str, text: str) -> None:
    plant(tmp_path / "tilewright" / path, text)
    (found,) = check_package(tmp_path)
    assert found.startswith(f"tilewright/{path}:{max(1, len(text.splitlines()))}: ")


@pytest.mark.parametrize(("path", "text"), DOWNWARD)
def test_checker_allows(tmp_path: Path, path: str, text: str) -> None:
    plant(tmp_path / "tilewright" / path, text)
    assert check_package(tmp_path) == []


@pytest.mark.parametrize("text", IN_ZOO_REFUSED)
def test_zoo_checker_refuses(tmp_path: Path, text: str) -> None:
    plant(tmp_path / "zoo/gemm/a.py", text)
    (found,) = check_zoo(tmp_path)
    assert found.startswith("zoo/gemm/a.py:1: zoo may not import tilewright.")


@pytest.mark.parametrize("text", IN_ZOO_ALLOWED)
def test_zoo_checker_allows(tmp_path: Path, text: str) -> None:
    plant(tmp_path / "zoo/gemm/a.py", text)
    assert check_zoo(tmp_path) == []
