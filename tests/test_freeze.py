"""`python -m devtools freeze`: hashes of generated sources."""

from __future__ import annotations

import json

from devtools import freeze

TASK = ("vector_add(N=1000)", "cuda", False)


def test_a_source_has_one_hash_and_another_source_another():
    first = freeze.frozen(TASK)
    assert first == freeze.frozen(TASK) and not first["hash"].startswith("refused")
    assert first["hash"] != freeze.frozen(("vector_add(N=999)", "cuda", False))["hash"]


def test_a_difference_is_told(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(freeze, "names", lambda drawn, fuzzed: ["vector_add(N=1000)"])
    before, after = tmp_path / "before.json", tmp_path / "after.json"
    how = {"drawn": 0, "fuzzed": 0, "cubin": False, "jobs": 1}
    assert freeze.freeze(before, None, **how) == 0
    assert freeze.freeze(after, before, **how) == 0
    found = json.loads(before.read_text())
    found[0]["hash"] = "another"
    before.write_text(json.dumps(found))
    capsys.readouterr()
    assert freeze.freeze(after, before, **how) == 1
    assert "vector_add(N=1000)" in capsys.readouterr().out
