"""Every Python block of the README and the documentation runs; on a GPU too, `pytest -m gpu`."""

import re
from pathlib import Path

import pytest

import tests.roads  # noqa: F401

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("target", ["", pytest.param("cuda_arrays", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_python_blocks(page, target, tmp_path, monkeypatch):
    if target:
        monkeypatch.setenv("TILEWRIGHT_TARGET", target)  # of `auto`; tests.roads has it
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.M | re.S)
    if not blocks:
        pytest.skip("no Python on this page")
    # a file, because tracing reads the source; blocks of a page build on one another
    path = tmp_path / f"{page.stem}_page.py"
    path.write_text("\n\n".join(blocks))
    exec(compile(path.read_text(), str(path), "exec"), {"__name__": page.stem})


def test_pages_are_listed():
    index = (ROOT / "docs" / "README.md").read_text()
    for page in PAGES[1:]:
        assert page.name == "README.md" or f"({page.name})" in index
