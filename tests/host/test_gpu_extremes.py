"""The ends of every type on a real GPU, against the interpreter. `pytest -m gpu`."""

import pytest

from devtools.host import extremes
from tilewright.targets.cuda.guard import run_guarded


@pytest.mark.gpu
@pytest.mark.parametrize("form", extremes.FORMS)
@pytest.mark.parametrize("kind", extremes.KINDS)
def test_on_gpu(kind, form):
    assert run_guarded(extremes.findings, kind, "cuda", None, form, timeout=120) == {}
