"""What is measured at the rules of Figure 3: costs, whether they were trained, and what the adversary can do there."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, random

from bilevelax.applications.newsvendor.loss import affine_floor, expected_loss, loss
from bilevelax.base.compiling import program
from bilevelax.core.problem import X
from bilevelax.exact.curvature import extreme_eigenvalues
from bilevelax_paper._newsvendors import DEVIATION, B, Book, Context, H, L, Season, order_of, template

ADVERSARY = 60  # gradient steps to its best answer
LANCZOS = 12  # steps to the extreme eigenvalues


class Costs(NamedTuple):
    """Of each of the stacked rules, with the loss unsmoothed."""

    validation: jax.Array  # on the demands of as many contexts, which no run has seen
    test: jax.Array  # on fresh contexts, in the mean over demand (closed form)
    train: jax.Array  # on the stored demands that count
    spread: jax.Array  # standard deviation of the orders over the test's contexts: 0 for a constant


def counted(book: Book, m: jax.Array) -> jax.Array:
    """Weights of stored demands: 1/m for the first m of a context, 0 for the others."""
    return (jnp.arange(book.demands.shape[1]) < m) / m


@program(static_argnames=("widths", "d"))
def costs(xs: X, ms: jax.Array, season: Season, widths: tuple[int, ...], d: int) -> Costs:
    """All costs of each of the stacked rules, which were trained on the first m demands of each context."""
    orders = jax.vmap(order_of(widths, d), in_axes=(None, 0))

    def one(pair: tuple[X, jax.Array]) -> Costs:
        x, m = pair
        held_out, demands = season.validation
        contexts, means = season.test
        fresh, stored = orders(x, contexts), orders(x, season.book.contexts)
        found = Costs(
            loss(orders(x, held_out)[:, None], demands, H, B).mean(),
            expected_loss(fresh, means, H, B).mean(),
            (loss(stored[:, None], season.book.demands, H, B) @ counted(season.book, m)).mean(),
            fresh.std(),
        )
        return jax.tree.map(lambda a: jnp.where(jnp.isfinite(a), a, jnp.inf), found)

    return lax.map(one, (xs, ms))


class Bounds(NamedTuple):
    """What the costs of one season lie between."""

    constant: float  # test cost of the best constant order for the stored demands
    train_constant: float  # least training cost of a constant order
    train_floor: float  # least training cost of the class of rules

    def fit(self, train: np.ndarray) -> np.ndarray:
        """How much of the way from the best constant order to the least possible training cost was gone."""
        return (self.train_constant - train) / (self.train_constant - self.train_floor)


def bounds(season: Season, m: int, affine: bool) -> Bounds:
    """A class that can order at will in every stored context has the floor of no class."""
    contexts, demands = np.asarray(season.book.contexts, float), np.asarray(season.book.demands[:, :m], float)
    least = lambda demands: np.quantile(demands, B / (H + B), axis=-1, keepdims=True, method="inverted_cdf")
    cost = lambda orders: float(loss(orders, demands, H, B).mean())
    order = least(demands.ravel())
    interpolates = not affine or len(contexts) <= contexts.shape[1] + 1
    floor = cost(least(demands)) if interpolates else affine_floor(contexts / DEVIATION, demands, H, B)
    return Bounds(float(expected_loss(order, np.asarray(season.test[1]), H, B).mean()), cost(order), floor)


class Adversary(NamedTuple):
    """What the adversary of WDRO-SI does at each of the stacked rules, over the stored contexts."""

    distance: jax.Array  # mean of |y* - xi| = |u*| / (2 lambda)
    least: jax.Array  # least eigenvalue of the Hessian of E g in u, at xi and at y*: convex there if positive
    most: jax.Array  # the largest one


@program(static_argnames=("widths", "d"))
def adversary(xs: X, lams: jax.Array, ms: jax.Array, book: Book, widths: tuple[int, ...], d: int) -> Adversary:
    """u* by gradient steps of 1/L on all demands that count, for each of the stacked rules with its lambda and m."""
    problem = template(widths, d, False).weighted()
    direction = random.normal(random.key(0), (d,), book.contexts.dtype)

    def one(lane: tuple[X, jax.Array, jax.Array]) -> Adversary:
        x, lam, m = lane

        def at(row: jax.Array, value: jax.Array, demands: jax.Array) -> tuple[jax.Array, jax.Array]:
            xi, eta = Context(row, value, lam, demands[0]), (demands, counted(book, m))
            stay = problem.start(x, xi)
            u = lax.fori_loop(0, ADVERSARY, lambda _, u: u - problem.grad_g(x, u, eta, xi) / L, stay)
            ends = [
                extreme_eigenvalues(problem.linear_hess_g(x, point, eta, xi), direction, LANCZOS) for point in (stay, u)
            ]
            return jnp.linalg.norm(u) / (2 * lam), jnp.stack(ends)

        distance, ends = jax.vmap(at)(jnp.arange(len(book.contexts)), book.contexts, book.demands)
        return Adversary(distance.mean(), ends.min(), ends.max())

    return lax.map(one, (xs, lams, ms))
