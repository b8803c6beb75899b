"""The studio's API: who is let in, which errors there are, and what stops code that goes wrong."""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import os
import signal
import socket
import subprocess
import sys

import numpy as np
import pytest
from click.testing import CliRunner

from tests.studio import speed
from tilewright.support.errors import CompileError, TilewrightError
from tilewright.tools.cli import main
from tilewright.tools.studio import export, server
from tilewright.tools.studio.child import Child, Refused
from tilewright.tools.studio.server import Studio, app, bound

pytest.importorskip("starlette")
TOKEN, HOST = "secret", "127.0.0.1:1"
ADD = """
import tilewright as tw
import tilewright.language as T

@tw.jit
def add(A, B):
    N = T.const("N")
    A: T.Tensor((N,), "float32")
    B: T.Tensor((N,), "float32")
    C = T.empty((N,), "float32")
    for n in T.tile(N):
        C[n] = A[n] + B[n]
    return C
"""
SMALL = {"sizes": {"N": 4096}, "small": {"N": 64}, "want": ["values"]}


@pytest.fixture(scope="module")
def studio(tmp_path_factory):
    file = tmp_path_factory.mktemp("studio") / "add.py"
    file.write_text(ADD)
    made = Studio(str(file), {"kernel": "add"})
    yield made
    made.close()


@pytest.fixture
def page(tmp_path, monkeypatch):
    """A page that is as small as one may be."""
    (tmp_path / "index.html").write_text(f"<html>{export.STYLE}{export.DATA}{export.CODE}</html>")
    (tmp_path / "studio.css").write_text("p {}")
    (tmp_path / "studio.js").write_text("let x = '</script>'")
    monkeypatch.setattr(export, "PAGE", tmp_path)
    monkeypatch.setattr(server, "PAGE", tmp_path)


def ask(studio, path, body=None, token=TOKEN, host=HOST, query=b""):
    """(status, JSON or text) of one request, without a network."""
    sent: list = []
    data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = [(b"host", host.encode()), (b"content-length", str(len(data or b"")).encode())]
    headers += [(b"x-studio-token", token.encode())] if token else []
    scope = {
        "type": "http", "http_version": "1.1", "method": "GET" if data is None else "POST",
        "path": path, "raw_path": path.encode(), "query_string": query, "headers": headers,
        "scheme": "http", "server": ("127.0.0.1", 1), "client": ("127.0.0.1", 2), "root_path": "",
    }  # fmt: skip

    async def receive():
        return {"type": "http.request", "body": data or b"", "more_body": False}

    async def send(message):
        sent.append(message)

    asyncio.run(app(studio, TOKEN, HOST)(scope, receive, send))
    text = b"".join(m.get("body", b"") for m in sent)
    kind = dict(sent[0]["headers"])[b"content-type"].decode()
    return sent[0]["status"], json.loads(text) if "json" in kind else text.decode()


def test_a_recording_and_a_comparison(studio):
    status, found = ask(studio, "/api/record", SMALL)
    assert (status, found["kernel"], found["errors"]) == (200, "add", [])
    told = found["values"]
    frames = [told["frames"][told["result"]["C"]["frame"]], *map(
        told["frames"].__getitem__, (told["initial"]["A"], told["initial"]["B"]))]  # fmt: skip
    assert frames[0]["sum"] == pytest.approx(frames[1]["sum"] + frames[2]["sum"], abs=1e-4)
    status, found = ask(studio, "/api/compare", {"a": {**SMALL, "want": []}, "b": SMALL})
    assert status == 200 and found["rows"] and found["sentences"]


def test_who_is_let_in(studio, page):
    assert ask(studio, "/", token=None)[0] == 403
    assert ask(studio, "/", token="other")[0] == 403
    assert ask(studio, "/api/record", SMALL, token=None)[0] == 403
    assert ask(studio, "/", host="evil.example")[0] == 403
    status, text = ask(studio, "/", token=None, query=b"token=secret")
    assert status == 200 and '"mode": "live"' in text and "null</script>" not in text
    assert ask(studio, "/studio.js", token=None) == (200, "let x = '</script>'")
    assert ask(studio, "/../add.py")[0] == 404
    status, told = ask(studio, "/api/state")
    assert told["edit"] and told["request"] == {"kernel": "add"} and len(told["gallery"]) >= 18


@pytest.mark.parametrize(
    "body, word",
    [
        (b"{", "JSON"),
        ([], "object"),
        ({"kernel": "none"}, "no kernel named 'none'"),
        ({"gallery": "none"}, "no 'none'"),
        ({"sizes": {"Q": 4}, "want": []}, "no T.const size"),
        ({"target": "cuda -arch=sm_1"}, "unknown architecture"),
        ({"text": "def f(:"}, "invalid syntax"),
        ({"text": "x = 1"}, "makes no kernel"),
        ({"text": "raise SystemExit"}, "SystemExit"),
    ],
)
def test_bad_requests(studio, body, word):
    status, found = ask(studio, "/api/record", body)
    error = found["error"] if status != 200 else found["errors"][0]
    assert status in (200, 400) and word.lower() in (error["text"] + error["kind"]).lower()


def test_too_long_a_request(studio):
    status, found = ask(studio, "/api/record", {"text": "#" * (server.BODY + 1)})
    assert status == 400 and "at most" in found["error"]["message"]


