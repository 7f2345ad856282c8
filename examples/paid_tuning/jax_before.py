"""Tune a logistic regression with a DP-SGD loop in JAX. The printed epsilon ignores the tuning."""

import random

import jax
import jax.numpy as jnp
import numpy as np
from dp_accounting import dp_event, pld
from sklearn.datasets import load_breast_cancer

Q, STEPS, EPSILON, DELTA = 0.1, 100, 2.0, 1e-4
X, y = load_breast_cancer(return_X_y=True)
X = np.clip(X / X.max(axis=0), 0, 1)
train_X, train_y, test_X, test_y = X[:400], y[:400], X[400:], y[400:]


def loss(weights, x, label):
    return jnp.logaddexp(0.0, -(2 * label - 1) * (x @ weights[:-1] + weights[-1]))


@jax.jit
def step(weights, key, learning_rate, clip_norm, noise_multiplier):
    coins, noise = jax.random.split(key)
    joins = jax.random.bernoulli(coins, Q, (len(train_X),))
    gradients = jax.vmap(jax.grad(loss), (None, 0, 0))(weights, train_X, train_y)
    norms = jnp.linalg.norm(gradients, axis=1)
    factors = joins * jnp.minimum(1.0, clip_norm / jnp.maximum(norms, 1e-12))
    total = (factors[:, None] * gradients).sum(axis=0)
    total += noise_multiplier * clip_norm * jax.random.normal(noise, weights.shape)
    return weights - learning_rate * total / (Q * len(train_X))


def train(config, noise_multiplier):
    weights = jnp.zeros(X.shape[1] + 1)
    for key in jax.random.split(jax.random.key(0), STEPS):
        weights = step(weights, key, noise_multiplier=noise_multiplier, **config)
    right = (test_X @ weights[:-1] + weights[-1] > 0) == test_y
    return np.asarray(weights), float(np.asarray(right).mean())


def event(noise_multiplier):
    gaussian = dp_event.GaussianDpEvent(noise_multiplier)
    return dp_event.SelfComposedDpEvent(dp_event.PoissonSampledDpEvent(Q, gaussian), STEPS)


noise, best_score = 1.0, -1.0
while pld.PLDAccountant().compose(event(noise)).get_epsilon(DELTA) > EPSILON:
    noise *= 1.05
for _ in range(8):
    config = {
        "learning_rate": 10 ** random.uniform(-1, 1),
        "clip_norm": 10 ** random.uniform(-1, 1),
    }
    weights, score = train(config, noise)
    if score > best_score:
        best_score, best_weights, best_config = score, weights, config
print(best_config, best_score, (EPSILON, DELTA))
