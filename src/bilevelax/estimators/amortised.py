"""Networks for the follower's answer and for the adjoint, trained along on joint draws (functional implicit diff.)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
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


Place = Callable[[Callable[[Key, Problem], Pair], Key, Problem], Pair]


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


class Amortised(NamedTuple):
    """What the estimator was made of."""

    m: int
    answer: Callable[[Problem, X, AmortisedState, Xi], Y]  # of the follower's network, in a context
    placed: Callable[[Place], Estimator]  # the same with each step's draws made by many devices


def amortised(
    network: Any = None,
    adjoint_network: Any = None,
    m: int = 64,
    steps: int = 4,
    rate: float = 3e-3,
    warm_up: int = 200,
    width: int = 64,
    seed: int = 0,
    place: Place | None = None,
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
        place: ``(draw, keys, problem) -> pairs``, how devices draw a step's pairs; ``minimize(mesh=...)`` gives it.
    """
    for name, given in (("network", network), ("adjoint_network", adjoint_network)):
        if given is not None and not callable(given):
            raise ValueError(
                f"`{name}` of amortised must be an equinox module, coordinates of a context -> answer. Got a "
                f"{type(given).__name__}; a problem is given to minimize, beside this estimator."
            )
    for name, value, least in (("m", m, 1), ("steps", steps, 0), ("warm_up", warm_up, 0), ("width", width, 1)):
        require_integer(name, "amortised", value, least)
    require_positive("rate", "amortised", rate)
    made = Networks(network, adjoint_network, m, steps, rate, warm_up, width, seed, place)
    placed = partial(amortised, network, adjoint_network, m, steps, rate, warm_up, width, seed)
    return Estimator(made.init, made.estimate, settings=Amortised(m, made.answer, placed), generic=True)


@dataclasses.dataclass(frozen=True, eq=False)
class Networks:
    """How both networks are made, learn and answer: the arguments of `amortised`."""

    network: Any
    adjoint_network: Any
    m: int
    steps: int
    rate: float
    warm_up: int
    width: int
    seed: int
    place: Place | None

    @property
    def optimizer(self) -> optax.GradientTransformation:
        return optax.adam(self.rate)

    def parts(self, problem: Problem, x: X) -> tuple[Any, Any]:
        """(weights, the rest) of each."""
        xi, y = _shapes(problem, x)
        d, d_y = jax.eval_shape(lambda xi: _inputs(problem, xi), xi).size, y.size
        keys = random.split(random.key(self.seed))
        mlp = lambda key: eqx.nn.MLP(d, d_y, self.width, 2, jnp.tanh, dtype=y.dtype, key=key)
        given = (self.network, self.adjoint_network)
        made = [mlp(key) if one is None else one for one, key in zip(given, keys, strict=True)]
        for network in made:
            require_answer_of(network, jax.ShapeDtypeStruct((d,), y.dtype), d_y)
        answer, adjoint = (eqx.partition(network, eqx.is_inexact_array) for network in made)
        return answer, adjoint

    def init(self, problem: Problem, x: X) -> AmortisedState:
        require_unconstrained("amortised", problem)
        return _warmed_up(self, problem, x)

    def first_state(self, problem: Problem, x: X) -> AmortisedState:
        """Scaled on contexts and warmed up."""
        (answer, _), (adjoint, _) = self.parts(problem, x)
        keys = random.split(random.key(self.seed), SCALED_ON)
        z = jax.vmap(lambda key: _inputs(problem, problem.context(key)))(keys)
        spread = jnp.std(z, axis=0)
        start = lambda weights: Fitted(weights, self.optimizer.init(weights))
        scale = jnp.where(spread > 0, spread, 1.0)
        fresh = AmortisedState(start(answer), start(adjoint), jnp.mean(z, axis=0), scale)
        return self.learn(random.key(self.seed), problem, x, fresh, self.warm_up)

    def draw(self, key: Key, problem: Problem) -> Pair:
        """The pairs of a step; where there are many devices, each draws its own."""
        draw = lambda keys, problem: jax.vmap(lambda key: draw_pair(key, problem))(keys)
        keys = random.split(key, self.m)
        return self.place(draw, keys, problem) if self.place else draw(keys, problem)

    def model(self, problem: Problem, x: X, state: AmortisedState) -> Model:
        return Model(problem, state.centre, state.scale, *(static for _, static in self.parts(problem, x)))

    def answer(self, problem: Problem, x: X, state: AmortisedState, xi: Xi) -> Y:
        """y(xi) of the network."""
        return self.model(problem, x, state).y(x, state.answer.weights, xi)

    def learn(self, key: Key, problem: Problem, x: X, state: AmortisedState, steps: int) -> AmortisedState:
        model = self.model(problem, x, state)

        def step(state: AmortisedState, key: Key) -> tuple[AmortisedState, None]:
            pairs = self.draw(key, problem)
            answer = _stepped(self.optimizer, state.answer, model.slope(x, state.answer.weights, pairs))
            slope = model.adjoint_slope(x, answer.weights, state.adjoint, pairs)
            return state._replace(answer=answer, adjoint=_stepped(self.optimizer, state.adjoint, slope)), None

        return lax.scan(step, state, random.split(key, steps))[0] if steps else state

    def estimate(self, key: Key, problem: Problem, x: X, state: AmortisedState) -> tuple[Estimate, AmortisedState]:
        key_fit, key_v = random.split(key)
        state = self.learn(key_fit, problem, x, state, self.steps)
        model, pairs = self.model(problem, x, state), self.draw(key_v, problem)
        grads = jax.vmap(lambda pair: model.direction(x, state.answer.weights, state.adjoint.weights, pair))(pairs)
        fits, drawn = self.m * self.steps, self.m * (self.steps + 1)
        cost = Cost(xi=drawn, eta=drawn, grad_f=drawn, grad_g=fits, hess_g=fits, cross_g=self.m)
        return Estimate(jax.tree.map(lambda a: jnp.mean(a, axis=0), grads), cost, {}), state


