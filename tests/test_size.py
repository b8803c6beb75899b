"""`python -m devtools size`: what counts, and what fails."""

from __future__ import annotations

import json

import pytest

from devtools import size

CODE = '''"""Doc."""


def f(a):  # why
    """Doc,
    in two lines."""
    text = """not a docstring"""
    return a + text
'''


def test_prose_and_layout_do_not_count():
    bare = "def f(a):\n    text = 'x'; return a + text\n"
    assert size.tokens(CODE) == size.tokens(bare) - 1  # the semicolon


@pytest.mark.parametrize(
    ("kept", "code", "said"), [(-1, 1, "error"), (0, 0, ""), (1, 0, "smaller")]
)
def test_growth_fails(kept, code, said, tmp_path, monkeypatch, capsys):
    figures = {"lines": 10, "tokens": 100}
    monkeypatch.setattr(size, "measure", lambda: (figures, [(10, "a.py")]))
    record = tmp_path / "size.json"
    record.write_text(json.dumps({**figures, "tokens": figures["tokens"] + kept}))
    monkeypatch.setattr(size, "RECORD", record)
    assert size.report() == code
    assert said in capsys.readouterr().out
