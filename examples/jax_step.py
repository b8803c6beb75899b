"""A training step in JAX whose softmax cross-entropy is a formula of ours, gradient included."""

import jax
import jax.numpy as jnp

import tilewright as tw
import tilewright.jax
import tilewright.math as tm


@tw.math
def cross_entropy(logits, labels):
    i, c = tm.indices(logits, 0, 1)
    picked = tm.sum(tm.where(c == labels[i], logits, 0.0), axis=1)
    return tm.mean(tm.logsumexp(logits, axis=1) - picked)


def loss(w, x, labels):
    return tilewright.jax.call(cross_entropy, x @ w, labels)


@jax.jit
def step(w, x, labels):
    value, slope = jax.value_and_grad(loss)(w, x, labels)
    return value, w - slope


x = jax.random.normal(jax.random.key(0), (64, 16))
labels = jnp.argmax(x @ jax.random.normal(jax.random.key(1), (16, 8)), axis=1).astype(jnp.int32)
w = jnp.zeros((16, 8))
for _ in range(30):
    value, w = step(w, x, labels)
print(f"the loss is {value:.3f}")
assert value < 0.7
