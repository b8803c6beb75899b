"""The page, with its data inside: served, or as one file that needs nothing else."""

from __future__ import annotations

import gzip
import json
from base64 import b64encode
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tilewright.support.errors import TilewrightError

PAGE = Path(__file__).parent / "page"
MOST = 3 << 20  # bytes of a file
HEAVY = ("levels", "layouts", "values")  # sections that may be left out
DATA = '<script id="studio-data" type="application/json">null</script>'
PACKED = '<script id="studio-data" type="application/gzip">null</script>'  # and in base64
STYLE = '<link rel="stylesheet" href="studio.css">'
CODE = '<script type="module" src="studio.js"></script>'


def page(data: Mapping[str, Any]) -> str:
    """The page of the server, which asks for its style and code."""
    told = json.dumps(data, ensure_ascii=False).replace("<", "\\u003c")
    return _swapped(_file("index.html"), DATA, DATA.replace("null", told))


def static(data: Mapping[str, Any]) -> str:
    """The whole page as one text. Recordings that make it too large lose levels, then layouts."""
    style = _file("studio.css").replace("</style", "<\\/style")
    code = _file("studio.js").replace("</script", "<\\/script")
    recordings = list(data.get("recordings", ()))
    for lacks in ((), ("levels",), ("levels", "layouts"), HEAVY):
        told = {**data, "recordings": [without(r, lacks) for r in recordings]}
        plain = json.dumps(told, ensure_ascii=False).encode()
        packed = b64encode(gzip.compress(plain, mtime=0)).decode()
        text = _swapped(_file("index.html"), DATA, PACKED.replace("null", packed))
        text = _swapped(text, STYLE, f"<style>{style}</style>")
        text = _swapped(text, CODE, f'<script type="module">{code}</script>')
        if len(text.encode()) <= MOST:
            return text
    raise TilewrightError(
        f"the page would have {len(text.encode())} bytes",
        expected=f"at most {MOST}",
        fix="export fewer kernels, or smaller sizes",
    )


def without(recording: Mapping[str, Any], sections: tuple[str, ...]) -> dict[str, Any]:
    """A recording that has lost heavy sections, and says so."""
    found = dict(recording)
    if "levels" in sections:
        kept = ("formula", "tile text", "tile IR", "scheduled IR", "CUDA")
        found["levels"] = [each for each in recording["levels"] if each["name"] in kept]
    if "layouts" in sections:
        found["parts"] = [{**p, "layouts": []} for p in recording["parts"]]
    if "values" in sections:
        found["values"] = None
    if sections:
        note = f"left out to keep the file small: {', '.join(sections)}"
        found["notes"] = [*recording["notes"], note]
    return found


def _file(name: str) -> str:
    try:
        return (PAGE / name).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise TilewrightError(
            f"the studio's page is not built: {name} is missing",
            fix="run `make studio` in a checkout, or install a wheel",
        ) from None


def _swapped(text: str, old: str, new: str) -> str:
    if text.count(old) != 1:
        raise TilewrightError("the studio's page does not fit this version", expected=old)
    before, _, after = text.partition(old)
    return before + new + after
