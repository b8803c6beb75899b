"""Kernels and formulas inside `jax.jit`, on the CPU."""

from __future__ import annotations

import runpy

import numpy as np
import pytest

import tilewright as tw
import tilewright.jax
import tilewright.language as T
import tilewright.math as tm
import tilewright.ops as ops
from tests.commands import ROOT
from tests.export import programs
from tilewright.support.errors import CompileError, LaunchError

jax = pytest.importorskip("jax")
jnp = jax.numpy
call = tilewright.jax.call

n = T.dynamic("n", max=4096)


@pytest.fixture(scope="module")
def scale():
    return tw.compile(programs.scale, out_idx=[-1], target="cpu")


@T.prim_func
def accumulate(A: T.Tensor((n,), "float32"), B: T.Tensor((n,), "float32"), top: T.int32):
    with T.Kernel(T.ceildiv(n, 128), threads=128) as bx:
        for i in T.Parallel(128):
            if bx * 128 + i < top:
                B[bx * 128 + i] = B[bx * 128 + i] + A[bx * 128 + i]


@tw.math
def softmax(x, y):
    return tm.softmax(x * y, axis=-1)


@tw.math
def several(x, table):
    i = tm.astype(tm.argmax(x, axis=-1), tm.int32)
    return {"z": tm.sum(x, axis=-1), "best": i, "a": (x * table["w"], tm.exp(x))}


def random(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), jnp.float32)


def test_inside_jit_without_callbacks(scale):
    x = random(5, 8)
    run = jax.jit(lambda x: call(scale, x * 2, 3.0) + 1)
    text = run.lower(x).as_text()
    assert "tilewright_scale_" in text and "callback" not in text
    np.testing.assert_allclose(run(x), x * 6 + 1, rtol=1e-6)
    assert "scale" in str(jax.make_jaxpr(lambda x: call(scale, x, 3.0))(x))


@tw.jit
def turned_round(X):
    N = T.const("N")
    X: T.Tensor((N, 3), "float32")
    Sum, Twice = T.empty((N,), "float32"), T.empty((N, 3), "float32")
    for r in T.tile(N):
        x = T.load(X[r, :])
        Sum[r] = T.sum(x, dim=1)
        Twice[r, :] = x + x
    return Twice, Sum


def test_results_have_the_order_in_which_a_kernel_returns_them():
    x = random(5, 3)
    twice, total = jax.jit(lambda x: call(turned_round, x))(x)
    np.testing.assert_array_equal(twice, 2 * x)
    np.testing.assert_allclose(total, x.sum(1), rtol=1e-6)


def test_as_it_is_and_with_numbers_and_sizes_of_each_call(scale):
    for rows, s in ((1, 2.0), (17, -1.5), (4096, 2.0), (0, 1.0)):
        x = random(rows, 8)
        np.testing.assert_array_equal(call(scale, x, s), x * s)
        np.testing.assert_array_equal(call(scale, x, s=s), x * s)


def test_what_is_written_is_returned_and_arguments_stay(scale):
    a, b = random(300), random(300, seed=1)
    before = np.asarray(b).copy()
    found = jax.jit(lambda a, b: call(accumulate, a, b, 200))(a, b)
    np.testing.assert_array_equal(found[:200], (a + b)[:200])
    np.testing.assert_array_equal(found[200:], b[200:])
    np.testing.assert_array_equal(b, before)
    twice = jax.jit(lambda a, b: call(accumulate, a, call(accumulate, a, b, 300), 300))(a, b)
    np.testing.assert_allclose(twice, a + (a + b), rtol=1e-6)
    # XLA gives what is read and what is written memory of their own
    np.testing.assert_array_equal(jax.jit(lambda a: call(accumulate, a, a, 300))(a), 2 * a)
    given = jax.jit(lambda a, b: call(accumulate, a, b, 300), donate_argnums=1)
    np.testing.assert_array_equal(given(a, jnp.array(before)), a + before)


def test_direct_kernels_scratch_and_options():
    a = random(40, 64).astype(jnp.float16)
    for rows in (16, 32):
        found = jax.jit(lambda a, rows=rows: call(programs.two_steps, a, rows=rows))(a)
        np.testing.assert_array_equal(found, a.astype(jnp.float32)[::-1, ::-1] * 2 + 1)


