"""WDRO-SI of the experiments: one program for every lambda, number of demands, seed and step rule.

The adversary's variable is u = 2 lambda (y - xi), in which its problem has the same scale whatever lambda is:

    g(x, u) = -2 lambda E l_beta(pi_x(xi + u / (2 lambda)), eta) + |u|^2 / 2,
    f(x, u) = l_beta(pi_x(xi + u / (2 lambda)), eta) - |u|^2 / (4 lambda).

So mu_g and L_g1 need not know lambda, which is data. ERM leaves u at 0; the adversary of WDRO sees the demand.
"""

from __future__ import annotations

import dataclasses
import functools
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax, random

from bilevelax.applications._newsvendor import SMOOTHING, loss, network, nonlinearity, smooth_loss
from bilevelax.applications.wdro_si import TRUTH, Market
from bilevelax.estimate import Estimator
from bilevelax.estimators.dl_sgd import dl_sgd
from bilevelax.estimators.rt_mlmc import rt_mlmc
from bilevelax.experiments import _training as training
from bilevelax.inverse import none
from bilevelax.lower import frozen, optax_steps
from bilevelax.minibatch import minibatch
from bilevelax.problem import Key, Problem, X

H, B = 1.0, 3.0  # holding and backlog cost; the paper gives neither
SCALE = 15.0  # contexts are uniform on [-15, 15]^d
MU, L = 0.5, 2.0  # of g in u, as long as the loss bends by less than lambda
ADVERSARY = 100  # steps to its best answer, where it is measured
CONTEXTS, DEMANDS = 4, 4  # in the minibatch of an upper iteration; demands of each in a draw of the gradient


class Book(NamedTuple):
    """Stored contexts with demands, of which the first m count, and the price of moving a context."""

    contexts: jax.Array  # (M, d)
    demands: jax.Array  # (M, at least m)
    m: jax.Array
    lam: jax.Array


class Context(NamedTuple):
    """A stored context with one of its demands, which only the adversary of WDRO sees."""

    row: jax.Array
    value: jax.Array
    lam: jax.Array
    eta: jax.Array


@functools.cache
def static_part(widths: tuple[int, ...], d: int) -> Any:
    """What the rules of one shape share; their arrays are x."""
    return eqx.partition(first_rule(widths, d, random.key(0)), eqx.is_inexact_array)[1]


def first_rule(widths: tuple[int, ...], d: int, key: Key) -> Any:
    return network(d, widths, nonlinearity("softplus", "fig3", SMOOTHING), key, "fig3")


@functools.cache
def template(widths: tuple[int, ...], d: int, adversary_sees: bool) -> Problem:
    """The problem without its data. Rules without hidden layers are affine."""
    order = lambda x, xi: eqx.combine(x, static_part(widths, d))(xi)
    cost = lambda x, u, eta, xi: smooth_loss(order(x, xi.value + u / (2 * xi.lam)), eta, H, B, SMOOTHING)

    def demand(key: Key, row: Any, data: Book) -> jax.Array:
        return data.demands[row, random.randint(key, (), 0, data.m)]

    def sample_context(key: Key, data: Book) -> Context:
        key_row, key_eta = random.split(key)
        row = random.randint(key_row, (), 0, data.contexts.shape[0])
        return Context(row, data.contexts[row], data.lam, demand(key_eta, row, data))

    return Problem(
        f=lambda x, u, eta, xi: cost(x, u, eta, xi) - jnp.sum(u**2) / (4 * xi.lam),
        g=lambda x, u, eta, xi: -2 * xi.lam * cost(x, u, eta, xi) + jnp.sum(u**2) / 2,
        sample_context=sample_context,
        sample_conditional=lambda key, xi, data: xi.eta if adversary_sees else demand(key, xi.row, data),
        init_y=lambda x, xi: jnp.zeros_like(xi.value),
        mu_g=MU,
        L_g1=L,
    )


class Season(NamedTuple):
    """What a seed stands for: stored data, data for tuning, and the test's contexts with their demands."""

    x1: X
    book: Book
    validation: tuple[jax.Array, jax.Array]  # contexts (n, d), demands (n, k)
    test: tuple[jax.Array, jax.Array]


def season(seed: int, widths: tuple[int, ...], *, d: int, M: int, m: int, points: int) -> Season:
    """Data as in the paper's appendix, the network behind demand drawn anew for each seed."""
    keys = [random.fold_in(random.key(seed), i) for i in range(8)]
    market = Market(network(d, TRUTH, jax.nn.relu, keys[0], "fig3"), d, SCALE, H, B)
    contexts, held_out, fresh = (market.contexts(key, n) for key, n in zip(keys[1:4], (M, M, points), strict=True))
    demands, checks = market.demands(keys[4], contexts, m), market.demands(keys[5], held_out, m)
    x1 = eqx.partition(first_rule(widths, d, keys[7]), eqx.is_inexact_array)[0]
    book = Book(contexts, demands, jnp.asarray(m, jnp.int32), jnp.ones((), float))
    return Season(x1, book, (held_out, checks), (fresh, market.demands(keys[6], fresh, 1)))