def test_edited_text(studio):
    status, found = ask(studio, "/api/record", {**SMALL, "text": ADD.replace("+ B", "- B")})
    assert status == 200 and any("A[n] - B[n]" in line for line in found["source"]["lines"])
    status, found = ask(studio, "/api/record", {**SMALL, "text": ADD.replace("B[n]", "Z[n]")})
    error = found["error"] if status == 400 else found["errors"][0]
    assert "Z" in error["message"] and error["line"] == 12


def test_another_schedule_takes_less_than_a_second_of_a_core():
    _, cores = speed.measured(5, busy=False)
    assert np.median(cores) < 1


def test_what_nobody_waits_for_is_not_run(studio):
    with pytest.raises(Refused, match="nobody waits"):
        studio.record(SMALL, wanted=lambda: False)


def test_text_from_the_page_has_a_process_that_waits_for_it(tmp_path):
    made = Studio(None, {"gallery": "gemm"})
    made.warm()
    spare = made.spare
    found = made.record({**SMALL, "text": ADD, "want": []})
    assert found["parts"] and spare in made.children.values() and made.spare is not spare
    made.close()


def test_edits_may_be_switched_off(tmp_path):
    closed = Studio(None, {}, edit=False)
    status, found = ask(closed, "/api/record", {"text": ADD})
    assert status == 409 and "--no-edit" in found["error"]["fix"]
    status, found = ask(closed, "/api/record", {"kernel": "add"})
    assert status == 400 and "without a file" in found["error"]["message"]
    closed.close()


def test_what_does_not_end_is_stopped(tmp_path):
    file = tmp_path / "loop.py"
    file.write_text("while True: pass")
    child = Child(str(file), 2048, seconds=2.5)
    with pytest.raises(Refused) as told:
        child.ask("record", {})
    assert told.value.told["kind"] == "timeout" and told.value.told["stage"] == "server"
    file.write_text("x = bytearray(1 << 40)")
    child.seconds = 60.0
    with pytest.raises(Refused) as told:  # a new process
        child.ask("record", {})
    assert told.value.told["kind"] in ("memory", "compile") and "emory" in told.value.told["text"]
    file.write_text("import os; os._exit(3)")
    child.close()
    with pytest.raises(Refused, match="ended"):
        child.ask("record", {})
    child.close()


def test_a_port_in_use():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(TilewrightError, match="cannot be had"):
            bound(taken.getsockname()[1])
    own = bound(0)
    assert own.getsockname()[0] == "127.0.0.1"
    # a browser that is faster than the server waits
    socket.create_connection(own.getsockname(), timeout=5).close()
    own.close()


def told_in(page):
    """What a page that was exported holds."""
    packed = page.split('type="application/gzip">')[1].split("</script>")[0]
    return json.loads(gzip.decompress(base64.b64decode(packed)))


def test_a_page_without_a_network(studio, page):
    text = studio.export({"requests": [SMALL]})
    assert export.STYLE not in text and "src=" not in text and "<style>p {}</style>" in text
    told = told_in(text)
    assert told["mode"] == "static" and told["recordings"][0]["kernel"] == "add"
    assert text.count("</script>") == 2  # none inside the code
    with pytest.raises(CompileError, match="list of requests"):
        studio.export({"requests": []})


def test_a_page_of_two_variants_compares_them(page):
    made = Studio(None, {})
    about = {"gallery": "gemm", "sizes": {"M": 256, "N": 256, "K": 256}, "want": []}
    text = made.export({"requests": [about, {**about, "schedule": {"stages": 2}}]})
    made.close()
    told = told_in(text)
    ((pair,), (lesson,)) = told["comparisons"], told["gallery"]
    assert pair["sentences"] and pair["b"]["request"]["schedule"] == {"stages": 2}
    assert lesson["name"] == "gemm"


def test_a_page_that_is_not_built(studio, page):
    (export.PAGE / "studio.js").unlink()
    with pytest.raises(TilewrightError, match=r"not built: studio\.js is missing"):
        export.static({"recordings": []})


def test_a_page_that_would_be_too_large(page, monkeypatch):
    monkeypatch.setattr(export, "MOST", 10)
    with pytest.raises(TilewrightError, match="bytes"):
        export.static({"mode": "static", "recordings": []})


def test_the_command(studio, tmp_path, page):
    run = CliRunner().invoke
    out, data = tmp_path / "out.html", tmp_path / "out.json"
    asked = [studio.file, "--sizes", "N=512", "--small", "N=32", "--json", data, "--export", out]
    assert run(main, ["studio", *map(str, asked)]).exit_code == 0
    told = json.loads(data.read_text())
    assert told["request"]["sizes"] == {"N": 512} and told["values"]["sizes"] == {"N": 32}
    assert "</html>" in out.read_text()
    wrong = run(main, ["studio", studio.file, "--kernel", "ad", "--export", str(out)])
    assert wrong.exit_code == 1 and "did you mean 'add'?" in wrong.output
    wrong = run(main, ["studio", "--gallery", "none"])
    assert wrong.exit_code == 2 and "gemm" in wrong.output


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="a terminal's Ctrl-C, by process groups")
def test_ctrl_c_ends_it_quietly(tmp_path):
    """Its processes had a traceback each."""
    file = tmp_path / "add.py"
    file.write_text(ADD)
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "tilewright", "studio", str(file), "--no-open"],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert "the studio is at" in process.stdout.readline()
    os.killpg(process.pid, signal.SIGINT)
    said, _ = process.communicate(timeout=60)
    assert (process.returncode, said) == (0, "")
