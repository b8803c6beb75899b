"""The commands on the debugging page run, and say what the page says."""

import os
import re
import shlex
import subprocess
import sys

import pytest

from tests.commands import ROOT, tilewright

PAGE = (ROOT / "docs" / "debugging.md").read_text()
COMMANDS = [
    line
    for block in re.findall(r"^```sh\n(.*?)^```", PAGE, re.M | re.S)
    for line in block.splitlines()
]


def run(line):
    first, *words = shlex.split(line)
    if first == "tilewright":
        return tilewright(*words)
    return subprocess.run(
        line.replace("tilewright ", f"{sys.executable} -m tilewright ", 1),
        shell=True,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        timeout=240,
    )


@pytest.mark.parametrize("line", COMMANDS)
def test_commands(line):
    line, _, status = line.partition("# exit status ")
    done = run(line)
    assert done.returncode == int(status or 0), done.stdout + done.stderr
    assert done.stdout and "Traceback" not in done.stdout + done.stderr


def test_there_are_commands():
    assert len(COMMANDS) >= 8


def test_the_finding_is_the_one_that_is_shown():
    done = tilewright("check", "examples/debugging.py", "--kernel", "turned")
    (shown,) = re.findall(r"^(turned \(examples.*?)\n```", PAGE, re.M | re.S)
    found = done.stdout.partition("\n1 kernel,")[0]
    assert found.splitlines()[1:] == shown.splitlines()[1:]
    assert found.splitlines()[0].split(" (")[0] == "turned"


def test_the_session_is_the_one_that_is_shown():
    text = re.search(r"^>>> tw.debug\(mean_of_rows.*?\n```", PAGE, re.M | re.S)[0]
    commands = re.findall(r"^\(tw\) (.*)$", text, re.M)
    code = (
        "import io, re, numpy as np, tilewright as tw\n"
        "from examples.debugging import mean_of_rows\n"
        "x, y = np.full((40, 64), 0.1875, np.float32), np.empty(40, np.float32)\n"
        f"tw.debug(mean_of_rows, x, y, block=1, stdin=io.StringIO({chr(10).join(commands)!r}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    # scripted input is not echoed: prompts stand before what the commands say
    said = done.stdout.replace("(tw) ", "").replace(f"{ROOT}/", "").splitlines()
    assert (
        said[: said.index("True") + 1]
        == re.sub(r"^\(tw\).*\n", "", text, flags=re.M).splitlines()[1:-1]
    )
