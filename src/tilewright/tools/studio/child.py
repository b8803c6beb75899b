"""Processes that run a file's code for the studio: one that has loaded a file answers requests
until it is told to stop, takes too long, or needs more memory than it may.

    python -m tilewright.tools.studio.child FILE [MEGABYTES]
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from tilewright.support.errors import RunError, TilewrightError
from tilewright.tools.studio.errors import error_told

SECONDS, MEGABYTES = 60.0, 6144  # of a request; of a child that runs text from the page


class Refused(Exception):
    """A request that has an error for an answer."""

    def __init__(self, told: dict[str, Any]) -> None:
        super().__init__(told["message"])
        self.told = told


class Child:
    """A process that has loaded `file`. Requests come one after the other."""

    def __init__(self, file: str, megabytes: int = 0, seconds: float = SECONDS) -> None:
        self.file, self.megabytes, self.seconds = file, megabytes, seconds
        self.lock = threading.Lock()
        self.process: subprocess.Popen[str] | None = None

    def ask(self, do: str, *requests: Any) -> Any:
        """`record` or `compare`. `Refused` when it fails, takes too long, or dies."""
        with self.lock:
            if self.process is None or self.process.poll() is not None:
                self.process = subprocess.Popen(
                    [sys.executable, "-m", __name__, self.file, str(self.megabytes)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            process = self.process
            late = threading.Timer(self.seconds, process.kill)
            late.start()
            line = ""
            try:
                assert process.stdin is not None and process.stdout is not None
                process.stdin.write(json.dumps({"do": do, "requests": requests}) + "\n")
                process.stdin.flush()
                line = process.stdout.readline()
            except OSError:
                pass
            finally:
                is_late = not late.is_alive()
                late.cancel()
            if not line:
                process.kill()
                process.wait()
                raise Refused(self._died(is_late))
        answer = json.loads(line)
        if "error" in answer:
            raise Refused(answer["error"])
        return answer["result"]

    def _died(self, is_late: bool) -> dict[str, Any]:
        if is_late:
            message = f"the file took longer than {self.seconds:.0f} seconds and was stopped"
            fix = "look for a loop that does not end, or give smaller sizes"
            error = RunError(message, fix=fix, code="timeout")
        else:
            fix = f"smaller sizes; text from the page may take {self.megabytes} MB"
            error = RunError("the process that ran the file ended", fix=fix, code="memory")
        return {**error_told(error), "stage": "server"}

    def close(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            for stream in (self.process.stdin, self.process.stdout):
                with contextlib.suppress(OSError):
                    if stream is not None:
                        stream.close()
            self.process = None


def main(file: str, megabytes: int) -> None:
    """Answers go where standard output was; what the file prints goes to standard error."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    if megabytes:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (megabytes << 20, megabytes << 20))
    names: dict[str, Any] | None = None
    gc.freeze()  # what was imported stays
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            if names is None:
                names = _loaded(file)
            answer = {"result": _answer(asked, names, file)}
        except MemoryError:
            fix = f"smaller sizes; text from the page may take {megabytes} MB"
            error = RunError("the file needs more memory than it may have", fix=fix, code="memory")
            answer = {"error": {**error_told(error), "stage": "server"}}
        except (TilewrightError, Exception) as caught:
            answer = {"error": error_told(caught)}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _loaded(file: str) -> dict[str, Any]:
    from tilewright.tools.collect import file_names

    return file_names(file)


def _answer(asked: Any, names: dict[str, Any], file: str) -> Any:
    from tilewright.tools.studio.compare import compare
    from tilewright.tools.studio.recording import record
    from tilewright.tools.studio.subject import Request

    found = [record(names, Request.of(each), file) for each in asked["requests"]]
    return compare(*found) if asked["do"] == "compare" else found[0]


if __name__ == "__main__":
    main(str(Path(sys.argv[1])), int(sys.argv[2]))
