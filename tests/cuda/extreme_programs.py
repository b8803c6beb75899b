"""Kernels whose results C++ leaves undefined where they are written plainly, and extreme data."""

from __future__ import annotations

from typing import Any

import numpy as np

import tilewright.language as T

N = 64


def extremes(kind: str) -> np.ndarray[Any, Any]:
    """The ends of an integer type, and numbers near its width."""
    info = np.iinfo(kind)
    some = [info.min, info.max, info.min + 1, info.max - 1, 0, 1, 2, 3, info.bits - 1, info.bits]
    some += [info.bits + 1, info.max // 3, info.max // 2 + 1] + [-1, -2, -8] * (info.min < 0)
    return np.resize(np.array(some, kind), N)


def integers(kind: str) -> Any:
    """Sums, products, quotients, shifts and comparisons of `kind`."""

    @T.prim_func
    def whole(A: T.Tensor((N,), kind), B: T.Tensor((N,), kind), O: T.Tensor((14, N), kind)):
        with T.Kernel(1, threads=N):
            for i in T.Parallel(N):
                O[0, i] = T.if_then_else(A[i] + 1 > A[i], 1, 0)
                O[1, i] = (A[i] * 2) // 2
                O[2, i] = A[i] + B[i]
                O[3, i] = A[i] * B[i]
                O[4, i] = -A[i]
                O[5, i] = T.abs(A[i] - 1)
                O[6, i] = A[i] // (B[i] | 1)
                O[7, i] = A[i] % (B[i] | 1)
                O[8, i] = A[i] << T.cast(B[i], f"uint{kind.lstrip('uint')}")
                O[9, i] = A[i] >> T.cast(B[i], f"uint{kind.lstrip('uint')}")
                O[10, i] = A[i] >> 40
                O[11, i] = A[i] ** 3
                O[12, i] = T.fmod(A[i], B[i] | 1)
                O[13, i] = (A[i] - B[i] > 0) * A[i]

    return whole


FLOATS = [
    0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 5e-324, 1e-45, 1e-40, 6e-8, 65504.0, 65520.0,
    -3.4e38, 1.7e308, 448.0, 464.0, 480.0, 57344.0, 1.0625, 1.0625 + 2**-40, 1.1875 - 2**-40,
    2.0**31, -(2.0**31), 2.0**63, -(2.0**63), 2.0**64, 2147483647.5, -128.5, 255.5, 2.5, -3.5, 0.1,
]  # fmt: skip


@T.prim_func
def conversions(
    A: T.Tensor((N,), "float64"),
    L: T.Tensor((N,), "int64"),
    E: T.Tensor((2, N), "float8_e4m3fn"),
    F: T.Tensor((2, N), "float8_e5m2"),
    H: T.Tensor((3, N), "bfloat16"),
    I: T.Tensor((2, N), "int32"),
    J: T.Tensor((2, N), "int64"),
    U: T.Tensor((2, N), "uint8"),
    D: T.Tensor((3, N), "float64"),
    S: T.Tensor((4, N), "float32"),
):
    with T.Kernel(1, threads=N):
        for i in T.Parallel(N):
            x = T.cast(A[i], "float32")
            E[0, i] = T.cast(A[i], "float8_e4m3fn")
            E[1, i] = T.cast(x, "float8_e4m3fn")
            F[0, i] = T.cast(A[i], "float8_e5m2")
            F[1, i] = T.cast(L[i], "float8_e5m2")
            H[0, i] = T.cast(A[i], "bfloat16")
            H[1, i] = T.cast(L[i], "bfloat16")
            H[2, i] = T.cast(T.cast(L[i], "uint64"), "bfloat16")
            I[0, i] = T.cast(A[i], "int32")
            I[1, i] = T.cast(x, "int32")
            J[0, i] = T.cast(A[i], "int64")
            J[1, i] = T.cast(x, "int64")
            U[0, i] = T.cast(A[i], "uint8")
            U[1, i] = T.cast(x, "uint8")
            D[0, i] = T.fma(A[i], A[i], -1.0)
            D[1, i] = A[i] % 3.0
            D[2, i] = A[i] ** -1
            S[0, i] = T.fma(x, x, 2.0**-60)
            S[1, i] = x % -3.0
            S[2, i] = T.round(x)
            S[3, i] = T.copysign(T.floor(x), -0.0)


def conversion_data() -> dict[str, Any]:
    import ml_dtypes

    middle = 2**62 + 2**54
    longs = [middle, middle + 1, middle - 1, -middle - 1, 2**63 - 1, -(2**63), 449, 465, -1, 0]
    shapes = {"E": 2, "F": 2, "H": 3, "I": 2, "J": 2, "U": 2, "D": 3, "S": 4}
    kinds = {
        "E": ml_dtypes.float8_e4m3fn, "F": ml_dtypes.float8_e5m2, "H": ml_dtypes.bfloat16,
        "I": "int32", "J": "int64", "U": "uint8", "D": "float64", "S": "float32",
    }  # fmt: skip
    return {
        "A": np.resize(np.array(FLOATS), N),
        "L": np.resize(np.array(longs, "int64"), N),
        **{name: np.zeros((shapes[name], N), kinds[name]) for name in shapes},
    }


@T.prim_func
def steps(B: T.Tensor((N,), "int32"), a: T.int32, b: T.int32, s: T.int32):
    with T.Kernel(1, threads=N):
        for i in T.Parallel(N):
            for j in range(a, b, s):
                B[i] = B[i] * 31 + j + i


MOST, LEAST = 2**31 - 1, -(2**31)
LOOPS = [
    (10, 0, -3), (0, 10, -3), (0, 10, 3), (5, 5, -1), (MOST - 5, MOST, 2), (MOST, MOST - 5, -2),
    (LEAST + 5, LEAST, -2), (LEAST, MOST, 2**30), (MOST, LEAST, LEAST), (0, 10, 0),
]  # fmt: skip
