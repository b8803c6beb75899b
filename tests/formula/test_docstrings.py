"""The examples in the docstrings of formulas run."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import tilewright.formula
from tilewright.ir import formula
from tilewright.ir.text import formula as text

FOUND = pkgutil.walk_packages(tilewright.formula.__path__, "tilewright.formula.")
MODULES = [formula.__name__, text.__name__, *(m.name for m in FOUND if not m.ispkg)]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    assert not doctest.testmod(importlib.import_module(name)).failed
