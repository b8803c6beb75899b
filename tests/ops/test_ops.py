"""Every op against NumPy in float64: its values in every type, its gradients along a direction,
and the example of its text."""

from __future__ import annotations

import doctest
import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from click.testing import CliRunner

import tilewright as tw
import tilewright.ops as ops
from devtools.__main__ import main
from tests.ops import more_cases
from tests.ops.cases import CASES, TYPES, Case, exact
from tilewright.formula.meaning import evaluate

assert more_cases, "which adds to CASES"
NAMES = list(CASES)
STEP = 1e-5
# Each is a kernel for each op and type. Types and sizes are handled apart, so that every type has
# other sizes; `make nightly` judges three sizes in every type.
SIZES = int(os.environ.get("OPS_SIZES", "1"))


def several(results: Any) -> list[Any]:
    return list(results) if isinstance(results, tuple) else [results]


def is_float(array: Any) -> bool:
    return array.dtype in TYPES.values()


def close(got: Any, want: Any, bound: float) -> None:
    """Within `bound` ε of the largest element."""
    if not is_float(got):
        np.testing.assert_array_equal(got, want)
        return
    epsilon = float(ml_dtypes.finfo(got.dtype).eps)
    size = max(np.abs(want).max(initial=0), 1e-3)
    np.testing.assert_allclose(got.astype(np.float64), want, 0, bound * epsilon * size)


def check(case: Case, seed: int, dtype: str, call: Callable[..., Any] | None = None) -> None:
    given = case.given(seed, dtype)
    got, want = (call or case.op)(**given), case.want(**exact(given))
    said = case.op.results(case.op.bind((), given))
    assert [(g.shape, str(g.dtype)) for g in several(got)] == said
    for g, w in zip(several(got), several(want), strict=True):
        assert g.shape == np.shape(w)
        close(g, w, case.op.error)


@pytest.mark.parametrize("name", NAMES)
def test_values(name: str) -> None:
    """One case of each op by its kernel, others by what the formula means."""
    case, seed = CASES[name], zlib.crc32(name.encode())

    def meaning(**given: Any) -> Any:
        *_, arrays = case.op.run.sorted_out(case.op.bind((), given))
        found = evaluate(case.op.run.formula(**given), arrays)
        return tuple(found) if len(found) > 1 else found[0]

    by_kernel = name == case.op.name or case.op.text
    check(case, seed, case.floats[seed % len(case.floats)], None if by_kernel else meaning)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", NAMES)
def test_values_in_every_type(name: str, dtype: str) -> None:
    if dtype not in CASES[name].floats:
        pytest.skip(f"no {dtype}")
    first = list(TYPES).index(dtype)
    for seed in range(first, first + SIZES):
        check(CASES[name], seed, dtype)


def directional(case: Case, given: dict[str, Any], seed: int) -> tuple[Any, ...]:
    """Arguments with a gradient, a direction to move them in, and cotangents."""
    rng = np.random.default_rng([seed, 1])
    wrt = tuple(n for n in case.op.wrt if isinstance(given.get(n), np.ndarray))
    ways = {n: rng.standard_normal(given[n].shape) for n in wrt}
    results = several(case.want(**exact(given)))
    return wrt, ways, [rng.standard_normal(np.shape(r)) for r in floats_of(results)]


def floats_of(results: list[Any]) -> list[Any]:
    return [r for r in results if np.asarray(r).dtype.kind == "f"]


def slope(case: Case, given: dict[str, Any], ways: Any, cotangents: Any) -> float:
    """How much results, weighed by cotangents, grow along the direction."""
    ends = []
    for step in (STEP, -STEP):
        moved = exact(given)
        moved |= {n: moved[n] + step * way for n, way in ways.items()}
        floats = floats_of(several(case.want(**moved)))
        ends.append(sum(np.sum(r * c) for r, c in zip(floats, cotangents, strict=True)))
    return (ends[0] - ends[1]) / (2 * STEP)


WITH_GRADIENTS = [n for n in NAMES if CASES[n].op.wrt]


