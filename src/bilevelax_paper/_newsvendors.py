"""WDRO-SI of the experiments: one program for every lambda, number of demands, start and step rule.

The adversary's variable is u = 2 lambda (z - xi) and g = -2 lambda f, so that mu_g and L_g1 need not know lambda, which
is data. ERM leaves u at 0; the adversary of WDRO sees the demand. A rule divides contexts by their deviation.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax import random

from bilevelax import Estimator, Problem, dl_sgd, frozen, minibatch, none, optax_steps, rt_mlmc
from bilevelax.applications.newsvendor.adversary import Moves, losses_of
from bilevelax.applications.newsvendor.loss import SMOOTHING, smooth_loss
from bilevelax.applications.newsvendor.market import market_of
from bilevelax.applications.newsvendor.policies import network, nonlinearity
from bilevelax.base.compiling import program
from bilevelax.core.problem import Key, X
from bilevelax_paper import training

H, B = 1.0, 3.0  # holding and backlog cost; the paper gives neither
SCALE = 15.0  # contexts are uniform on [-15, 15]^d
DEVIATION = SCALE / 3**0.5  # of each coordinate
MU, L = 0.5, 2.0  # of g in u, as long as the loss bends by less than lambda
CONTEXTS, DEMANDS = 4, 4  # in the minibatch of an upper iteration; demands of each in a draw of the gradient

smooth = functools.partial(smooth_loss, h=H, b=B, beta=SMOOTHING)


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


MOVES = Moves(
    place=lambda u, xi: xi.value + u / (2 * xi.lam),
    price=lambda u, xi: jnp.sum(u**2) / (4 * xi.lam),
    start=lambda xi: jnp.zeros_like(xi.value),
    scale=lambda xi: 2 * xi.lam,
)


@functools.cache
def static_part(widths: tuple[int, ...], d: int) -> Any:
    """What the rules of one shape share; their arrays are x."""
    return eqx.partition(new_rule(widths, d, random.key(0)), eqx.is_inexact_array)[1]


def new_rule(widths: tuple[int, ...], d: int, key: Key) -> Any:
    """pi_x before training, without hidden widths an affine rule."""
    layers = network(d, widths, nonlinearity("softplus", "fig3", SMOOTHING), key, "fig3").layers
    return eqx.nn.Sequential([eqx.nn.Lambda(lambda xi: xi / DEVIATION), *layers])


def first_x(widths: tuple[int, ...], d: int, book: Book, key: Key) -> X:
    """x_1: a new rule whose last bias is the best constant order for the stored demands."""
    rule = new_rule(widths, d, key)
    order = jnp.quantile(book.demands, B / (H + B))
    rule = eqx.tree_at(lambda rule: rule.layers[-1].bias, rule, replace_fn=lambda bias: jnp.full_like(bias, order))
    return eqx.partition(rule, eqx.is_inexact_array)[0]


def order_of(widths: tuple[int, ...], d: int) -> Any:
    """``order(x, xi)``."""
    return lambda x, xi: eqx.combine(x, static_part(widths, d))(xi)


@functools.cache
def template(widths: tuple[int, ...], d: int, adversary_sees: bool) -> Problem:
    """The problem without its data."""
    order = order_of(widths, d)
    losses = losses_of(lambda x, z, eta, xi: smooth(order(x, z), eta), MOVES)

    def demand(key: Key, row: Any, data: Book) -> jax.Array:
        return data.demands[row, random.randint(key, (), 0, data.m)]

    def sample_context(key: Key, data: Book) -> Context:
        key_row, key_eta = random.split(key)
        row = random.randint(key_row, (), 0, data.contexts.shape[0])
        return Context(row, data.contexts[row], data.lam, demand(key_eta, row, data))

    return Problem(
        **losses._asdict(),
        sample_context=sample_context,
        sample_conditional=lambda key, xi, data: xi.eta if adversary_sees else demand(key, xi.row, data),
        mu_g=MU,
        L_g1=L,
    )


class Season(NamedTuple):
    """What a seed stands for: stored data, first iterates, data for tuning, and the test's contexts."""

    starts: X  # stacked: a method's runs to choose from start apart
    book: Book
    validation: tuple[jax.Array, jax.Array]  # contexts (n, d), demands (n, k)
    test: tuple[jax.Array, jax.Array]  # contexts (n, d), mean demands (n,)


