"""The contextual bilevel problem (eq. 1-2) and its derivative products.

This is the only core file that differentiates.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import random

if TYPE_CHECKING:
    from bilevelax.feed import Source
    from bilevelax.inverse import InverseHessian
    from bilevelax.lower import LowerSolver

Key = Any
X = Any
Y = Any
Xi = Any
Eta = Any
PyTree = Any


def static(**kw: Any) -> Any:
    """A dataclass field that is part of the tree's structure, not a leaf."""
    return dataclasses.field(metadata={"static": True}, **kw)


# How each function of a problem is called; validated once per function.
SIGNATURES = {
    "f": ("x", "y", "eta", "xi"),
    "g": ("x", "y", "eta", "xi"),
    "sample_context": ("key", "data"),
    "sample_conditional": ("key", "xi", "data"),
    "init_y": ("x", "xi"),
    "context_at": ("i", "data"),
    "support": ("xi", "data"),
    "guess": ("x", "xi", "data"),
}
OPTIONAL = ("context_at", "support", "guess")


@functools.lru_cache(maxsize=4096)
def _check_arity(name: str, function: Callable[..., Any]) -> None:
    if not callable(function):
        raise ValueError(f"`{name}` of Problem must be a function. Got {function!r}.")
    wanted = SIGNATURES[name]
    try:
        inspect.signature(function).bind(*wanted)
    except TypeError:
        raise ValueError(
            f"`{name}` of Problem is called as {name}({', '.join(wanted)}), with {len(wanted)} arguments. "
            f"Got {name}{inspect.signature(function)}."
        ) from None
    except ValueError:  # a builtin without a signature: nothing to check
        pass


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Problem:
    r"""Contextual stochastic bilevel problem, eq. (1)-(2).

    .. math::
        \min_x E_{\xi, \eta|\xi} f(x, y^*(x; \xi), \eta, \xi), \quad
        y^*(x; \xi) = \arg\min_y E_{\eta|\xi} g(x, y, \eta, \xi)

    ``x``, ``y``, ``xi`` and ``eta`` are arbitrary pytrees. ``f`` and ``g`` see samples, never
    data; ``data`` enters through the samplers only, as leaves of the compiled program's
    arguments: close over no array of size in any of the functions.

    Args:
        f: upper loss ``f(x, y, eta, xi) -> scalar``.
        g: lower loss ``g(x, y, eta, xi) -> scalar``, ``mu_g``-strongly convex in ``y``.
        sample_context: ``(key, data) -> xi``, a draw of P_xi.
        sample_conditional: ``(key, xi, data) -> eta``, a draw of P_{eta|xi}. ``eta`` may be a
            pair (train, test) of which ``g`` reads one and ``f`` the other.
        init_y: ``(x, xi) -> y``, the follower's starting point y_1^0.
        data: any pytree of arrays.
        mu_g: strong convexity of ``g`` in ``y`` (Assumption 1 (ii)), if known.
        L_g1: a bound of the *per-sample* Hessians of ``g`` in ``y`` (Assumption 1 (iii)), if known.
        lower: the lower solver that suits this problem; estimators use it when given none.
        inverse: likewise the inverse-Hessian estimate.
        n_contexts: number of contexts where they are finitely many and equally likely.
        context_at: ``(i, data) -> xi``, context number i of these.
        support: ``(xi, data) -> (etas, weights)``, all outcomes of a context, stacked, and their
            probabilities, where P_{eta|xi} is a stored finite set (padding has weight 0). It makes
            `respond` exact and allows ``saa(n="all")`` and ``antithetic_mlmc(exact_top=True)``.
        source: where `minimize` reads contexts from that are not in memory; see `from_clients`.
        guess: ``(x, xi, data) -> y``, where `saa` and `antithetic_mlmc` start their solves instead
            of ``init_y``; it changes their cost, not their mean. `warm_started` learns one.
    """

    f: Callable[[X, Y, Eta, Xi], jax.Array] = static()
    g: Callable[[X, Y, Eta, Xi], jax.Array] = static()
    sample_context: Callable[[Key, PyTree], Xi] = static()
    sample_conditional: Callable[[Key, Xi, PyTree], Eta] = static()
    init_y: Callable[[X, Xi], Y] = static()
    data: PyTree = ()
    mu_g: float | None = static(default=None)
    L_g1: float | None = static(default=None)
    lower: LowerSolver | None = static(default=None)
    inverse: InverseHessian | None = static(default=None)
    n_contexts: int | None = static(default=None)
    context_at: Callable[[Any, PyTree], Xi] | None = static(default=None)
    support: Callable[[Xi, PyTree], tuple[Eta, jax.Array]] | None = static(default=None)
    source: Source | None = static(default=None)
    guess: Callable[[X, Xi, PyTree], Y] | None = static(default=None)

    def __post_init__(self) -> None:
        for name in SIGNATURES:
            if name not in OPTIONAL or getattr(self, name) is not None:
                _check_arity(name, getattr(self, name))
        if (self.n_contexts is None) != (self.context_at is None):
            raise ValueError("`n_contexts` and `context_at` of Problem go together. Give both or neither.")
        for name in ("mu_g", "L_g1"):
            value = getattr(self, name)
            if value is not None:
                if not 0 < float(value) < float("inf"):
                    raise ValueError(f"`{name}` of Problem must be a positive number. Got {value!r}.")
                object.__setattr__(self, name, float(value))
        if self.mu_g is not None and self.L_g1 is not None and self.mu_g > self.L_g1:
            raise ValueError(
                f"`mu_g` of Problem must not exceed `L_g1`. Got mu_g = {self.mu_g:g} and L_g1 = {self.L_g1:g}; "
                "mu_g bounds the Hessian of g in y from below, L_g1 from above."
            )

    def context(self, key: Key) -> Xi:
        """xi ~ P_xi."""
        return self.sample_context(key, self.data)

    def nth_context(self, i: Any) -> Xi:
        """Context number i of a problem with finitely many."""
        if self.context_at is None:
            raise ValueError("This problem has no numbered contexts: Problem(..., n_contexts=..., context_at=...).")
        return self.context_at(i, self.data)

    def conditional(self, key: Key, xi: Xi) -> Eta:
        """eta ~ P_{eta|xi}."""
        return self.sample_conditional(key, xi, self.data)

    def conditionals(self, key: Key, xi: Xi, n: int, start: Any = 0) -> Eta:
        """n draws of eta, stacked, addressed by (key, start), ..., (key, start + n - 1)."""
        draw = jax.vmap(lambda j: self.conditional(random.fold_in(key, j), xi))
        return draw(jnp.arange(n, dtype=jnp.int32) + start)

    def outcomes(self, xi: Xi) -> tuple[Eta, jax.Array]:
        """All outcomes of a context and their probabilities."""
        if self.support is None:
            raise ValueError("This problem has no finite set of outcomes: Problem(..., support=...), or from_arrays.")
        return self.support(xi, self.data)

    def start(self, x: X, xi: Xi) -> Y:
        """y_1^0, with the dtypes that a compiled loop can carry."""
        return jax.tree.map(lambda a: jnp.asarray(a, dtype=jnp.result_type(a)), self.init_y(x, xi))

    def carrying(self, extra: PyTree) -> Problem:
        """The same problem with ``data = (data, extra)``."""

        def own(function: Callable[..., Any] | None) -> Any:
            return None if function is None else lambda *args: function(*args[:-1], args[-1][0])

        readers = ("sample_context", "sample_conditional", "context_at", "support", "guess")
        return dataclasses.replace(
            self, data=(self.data, extra), **{name: own(getattr(self, name)) for name in readers}
        )

    def averaged(self, n: int) -> Problem:
        """The same problem whose ``eta`` is a stack of n draws and whose losses are means over it."""
        if n == 1:
            return self

        def mean(loss: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
            each = jax.vmap(loss, in_axes=(None, None, 0, None))
            return lambda x, y, eta, xi: jnp.mean(each(x, y, eta, xi))

        def sample_conditional(key: Key, xi: Xi, data: PyTree) -> Eta:
            return dataclasses.replace(self, data=data).conditionals(key, xi, n)

        return dataclasses.replace(
            self, f=mean(self.f), g=mean(self.g), sample_conditional=sample_conditional, support=None
        )

    def weighted(self) -> Problem:
        """The same problem whose ``eta`` is a pair (stack, weights) and whose losses are weighted sums over it."""

        def total(loss: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
            def of_sum(x: X, y: Y, eta: tuple[Eta, jax.Array], xi: Xi) -> jax.Array:
                def term(eta: Eta, weight: jax.Array) -> jax.Array:
                    value = loss(x, y, eta, xi)
                    return weight.astype(value.dtype) * value

                return jnp.sum(jax.vmap(term)(*eta))

            return of_sum

        def sample_conditional(key: Key, xi: Xi, data: PyTree) -> Eta:
            one = self.sample_conditional(key, xi, data)
            return jax.tree.map(lambda a: jnp.asarray(a)[None], one), jnp.ones(1)

        return dataclasses.replace(
            self, f=total(self.f), g=total(self.g), sample_conditional=sample_conditional, support=None
        )

    def grad_f(self, x: X, y: Y, eta: Eta, xi: Xi) -> tuple[X, Y]:
        """(grad_1 f, grad_2 f)."""
        return jax.grad(self.f, argnums=(0, 1))(x, y, eta, xi)

    def grad_g(self, x: X, y: Y, eta: Eta, xi: Xi) -> Y:
        """grad_2 g."""
        return jax.grad(self.g, argnums=1)(x, y, eta, xi)

    def hess_g(self, x: X, y: Y, eta: Eta, xi: Xi, r: Y) -> Y:
        """(grad^2_22 g) r."""
        return jax.jvp(lambda y: self.grad_g(x, y, eta, xi), (y,), (r,))[1]

    def linear_hess_g(self, x: X, y: Y, eta: Eta, xi: Xi) -> Callable[[Y], Y]:
        """r -> (grad^2_22 g) r, linearised once for many r."""
        return jax.linearize(lambda y: self.grad_g(x, y, eta, xi), y)[1]

    def cross_g(self, x: X, y: Y, eta: Eta, xi: Xi, r: Y) -> X:
        """(grad^2_12 g) r, the derivative in x of <grad_2 g, r> (Algorithm 4 prints y)."""
        return jax.vjp(lambda x: self.grad_g(x, y, eta, xi), x)[1](r)[0]