def estimators(K: int, inner_rate: float, T_in: int) -> dict[str, Estimator]:
    """The three formulations, with as many pairs of a context and a demand in an iteration.

    Danskin's gradient for all: f has no slope in u at the adversary's best answer.
    """
    adam = optax.adam(optax.linear_schedule(inner_rate, 0.0, T_in))
    single = {
        "ERM": dl_sgd(1, lower=frozen(), inverse=none()),
        "WDRO": dl_sgd(1, lower=optax_steps(adam, T_in), inverse=none()),
        "WDRO-SI": rt_mlmc(K, inverse=none()),
    }
    return {name: minibatch(one, CONTEXTS * DEMANDS) for name, one in single.items()}


def by_levels(name: str, K: int) -> Estimator:
    """DL-SGD or RT-MLMC for WDRO-SI, with fewer contexts and more demands of each."""
    factory = {"DL-SGD": dl_sgd, "RT-MLMC": rt_mlmc}[name]
    return minibatch(factory(K, inverse=none(), batch=DEMANDS), CONTEXTS)


class Lanes(NamedTuple):
    """What differs between runs of one program."""

    m: jax.Array
    lam: jax.Array
    rule: training.Numbers


def lanes_of(settings: list[tuple[int, float, training.Rule]]) -> Lanes:
    rules = [rule.numbers() for _, _, rule in settings]
    m = jnp.asarray([m for m, _, _ in settings], jnp.int32)
    lam = jnp.asarray([lam for _, lam, _ in settings], float)
    return Lanes(m, lam, jax.tree.map(lambda *leaves: jnp.stack(leaves), *rules))


@partial(jax.jit, static_argnames="estimator")
def run_lanes(problem: Problem, x1: X, key: Key, lanes: Lanes, gaps: jax.Array, estimator: Estimator) -> X:
    """x at each checkpoint, (lanes, checkpoints, ...). All lanes share their draws, so also the random levels."""

    def one(lane: Lanes) -> X:
        book = problem.data._replace(m=lane.m, lam=lane.lam)
        return training.run(dataclasses.replace(problem, data=book), x1, key, lane.rule, gaps, estimator).x

    return jax.vmap(one)(lanes)


@partial(jax.jit, static_argnames=("widths", "d"))
def _costs(xs: X, contexts: jax.Array, demands: jax.Array, widths: tuple[int, ...], d: int) -> jax.Array:
    def one(x: X) -> jax.Array:
        orders = jax.vmap(eqx.combine(x, static_part(widths, d)))(contexts)
        cost = loss(orders[:, None], demands, H, B).mean()
        return jnp.where(jnp.all(jnp.isfinite(orders)), cost, jnp.inf)

    return lax.map(one, xs)


def costs(xs: X, pairs: tuple[jax.Array, jax.Array], widths: tuple[int, ...], d: int) -> np.ndarray:
    """Mean unsmoothed loss of each of the stacked rules on stored contexts and demands."""
    return np.asarray(_costs(xs, *pairs, widths=widths, d=d), np.float64)


@partial(jax.jit, static_argnames=("widths", "d"))
def distances(xs: X, book: Book, lams: jax.Array, widths: tuple[int, ...], d: int) -> jax.Array:
    """How far the adversary of WDRO-SI moves a context, |y* - xi| = |u*| / (2 lambda), mean over those stored.

    u* by ADVERSARY gradient steps of 1/L on all demands, for each of the stacked rules with its lambda.
    """
    problem = template(widths, d, False)

    def one(pair: tuple[X, jax.Array]) -> jax.Array:
        x, lam = pair

        def moved(row: jax.Array) -> jax.Array:
            xi = Context(row, book.contexts[row], lam, book.demands[row, 0])
            slope = jax.vmap(lambda u, eta: problem.grad_g(x, u, eta, xi), in_axes=(None, 0))
            descend = lambda _, u: u - slope(u, book.demands[row]).mean(0) / L
            return jnp.linalg.norm(lax.fori_loop(0, ADVERSARY, descend, jnp.zeros(d, xi.value.dtype))) / (2 * lam)

        return lax.map(moved, jnp.arange(len(book.contexts))).mean()

    return lax.map(one, (xs, lams))


def best_constant(book: Book, test: tuple[jax.Array, jax.Array]) -> float:
    """Test cost of the best order that ignores the context: a quantile of all stored demands."""
    order = jnp.quantile(book.demands, B / (H + B))
    return float(loss(order, test[1], H, B).mean())
