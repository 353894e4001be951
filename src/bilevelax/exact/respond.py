"""The follower's answer at given x and xi, and the leader's expected cost."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, random

from bilevelax.errors import require_integer, require_key, require_share
from bilevelax.problem import Key, Problem, X, Xi, Y
from bilevelax.sample_average import newton_cg
from bilevelax.validate import as_arrays, check_shapes

LANES = 32  # contexts solved at once by `evaluate`


@partial(jax.jit, static_argnames="n")
def _respond(key: Key, problem: Problem, x: X, xi: Xi, n: int) -> Y:
    if problem.support is not None:
        return newton_cg(problem.weighted(), x, xi, problem.outcomes(xi), problem.start(x, xi)).y
    average = problem.averaged(n)
    return newton_cg(average, x, xi, average.conditional(key, xi), problem.start(x, xi)).y


def respond(problem: Problem, x: X, xi: Xi, *, key: Key, n: int = 4096) -> Y:
    """y*(x; xi), eq. (2): the minimiser of the mean of g over n draws of eta, solved tightly.

    The error left is that of the sample average, of order 1/sqrt(n); none where g has no noise.
    Where the outcomes of a context are a finite set that the problem knows, all of them are used
    and the answer is exact, whatever n.
    """
    require_key("respond", key)
    require_integer("n", "respond", n, 1)
    x = as_arrays("x", "respond", x)
    check_shapes(problem, x)
    return _respond(key, problem, x, xi, n)


class Evaluation(NamedTuple):
    """F(x) with its confidence interval."""

    mean: float
    low: float
    high: float
    stderr: float
    n: int


@partial(jax.jit, static_argnames=("n", "samples"))
def _costs(key: Key, problem: Problem, x: X, n: int, samples: int) -> jax.Array:
    average = problem.averaged(samples)

    def one(i: jax.Array) -> jax.Array:
        key_xi, key_y, key_f = random.split(random.fold_in(key, i), 3)
        xi = problem.context(key_xi)
        y = _respond(key_y, problem, x, xi, samples)
        return average.f(x, y, average.conditional(key_f, xi), xi)

    return lax.map(one, jnp.arange(n), batch_size=min(n, LANES))


def evaluate(problem: Problem, x: X, *, key: Key, n: int = 1000, samples: int = 256, level: float = 0.95) -> Evaluation:
    """F(x), eq. (1), from n contexts, each answered and paid on ``samples`` fresh draws of eta.

    The interval is the normal one for the mean over contexts; the answers' own error, of order
    1/samples in F, is not in it.
    """
    require_key("evaluate", key)
    require_integer("n", "evaluate", n, 2)
    require_integer("samples", "evaluate", samples, 1)
    require_share("level", "evaluate", level)
    x = as_arrays("x", "evaluate", x)
    check_shapes(problem, x)
    costs = np.asarray(_costs(key, problem, x, n, samples), np.float64)
    mean, stderr = float(costs.mean()), float(costs.std(ddof=1) / np.sqrt(n))
    z = float(jax.scipy.stats.norm.ppf((1 + level) / 2))
    return Evaluation(mean, mean - z * stderr, mean + z * stderr, stderr, n)
