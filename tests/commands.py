"""`tilewright` commands in this process: most of a command's time would go to starting Python."""

from __future__ import annotations

import io
import os
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from subprocess import CompletedProcess
from unittest.mock import patch

from tilewright.tools.cli import main

ROOT = Path(__file__).parent.parent


def tilewright(*words: object, **env: str) -> CompletedProcess[str]:
    """`tilewright` with these words in the root of the repository, as a process that ended."""
    given, status, here = list(map(str, words)), 0, os.getcwd()
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        os.chdir(ROOT)
        try:
            with patch.dict(os.environ, env):
                main(given)
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else end.code is not None
        finally:
            os.chdir(here)
    return CompletedProcess(given, status, out.getvalue(), err.getvalue())
