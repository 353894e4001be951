"""Networks for the follower's answer and for the adjoint, trained along on joint draws (functional implicit diff.)."""

from __future__ import annotations

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax import lax, random
from jax.flatten_util import ravel_pytree
from optax import tree

from bilevelax.base.errors import require_integer, require_positive, require_unconstrained
from bilevelax.core.estimate import Cost, Estimate, Estimator
from bilevelax.core.problem import Key, Problem, PyTree, X, Xi, Y
from bilevelax.problems.bases import coordinates
from bilevelax.problems.joint import Pair, at_answer, draw_pair

SCALED_ON = 256  # contexts that the networks' inputs are scaled on
ONE_HOT = 4096  # numbered contexts without coordinates, at most


class Fitted(NamedTuple):
    """A network's parameters and its optimizer's state."""

    weights: PyTree
    optimizer: PyTree


class AmortisedState(NamedTuple):
    """y(xi) and a(xi) ~ (g22)^{-1} grad_2 f, both as networks of the scaled context."""

    answer: Fitted
    adjoint: Fitted
    centre: jax.Array
    scale: jax.Array


def amortised(
    network: Any = None,
    adjoint_network: Any = None,
    m: int = 64,
    steps: int = 4,
    rate: float = 3e-3,
    warm_up: int = 200,
    width: int = 64,
    seed: int = 0,
) -> Estimator:
    r"""FuncID: functional implicit differentiation (Petrulionyte, Mairal and Arbel 2024), warm across outer steps.

    A network learns y(xi) by stochastic steps on E g(x, y(xi), eta, xi), another the adjoint a(xi) on

    .. math::
        E \tfrac12 \langle a(\xi), \nabla^2_{22} g \, a(\xi) \rangle - \langle a(\xi), \nabla_2 f \rangle,

    and the direction is the mean of grad_1 f - g12 a(xi) over m fresh pairs. Pairs are joint draws, so it works on
    problems of `from_joint`. Its bias is what the networks have not learnt: `check` tells where a conditional exists.

    Args:
        network: an equinox module, scaled coordinates of a context (d,) -> (d_y,), added to ``init_y``; by default
            two hidden layers of ``width``.
        adjoint_network: likewise of a(xi).
        m: pairs in each step and in each estimate.
        steps: steps of both networks before each estimate.
        rate: of Adam, for both.
        warm_up: steps at the first x, before the first estimate.
        width: of the default networks.
        seed: of their first weights and of the warm-up.
    """
    for name, value, least in (("m", m, 1), ("steps", steps, 0), ("warm_up", warm_up, 0), ("width", width, 1)):
        require_integer(name, "amortised", value, least)
    require_positive("rate", "amortised", rate)
    optimizer = optax.adam(rate)

    def networks(problem: Problem, x: X) -> tuple[Any, Any]:
        xi, y = _shapes(problem, x)
        d, d_y = jax.eval_shape(lambda xi: _inputs(problem, xi), xi).size, y.size
        keys = random.split(random.key(seed))
        mlp = lambda key: eqx.nn.MLP(d, d_y, width, 2, jnp.tanh, dtype=y.dtype, key=key)
        given = (network, adjoint_network)
        parts = [eqx.partition(one or mlp(key), eqx.is_inexact_array) for one, key in zip(given, keys, strict=True)]
        return parts[0], parts[1]

    def init(problem: Problem, x: X) -> AmortisedState:
        require_unconstrained("amortised", problem)
        (answer, _), (adjoint, _) = networks(problem, x)
        keys = random.split(random.key(seed), SCALED_ON)
        z = jax.vmap(lambda key: _inputs(problem, problem.context(key)))(keys)
        spread = jnp.std(z, axis=0)
        start = lambda weights: Fitted(weights, optimizer.init(weights))
        scale = jnp.where(spread > 0, spread, 1.0)
        fresh = AmortisedState(start(answer), start(adjoint), jnp.mean(z, axis=0), scale)
        return learn(random.key(seed), problem, x, fresh, warm_up)

    def learn(key: Key, problem: Problem, x: X, state: AmortisedState, steps: int) -> AmortisedState:
        model = Model(problem, state.centre, state.scale, *(static for _, static in networks(problem, x)))

        def step(state: AmortisedState, key: Key) -> tuple[AmortisedState, None]:
            pairs = _draw(key, problem, m)
            answer = _stepped(optimizer, state.answer, model.slope(x, state.answer.weights, pairs))
            adjoint = _stepped(optimizer, state.adjoint, model.adjoint_slope(x, answer.weights, state.adjoint, pairs))
            return state._replace(answer=answer, adjoint=adjoint), None

        return lax.scan(step, state, random.split(key, steps))[0] if steps else state

    def estimate(key: Key, problem: Problem, x: X, state: AmortisedState) -> tuple[Estimate, AmortisedState]:
        key_fit, key_v = random.split(key)
        state = learn(key_fit, problem, x, state, steps)
        model = Model(problem, state.centre, state.scale, *(static for _, static in networks(problem, x)))
        pairs = _draw(key_v, problem, m)
        grads = jax.vmap(lambda pair: model.direction(x, state.answer.weights, state.adjoint.weights, pair))(pairs)
        fits, drawn = m * steps, m * (steps + 1)
        cost = Cost(xi=drawn, eta=drawn, grad_f=drawn, grad_g=fits, hess_g=fits, cross_g=m)
        return Estimate(jax.tree.map(lambda a: jnp.mean(a, axis=0), grads), cost, {}), state

    return Estimator(init, estimate, generic=True)


