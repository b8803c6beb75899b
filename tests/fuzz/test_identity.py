"""Random values against the keys of kernels, and bugs planted there. The long run:
`python -m devtools identity`."""

from __future__ import annotations

import pytest

from devtools.fuzz import identity
from tilewright.support import content_key, key_rules


def test_leaves_differ_pairwise():
    keys = [content_key.content_key(make()) for make in identity.LEAVES]
    assert len(set(keys)) == len(identity.LEAVES)


def test_a_short_run_finds_nothing():
    assert identity.search(300) == ""


def _leaf(kind, rule):
    return lambda patch: patch.setitem(key_rules.LEAVES, kind, rule)


def _exact(kind, rule):
    return lambda patch: patch.setitem(key_rules.EXACT, kind, rule)


def _set(module, name, value):
    return lambda patch: patch.setattr(module, name, value)


def _nothing(value, sub):
    return None


BUGS = {
    "floats by ==": _leaf(float, lambda v, sub: (float, v)),
    "NaNs by name": _leaf(float, lambda v, sub: (float, v.hex())),
    "bools as integers": _leaf(bool, lambda v, sub: int(v)),
    "tuples as they are": _exact(tuple, lambda v, sub: (tuple, repr(v))),
    "lists as tuples": _exact(list, lambda v, sub: (tuple, *map(sub, v))),
    "dicts without order": _exact(
        dict, lambda v, sub: (dict, frozenset((sub(k), sub(x)) for k, x in v.items()))
    ),
    "the beginning of an array": _set(key_rules, "_digest", lambda data: bytes(data[:64])),
    "arrays without a type": _set(
        key_rules,
        "SUBCLASSES",
        [(k, _nothing if r is key_rules._dtype else r) for k, r in key_rules.SUBCLASSES],
    ),
    "objects without slots": _set(key_rules, "held", lambda value, slots: ()),
    "values that are not looked at again": _set(
        content_key.Context, "_unchanged", lambda self: self._settled
    ),
    "functions by text alone": _set(content_key._Walk, "cell", lambda self, *_: None),
    "no globals": _set(content_key._Walk, "path", lambda self, *_: None),
}  # fmt: skip


@pytest.mark.parametrize("bug", BUGS)
def test_planted_bugs_are_found(bug, monkeypatch):
    monkeypatch.setattr(key_rules, "_rules", type(key_rules._rules)())
    monkeypatch.setattr(content_key, "_contexts", {})
    BUGS[bug](monkeypatch)
    assert identity.search(4000, seconds=60)
