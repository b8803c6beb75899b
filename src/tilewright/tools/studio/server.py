"""The studio's server: the page and its recordings, for this machine alone.

It runs no code itself. The file of the command line, the gallery's, and text that was edited in the
page have processes of their own (`child`); the last one has limits.
"""

from __future__ import annotations

import hmac
import secrets
import socket
import tempfile
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

from tilewright.support.errors import CompileError, TilewrightError
from tilewright.tools.studio.child import MEGABYTES, SECONDS, Child, Refused
from tilewright.tools.studio.compare import compare
from tilewright.tools.studio.errors import error_told
from tilewright.tools.studio.export import HEAVY, PAGE, page, static, without
from tilewright.tools.studio.gallery import LESSONS, told_of
from tilewright.tools.studio.measured import raced
from tilewright.tools.studio.subject import Request

HOST = "127.0.0.1"
EDITED = 20.0  # seconds that text from the page may take
BODY = 1 << 20  # bytes of a request
KEPT = 6  # processes
MEASURED = ("sizes", "args", "schedule")  # that decide whether a result is one of this kernel


class Studio:
    """Recordings of a file's kernels, and of the gallery's."""

    def __init__(self, file: str | None, first: Mapping[str, Any], edit: bool = True) -> None:
        self.file, self.first, self.edit = file, dict(first), edit
        self.children: dict[tuple[str, bool], Child] = {}
        self.spare: Child | None = None
        self.folder = tempfile.TemporaryDirectory(prefix="tilewright-studio-")
        self.lock = threading.Lock()

    def record(self, asked: Any, wanted: Callable[[], bool] = lambda: True) -> Any:
        return self._told(self._child(asked).ask("record", _plain(asked), wanted=wanted), asked)

    def warm(self) -> None:
        """Processes for what is asked first, and for the first text from the page."""
        self._child({**self.first, "want": []}).start()
        self._child({**self.first, "want": None}).start()
        if self.edit and self.spare is None:
            self.spare = Child(how="warm").start()

    def compare(self, asked: Any, wanted: Callable[[], bool] = lambda: True) -> Any:
        if not isinstance(asked, Mapping) or not {"a", "b"} <= asked.keys():
            raise CompileError("a comparison has two requests", expected="{'a': …, 'b': …}")
        first, second = asked["a"], asked["b"]
        child = self._child(first)
        if child is self._child(second):
            found = child.ask("compare", _plain(first), _plain(second), wanted=wanted)
            return {**found, "a": self._told(found["a"], first),
                    "b": self._told(found["b"], second)}  # fmt: skip
        return compare(self.record(first), self.record(second))

    def export(self, asked: Any) -> str:
        requests = asked.get("requests") if isinstance(asked, Mapping) else None
        if not isinstance(requests, list) or not requests:
            raise CompileError("an export has a list of requests", expected="{'requests': […]}")
        found = [self.record(each) for each in requests]
        lessons = {each["lesson"]["name"]: each["lesson"] for each in found if each["lesson"]}
        pairs = (
            (a, b) for a, b in pairwise(found) if all(a[n] == b[n] for n in ("kernel", "file"))
        )
        compared = [compare(*(without(each, HEAVY) for each in pair)) for pair in pairs]
        return static({"mode": "static", "recordings": found, "comparisons": compared,
                       "gallery": [*lessons.values()]})  # fmt: skip

    def state(self, token: str) -> dict[str, Any]:
        gallery = [told_of(name) for name in LESSONS]
        return {"mode": "live", "token": token, "edit": self.edit, "request": self.first,
                "gallery": gallery}  # fmt: skip

    def _told(self, found: Any, asked: Any) -> Any:
        request = Request.of(asked)
        if request.gallery is not None:
            found["lesson"], found["title"] = told_of(request.gallery), request.gallery
            lesson = LESSONS[request.gallery]
            same = all(getattr(request, n) == lesson.request.get(n, {}) for n in MEASURED)
            if lesson.race and found["roofline"] and same and request.text is None:
                found["roofline"]["measured"] = raced(*lesson.race)
        return found

    def _child(self, asked: Any) -> Child:
        """The process that has the code which a request is about. Drafts have one of their own:
        the assembler keeps the other one busy for seconds."""
        request = Request.of(asked)
        key, megabytes, seconds = self.file or "", 0, SECONDS
        if request.gallery is not None:
            if request.gallery not in LESSONS:
                raise CompileError(f"the gallery has no {request.gallery!r}",
                                   expected=" or ".join(LESSONS))  # fmt: skip
            key = str(LESSONS[request.gallery].path)
        if request.text is not None:
            if not self.edit:
                raise EditsOff("this studio takes no text from the page",
                               fix="start it without --no-edit")  # fmt: skip
            name = f"{hash(request.text) & 0xFFFFFFFFFFFF:x}"
            path = Path(self.folder.name) / name / (Path(key).name or "kernel.py")
            path.parent.mkdir(exist_ok=True)
            path.write_text(request.text, encoding="utf-8")
            key, megabytes, seconds = str(path), MEGABYTES, EDITED
        if not key:
            raise CompileError("the studio was started without a file",
                               fix="choose a kernel of the gallery")  # fmt: skip
        which = key, request.text is None and not request.want
        how = "" if request.text is not None or not request.want else "later"
        with self.lock:
            child = self.children.pop(which, None)
            if child is None and request.text is not None and self.spare is not None:
                child, self.spare = self.spare, Child(how="warm").start()
                child.file, child.megabytes, child.seconds = key, megabytes, seconds
            self.children[which] = child = child or Child(key, megabytes, seconds, how)
            for old in list(self.children)[:-KEPT]:
                self.children.pop(old).close()
        return child

    def close(self) -> None:
        for child in (*self.children.values(), *filter(None, [self.spare])):
            child.close()
        self.folder.cleanup()