class Model(NamedTuple):
    """Both networks on a problem."""

    problem: Problem
    centre: jax.Array
    scale: jax.Array
    answer: Any  # the networks without their weights
    adjoint: Any

    def output(self, network: Any, weights: PyTree, xi: Xi, like: Y) -> Y:
        z = (_inputs(self.problem, xi) - self.centre) / self.scale
        flat, unravel = ravel_pytree(like)
        return unravel(eqx.combine(weights, network)(z.astype(flat.dtype)).astype(flat.dtype))

    def y(self, x: X, weights: PyTree, pair: Pair) -> Y:
        start = self.problem.start(x, pair.xi)
        return tree.add(start, self.output(self.answer, weights, pair.xi, start))

    def a(self, y: Y, weights: PyTree, pair: Pair) -> Y:
        return self.output(self.adjoint, weights, pair.xi, y)

    def slope(self, x: X, weights: PyTree, pairs: Pair) -> PyTree:
        """The derivative of the mean of g in the weights of y(xi)."""
        return _mean_slope(self.problem.replace(g=at_answer(self.problem.g, self.y)), x, weights, pairs)

    def adjoint_slope(self, x: X, answer: PyTree, adjoint: Fitted, pairs: Pair) -> PyTree:
        """The derivative of the adjoint's mean loss in the weights of a(xi)."""

        def loss(x: X, weights: PyTree, pair: Pair, xi: Xi) -> jax.Array:
            y = self.y(x, answer, pair)
            a = self.a(y, weights, pair)
            _, grad_y = self.problem.grad_f(x, y, pair.eta, pair.xi)
            return tree.vdot(a, self.problem.hess_g(x, y, pair.eta, pair.xi, a)) / 2 - tree.vdot(a, grad_y)

        return _mean_slope(self.problem.replace(g=loss), x, adjoint.weights, pairs)

    def direction(self, x: X, answer: PyTree, adjoint: PyTree, pair: Pair) -> X:
        """grad_1 f - g12 a(xi)."""
        y = self.y(x, answer, pair)
        grad_x, _ = self.problem.grad_f(x, y, pair.eta, pair.xi)
        return tree.sub(grad_x, self.problem.cross_g(x, y, pair.eta, pair.xi, self.a(y, adjoint, pair)))


def _mean_slope(problem: Problem, x: X, weights: PyTree, pairs: Pair) -> PyTree:
    slopes = jax.vmap(lambda pair: problem.grad_g(x, weights, pair, pair.xi))(pairs)
    return jax.tree.map(lambda a: jnp.mean(a, axis=0), slopes)


def _stepped(optimizer: optax.GradientTransformation, fitted: Fitted, slope: PyTree) -> Fitted:
    with jax.numpy_dtype_promotion("standard"):  # optax multiplies by Python floats of its own
        updates, state = optimizer.update(slope, fitted.optimizer, fitted.weights)
        return Fitted(optax.apply_updates(fitted.weights, updates), state)


def _draw(key: Key, problem: Problem, m: int) -> Pair:
    return jax.vmap(lambda key: draw_pair(key, problem))(random.split(key, m))


def _shapes(problem: Problem, x: X) -> tuple[Xi, Any]:
    """A context, and an answer as one vector, abstractly."""
    xi = jax.eval_shape(problem.context, jax.eval_shape(lambda: random.key(0)))
    return xi, jax.eval_shape(lambda x, xi: ravel_pytree(problem.start(x, xi))[0], x, xi)


def _inputs(problem: Problem, xi: Xi) -> jax.Array:
    """What a network sees of a context: its coordinates; where it has none, which of the numbered ones it is."""
    z = coordinates(xi)
    numbers = [a for a in jax.tree.leaves(xi) if jnp.shape(a) == ()]
    if z.size:
        return z
    if problem.n_contexts is None or problem.n_contexts > ONE_HOT or not numbers:
        raise ValueError(
            "amortised needs contexts with floating-point coordinates, or few numbered ones. This problem's have none; "
            "put what describes a context into xi."
        )
    return jax.nn.one_hot(numbers[0], problem.n_contexts, dtype=float)
