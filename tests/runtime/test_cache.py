"""The store gives back exactly what was put in, or nothing."""

import os
import stat
import time
import warnings

import pytest

from tests.commands import tilewright
from tests.runtime import cache_stress
from tilewright.support import cache
from tilewright.support.cache import Store, default_root, default_store, digest, size_limit

KEY = digest({"source": "x"})
POSIX = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="needs POSIX permissions")


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "_warned", set())
    return Store(tmp_path / "cache")


def get(store, key=KEY):
    """Without the time it was made."""
    found = store.get(key)
    if found is not None:
        found[0].pop("made")
    return found


def test_round_trip(store):
    assert store.get(KEY) is None
    assert store.put(KEY, {"a": [1, "β"]}, b"\x00\nraw\xff")
    assert get(store) == ({"a": [1, "β"]}, b"\x00\nraw\xff")
    assert store.put(KEY, {}, b"newer") and get(store) == ({}, b"newer")
    assert [p.name for p in store.path(KEY).parent.iterdir()] == [KEY[2:]]


def test_any_damage_means_absent(store):
    store.put(KEY, {"size": 3}, b"abc")
    path = store.path(KEY)
    good = path.read_bytes()
    for i in range(len(good)):
        path.write_bytes(good[:i] + bytes([good[i] ^ 4]) + good[i + 1 :])
        assert store.get(KEY) is None, i
        path.write_bytes(good[:i])
        assert store.get(KEY) is None, i
    path.write_bytes(good)
    assert get(store) == ({"size": 3}, b"abc")


def test_an_entry_under_another_name_is_absent(store):
    other = digest({"source": "y"})
    store.put(KEY, {}, b"abc")
    store.path(other).parent.mkdir(parents=True, exist_ok=True)
    store.path(other).write_bytes(store.path(KEY).read_bytes())
    assert store.get(other) is None


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


@POSIX
def test_only_the_owner_can_write(store):
    before = os.umask(0)
    try:
        store.put(KEY, {}, b"abc")
    finally:
        os.umask(before)
    assert mode(store.path(KEY)) == 0o600
    assert mode(store.path(KEY).parent) == mode(store.root) == 0o700


@POSIX
@pytest.mark.parametrize("where", ["root", "folder", "entry"])
def test_what_others_can_write_is_not_used(store, where):
    store.put(KEY, {}, b"abc")
    path = {"root": store.root, "folder": store.path(KEY).parent, "entry": store.path(KEY)}[where]
    path.chmod(0o777)
    with pytest.warns(RuntimeWarning, match=r"others may write to it.*TILEWRIGHT_CACHE_DIR"):
        assert store.get(KEY) is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # one warning is enough
        assert store.get(KEY) is None
        assert store.put(KEY, {}, b"abc") is (where == "entry")


@POSIX
def test_what_others_own_is_not_used(store, monkeypatch):
    store.put(KEY, {}, b"abc")
    monkeypatch.setattr(os, "geteuid", lambda: 4242)
    with pytest.warns(RuntimeWarning, match="another user's"):
        assert store.get(KEY) is None and not store.put(KEY, {}, b"abc")


def test_a_link_is_not_followed(store, tmp_path):
    store.put(KEY, {}, b"abc")
    store.path(KEY).rename(tmp_path / "elsewhere")
    store.path(KEY).symlink_to(tmp_path / "elsewhere")
    assert store.get(KEY) is None


def test_a_folder_that_cannot_be_made_is_no_error(tmp_path):
    (tmp_path / "file").write_text("")
    store = Store(tmp_path / "file" / "cache")
    assert not store.put(KEY, {}, b"abc") and store.get(KEY) is None


def test_where_it_is(monkeypatch, tmp_path):
    monkeypatch.delenv("TILEWRIGHT_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_root() == tmp_path / "tilewright"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert default_root() == tmp_path / "home" / ".cache" / "tilewright"
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "mine"))
    assert default_root() == tmp_path / "mine"


def test_it_can_be_switched_off(monkeypatch):
    assert default_store() is not None
    for word in ("0", "off"):
        monkeypatch.setenv("TILEWRIGHT_CACHE", word)
        assert default_store() is None


def test_the_limit(monkeypatch):
    monkeypatch.setattr(cache, "_warned", set())
    monkeypatch.delenv("TILEWRIGHT_CACHE_SIZE", raising=False)
    assert size_limit() == 2 << 30
    monkeypatch.setenv("TILEWRIGHT_CACHE_SIZE", "0.5")
    assert size_limit() == 1 << 19
    for wrong in ("plenty", "-1", "nan"):
        monkeypatch.setenv("TILEWRIGHT_CACHE_SIZE", wrong)
        monkeypatch.setattr(cache, "_warned", set())
        with pytest.warns(RuntimeWarning, match="number of MiB"):
            assert size_limit() == 2 << 30


# ── room ────────────────────────────────────────────────────────────────────────────────────


def keys(count):
    return [digest({"n": n}) for n in range(count)]


