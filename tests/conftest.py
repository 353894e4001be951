import gc
import os
from pathlib import Path

os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")  # the fast suite mostly compiles

import jax
import pytest

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")

import jax.numpy as jnp
from jax import random

from bilevelax import Problem
from bilevelax.applications import quadratic as quadratic_application

MAPPINGS = Path("/proc/self/maps")


@pytest.fixture(autouse=True)
def room_for_programs():
    """Every compiled program holds mappings of memory, of which Linux allows a process 65,530: beyond, it crashes."""
    yield
    if MAPPINGS.exists() and MAPPINGS.read_bytes().count(b"\n") > 30_000:
        jax.clear_caches()
        gc.collect()


@pytest.fixture
def key():
    return random.key(0)


@pytest.fixture(scope="session")
def matrices():
    return quadratic_application.matrices(d_x=3, d_y=4, d_xi=2)


@pytest.fixture(scope="session")
def quadratic(matrices):
    """The exact oracle, with d_x != d_y."""
    return quadratic_application.problem_of(matrices)


@pytest.fixture(scope="session")
def x():
    return jnp.array([0.3, -0.7, 0.5])


@pytest.fixture(scope="session")
def softmax():
    """(problem, x): proximal softmax regression in which x, y, xi and eta are pytrees of different structure."""
    classes, features, rows = 3, 4, 20
    key_a, key_b = random.split(random.key(7))
    data = {"a": random.normal(key_a, (2, rows, features)), "b": random.randint(key_b, (2, rows), 0, classes)}

    def loss(y, sample):
        scores = y["W"] @ sample[0] + y["c"]
        return jax.nn.logsumexp(scores) - scores[sample[1]]

    def sample_conditional(key, xi, data):
        train, test = random.randint(key, (2,), 0, rows)
        return tuple((data["a"][xi["task"], i], data["b"][xi["task"], i]) for i in (train, test))

    problem = Problem(
        f=lambda x, y, eta, xi: loss(y, eta[1]) + 0.01 * jnp.sum(x[0] ** 2),
        g=lambda x, y, eta, xi: loss(y, eta[0]) + jnp.sum((y["W"] - x[0]) ** 2) + jnp.sum((y["c"] - x[1]) ** 2),
        sample_context=lambda key, data: {"task": random.randint(key, (), 0, 2)},
        sample_conditional=sample_conditional,
        init_y=lambda x, xi: {"W": x[0], "c": x[1]},
        data=data,
        mu_g=2.0,
        L_g1=2.0 + 0.5 * (1 + float(jnp.max(jnp.sum(data["a"] ** 2, axis=-1)))),
    )
    W = 0.1 * random.normal(random.key(8), (classes, features))
    return problem, (W, jnp.zeros(classes))
