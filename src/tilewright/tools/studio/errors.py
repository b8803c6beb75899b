"""Errors as a recording has them: with the accesses that met, and the agents that wait."""

from __future__ import annotations

import re
from typing import Any

from tilewright.ir.core import *
from tilewright.support.errors import TilewrightError

_PLACE = re.compile(r"(?P<what>.*?) at (?P<file>[^\s:]+):(?P<line>\d+):\d+")
_STANDS = re.compile(
    r"(?P<who>.*?) of block .*? stands in (?P<op>\w+)(?: at .*?:(?P<line>\d+):\d+)?, "
    r"waiting for (?P<why>.*)"
)
_KEPT = ("message", "line", "column", "expected", "got", "fix", "notes")


def error_told(error: BaseException, stage: str = "compile") -> dict[str, Any]:
    """Plain data; of an error that is not one of ours, its text."""
    found: dict[str, Any] = {"stage": stage, "accesses": [], "waiting": [], "step": None}
    if not isinstance(error, TilewrightError):
        empty: dict[str, Any] = dict.fromkeys(_KEPT, "")
        text = f"{type(error).__name__}: {error}"
        return {**found, **empty, "kind": type(error).__name__, "message": str(error),
                "line": None, "column": None, "notes": [], "text": text}  # fmt: skip
    about = error.diagnostic.as_dict(type(error).__name__)
    found |= {name: about[name] for name in _KEPT}
    found |= {"kind": about["code"], "text": error.diagnostic.render()}
    if isinstance(error, RunError):
        found["stage"] = "sanitizer" if isinstance(error, SanitizerError) else "run"
    for note in error.diagnostic.notes:
        if stands := _STANDS.match(note):
            found["stage"] = found["kind"] = "deadlock"
            found["waiting"].append(
                {"role": stands["who"], "line": int(stands["line"]) if stands["line"] else None,
                 "text": f"{stands['op']}: waits for {stands['why']}"}
            )  # fmt: skip
        elif place := _PLACE.match(note):
            found["accesses"].append(
                {"line": int(place["line"]), "text": note, "what": place["what"]}
            )
    if found["stage"] == "sanitizer" and error.loc is not None:
        own = {"line": error.loc.line, "text": error.loc.source.strip(), "what": error.message}
        found["accesses"].append(own)
    return found
