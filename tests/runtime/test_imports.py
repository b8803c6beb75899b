"""What importing brings along: names are cheap, compilers come when something is compiled."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

from devtools.imports import imports

ROOT = Path(__file__).parents[2]
FRAMEWORKS = {"jax", "torch"}  # the tests need neither


def brought(code: str) -> set[str]:
    """The modules that `code` imports in a process of its own."""
    end = "\nimport json; print(json.dumps(sorted(set(sys.modules) - before)))"
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; before = set(sys.modules)\n{code}{end}"],
        capture_output=True, text=True, timeout=100, check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )  # fmt: skip
    return set(json.loads(done.stdout))


def tops(modules: set[str]) -> set[str]:
    return {name.partition(".")[0] for name in modules}


def has(module: ModuleType, name: str) -> bool:
    if hasattr(module, name):
        return True
    return hasattr(module, "__path__") and bool(
        importlib.util.find_spec(f"{module.__name__}.{name}")
    )


def imported(name: str) -> ModuleType | None:
    """The module, or None where a library that it stands on is not installed."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in FRAMEWORKS:
            return None
        raise


def test_late_imports_name_what_there_is():
    """Also those of tests and tools that only run on a GPU."""
    folders = ("src", "tests", "zoo", "benchmarks", "devtools", "examples")
    missing = []
    for path in (p for folder in folders for p in (ROOT / folder).rglob("*.py")):
        for node in imports(path.read_text(encoding="utf-8")):
            if not isinstance(node, ast.ImportFrom) or not node.module or node.level:
                continue
            if node.module.partition(".")[0] != "tilewright":
                continue
            if (module := imported(node.module)) is None:
                continue
            missing += [
                f"{path.relative_to(ROOT)}:{node.lineno}: {node.module} has no {name.name}"
                for name in node.names
                if name.name != "*" and not has(module, name.name)
            ]
    assert not missing, "\n".join(missing)


def test_the_package_alone_is_names():
    """0.15 of what importing NumPy takes."""
    found = brought("import tilewright")
    assert {name for name in found if name.startswith("tilewright")} == {"tilewright"}
    assert not tops(found) & {"numpy", "ml_dtypes", "dataclasses", "inspect", "hashlib", "ctypes"}


def test_what_writing_a_kernel_takes():
    """2.2 times what importing NumPy takes, NumPy included."""
    found = brought("import tilewright as tw, tilewright.language as T; tw.jit, tw.compile")
    heavy = {"llvmlite", "click", "rich", "torch", "jax", "cupy", "cuda", "hashlib", "tempfile"}
    assert not tops(found) & heavy
    assert not {name for name in found if name.endswith((".pipeline", ".backend", ".emit"))}
    rooms = ("tilewright.tools", "tilewright.machine")
    assert not {name for name in found if name.startswith(rooms)}


def test_what_writing_a_formula_takes():
    found = brought("import tilewright.math")
    assert not tops(found) & {"llvmlite", "click", "rich", "torch", "jax", "hashlib", "tempfile"}
    rooms = tuple(f"tilewright.{room}" for room in "tools machine passes targets runtime".split())
    assert not {name for name in found if name.startswith(rooms)}


def test_the_cache_brings_no_compiler():
    found = brought("import tilewright.support.cache, tilewright.support.sources")
    assert not tops(found) & {"numpy", "llvmlite", "tempfile", "random", "rich", "click"}
