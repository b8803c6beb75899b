"""Processes that run a file's code for the studio: one that has loaded a file answers requests
until it is told to stop, takes too long, or needs more memory than it may. A spare one has imported
what recordings need, so that text from the page is compiled at once.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from time import process_time
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
    """A process that has loaded `file`, or will. Requests come one after the other."""

    def __init__(
        self, file: str = "", megabytes: int = 0, seconds: float = SECONDS, how: str = ""
    ) -> None:
        """`how`: `warm` compiles a kernel before it is asked; `later` lets other processes go
        first."""
        self.file, self.megabytes, self.seconds, self.how = file, megabytes, seconds, how
        self.lock = threading.Lock()
        self.process: subprocess.Popen[str] | None = None
        self.cpu = 0.0  # seconds of a core that the last answer took

    def start(self) -> Child:
        if self.process is None or self.process.poll() is not None:
            with _no_interrupts():
                self.process = subprocess.Popen(
                    [sys.executable, "-m", __name__, self.how],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
        return self

    def ask(self, do: str, *requests: Any, wanted: Callable[[], bool] = lambda: True) -> Any:
        """`record` or `compare`. `Refused` when it fails, takes too long, or dies, or when it is
        not `wanted` any more as its turn comes."""
        about = {"file": self.file, "megabytes": self.megabytes}
        with self.lock:
            if not wanted():
                raise Refused(error_told(RunError("nobody waits for this any more")))
            process = self.start().process
            assert process is not None
            late = threading.Timer(self.seconds, process.kill)
            late.start()
            line = ""
            try:
                assert process.stdin is not None and process.stdout is not None
                process.stdin.write(json.dumps({**about, "do": do, "requests": requests}) + "\n")
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
        self.cpu = answer["cpu"]
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


@contextlib.contextmanager
def _no_interrupts() -> Iterator[None]:
    """Ctrl-C in a terminal is for the studio, which then ends what was started here."""
    if sys.platform == "win32":
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def main(how: str) -> None:
    """Answers go where standard output was; what the file prints goes to standard error."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    from tilewright.tools.collect import file_names
    from tilewright.tools.studio import compare, gallery, recording
    from tilewright.tools.studio.subject import Request

    if how == "later":
        os.nice(5)
    if how == "warm":
        path, asked = str(gallery.LESSONS["gemm"].path), gallery.LESSONS["gemm"].request
        recording.record(file_names(path), Request.of({**asked, "want": []}), path)
    names: dict[str, Any] | None = None
    gc.disable()  # while somebody waits
    gc.freeze()  # what was imported stays
    for line in sys.stdin:
        start, asked = process_time(), json.loads(line)
        file, megabytes = asked["file"], asked["megabytes"]
        try:
            if names is None:
                _limit(megabytes)
                names = file_names(file)
            found = [recording.record(names, Request.of(each), file) for each in asked["requests"]]
            answer = {"result": compare.compare(*found) if asked["do"] == "compare" else found[0]}
        except MemoryError:
            fix = f"smaller sizes; text from the page may take {megabytes} MB"
            error = RunError("the file needs more memory than it may have", fix=fix, code="memory")
            answer = {"error": {**error_told(error), "stage": "server"}}
        except (TilewrightError, Exception) as caught:
            answer = {"error": error_told(caught)}
        answers.write(json.dumps({**answer, "cpu": process_time() - start}) + "\n")
        answers.flush()
        gc.collect()


def _limit(megabytes: int) -> None:
    if megabytes:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (megabytes << 20, megabytes << 20))


if __name__ == "__main__":
    main(sys.argv[1])