def test_products_over_xlas_threads():
    a, b = random(768, 512), random(512, 640, seed=1)

    @tw.jit
    def product(A, B):
        M, N, K = T.const("M, N, K")
        A: T.Tensor((M, K), "float32")
        B: T.Tensor((K, N), "float32")
        C = T.empty((M, N), "float32")
        for i, j in T.tile(M, N):
            C[i, j] = A[i, :] @ B[:, j]
        return C

    product = product.with_schedule(tiles={"i": 64, "j": 64})
    run = jax.jit(lambda a, b: call(product, a, b))
    want = np.asarray(a) @ np.asarray(b)
    for _ in range(20):
        np.testing.assert_allclose(run(a, b), want, rtol=1e-3, atol=1e-3)


def test_vmap_is_a_loop(scale):
    x = random(3, 4, 8)
    found = jax.jit(jax.vmap(lambda x: call(scale, x, 2.0)))(x)
    np.testing.assert_array_equal(found, x * 2)
    one = jax.vmap(lambda a, b: call(accumulate, a, b, 8), in_axes=(None, 1))
    found = one(x[0, 0], x[0].T)
    np.testing.assert_allclose(found, x[0] + x[0, 0], rtol=1e-6)


def test_formulas_and_their_gradients():
    x, y = random(5, 8), random(5, 8, seed=1)

    def ours(x, y):
        return (call(softmax, x, y) * y).sum()

    def theirs(x, y):
        return (jax.nn.softmax(x * y, -1) * y).sum()

    np.testing.assert_allclose(jax.jit(ours)(x, y), theirs(x, y), rtol=1e-5)
    found = jax.jit(jax.value_and_grad(ours, argnums=(0, 1)))(x, y)
    want = jax.value_and_grad(theirs, argnums=(0, 1))(x, y)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
    same = jax.grad(lambda x: call(softmax, x, x).max())(x)
    np.testing.assert_allclose(
        same, jax.grad(lambda x: jax.nn.softmax(x * x, -1).max())(x), rtol=1e-4, atol=1e-6
    )
    found = jax.vmap(jax.grad(lambda x: ours(x, y)))(jnp.stack([x, y]))
    want = jax.vmap(jax.grad(lambda x: theirs(x, y)))(jnp.stack([x, y]))
    np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-6)