class EditsOff(CompileError):
    """Text came from the page, and edits are switched off."""


def _plain(asked: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in asked.items() if name not in ("text", "gallery")}


def app(studio: Studio, token: str, host: str) -> Any:
    """What answers; `host` is how the page's address must be written, against other sites that
    have names for this machine."""
    from anyio import from_thread
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.requests import Request as Asked
    from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
    from starlette.routing import Route

    def refused(asked: Asked) -> Response | None:
        if asked.headers.get("host", "") not in (host, host.replace(HOST, "localhost")):
            return PlainTextResponse("this server answers on this machine only", 403)
        given = asked.headers.get("x-studio-token") or asked.query_params.get("token") or ""
        if hmac.compare_digest(given.encode(), token.encode()):
            return None
        error = CompileError("the token is missing, or another one",
                             fix="open the link that the studio printed")  # fmt: skip
        return JSONResponse({"error": {**error_told(error), "stage": "server"}}, 403)

    async def index(asked: Asked) -> Response:
        return refused(asked) or HTMLResponse(page(studio.state(token)), headers=HEADERS)

    async def asset(asked: Asked) -> Response:
        name = asked.url.path.lstrip("/")
        kind = "text/css" if name.endswith(".css") else "text/javascript"
        return Response((PAGE / name).read_bytes(), media_type=kind)

    def wanted(asked: Asked) -> Callable[[], bool]:
        return lambda: not from_thread.run(asked.is_disconnected)

    def answering(work: Callable[..., Any], waits: bool = False) -> Callable[[Asked], Any]:
        async def answer(asked: Asked) -> Response:
            if (no := refused(asked)) is not None:
                return no
            try:
                if int(asked.headers.get("content-length") or 0) > BODY:
                    raise CompileError(f"a request has at most {BODY} bytes")
                told = [await asked.json()] if asked.method == "POST" else []
                found = await run_in_threadpool(work, *told, *([wanted(asked)] if waits else ()))
            except Refused as error:
                return JSONResponse({"error": error.told}, 400)
            except EditsOff as error:
                return JSONResponse({"error": error_told(error)}, 409)
            except ValueError as error:
                return JSONResponse({"error": error_told(error)}, 400)
            except TilewrightError as error:
                return JSONResponse({"error": error_told(error)}, 400)
            return HTMLResponse(found) if isinstance(found, str) else JSONResponse(found)

        return answer

    return Starlette(
        routes=[
            Route("/", index),
            *(Route(f"/{name}", asset) for name in ("studio.js", "studio.css")),
            Route("/api/state", answering(lambda: studio.state(token))),
            Route("/api/gallery", answering(lambda: [told_of(name) for name in LESSONS])),
            *(
                Route(f"/api/{name}", answering(work, waits), methods=["POST"])
                for name, work, waits in (
                    ("record", studio.record, True),
                    ("compare", studio.compare, True),
                    ("export", studio.export, False),
                )
            ),
        ]
    )


HEADERS = {"cache-control": "no-store", "referrer-policy": "no-referrer",
           "x-content-type-options": "nosniff", "x-frame-options": "DENY"}  # fmt: skip


def bound(port: int) -> socket.socket:
    """A socket of this machine; port 0 takes any that is free."""
    found = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((HOST, port))
        found.listen()  # who comes early waits for uvicorn
    except OSError as error:
        found.close()
        raise TilewrightError(
            f"port {port} cannot be had: {error.strerror}",
            fix="give another one with --port, or leave it out",
        ) from None
    return found


def serve(studio: Studio, port: int, say: Callable[[str], None]) -> None:
    """Until it is interrupted."""
    try:
        import uvicorn

        own = bound(port)
        token, host = secrets.token_urlsafe(24), f"{HOST}:{own.getsockname()[1]}"
        made = app(studio, token, host)
    except ImportError as error:
        raise TilewrightError(
            f"the studio needs {error.name}", fix="pip install 'tilewright[studio]'"
        ) from None

    class Server(uvicorn.Server):  # type: ignore[misc]
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            say(f"http://{host}/?token={token}")  # from now on Ctrl-C ends it as it should

    try:
        with suppress(KeyboardInterrupt):  # uvicorn raises it again when it has stopped
            studio.warm()
            Server(uvicorn.Config(made, log_level="warning")).run(sockets=[own])
    finally:
        own.close()
        studio.close()
