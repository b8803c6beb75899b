import importlib
import inspect
from pathlib import Path

import pytest

from zoo import rows
from zoo.elementwise.swiglu import swiglu
from zoo.loss import cross_entropy
from zoo.norm import layer_norm, rms_norm
from zoo.softmax import softmax
from zoo.transpose.transpose import transpose

FAMILIES = (softmax, rms_norm, layer_norm, cross_entropy)
KERNELS = [kernel for family in FAMILIES for kernel in family.VARIANTS.values()]


@pytest.mark.parametrize("kernel", [*KERNELS, swiglu, transpose], ids=lambda k: k.__name__)
def test_kernels_are_short(kernel):
    text = inspect.getsource(kernel.fn)
    body = text[text.index("@T.prim_func") : text.index("return main")]
    assert sum(bool(line.strip()) for line in body.splitlines()) <= 30


@pytest.mark.parametrize("columns", [1, 7, 96, 256, 1000, 4096, 5000, 7168, 16384, 18000, 50257,
                                     65536, 131072])  # fmt: skip
def test_choices_cover_the_row(columns):
    plan = rows.choose(columns)
    assert plan["threads"] % 32 == 0
    if plan.pop("variant") == "rows":
        held = plan["block_M"] * plan["block_N"] / plan["threads"]
        assert plan["block_N"] >= columns and held % rows.VECTOR == 0 and held <= 64
    else:
        part, width, steps = rows.cut(columns, **plan)
        assert part == width * steps <= rows.PART
        assert (plan["cluster"] - 1) * part < columns <= plan["cluster"] * part  # all have some


@pytest.mark.parametrize("columns, block_M, threads", [
    (1500, 10, 256), (4000, 4, 256), (4096, 1, 128), (7168, 1, 128), (8192, 1, 256)
])  # fmt: skip
def test_rows_of_layer_norm_that_blocks_hold(columns, block_M, threads):
    plan = rows.choose(columns, single=layer_norm.SINGLE, keep=layer_norm.KEEP)
    assert (plan["variant"], plan["block_M"], plan["threads"]) == ("held", block_M, threads)


@pytest.mark.parametrize("columns, cluster, clusters, threads", [
    (9000, 1, 264, 512), (16384, 1, 264, 512), (18000, 1, 132, 1024), (32768, 1, 132, 1024),
    (33000, 2, 66, 1024), (65536, 2, 66, 1024), (120000, 4, 30, 1024), (262144, 8, 15, 512),
])  # fmt: skip
def test_long_rows_of_layer_norm(columns, cluster, clusters, threads):
    """Clusters stay where W and B do not fit the cache, each block with its columns of them."""
    plan = rows.choose(columns, keep=layer_norm.KEEP)
    assert plan.pop("variant") == "kept" and plan.pop("clusters") == clusters
    assert (plan["cluster"], plan["threads"]) == (cluster, threads)
    part, *_ = rows.cut(columns, 1, **plan)
    assert columns <= cluster * part and part <= rows.PART
    plain = rows.choose(columns, clusters=1, keep=layer_norm.KEEP)
    assert plain["variant"] == ("pieces" if columns > rows.PART else "held")
    assert rows.choose(layer_norm.KEEP, keep=layer_norm.KEEP)["variant"] == "held"
    assert rows.choose(300000, keep=layer_norm.KEEP)["cluster"] == 16
    assert rows.choose(columns + 1, keep=layer_norm.KEEP)["variant"] == "held"


@pytest.mark.parametrize("columns", [256, 4096, 65536, 262144])
def test_what_is_tuned_are_sizes_that_the_kernels_have(columns, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent.parent / "benchmarks"))
    tuned = importlib.import_module("memory_bound")
    tried = [
        *((family, c) for family in FAMILIES[:2] for c in tuned.row_tunings(columns)),
        *((layer_norm, c) for c in tuned.norm_tunings(columns)),
        *((cross_entropy, c) for c in tuned.loss_tunings(columns)),
    ]
    assert len(tried) > 8
    for family, choice in tried:
        known = inspect.signature(family.VARIANTS[choice["variant"]].fn).parameters
        assert set(choice) - {"variant"} <= set(known), choice
    for choice in tuned.transpose_tunings(columns):
        assert set(choice) <= set(inspect.signature(transpose.fn).parameters)


def test_a_row_too_long_for_a_cluster_is_walked():
    assert rows.choose(1 << 20)["variant"] == "pieces"
    assert rows.choose(65536, clusters=1)["variant"] == "pieces"


def test_what_is_chosen_covers_the_row():
    with pytest.raises(ValueError, match="64 columns in a block, 300 in a row"):
        softmax.softmax_rows(300, target="interp", block_N=64)
    assert "cluster=2" in softmax.softmax_rows(3000, target="interp", cluster=2).ir()
