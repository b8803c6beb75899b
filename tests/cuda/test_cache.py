"""The store gives back exactly what was put in, or nothing."""

import os
import stat

import pytest

from tilewright.targets.cuda.cache import Store, default_root, digest

KEY = digest({"source": "x"})


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "cache")


def test_round_trip(store):
    assert store.get(KEY) is None
    assert store.put(KEY, {"a": [1, "β"]}, b"\x00\nraw\xff")
    assert store.get(KEY) == ({"a": [1, "β"]}, b"\x00\nraw\xff")
    assert store.put(KEY, {}, b"newer") and store.get(KEY) == ({}, b"newer")
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
    assert store.get(KEY) == ({"size": 3}, b"abc")


def test_an_entry_under_another_name_is_absent(store):
    other = digest({"source": "y"})
    store.put(KEY, {}, b"abc")
    store.path(other).parent.mkdir(parents=True, exist_ok=True)
    store.path(other).write_bytes(store.path(KEY).read_bytes())
    assert store.get(other) is None


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="needs POSIX permissions")
def test_only_the_owner_can_write(store):
    store.put(KEY, {}, b"abc")
    assert stat.S_IMODE(store.path(KEY).stat().st_mode) == 0o600
    assert stat.S_IMODE(store.path(KEY).parent.stat().st_mode) == 0o700
    store.path(KEY).parent.chmod(0o777)
    assert store.get(KEY) is None and not store.put(KEY, {}, b"abc")


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="needs POSIX permissions")
def test_what_others_own_is_not_used(store, monkeypatch):
    store.put(KEY, {}, b"abc")
    monkeypatch.setattr(os, "geteuid", lambda: 4242)
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
