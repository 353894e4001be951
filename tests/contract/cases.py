"""What the contract tests run: every estimator on every application, both found by their catalogues."""

import functools

import jax
import numpy as np
from exact_gradients import differences, gradient
from jax import lax, random

import bilevelax as bx
from bilevelax import applications, estimators
from bilevelax.base.compiling import program

CONTEXTS, OUTCOMES = 2, 3


def pairs():
    """(estimator, application), all of them."""
    return [(e, a) for e in estimators.catalogue.names() for a in applications.catalogue.names()]


@functools.cache
def smallest(name, x64):
    """The application as small as makes sense, in double or single precision."""
    with jax.enable_x64(x64):
        return applications.catalogue.smallest(name)


@jax.jit
def drawn(key, problem, x):
    """(contexts, outcomes, another x)."""
    key_xi, key_eta, key_x = random.split(key, 3)
    xis = jax.vmap(problem.context)(random.split(key_xi, CONTEXTS))
    etas = jax.vmap(lambda key, xi: problem.conditionals(key, xi, OUTCOMES))(random.split(key_eta, CONTEXTS), xis)
    leaves, structure = jax.tree.flatten(x)
    keys = random.split(key_x, len(leaves))
    moved = [a + 0.3 * random.normal(key, a.shape, a.dtype) for key, a in zip(keys, leaves, strict=True)]
    return xis, jax.tree.map(lambda a: a[:, None], etas), jax.tree.unflatten(structure, moved)


@functools.cache
def finite(name):
    """(problem, x, grad F): a few drawn contexts whose only outcome is a few draws at once, so that g has no noise."""
    app = smallest(name, True)
    xis, etas, x = drawn(random.key(12), app.problem, app.x1)
    mean = app.problem.averaged(OUTCOMES)
    problem = bx.from_arrays(
        mean.f,
        mean.g,
        xis,
        etas,
        init_y=app.problem.init_y,
        mu_g=app.problem.mu_g,
        L_g1=app.problem.L_g1,
        constraint=app.problem.constraint,
    )
    return problem, x, program()(gradient if problem.constraint is None else differences)(problem, x)


# Settings with which the mean of an estimator is the gradient of F where g has no noise: what is left to chance is the
# context and the level. A new estimator without an entry has its mean taken for granted.
LONG = bx.sgd(beta0=1e6)  # every step is 1 / (2 L_g1)
EXACT = {
    "antithetic_mlmc": lambda L, K: bx.antithetic_mlmc(2, levels=2, correction_rate=0.5, factor=2),
    "bsvrb": lambda L, K: bx.bsvrb(blocks=CONTEXTS),
    "dl_sgd": lambda L, K: bx.dl_sgd(K, LONG, bx.dense(1)),
    "envelope": lambda L, K: bx.envelope(n=1, steps=64),
    "imaml": lambda L, K: bx.imaml(n=1, steps=None, cg_steps=50),
    "maml": lambda L, K: bx.maml(64, 1 / L),
    "rt_mlmc": lambda L, K: bx.rt_mlmc(K, LONG, bx.dense(1), base_level=K - 3),
    "saa": lambda L, K: bx.saa("all"),
    "single_loop": lambda L, K: bx.single_loop(table=True, beta=1 / L),
}
ONLY = {"envelope": ("wdro_si",)}  # min-max problems: elsewhere the implicit term, which it leaves out, is not zero

K, STIFF = 6, {"scheduling": 8}  # L_g1 is 100 mu_g: 126 steps leave 42 % of bias, 510 none (measured in test_pairs)


def exact_pairs():
    """Those whose mean is the gradient."""
    return [(e, a) for e, a in pairs() if e in EXACT and a in ONLY.get(e, (a,))]


def exact(estimator, application, epochs=None):
    """The estimator with those settings; epochs of SGD as many as the follower needs."""
    return EXACT[estimator](finite(application)[0].L_g1, epochs or STIFF.get(application, K))


def in_a_row(estimator):
    """(keys, problem, x, state) -> (state, stacked estimates) of one estimate after another at the same x, compiled."""

    def one(problem, x, state, key):
        estimate, state = estimator.estimate(key, problem, x, state)
        return state, estimate

    return program()(lambda keys, problem, x, state: lax.scan(lambda s, k: one(problem, x, s, k), state, keys))


def flat(stacked):
    """Pytrees in rows as a matrix."""
    return np.concatenate([np.reshape(a, (len(a), -1)) for a in jax.tree.leaves(stacked)], axis=1)
