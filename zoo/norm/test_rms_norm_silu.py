import numpy as np
import pytest

from zoo.case import normal
from zoo.norm.rms_norm_silu import reference, rms_norm_silu


@pytest.mark.parametrize("C", [32, 96, 256, 512, 544, 1120])
@pytest.mark.parametrize("M", [1, 10])
def test_rms_norm_silu(target, M, C):
    x, w, y = normal(M, C), normal(C, seed=1), np.full((M, C), np.nan, np.float32)
    rms_norm_silu(M, C, target=target)(x, w, y)
    np.testing.assert_allclose(y, reference(x, w), rtol=1e-5, atol=1e-6)


def test_dispatch_keeps_a_fast_path():
    names = {C: rms_norm_silu(4, C, target="interp").ir().count("for k") for C in (512, 544)}
    assert names == {512: 0, 544: 2}


def test_channels_must_divide():
    with pytest.raises(ValueError, match="multiple of 32"):
        rms_norm_silu(4, 40)
