"""Annotations that Python has already evaluated: this file does not import them from the future."""

import tilewright.language as T
from tests.lang.common import body, same


def test_annotations_are_objects():
    size, kind = 16, T.float16

    @T.macro
    def inner(s: T.SharedBuffer, x: T.Ref):
        T.copy(s, s)
        x = 3

    @T.prim_func
    def f(A: T.Tensor((size,), kind), n: T.int32):
        with T.Kernel(1):
            s = T.alloc_shared((size,), kind)
            count = T.alloc_var("int32")
            inner(s, count)
            A[0] = n + count

    same(
        body(f),
        """
        copy s -> s
        count = 3
        A[0] = float16(n + count)
        """,
    )