def age(store, key, seconds):
    then = time.time() - seconds
    os.utime(store.path(key), (then, then))


def test_the_least_recently_used_goes_first(store):
    store = Store(store.root, limit=100_000)
    some = keys(8)
    for i, key in enumerate(some):
        Store(store.root).put(key, {}, bytes(10_000))
        age(store, key, 1000 - i)
    assert store.get(some[0]) is not None  # which makes it the last used
    store.put(digest({"n": "big"}), {}, bytes(40_000))
    left = [key for key in some if store.get(key) is not None]
    assert some[0] in left and left[1:] == some[-len(left) + 1 :] and 2 <= len(left) < 8
    assert store.size()[1] <= 100_000


def test_a_look_at_everything_is_rare(store, monkeypatch):
    """Once for a thirty-second of the limit that is written."""
    looks = []
    monkeypatch.setattr(Store, "sweep", lambda self: looks.append(1))
    store = Store(store.root, limit=320_000)
    for key in keys(400):
        store.put(key, {}, bytes(800))
    assert 10 <= len(looks) <= 90  # 400 entries of 1 KB: 40


def test_uses_close_to_each_other_are_one(store):
    store.put(KEY, {}, b"")
    age(store, KEY, 10)
    then = store.path(KEY).stat().st_mtime
    store.get(KEY)
    assert store.path(KEY).stat().st_mtime == then
    age(store, KEY, 100)
    store.get(KEY, touch=False)
    assert store.path(KEY).stat().st_mtime < then
    store.get(KEY)
    assert store.path(KEY).stat().st_mtime > then


def test_what_killed_writers_left_is_removed(store):
    store.put(KEY, {}, b"abc")
    old, new = (store.path(KEY).parent / f".new-{name}" for name in ("old", "new"))
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, (1, 1))
    store.sweep()
    assert not old.exists() and new.exists() and get(store) == ({}, b"abc")


def test_clearing_leaves_what_is_not_ours(store):
    some = keys(5)
    for key in some:
        store.put(key, {}, b"abc")
    mine = store.root / "notes.txt"
    mine.write_text("mine")
    store.path(some[0]).parent.joinpath("README").write_text("mine, too")
    assert store.clear() == 5 and store.entries() == [] and mine.exists()
    assert len(list(store.root.rglob("README"))) == 1


# ── many at once ────────────────────────────────────────────────────────────────────────────


@POSIX
def test_stress():
    """A small one; the full one: `python -m tests.runtime.cache_stress`."""
    done = cache_stress.run(4, 60, kill_every=0.01, seed=1, limit=2 << 20)
    assert done.fine, done
    assert done.counts["kills"] and done.counts["damages"] and done.counts["hits"]


@POSIX
def test_stress_would_find_a_store_that_does_not_check(monkeypatch):
    def trusting(raw):
        _, _, rest = raw.partition(b"\n")
        line, _, data = rest.partition(b"\n")
        return {**cache.json.loads(line), "key": None}, data

    def get(self, key):
        try:
            return trusting(self.path(key).read_bytes())
        except (OSError, ValueError):
            return None

    monkeypatch.setattr(Store, "get", get)
    monkeypatch.setattr(Store, "damaged", lambda self: [])
    done = cache_stress.run(2, 60, kill_every=0, seed=1, limit=0)
    assert done.counts["bad loads"] and not done.fine


# ── the command ─────────────────────────────────────────────────────────────────────────────


def command(store, *words):
    return tilewright("cache", *words, TILEWRIGHT_CACHE_DIR=str(store.root))


def test_command(store):
    code, kernel, broken = keys(3)
    store.put(code, {"kind": "code", "kernel": "k.cu", "target": "sm_90a"}, bytes(2048))
    described = {"kind": "kernel", "kernel": "gemm", "target": "cuda -roles=on", "code": code}
    store.put(kernel, described, bytes(1024))
    store.put(broken, {"kind": "kernel", "kernel": "other", "target": "cpu"}, b"abc")
    titles, *rows = command(store, "ls").stdout.splitlines()
    assert titles.split() == ["kernel", "target", "size", "age", "used", "entry"]
    assert len(rows) == 2
    (row,) = [r for r in rows if r.startswith("gemm ")]
    assert "cuda -roles=on" in row and kernel[:12] in row and "3.5 KiB" in row and " s " in row
    assert "k.cu" in command(store, "ls", "--all").stdout

    said = command(store, "size").stdout
    assert str(store.root) in said and "files    3" in said and "2.0 GiB" in said

    assert command(store, "verify").returncode == 0
    path = store.path(broken)
    path.write_bytes(path.read_bytes()[:-1])
    done = command(store, "verify")
    assert done.returncode == 1 and f"damaged: {path}" in done.stdout
    done = command(store, "verify", "--remove")
    assert done.returncode == 0 and not path.exists()

    assert "removed 2 files" in command(store, "clear").stdout
    assert store.size() == (0, 0)
    assert command(store, "ls").returncode == 0
