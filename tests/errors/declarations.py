"""Wrong parameters, sizes, factories and direct-style kernels."""

# The carets stand under the text, which a formatter would move.
# fmt: off
from __future__ import annotations

import numpy as np

import tilewright as tw
import tilewright.language as T
from tests.errors.case import case
from tilewright import CompileError


@case(CompileError, "parameter 'B' of main has no annotation", "T.Tensor(shape, dtype)", "fix:")
def missing_annotation():
    @T.prim_func
    def main(A: T.Tensor((8,), "float32"), B):
#                                          ^
#+  def main(A: T.Tensor((8,), "float32"), B: T.Tensor((8,), "float32")):
        with T.Kernel(1):
            B[0] = A[0]


@case(CompileError, "parameter 'B' has no usable annotation", "T.Tensor(shape, dtype)", "fix:")
def unusable_annotation():
    @T.prim_func
    def main(A: T.Tensor((8,), "float32"), B: np.ndarray):
#                                          ^^^^^^^^^^^^^
#+  def main(A: T.Tensor((8,), "float32"), B: T.Tensor((8,), "float32")):
        with T.Kernel(1):
            B[0] = A[0]


@case(CompileError, "unknown dtype 'flaot32'", "did you mean 'float32'?")
def misspelt_dtype_of_a_parameter():
    @T.prim_func
    def main(A: T.Tensor((8,), "flaot32")):
#            ^^^^^^^^^^^^^^^^^^^^^^^^^^^^
        with T.Kernel(1):
            A[0] = 1


@case(CompileError, "dimension 0 of A must be an integer", "4.0", "//")
def float_size():
    @T.prim_func
    def main(A: T.Tensor((8 / 2,), "float32")):
#            ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
        with T.Kernel(1):
            A[0] = 1


@case(CompileError, "dimension 0 of A is a string", "T.dynamic('m')")
def size_by_name():
    @T.prim_func
    def main(A: T.Tensor(("m", 8), "float32")):
#            ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
        with T.Kernel(1):
            A[0, 0] = 1


@case(CompileError, "packs 2 int4 elements into a byte", "a multiple of 2", "7", "fix:")
def odd_packed_parameter():
    @T.prim_func
    def main(A: T.Tensor((4, 7), "int4")):
#            ^^^^^^^^^^^^^^^^^^^^^^^^^^^
        with T.Kernel(1):
            A[0, 0] = 1


@case(CompileError, "A has 2 dimensions", "1 stride", "fix:")
def strides_of_another_rank():
    @T.prim_func
    def main(A: T.StridedTensor((4, 8), (8,), "float32")):
#            ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
#+  def main(A: T.StridedTensor((4, 8), (8, 1), "float32")):
        with T.Kernel(1):
            A[0, 0] = 1


@case(CompileError, "annotation of 'A' does not evaluate", "'M' is not defined", "fix:")
def unknown_name_in_an_annotation():
    @T.prim_func
#+  M = T.dynamic("M")
#+  @T.prim_func
    def main(A: T.Tensor((M, 8), "float32")):
#            ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
        with T.Kernel(1):
            A[0, 0] = 1


@case(CompileError, "'A' must be a tensor in global memory", "macros")
def shared_parameter():
    @T.prim_func
    def main(A: T.SharedBuffer((4, 8), "float32")):
#            ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
#+  def main(A: T.Tensor((4, 8), "float32")):
        with T.Kernel(1):
            A[0, 0] = 1


@case(CompileError, "main takes *args", "fix:")
def variadic():
    @T.prim_func
    def main(*A: T.Tensor((4, 8), "float32")):
#   ^^^^^^^^
#+  def main(A: T.Tensor((4, 8), "float32")):
        with T.Kernel(1):
            A[0, 0] = 1


@case(CompileError, "the contract of m is impossible", "min ≤ max", "min=16, max=8", "fix:")
def impossible_contract():
    m = T.dynamic("m", min=16, max=8)
#       ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
#+  m = T.dynamic("m", min=8, max=16)


@case(CompileError, "the contracts of m do not meet", "min=16 and max=8", "fix:")
def contracts_that_do_not_meet():
    m, n = T.dynamic("m", min=16), T.dynamic("m", max=8)
#+  m, n = T.dynamic("m", min=16), T.dynamic("n", max=8)

    @T.prim_func
    def main(A: T.Tensor((m,), "float32"), B: T.Tensor((n,), "float32")):
#                                          ^^^^^^^^^^^^^^^^^^^^^^^^^^^^
        with T.Kernel(1):
            A[0] = B[0]


@case(CompileError, "factory must return a @T.prim_func", "NoneType", "return")
def factory_without_return():
    @tw.jit(target="interp")
    def factory(n):
        @T.prim_func
        def main(A: T.Tensor((n,), "float32")):
            with T.Kernel(1):
                A[0] = 1
#+              A[0] = 1
#+      return main

    factory(8)
#   ^^^^^^^^^^


@case(CompileError, "missing a required argument: 'n'", "factory(m, n)")
def factory_arguments():
    @tw.jit(target="interp")
    def factory(m, n):
        @T.prim_func
        def main(A: T.Tensor((m, n), "float32")):
            with T.Kernel(1):
                A[0, 0] = 1

        return main

    factory(8)
#   ^^^^^^^^^^
#+  factory(8, 8)


@case(CompileError, "tw.compile takes a @T.prim_func", "function", "fix:")
def compiling_a_function():
    def main(A):
#+  @T.prim_func
#+  def main(A: T.Tensor((8,), "float32")):
        return A
#+      with T.Kernel(1):
#+          A[0] = 1

    tw.compile(main)
