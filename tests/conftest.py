import contextlib
import gc
import os
import time
from pathlib import Path

from fresh_process import QUICK

os.environ.setdefault("XLA_FLAGS", QUICK)  # the fast suite mostly compiles
# Equal programs are compiled once for all tests, workers and the commands that they start
os.environ.setdefault("BILEVELAX_CACHE", str(Path(__file__).parents[1] / ".pytest_cache" / "programs"))

import jax
import pytest

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")

import jax.numpy as jnp
import numpy as np
from jax import random
from lowering import leave_out_lines, reuse_contexts

from bilevelax import Problem, from_arrays
from bilevelax.applications import quadratic as quadratic_application
from bilevelax.base.cache import switch_on
from bilevelax.base.program_files import Refused

with contextlib.suppress(Refused):  # slower, and as right
    switch_on()
reuse_contexts()
leave_out_lines()
MAPPINGS = Path("/proc/self/maps")
looked = 0.0  # processor time at the last look
UNTIL = float(os.environ.get("BILEVELAX_TESTS_UNTIL", "inf"))  # seconds since 1970 after which no test begins
LATE = "no time left"


def pytest_collection_finish():
    """A twentieth of the time would go to looks for garbage among what JAX keeps anyway."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 10, 10)


def pytest_runtest_setup():
    """`.ci/run` ends in time on a slow machine, too."""
    if time.time() > UNTIL:
        pytest.skip(LATE)


def pytest_terminal_summary(terminalreporter):
    late = [report for report in terminalreporter.stats.get("skipped", ()) if LATE in str(report.longrepr)]
    if late:
        terminalreporter.write_line(f"{len(late):,} tests were not run: {LATE}", yellow=True)


@pytest.fixture(autouse=True)
def room_for_programs():
    """Every compiled program holds mappings of memory, of which Linux allows a process 65,530: beyond, it crashes.

    To count them takes up to 40 ms, so not after every test; a few thousand are added in the seconds between.
    """
    global looked
    yield
    if time.process_time() < looked + 3 or not MAPPINGS.exists():
        return
    looked = time.process_time()
    if MAPPINGS.read_bytes().count(b"\n") > 35_000:
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


@pytest.fixture(scope="session")
def logistic():
    """Contexts with 5, 8 and 3 stored outcomes; f and g are smooth and not quadratic."""
    rng = np.random.default_rng(1)
    outcomes = [rng.normal(size=(n, 3)) for n in (5, 8, 3)]

    def g(x, y, eta, xi):
        return jax.nn.softplus(eta @ y + xi @ x) + jnp.sum((y - x[:3]) ** 2) / 2

    def f(x, y, eta, xi):
        return jax.nn.softplus(-eta @ y) + jnp.sum(jnp.cos(y) * x[:3]) + jnp.sum(x**2) / 8

    contexts = rng.normal(size=(3, 4))
    return from_arrays(f, g, contexts, outcomes, init_y=lambda x, xi: jnp.zeros(3, x.dtype), mu_g=1.0)
