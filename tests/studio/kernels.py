"""Recordings of the gallery's kernels, each file run once."""

from __future__ import annotations

from functools import cache
from typing import Any

from tilewright.tools.collect import file_names
from tilewright.tools.studio.gallery import LESSONS
from tilewright.tools.studio.recording import record
from tilewright.tools.studio.subject import Request


@cache
def names(lesson: str) -> dict[str, Any]:
    return file_names(str(LESSONS[lesson].path))


GEMM: Any = names("gemm")["matmul"]


def recorded(lesson: str, **more: Any) -> dict[str, Any]:
    about = LESSONS[lesson]
    return record(names(lesson), Request.of({**about.request, **more}), str(about.path))