#   ^^^^^^^^^^^^^^^^
#+  tw.compile(main, target="interp")


@case(CompileError, "unknown target", "'gpu'", "cuda", "cpu", "interp")
def unknown_target():
    @T.prim_func
    def main(A: T.Tensor((8,), "float32")):
        with T.Kernel(1):
            A[0] = 1

    tw.compile(main, target="gpu")
#   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
#+  tw.compile(main, target="auto")


@case(CompileError, "'targte'", "did you mean 'target'?")
def unknown_option_of_jit():
    @tw.jit(targte="cpu")
#    ^^^^^^^^^^^^^^^^^^^^
    def factory(n):
        return None


@case(tw.LaunchError, "out_idx 3 is not among 1 parameters", "-1 … 0", "fix:")
def output_that_is_not_there():
    @T.prim_func
    def main(A: T.Tensor((8,), "float32")):
        with T.Kernel(1):
            A[0] = 1

    tw.compile(main, target="interp", out_idx=[3])
#   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
#+  tw.compile(main, target="interp", out_idx=[-1])


@case(CompileError, "nothing determines the size 'K'", "T.Tensor((K, …), dtype)")
def undetermined_size():
    @tw.jit(target="interp")
    def scale(A):
        M, K = T.const("M, K")
#              ^^^^^^^^^^^^^^^
        A: T.Tensor((M,), "float32")
#+      A: T.Tensor((M, K), "float32")
        with T.Kernel(1):
            A[0] = K
#+          A[0, 0] = K

    scale(np.zeros(8, np.float32))
#+  scale(np.zeros((8, 4), np.float32))


@case(CompileError, "array argument 'B' is used before it is declared", "B: T.Tensor")
def undeclared_argument():
    @tw.jit(target="interp")
    def scale(A, B):
        M = T.const("M")
        A: T.Tensor((M,), "float32")
#+      A: T.Tensor((M,), "float32")
#+      B: T.Tensor((M,), "float32")
        with T.Kernel(1):
            A[0] = B[0]
#                  ^^^^

    scale(np.zeros(8, np.float32), np.zeros(8, np.float32))


@case(CompileError, "the type of the number 's' stands in the signature", "s: T.float32")
def declaring_a_number():
    @tw.jit(target="interp")
    def scale(A, s):
#+  def scale(A, s: T.float32):
        M = T.const("M")
        A: T.Tensor((M,), "float32")
        s: T.float32
#       ^^^^^^^^^^^^
#-
        with T.Kernel(1):
            A[0] = s

    scale(np.zeros(8, np.float32), 2.0)


@case(CompileError, "'C' is not a parameter of this function", "one of A", "T.empty")
def declaring_a_stranger():
    @tw.jit(target="interp")
    def scale(A):
        M = T.const("M")
        A: T.Tensor((M,), "float32")
        C: T.Tensor((M,), "float32")  # noqa: F842
#       ^^^^^^^^^^^^^^^^^^^^^^^^^^^^
#+      C = T.empty((M,), "float32")
        with T.Kernel(1):
            A[0] = 1
#+          C[0] = A[0]
#+      return C

    scale(np.zeros(8, np.float32))


@case(CompileError, "dimension 1 of A does not fit its declaration", "16", "(8, 4)", "fix:")
def declared_size():
    @tw.jit(target="interp")
    def scale(A):
        M = T.const("M")
        A: T.Tensor((M, 16), "float32")
#       ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
        with T.Kernel(1):
            A[0, 0] = 1

    scale(np.zeros((8, 4), np.float32))
#+  scale(np.zeros((8, 16), np.float32))


@case(CompileError, "A is declared with 2 dimensions", "(8,)", "fix:")
def declared_rank():
    @tw.jit(target="interp")
    def scale(A):
        M, N = T.const("M, N")
        A: T.Tensor((M, N), "float32")
#       ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
        with T.Kernel(1):
            A[0, 0] = 1

    scale(np.zeros(8, np.float32))
#+  scale(np.zeros((8, 1), np.float32))


@case(CompileError, "B comes from T.empty but is not returned", "return B")
def output_not_returned():
    @tw.jit(target="interp")
    def scale(A):
#   ^^^^^^^^^
        M = T.const("M")
        A: T.Tensor((M,), "float32")
        B = T.empty((M,), "float32")
        with T.Kernel(1):
            B[0] = A[0]
#+          B[0] = A[0]
#+      return B

    scale(np.zeros(8, np.float32))


@case(CompileError, "returns something that is no output", "T.empty", "fix:")
def returning_an_input():
    @tw.jit(target="interp")
    def scale(A):
#   ^^^^^^^^^
        M = T.const("M")
        A: T.Tensor((M,), "float32")
        with T.Kernel(1):
            A[0] = 1
        return A
#-

    scale(np.zeros(8, np.float32))


@case(CompileError, "missing a required argument: 'B'", "scale(A, B)")
def direct_argument_count():
    @tw.jit(target="interp")
    def scale(A, B):
        M = T.const("M")
        A: T.Tensor((M,), "float32")
        B: T.Tensor((M,), "float32")
        with T.Kernel(1):
            A[0] = B[0]

    scale(np.zeros(8, np.float32))
#   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
#+  scale(np.zeros(8, np.float32), np.zeros(8, np.float32))


@case(CompileError, "T.Kernel outside a kernel function", "@T.prim_func")
def forgotten_decorator():
    def main(A):
#+  @T.prim_func
#+  def main(A: T.Tensor((8,), "float32")):
        with T.Kernel(1):
#            ^^^^^^^^^^^
            A[0] = 1

    main(np.zeros(8))
#+  tw.compile(main, target="interp")(np.zeros(8, np.float32))
