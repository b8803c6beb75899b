"""A studio that is served, and a browser that looks at it.

`make test-studio` brings both; `make test` does not collect this folder.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
FILE = ROOT / "zoo" / "gemm" / "values.py"
FIRST = ("--kernel", "matmul", "--sizes", "M=1024, N=1024, K=1024", "--small", "M=64, N=64, K=64")
PATIENCE = 30_000  # milliseconds, until a recording is there


class Served:
    """`tilewright studio FILE`, and the address that it prints."""

    def __init__(self, *args: str) -> None:
        paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
        self.process = subprocess.Popen(
            [sys.executable, "-u", "-m", "tilewright", "studio", *args],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": paths},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        said = []
        assert self.process.stdout is not None
        for line in self.process.stdout:
            said.append(line)
            if found := re.search(r"http://127\.0\.0\.1:\d+/\?token=\S+", line):
                self.url = found[0]
                self.token = self.url.partition("token=")[2]
                self.root = self.url.partition("?")[0]
                return
        raise AssertionError("the studio prints no address:\n" + "".join(said))

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(10)


@pytest.fixture(scope="session")
def served() -> Iterator[Served]:
    found = Served(str(FILE), *FIRST)
    yield found
    found.close()


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    path = shutil.which("chromium") or shutil.which("chromium-browser")
    assert path, "no chromium: `make test-studio` installs it as root, or: apt-get install chromium"
    with sync_playwright() as driver:
        # root has no sandbox in a container
        found = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    context = browser.new_context(viewport={"width": 1600, "height": 1000}, accept_downloads=True)
    found = context.new_page()
    faults: list[str] = []
    found.on("pageerror", lambda error: faults.append(str(error)))
    found.set_default_timeout(PATIENCE)
    yield found
    context.close()
    assert not faults, faults


def settled(page: Any) -> None:
    """Nothing is compiled or run any more."""
    page.wait_for_selector(".transport")
    page.wait_for_selector(".working", state="detached")


@pytest.fixture
def studio(page: Any, served: Served) -> Any:
    """The page of the file of the command line."""
    page.goto(served.url)
    settled(page)
    return page


def asked(page: Any, served: Served, path: str, body: Any) -> Any:
    """What the server says, without the page."""
    reply = page.request.post(
        f"{served.root}api/{path}", data=body, headers={"X-Studio-Token": served.token}
    )
    assert reply.ok, reply.text()
    return reply.json()


def number(text: str | None) -> float:
    """A figure as the page writes it: "75 670"."""
    return float(re.sub(r"[^\d.eE+-]", "", text or ""))


def total(page: Any, name: str) -> float:
    return number(page.locator(f"[data-total={name}]").first.text_content())


STEPPED = """
async ({key, most}) => {
  const steps = [];
  const at = () => document.querySelector('[data-total=step]').textContent;
  for (let i = 0; i < most; i++) {
    const before = at();
    const start = performance.now();
    const event = new KeyboardEvent('keydown', {key, bubbles: true, cancelable: true});
    document.body.dispatchEvent(event);
    await Promise.resolve();
    document.body.offsetHeight;  // style and layout, now
    const work = performance.now() - start;
    await new Promise(done => requestAnimationFrame(() => setTimeout(done, 0)));
    const shown = performance.now() - start;
    if (at() === before) break;
    steps.push([work, shown]);
  }
  return steps;
}
"""


def stepped(page: Any, key: str, most: int = 2000) -> list[tuple[float, float]]:
    """Milliseconds of each step until the last one that changes something: of scripts and layout,
    and from the key to the frame that shows it, which waits for the screen and the machine."""
    return [(work, shown) for work, shown in page.evaluate(STEPPED, {"key": key, "most": most})]