@partial(jax.jit, static_argnames="networks")  # no options of `program`, which JAX takes for outermost programs only
def _warmed_up(networks: Networks, problem: Problem, x: X) -> AmortisedState:
    """The first state by one program; step by step it took some thirty."""
    return networks.first_state(problem, x)


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

    def y(self, x: X, weights: PyTree, xi: Xi) -> Y:
        start = self.problem.start(x, xi)
        return tree.add(start, self.output(self.answer, weights, xi, start))

    def a(self, y: Y, weights: PyTree, pair: Pair) -> Y:
        return self.output(self.adjoint, weights, pair.xi, y)

    def slope(self, x: X, weights: PyTree, pairs: Pair) -> PyTree:
        """The derivative of the mean of g in the weights of y(xi)."""
        answered = at_answer(self.problem.g, lambda x, weights, pair: self.y(x, weights, pair.xi))
        return _mean_slope(self.problem.replace(g=answered), x, weights, pairs)

    def adjoint_slope(self, x: X, answer: PyTree, adjoint: Fitted, pairs: Pair) -> PyTree:
        """The derivative of the adjoint's mean loss in the weights of a(xi)."""

        def loss(x: X, weights: PyTree, pair: Pair, xi: Xi) -> jax.Array:
            y = self.y(x, answer, pair.xi)
            a = self.a(y, weights, pair)
            _, grad_y = self.problem.grad_f(x, y, pair.eta, pair.xi)
            return tree.vdot(a, self.problem.hess_g(x, y, pair.eta, pair.xi, a)) / 2 - tree.vdot(a, grad_y)

        return _mean_slope(self.problem.replace(g=loss), x, adjoint.weights, pairs)

    def direction(self, x: X, answer: PyTree, adjoint: PyTree, pair: Pair) -> X:
        """grad_1 f - g12 a(xi)."""
        y = self.y(x, answer, pair.xi)
        grad_x, _ = self.problem.grad_f(x, y, pair.eta, pair.xi)
        return tree.sub(grad_x, self.problem.cross_g(x, y, pair.eta, pair.xi, self.a(y, adjoint, pair)))


def _mean_slope(problem: Problem, x: X, weights: PyTree, pairs: Pair) -> PyTree:
    slopes = jax.vmap(lambda pair: problem.grad_g(x, weights, pair, pair.xi))(pairs)
    return jax.tree.map(lambda a: jnp.mean(a, axis=0), slopes)


def _stepped(optimizer: optax.GradientTransformation, fitted: Fitted, slope: PyTree) -> Fitted:
    with jax.numpy_dtype_promotion("standard"):  # optax multiplies by Python floats of its own
        updates, state = optimizer.update(slope, fitted.optimizer, fitted.weights)
        return Fitted(optax.apply_updates(fitted.weights, updates), state)


def require_answer_of(network: Any, z: jax.ShapeDtypeStruct, d_y: int) -> None:
    """As many numbers as the follower's answer has."""
    found = jax.eval_shape(network, z)
    if getattr(found, "shape", None) != (d_y,):
        raise ValueError(
            f"A network of amortised must map the {z.size} coordinates of a context to the {d_y} numbers of an answer, "
            f"shape ({d_y},). Got {getattr(found, 'shape', type(found).__name__)}."
        )


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