@pytest.mark.parametrize("name", [n for n in WITH_GRADIENTS if CASES[n].op.pull is None])
def test_gradients(name: str) -> None:
    """The formula of gradients, in float64."""
    case, seed = CASES[name], zlib.crc32(name.encode())
    given = case.given(seed, "float64" if "float64" in case.floats else "float32")
    wrt, ways, cotangents = directional(case, given, seed)
    pair, arrays = case.op.gradients(wrt).pair(**case.op.bind((), given))
    typed = [c.astype(e.numpy) for c, (_, e) in zip(cotangents, pair.ends, strict=True)]
    # both halves, as one formula
    whole = evaluate(pair.whole.formula, [
        np.reshape(a, b.static_shape)
        for a, b in zip([*arrays, *typed], pair.whole.formula.inputs, strict=True)
    ])  # fmt: skip
    got = sum(np.sum(d.reshape(ways[n].shape) * ways[n])
              for n, d in zip(wrt, whole[pair.count :], strict=True))  # fmt: skip
    want = slope(case, given, ways, cotangents)
    assert got == pytest.approx(want, rel=1e-4, abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", WITH_GRADIENTS)
def test_gradients_by_kernels(name: str) -> None:
    case, first = CASES[name], WITH_GRADIENTS.index(name)
    for seed in range(first, first + SIZES):
        given = case.given(seed, "float32")
        wrt, ways, cotangents = directional(case, given, seed)
        gradients, bound = case.op.gradients(wrt), case.op.bind((), given)
        results, kept = gradients.forward(**bound)
        floats = [r for r in several(results) if is_float(r)]
        typed = [c.astype(r.dtype) for c, r in zip(cotangents, floats, strict=True)]
        made = several(gradients.backward(kept, *typed))
        got = sum(np.sum(d * ways[n]) for n, d in zip(wrt, made, strict=True))
        want = slope(case, given, ways, cotangents)
        scale = sum(np.abs(d * ways[n]).sum() for n, d in zip(wrt, made, strict=True))
        assert abs(got - want) <= 1e-4 * max(scale, 1)


@pytest.mark.parametrize("name", ops.OPS)
def test_every_op_has_a_case_and_an_example(name: str) -> None:
    assert any(case.op.name == name for case in CASES.values())
    op = ops.OPS[name]
    example = doctest.DocTestParser().get_doctest(
        op.__doc__, {"np": np, "ml_dtypes": ml_dtypes, **vars(ops)}, name, None, None
    )
    assert example.examples
    said: list[str] = []
    failed, _ = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(example, out=said.append)
    assert not failed, "".join(said)


def test_the_page_lists_what_there_is(tmp_path: Path) -> None:
    page = Path(__file__).parents[2] / "docs" / "ops.md"
    text = page.read_text(encoding="utf-8")
    copy = tmp_path / "ops.md"
    copy.write_text(text)
    assert not CliRunner().invoke(main, ["ops", str(copy)]).exception
    assert copy.read_text() == text, "run: python -m devtools ops"


WRONG = [
    (lambda x: ops.softmax(x[0, 0]), "input has 0 axes"),
    (lambda x: ops.softmax(x.astype(np.int32)), "input has elements of int32"),
    (lambda x: ops.matmul(x, x[:2]), "other has 2 elements along axis 0, where k is 3"),
    (lambda x: ops.rms_norm(x, (3,), x[0, :2]), "weight has 2 elements along axis 0, not 3"),
    (lambda x: ops.matmul(x, x.astype(np.float64)), "other has elements of float64"),
    (lambda x: ops.matmul(x, x, activation="swish"), "no activation is called 'swish'"),
    (lambda x: ops.swiglu(x, x[None]), "up has the axes [1, 3] in front, where others have [3]"),
    (lambda x: ops.rms_norm(x, (3,), x), "weight has 2 axes"),
    (lambda x: ops.cross_entropy(x, np.zeros(3, int), reduction="none"), "no reduction is called"),
    (lambda x: ops.attention(*[x[None, None].repeat(n, 1) for n in (3, 2, 2)]), "3 heads of"),
    (lambda x: ops.quantize(x, group_size=2), "no float8_e4m3fn in groups of 2 for rows of 3"),
    (lambda x: ops.softmax.gradients(("dim",)), "softmax has no gradient by dim"),
    (lambda x: ops.softmax(), "missing a required argument: 'input'"),
    (lambda x: ops.softmax(x, dmi=0), "did you mean 'dim'?"),
    (lambda x: ops.softmax(x, 0, 1), "too many positional arguments"),
    (lambda x: ops.softmax(x, input=x), "multiple values for argument 'input'"),
    (lambda x: ops.softmax(x.tolist()), "input is no array"),
    (lambda x: ops.conv2d(x[None, None], x[None, None].repeat(2, 1)), "1 groups do not share"),
]


@pytest.mark.parametrize(("call", "said"), WRONG, ids=[said for _, said in WRONG])
def test_wrong_arguments(call: Any, said: str) -> None:
    with pytest.raises(tw.TilewrightError) as error:
        call(np.ones((3, 3), np.float32))
    assert said in str(error.value)


def test_a_name_is_taken() -> None:
    def softmax(x: Any) -> Any:
        """Another."""
        return x

    with pytest.raises(tw.CompileError, match="there is an op called softmax"):
        ops.op("x: float[n] -> x[n]", formula="x", error=0)(softmax)
    assert ops.OPS["softmax"] is ops.softmax


def test_strided_arrays_mean_what_they_hold() -> None:
    x = np.random.default_rng(0).standard_normal((6, 8), np.float32)[::2].T
    np.testing.assert_array_equal(ops.softmax(x), ops.softmax(x.copy()))
