from __future__ import annotations
from typing import Any
from tilewright.interp.lanes import Watch
class BlockRaces: pass
class Sanitizer(Watch):
    exact = True
    def __init__(self, agent: Any, races: Any, threads: bool) -> None: pass
    def read(self, *a: Any) -> None: pass
    def write(self, *a: Any) -> None: pass
    def atomic(self, *a: Any) -> None: pass
