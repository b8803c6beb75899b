"""Every Python block of the README and the documentation runs; on a GPU too, `pytest -m gpu`."""

import importlib.util
import re
import runpy
from functools import cache
from pathlib import Path

import pytest

import tests.roads  # noqa: F401

ROOT = Path(__file__).parent.parent
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "docs").glob("*.md")),
]


@pytest.mark.parametrize("target", ["", pytest.param("cuda_arrays", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_python_blocks(page, target, tmp_path, monkeypatch):
    if target:
        monkeypatch.setenv("TILEWRIGHT_TARGET", target)  # of `auto`; tests.roads has it
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.M | re.S)
    # inside `jax.jit` there are no arrays to hand over: tests/frameworks/test_gpu_jax.py
    blocks = [b for b in _runnable(blocks) if not target or "tilewright.jax" not in b]
    if not blocks:
        pytest.skip("no Python on this page")
    # a file, because tracing reads the source; blocks of a page build on one another
    path = tmp_path / f"{page.stem}_page.py"
    path.write_text("\n\n".join(blocks))
    exec(compile(path.read_text(), str(path), "exec"), {"__name__": page.stem})


def _runnable(blocks):
    """Without those for libraries that are not installed."""
    missing = [name for name in ("torch", "jax", "cupy") if importlib.util.find_spec(name) is None]
    return [b for b in blocks if not any(re.search(rf"\b{name}\b", b) for name in missing)]


def test_speeds_are_those_of_the_files():
    tables = runpy.run_path(str(ROOT / "benchmarks" / "tables.py"))
    text = (ROOT / "README.md").read_text()
    assert tables["with_table"](text) == text, "run: python benchmarks/tables.py"


def test_links_lead_somewhere():
    folders = ("docs", "examples", "benchmarks")
    pages = {*PAGES, *(page for folder in folders for page in (ROOT / folder).rglob("*.md"))}
    for page in pages:
        text = re.sub(r"```.*?```|`[^`]*`", "", page.read_text(), flags=re.S)
        for link, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)", text):
            if "://" in link:
                continue
            found = (page.parent / link).resolve() if link else page
            assert found.exists(), f"{page.relative_to(ROOT)}: {link}"
            if anchor and found.suffix == ".md":
                assert anchor in anchors(found), f"{page.relative_to(ROOT)}: {link}#{anchor}"


@cache
def anchors(page):
    """What Markdown makes of a page's headings; of equal ones, the second ends in -1."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
    found = []
    for head in re.findall(r"^#+ (.*)$", text, re.M):
        name = re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-")
        count = sum(
            re.fullmatch(re.escape(name) + r"(-\d+)?", other) is not None for other in found
        )
        found.append(f"{name}-{count}" if count else name)
    return found


def test_every_page_is_in_the_menu():
    """The list in docs/README.md is the site's menu; docs/conf.py reads it without a generator."""
    site = runpy.run_path(str(ROOT / "docs" / "conf.py"))
    menu = [page for _, pages in site["listed"](site["INDEX"]) for page in pages]
    menu += [page for parent in site["PARENTS"] for page in site["beside"](parent)]
    pages = {*PAGES, *(ROOT / "docs").rglob("*.md"), *(ROOT / "benchmarks").rglob("*.md")}
    assert len(menu) == len(set(menu)) and menu
    assert {str(page.relative_to(ROOT)) for page in pages} - {site["INDEX"], "README.md"} == (
        set(menu) - {"examples/puzzles/README.md"}
    )
    page, heading, _ = site["GALLERY"]
    assert heading in (ROOT / page).read_text()
