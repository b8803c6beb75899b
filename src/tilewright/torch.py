"""PyTorch models by Tilewright's kernels: `torch.compile(model, backend="tilewright")`.

Importing this module registers the backend; an installed Tilewright registers it by itself. See
`docs/pytorch.md`.
"""

from __future__ import annotations

from torch._dynamo import list_backends as _known
from torch._dynamo import register_backend as _register

from tilewright.frameworks.torch.backend import backend
from tilewright.frameworks.torch.explain import Report, explain
from tilewright.frameworks.torch.random import random_numbers

if "tilewright" not in _known(exclude_tags=()):
    _register(backend, name="tilewright")

__all__ = ["Report", "backend", "explain", "random_numbers"]
