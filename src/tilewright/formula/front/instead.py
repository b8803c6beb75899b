"""What to write for names that other libraries have and `tilewright.math` has not."""

from __future__ import annotations

import difflib
import sys
from functools import cache
from typing import TYPE_CHECKING, Any, NoReturn

from tilewright.support.errors import CompileError


class NoName(CompileError, AttributeError):
    """A name that `tilewright.math`, or an array of it, does not have."""


_SHAPES = "data decide its shape: keep all elements and choose them by tm.where(condition, x, 0)"
_SORTED = "tm.sort(x, axis=-1) of rows of up to 2048 elements, and its parts: y[..., n // 2]"
_VALUE = "an array has no value until the function is called: return it"
_SAME = "arrays are values, which nothing changes: leave it out"
_CAST = 'tm.astype(x, "float16")'
_GIVEN = "arrays are arguments of the function; tm.full, tm.zeros and tm.arange make some"
_TABLE = {
    "topk": "tm.top_k(x, k)",
    "median quantile percentile sorted": _SORTED,
    "nonzero argwhere unique unique_all unique_counts unique_inverse unique_values": _SHAPES,
    "linalg inv solve det svd eig qr cholesky": "matrix decompositions are no formulas: use "
    "numpy.linalg before the call; norms are tm.sqrt(tm.sum(x * x, axis=-1))",
    "fft": "a transform is a product: x @ w with w of tm.cos and tm.sin, or numpy.fft",
    "random": "pass random arrays as arguments",
    "asarray tensor from_dlpack from_numpy empty empty_like": _GIVEN,
    "concatenate cat hstack": "tm.concat([x, y], axis=0)",
    "vstack": "tm.stack([x, y])",
    "transpose permute swapaxes": "tm.permute_dims(x, axes), tm.matrix_transpose(x), x.mT",
    "t": "x.T",
    "dot mm bmm": "x @ y",
    "trace diagonal": 'tm.einsum("...ii->...", x), tm.einsum("...ii->...i", x)',
    "vector_norm matrix_norm norm": "tm.sqrt(tm.sum(x * x, axis=-1))",
    "absolute": "tm.abs(x)",
    "power": "x ** y, tm.pow(x, y)",
    "cumsum": "tm.cumulative_sum(x, axis=0)",
    "cumprod": "tm.cumulative_prod(x, axis=0)",
    "amax": "tm.max(x, axis=-1)",
    "amin": "tm.min(x, axis=-1)",
    "true_divide": "x / y",
    "gather": "tm.take_along_axis(x, indices, axis=-1), x[indices]",
    "scatter put_along_axis at": "arrays are definitions: say each element by tm.array(shape, fn)",
    "view flatten ravel": "tm.reshape(x, (-1,))",
    "unsqueeze": "tm.expand_dims(x, axis=0), x[None]",
    "expand": "tm.broadcast_to(x, shape)",
    "dim": "x.ndim",
    "item tolist numpy": _VALUE,
    "copy clone detach contiguous cpu cuda fill": _SAME,
    "float half bfloat16 double long to type": _CAST,
    "masked_fill": "tm.where(mask, value, x)",
    "fmax": "tm.maximum(x, y)",
    "fmin": "tm.minimum(x, y)",
    "log_sum_exp": "tm.logsumexp(x, axis=-1)",
}
INSTEAD = {name: fix for names, fix in _TABLE.items() for name in names.split()}
INSTEAD |= {f"arc{name}": f"tm.a{name}(x)" for name in "sin cos tan sinh cosh tanh".split()}
INSTEAD |= {"arctan2": "tm.atan2(y, x)"}


@cache  # names are also asked for by `hasattr`, and looking for close ones takes a millisecond
def fix_for(name: str) -> str:
    """What to write in place of a name.

    >>> import tilewright.math  # which has the names
    >>> fix_for("cumsum"), fix_for("exp"), fix_for("sofmax")
    ('tm.cumulative_sum(x, axis=0)', 'write tm.exp', 'did you mean tm.softmax?')
    """
    if name in INSTEAD:
        return INSTEAD[name]
    known = [n for n in dir(sys.modules.get("tilewright.math")) if not n.startswith("_")]
    if name in known:
        return f"write tm.{name}"
    close = difflib.get_close_matches(name, known, 1)
    return (
        f"did you mean tm.{close[0]}?" if close else "see help(tilewright.math) for what is there"
    )


def refuse(name: str, what: str) -> NoReturn:
    raise NoName(f"{what} {name!r}", fix=fix_for(name))


# ufuncs that are operators: a NumPy scalar on the left calls them
_OPERATORS = (
    "add subtract multiply divide floor_divide remainder power matmul bitwise_and bitwise_or "
    "bitwise_xor left_shift right_shift less less_equal equal not_equal greater greater_equal"
).split()


class Foreign:
    """What other libraries ask of an array, which a formula's does not have."""

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **more: Any) -> Any:
        if method == "__call__" and ufunc.__name__ in _OPERATORS and not more:
            space: Any = sys.modules["tilewright.math"]
            names = {"power": "pow", "left_shift": "bitwise_left_shift",
                     "right_shift": "bitwise_right_shift"}  # fmt: skip
            return getattr(space, names.get(ufunc.__name__, ufunc.__name__))(*inputs)
        folds = {"add": "sum", "multiply": "prod", "maximum": "max", "minimum": "min"}
        name = ufunc.__name__
        _other("NumPy", name if method == "__call__" else folds.get(name, name))

    def __array_function__(self, function: Any, *_: Any) -> NoReturn:
        _other("NumPy", function.__name__)

    def __array__(self, *_: Any, **__: Any) -> NoReturn:
        _other("NumPy", "asarray")

    @classmethod
    def __torch_function__(cls, function: Any, *_: Any, **__: Any) -> NoReturn:
        _other("PyTorch", function.__name__)

    def __dlpack__(self, **_: Any) -> NoReturn:
        raise CompileError(
            "a kernel, or another library, was given an array of a formula, which has no elements "
            "until the function is called",
            fix="call it with the result of the function, or with what the function takes",
        )

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            if name.startswith("__"):
                raise AttributeError(name)
            refuse(name, "arrays of a formula have no")


def _other(library: str, name: str) -> NoReturn:
    raise CompileError(
        f"{library}'s {name} was given an array of a formula, which has no elements until the "
        "function is called",
        fix=fix_for(name),
    )