def test_formulas_of_trees_and_integers():
    x, table = random(6, 8), {"w": random(6, 8, seed=1)}
    found = jax.jit(lambda x, t: call(several, x, t))(x, table)
    np.testing.assert_array_equal(found["best"], x.argmax(-1))

    def loss(results):
        return (results["z"] ** 2).sum() + (results["a"][0] * results["a"][1]).sum()

    def theirs(x, t):
        return {"z": x.sum(-1), "best": x.argmax(-1), "a": (x * t["w"], jnp.exp(x))}

    slopes = jax.grad(lambda x, t: loss(call(several, x, t)), argnums=(0, 1))(x, table)
    want = jax.grad(lambda x, t: loss(theirs(x, t)), argnums=(0, 1))(x, table)
    for a, b in zip(jax.tree.leaves(slopes), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_a_kernel_with_a_gradient_of_its_own(scale):
    @jax.custom_vjp
    def triple(x):
        return call(scale, x, 3.0)

    triple.defvjp(lambda x: (triple(x), None), lambda _, g: (call(scale, g, 3.0),))
    x = random(5, 8)
    np.testing.assert_array_equal(jax.grad(lambda x: triple(x).sum())(x), jnp.full((5, 8), 3.0))


@T.prim_func
def prints(A: T.Tensor((8,), "float32"), B: T.Tensor((8,), "float32")):
    with T.Kernel(1, threads=32):
        for i in T.Parallel(8):
            B[i] = A[i]
        T.print(A[0])


@T.prim_func
def silent(A: T.Tensor((8,), "float32")):
    with T.Kernel(1, threads=32):
        x = T.alloc_fragment((8,), "float32")
        T.copy(A, x)


@T.prim_func
def wide(A: T.Tensor((8,), "float32"), B: T.Tensor((8,), "float64")):
    with T.Kernel(1, threads=32):
        for i in T.Parallel(8):
            B[i] = A[i]


def factory(N):
    return None


def test_calls_against_the_contract_are_refused_when_traced(scale):
    x = random(5, 8)
    eight = random(8)
    bits, numbers = jnp.zeros((1, 32), jnp.uint8), jnp.zeros((1, 64), jnp.int32)
    cases = [
        (lambda: call(scale, x.astype(jnp.int32), 1.0), "A has the wrong dtype"),
        (lambda: call(scale, random(5, 9), 1.0), "A has the wrong size in dimension 1"),
        (lambda: call(scale, random(5), 1.0), "A must have 2 dimensions"),
        (lambda: call(scale, random(4097, 8), 1.0), "breaks the contract of n"),
        (lambda: call(scale, x), "scale takes 2 arguments, got 1"),
        (lambda: call(scale, x, jnp.float32(2) * x[0]), "s must be a number that is known"),
        (lambda: call(scale, 3.0, 1.0), "A must be an array"),
        (lambda: call(scale, x, "two"), "s must be a number of type float32"),
        (lambda: call(accumulate, eight, eight, 2**31), "top = 2147483648 does not fit int32"),
        (lambda: call(programs.nibbles, bits, numbers),
         "cannot be called inside JAX on the CPU"),
        (lambda: call(prints, eight, eight), "cannot be called inside JAX on the CPU"),
        (lambda: call(silent, eight), "writes nothing that JAX could see"),
        (lambda: call(tw.compile(wide, out_idx=[-1], target="cpu"), eight),
         "JAX makes no float64 array"),
        (lambda: call(programs.clustered, x), "clustered makes kernels: call it first"),
        (lambda: call(factory, x), "takes a kernel"),
        (lambda: call(tw.compile(accumulate, target="interp"), eight, eight, 1),
         "compiled for interp, and JAX runs on cpu"),
    ]  # fmt: skip
    for bad, text in cases:
        for run in (bad, jax.jit(bad)):
            with pytest.raises((CompileError, LaunchError)) as info:
                run()
            assert text in str(info.value), (text, str(info.value))
    with pytest.raises(LaunchError, match="known when JAX traces"):
        jax.jit(lambda x, s: call(scale, x, s))(x, 2.0)


def test_kernels_for_any_target_run_where_jax_does(monkeypatch):
    monkeypatch.delenv("TILEWRIGHT_TARGET", raising=False)
    kernel = tw.compile(programs.scale, out_idx=[-1])
    x = random(3, 8)
    np.testing.assert_array_equal(call(kernel, x, 2.0), x * 2)
    np.testing.assert_array_equal(call(programs.scale, x, 2.0, x), x * 2)
    np.testing.assert_array_equal(call(kernel, x, 2.0, target="cpu"), x * 2)


def test_names_are_of_content_alone(scale):
    """JAX keeps executables on disk: a name must mean the same kernel in every process."""

    def names(rows):
        text = jax.jit(lambda x: call(scale, x, 2.0)).lower(random(rows, 8)).as_text()
        return text.split("@tilewright_scale_")[1][:16]

    assert names(33) == names(33) != names(34)


def test_the_example_trains(capsys):
    runpy.run_path(str(ROOT / "examples" / "jax_step.py"))
    assert capsys.readouterr().out.startswith("the loss is 0.")


def ops_inside(x, w, experts, t):
    normal = ops.rms_norm(x, (4,), w, 1e-6)
    _, place, _ = ops.moe_pack(experts, 2)
    return ops.cross_entropy(normal, t), place


def test_ops_inside_jit():
    x, w, t = random(3, 4), random(4, seed=1), jnp.asarray([1, 3, 0], jnp.int32)
    experts = jnp.asarray([[1], [0], [1]], jnp.int32)
    found, place = jax.jit(ops_inside)(x, w, experts, t)
    want, there = ops_inside(x, w, experts, t)
    np.testing.assert_allclose(found, want, rtol=1e-5)
    np.testing.assert_array_equal(place, there)

    def plain(x, w):
        y = x / jnp.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * w
        return -jax.nn.log_softmax(y)[jnp.arange(3), t].mean()

    wanted = jax.grad(plain, (0, 1))(x, w)
    for way in (lambda f: f, jax.jit):
        slopes = way(jax.grad(lambda x, w: ops_inside(x, w, experts, t)[0], (0, 1)))(x, w)
        for got, want in zip(slopes, wanted, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)
    with pytest.raises(LaunchError, match="weight has 3 elements"):
        jax.jit(lambda x: ops.rms_norm(x, (4,), w[:3]))(x)


def test_all_eight_bit_floats_inside_jit():
    """XLA's threads flush small numbers of float32 to zero."""
    x = jnp.asarray(np.arange(256, dtype=np.uint8).view(jnp.float8_e4m3fn))
    found = jax.jit(lambda x: call(tw.math(lambda x: tm.astype(x, tm.float32)), x))(x)
    np.testing.assert_array_equal(found, np.asarray(x).astype(np.float32))
