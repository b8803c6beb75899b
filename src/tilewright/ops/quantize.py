"""Narrow numbers with scales, and products of them."""

from __future__ import annotations

import tilewright.math as tm
from tilewright.ops import texts
from tilewright.ops.op import Array, op
from tilewright.support.errors import CompileError

LARGEST = {"float8_e4m3fn": 448.0, "float8_e5m2": 57344.0, "int8": 127.0}
GROUP = 128


@op(
    "input: float[..., n] -> dtype[..., n], float32[..., n // (group_size or n)]",
    formula="x / scale, scale = max |x| of a group / largest number of dtype",
    error=4,
)
def quantize(
    input: Array, dtype: str = "float8_e4m3fn", group_size: int = GROUP
) -> tuple[Array, Array]:
    """Rows as narrow numbers, with a scale for each group of neighbours; with `group_size=0`, for
    each row. `dtype` is "float8_e4m3fn", "float8_e5m2" or "int8". Groups of zeros have the scale 1.

    >>> q, scale = quantize(np.array([[254, -127]], np.float32), "int8", group_size=0)
    >>> q.tolist(), scale.tolist()
    ([[127, -64]], [[2.0]])
    """
    n = input.shape[-1]
    group = group_size or n
    if dtype not in LARGEST or n % group:
        raise CompileError(
            f"quantize: no {dtype} in groups of {group} for rows of {n}",
            expected=f"a dtype of {', '.join(LARGEST)}, and rows that group_size divides",
            fix="choose a dtype and a group_size like these; group_size=0 is the whole row",
            code="arguments",
        )
    parts = tm.reshape(input, (*input.shape[:-1], n // group, group))
    top = tm.max(tm.abs(parts), axis=-1)
    scale = tm.where(top > 0, tm.astype(top, tm.float32) / LARGEST[dtype], 1.0)
    x = parts / scale[..., None]
    x = tm.round(x) if dtype == "int8" else x
    return tm.reshape(tm.astype(x, getattr(tm, dtype)), input.shape), scale


@op(
    "input: float8[m, k], weight: input[n, k], input_scale: float32[m], weight_scale: float32[n]"
    " -> out_dtype[m, n]",
    formula="(input · weightᵀ) ⊙ (input_scale ⊗ weight_scale)",
    error=16,
)
def matmul_fp8(
    input: Array, weight: Array, input_scale: Array, weight_scale: Array,
    out_dtype: str = "bfloat16",
) -> Array:  # fmt: skip
    """The product of 8-bit floats whose rows have scales, as `torch._scaled_mm`.

    >>> one, scale = np.ones((2, 4), ml_dtypes.float8_e4m3fn), np.array([1, 2], np.float32)
    >>> matmul_fp8(one, one, scale, scale, out_dtype="float32").tolist()
    [[4.0, 8.0], [8.0, 16.0]]
    """
    product = input @ tm.matrix_transpose(weight)
    return tm.astype(product * input_scale[:, None] * weight_scale, getattr(tm, out_dtype))


@op(
    "input: float8[m, k], weight: input[n, k], input_scale: float32[m, -(-k // 128)],"
    " weight_scale: float32[-(-n // 128), -(-k // 128)] -> out_dtype[m, n]",
    formula="Σ over groups of 128: (input · weightᵀ) ⊙ scales",
    error=16,
    text=True,
)
def matmul_fp8_groupwise(
    input: Array, weight: Array, input_scale: Array, weight_scale: Array,
    out_dtype: str = "bfloat16",
) -> Array:  # fmt: skip
    """The product of 8-bit floats with scales for 1 × 128 numbers of the input and 128 × 128 of the
    weight, as FlashInfer's `gemm_fp8_nt_groupwise`.

    >>> one, scale = np.ones((2, 4), ml_dtypes.float8_e4m3fn), np.array([[3]], np.float32)
    >>> matmul_fp8_groupwise(one, one, np.ones((2, 1), np.float32), scale, "float32").tolist()
    [[12.0, 12.0], [12.0, 12.0]]
    """
    kind = str(input.dtype).rpartition(".")[2]
    return texts.groupwise(input, weight, input_scale, weight_scale, kind, out_dtype)


@op(
    "input: float[..., k], weight: int8[n, k], scale: float32[n], bias: float[n] -> input[..., n]",
    formula="(input · weightᵀ) ⊙ scale + bias",
    wrt=["input", "scale", "bias"],
    error=16,
)
def matmul_int8(input: Array, weight: Array, scale: Array, bias: Array | None = None) -> Array:
    """`linear` with weights of 8 bits, one scale for each output.

    >>> x, w = np.ones((1, 2), np.float32), np.array([[1, 2]], np.int8)
    >>> matmul_int8(x, w, np.array([0.5], np.float32)).tolist()
    [[1.5]]
    """
    y = input @ tm.matrix_transpose(tm.astype(weight, input.dtype)) * scale
    return tm.astype(y if bias is None else y + bias, input.dtype)


@op(
    "weight: uint8[n, p], scale: float32[n, g], input: float[..., 2 * p], bias: float[n]"
    " -> input[..., n]",
    formula="input · ((weight − 8) ⊙ scale)ᵀ + bias",
    wrt=["input", "bias"],
    error=16,
)
def matmul_int4(input: Array, weight: Array, scale: Array, bias: Array | None = None) -> Array:
    """`linear` with weights of 4 bits, from 0 to 15 for −8 to 7, two in a byte, the even one in its
    low half; each of the groups of a row has a scale. Weights times scales are rounded to the type
    of the input.

    >>> x, w = np.ones((1, 2), np.float32), np.array([[9 + 16 * 10]], np.uint8)
    >>> matmul_int4(x, w, np.array([[0.5]], np.float32)).tolist()
    [[1.5]]
    """
    (n, half), groups = weight.shape, scale.shape[1]
    if 2 * half % groups:
        raise CompileError(
            f"matmul_int4: {groups} groups do not share {2 * half} numbers",
            expected="as many scales in a row as divide it",
            got=f"weight: {list(weight.shape)}, scale: {list(scale.shape)}",
            fix="pass a scale whose shape fits",
            code="arguments",
        )
    long = 2 * half // groups

    def number(o: Array, i: Array) -> Array:
        bits = tm.astype(weight[o, i // 2], tm.int32) >> (i % 2 * 4)
        return tm.astype((bits & 15) - 8, tm.float32) * scale[o, i // long]

    numbers = tm.astype(tm.array((n, 2 * half), number), input.dtype)
    y = input @ tm.matrix_transpose(numbers)
    return tm.astype(y if bias is None else y + bias, input.dtype)
