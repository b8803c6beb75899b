"""Bugs that show themselves

After this page you can have a wrong kernel name its own line.

The same text runs in an interpreter that checks every access: `"interp -sanitize"`. A race, a
read of what nothing wrote, an index out of range: each is an error with its place, every time,
not a wrong number now and then.
"""

import numpy as np

import tilewright as tw
import tilewright.language as T


@tw.jit
def total(X, how):
    N = T.const("N")
    X: T.Tensor((N,), "float32")
    Y = T.empty((1,), "float32")
    if how == "cleared":
        for _ in T.tile():  # one block: a kernel of its own, which runs first
            Y[0] = 0
    for n in T.tile(N, size=64):
        part = T.sum(X[n], dim=0)
        if how == "stored":
            Y[0] = part
        else:
            T.atomic_add(Y[0], part)
    return Y


x = np.ones(200, np.float32)
checked = total.on("interp -sanitize")
assert checked(x, "cleared")[0] == 200

# `how` is a Python string, so each `if` is decided while the kernel is traced: these are three
# kernels. The right one clears Y in a first grid and adds to it atomically in a second. Blocks of
# one grid run in no order, and a plain store from all of them is a race. Without the first grid,
# they add to whatever was in memory.

found = []
for how in ("stored", "uncleared"):
    try:
        checked(x, how)
    except tw.SanitizerError as error:
        print(error)
        found.append(error.kind)
assert found == ["block-race", "uninitialized"]

#     block-race: Y[0] is written by one block and touched by another
#       fix:      let blocks write disjoint elements, use atomics, or split the kernel in two
#     uninitialized: Y[0] is updated atomically, but nothing wrote it

# Values leave little room for such mistakes: they have no barriers to forget and no tails to mask.
# The conflicts that remain are in memory: two blocks at one element, or two indices of a scatter.
#
# **The trap.** A NaN is no error on any machine; it only spreads. Here exp(100) overflows, and ∞ /
# ∞ is not a number. With `-nan` the sanitizer names the line where a NaN is born:


@tw.jit
def softmax(X):
    M, N = T.const("M, N")
    X: T.Tensor((M, N), "float32")
    Y = T.empty((M, N), "float32")
    for r in T.tile(M):
        e = T.exp(X[r, :])  # without the maximum
        Y[r, :] = e / T.sum(e, dim=1, keepdim=True)
    return Y


try:
    softmax.on("interp -sanitize -nan")(np.full((1, 4), 100, np.float32))
except tw.SanitizerError as error:
    print(error)

#     though no operand is NaN

# **Try** `tilewright check your_file.py`, which runs every kernel of a file under the sanitizer
# and compares it with the CPU; or `TILEWRIGHT_SANITIZE=1 python your_script.py`. [The
# sanitizer](../interpreter.md) says what it finds and what it does not.
