"""Files in the cache's folder that are no entries, of every kind: each counts as absent, at once,
and a compilation goes on."""

import json
import os
import random
import socket
import time
from contextlib import nullcontext
from hashlib import sha256

import numpy as np
import pytest

import tilewright as tw
from tilewright.support import cache
from tilewright.support.cache import Store

KEY = "0123456789abcdef" * 4
TEXT = """program d {
  param X: float32[64] global
  kernel d grid bx in 2 threads tx in 32 {
    map i in 32 { X[bx * 32 + i] = 1.0 }
  }
}
"""


def signed(rest):
    """What follows a mark that fits it."""
    return b"%s %s\n" % (cache._MARK, sha256(rest).hexdigest().encode()) + rest


def fifo(path):
    os.mkfifo(path)


def listening(path):
    short = f"/tmp/tw-{os.getpid()}-{time.monotonic_ns() % 10**6}"
    server = socket.socket(socket.AF_UNIX)
    server.bind(short)
    server.close()
    os.replace(short, path)


def folder(path):
    path.mkdir()


def loop(path):
    path.symlink_to(path)


def dangling(path):
    path.symlink_to("/nowhere/at/all")


def device(path):
    path.symlink_to("/dev/zero")


def unreadable(path):
    path.write_bytes(signed(b"{}\n"))
    path.chmod(0)


def oversized(path):
    with open(path, "wb") as file:
        file.truncate(cache._LARGEST + 1)


def deep(path):
    path.write_bytes(signed(b"[" * 100_000 + b"]" * 100_000 + b"\n"))


def deep_in_a_header(path):
    inner = b"[" * 100_000 + b"]" * 100_000
    path.write_bytes(signed(b'{"key": "%s", "x": %s}\n' % (KEY.encode(), inner)))


def digits(path):
    path.write_bytes(signed(b'{"key": %s}\n' % (b"9" * 100_000)))


def not_text(path):
    path.write_bytes(signed(b'{"key": "\xff\xfe"}\n'))


def no_header(path):
    path.write_bytes(signed(b"null\n"))


KINDS = [
    fifo, listening, folder, loop, dangling, device, unreadable, oversized, deep, deep_in_a_header,
    digits, not_text, no_header,
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_what_is_no_entry_is_absent_at_once(kind, tmp_path):
    store = Store(tmp_path / "a\n b'\"\\")
    assert store.put(KEY, {"x": 1}, b"data")
    path = store.path(KEY)
    path.unlink()
    kind(path)
    started = time.monotonic()
    if kind is unreadable and os.geteuid() == 0:
        path.chmod(0o666)  # root reads everything, but not what others may write
    odd = kind is unreadable and os.geteuid() == 0
    with pytest.warns(RuntimeWarning) if odd else nullcontext():
        assert store.get(KEY) is None
    store.entries()
    store.damaged()
    store.put(KEY, {"x": 2}, b"data")
    assert (store.get(KEY) is None) == (kind is folder)
    assert time.monotonic() - started < 5


@pytest.fixture
def compiled(tmp_path, monkeypatch):
    """Compiles the program with a cache of its own; the paths of its entries."""
    monkeypatch.setenv("TILEWRIGHT_CACHE", "1")
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "c\n'\\"))
    monkeypatch.setattr(cache, "_warned", {"owner"})

    def run():
        x = np.zeros(64, np.float32)
        tw.compile(tw.parse_ir(TEXT), target="cpu")(x)
        assert (x == 1).all()
        return [p for p, _ in Store(tmp_path / "c\n'\\")._files()]

    return run


def test_kernels_compile_whatever_lies_in_the_cache(compiled):
    for kind in KINDS:
        for path in compiled():
            if path.is_dir() and not path.is_symlink():
                path.rmdir()
            else:
                path.unlink()
            kind(path)
    assert compiled()


def test_random_damage_costs_a_compilation_at_most(compiled):
    """Headers whose values are exchanged, removed or nested, under a mark that fits."""
    rng = random.Random(3)
    odd = [None, -1, 1 << 70, 1e308, "", "x" * 1000, [], {}, [[]], {"a": {}}, True]
    for _ in range(int(os.environ.get("TILEWRIGHT_DAMAGE", "12"))):
        (path,) = compiled()
        mark, line, data = path.read_bytes().split(b"\n", 2)
        header = json.loads(line)
        for name in rng.sample(sorted(header), rng.randint(1, 2)):
            if name == "key":
                continue
            header[name] = rng.choice(odd)
            if rng.random() < 0.2:
                del header[name]
        cut = data[: rng.randrange(len(data))] if rng.random() < 0.3 else data
        path.write_bytes(signed(json.dumps(header).encode() + b"\n" + cut))
        compiled()
        path.unlink()
