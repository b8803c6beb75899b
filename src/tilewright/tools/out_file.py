"""Options that name a file to be written."""

from __future__ import annotations

import os
from typing import Any

import click


class OutFile(click.Path):
    """A file that is written when the work is done; one that cannot be is refused before."""

    def __init__(self) -> None:
        super().__init__(dir_okay=False, writable=True)

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        found = super().convert(value, param, ctx)
        folder = os.path.dirname(found) or "."
        if not os.path.isdir(folder):
            self.fail(f"Directory {folder!r} does not exist.", param, ctx)
        if not os.path.exists(found) and not os.access(folder, os.W_OK):
            self.fail(f"Directory {folder!r} is not writable.", param, ctx)
        return found
