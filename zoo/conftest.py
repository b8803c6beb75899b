"""Every kernel of the zoo is tested on every target that runs without a GPU."""

import pytest

TARGETS = ("cpu", "interp", "interp -sanitize")


@pytest.fixture(params=TARGETS)
def target(request):
    return request.param