def season(seed: int, widths: tuple[int, ...], *, d: int, M: int, m: int, points: int, starts: int) -> Season:
    """Data as in the paper's appendix, the network behind demand drawn anew for each seed."""
    keys = [random.fold_in(random.key(seed), i) for i in range(8)]
    market = market_of(keys[0], d, SCALE, H, B, "fig3")
    contexts, held_out, fresh = (market.contexts(key, n) for key, n in zip(keys[1:4], (M, M, points), strict=True))
    demands, checks = market.demands(keys[4], contexts, m), market.demands(keys[5], held_out, m)
    book = Book(contexts, demands, jnp.asarray(m, jnp.int32), jnp.ones((), float))
    first = [first_x(widths, d, book, random.fold_in(keys[7], i)) for i in range(starts)]
    return Season(stack(first), book, (held_out, checks), (fresh, market.means(fresh)))


def stack(trees: Any) -> Any:
    """One tree of stacked leaves from a list of trees."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def estimators(K: int, T_in: int, d: int) -> dict[str, Estimator]:
    """The three formulations by Danskin's gradient, with as many pairs of a context and a demand in an iteration.

    The inner Adam of WDRO can bring u to a norm of T_in / 10. Contexts share the level of RT-MLMC, which vectorises.
    """
    adam = optax.adam(optax.linear_schedule(0.2 / d**0.5, 0.0, T_in))
    single = {
        "ERM": dl_sgd(1, lower=frozen(), inverse=none()),
        "WDRO": dl_sgd(1, lower=optax_steps(adam, T_in), inverse=none()),
        "WDRO-SI": rt_mlmc(K, inverse=none()),
    }
    return {name: minibatch(one, CONTEXTS * DEMANDS, mode="shared") for name, one in single.items()}


def by_levels(name: str, K: int) -> Estimator:
    """DL-SGD or RT-MLMC for WDRO-SI, with fewer contexts and more demands of each."""
    factory = {"DL-SGD": dl_sgd, "RT-MLMC": rt_mlmc}[name]
    return minibatch(factory(K, inverse=none(), batch=DEMANDS), CONTEXTS, mode="shared")


class Lanes(NamedTuple):
    """What differs between runs of one program."""

    x1: X
    m: jax.Array
    lam: jax.Array
    rule: training.Rule


def lanes_of(starts: X, settings: list[tuple[int, int, float, training.Rule]]) -> Lanes:
    """Stacked lanes from (which of the starts, m, lambda, steps)."""
    which, m, lam, rules = zip(*settings, strict=True)
    return Lanes(
        jax.tree.map(lambda a: a[jnp.asarray(which)], starts),
        jnp.asarray(m, jnp.int32),
        jnp.asarray(lam, float),
        stack([rule.numbers() for rule in rules]),
    )


@program(static_argnames="estimator")
def run_lanes(problem: Problem, key: Key, lanes: Lanes, gaps: jax.Array, estimator: Estimator) -> X:
    """x at each checkpoint, (lanes, checkpoints, ...). All lanes share their draws, so also the random levels."""

    def one(lane: Lanes) -> X:
        book = problem.data._replace(m=lane.m, lam=lane.lam)
        return training.run(dataclasses.replace(problem, data=book), lane.x1, key, lane.rule, gaps, estimator).x

    return jax.vmap(one)(lanes)


@program(static_argnames="estimator")
def run_seasons(problem: Problem, books: Book, keys: Key, lanes: Lanes, gaps: jax.Array, estimator: Estimator) -> X:
    """`run_lanes` for stacked seeds, (seeds, lanes, checkpoints, ...); random levels wait for the longest seed's."""

    def one(book: Book, key: Key, lanes: Lanes) -> X:
        return run_lanes(dataclasses.replace(problem, data=book), key, lanes, gaps, estimator)

    return jax.vmap(one)(books, keys, lanes)
