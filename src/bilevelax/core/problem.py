"""The contextual bilevel problem (eq. 1-2) and its derivative products.

This is the only core file that differentiates.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax import random
from jaxtyping import Array, Float, PRNGKeyArray

if TYPE_CHECKING:
    from bilevelax.core.inverse import InverseHessian
    from bilevelax.core.lower import LowerSolver
    from bilevelax.problems.feed import Source

Key = PRNGKeyArray
# Trees of arrays, whose structure is the user's: type checkers know no more of them
X: TypeAlias = Any  # the leader's variable, PyTree[Float[Array, "..."]]
Y: TypeAlias = Any  # the follower's answer, PyTree[Float[Array, "..."]]
Xi: TypeAlias = Any  # a context, PyTree[Shaped[Array, "..."]]
Eta: TypeAlias = Any  # a sample given it, PyTree[Shaped[Array, "..."]]
PyTree: TypeAlias = Any
Scalar = Float[Array, ""]
Loss = Callable[[X, Y, Eta, Xi], Scalar]


def static(**kw: Any) -> Any:
    """A dataclass field that is part of the tree's structure, not a leaf."""
    return dataclasses.field(metadata={"static": True}, **kw)


SMALL = 64  # numbers in y: beyond, one matrix and many vectors are slower together than in turn


class Numbered(NamedTuple):
    """Finitely many contexts, equally likely, by number."""

    n: int
    at: Callable[[Any, PyTree], Xi]


class Hints(NamedTuple):
    """Not the problem, but how it is best solved and read."""

    lower: LowerSolver | None = None
    inverse: InverseHessian | None = None
    source: Source | None = None
    guess: Callable[[X, Xi, PyTree], Y] | None = None
    blocks: Callable[[Xi, PyTree], Any] | None = None  # all outcomes where they are too many to stack


UNSAID: Any = ...


def said(**given: Any) -> dict[str, Any]:
    return {name: value for name, value in given.items() if value is not UNSAID}


def by_number(before: Numbered | None, **given: Any) -> Numbered | None:
    """Contexts by number, of which one part or both are given anew."""
    parts = {"n_contexts": before and before.n, "context_at": before and before.at, **given}
    if (parts["n_contexts"] is None) != (parts["context_at"] is None):
        raise ValueError("`n_contexts` and `context_at` of Problem go together. Give both or neither.")
    return None if parts["context_at"] is None else Numbered(*parts.values())


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True, init=False, repr=False)
class Problem:
    r"""Contextual stochastic bilevel problem, eq. (1)-(2).

    .. math::
        \min_x E_{\xi, \eta|\xi} f(x, y^*(x; \xi), \eta, \xi), \quad
        y^*(x; \xi) = \arg\min_y E_{\eta|\xi} g(x, y, \eta, \xi)

    ``x``, ``y``, ``xi`` and ``eta`` are arbitrary pytrees. ``f`` and ``g`` see samples, never data; ``data`` enters
    through the samplers only, as leaves of the compiled program's arguments: close over no array of size anywhere.

    Args:
        f: upper loss ``f(x, y, eta, xi) -> scalar``.
        g: lower loss ``g(x, y, eta, xi) -> scalar``, ``mu_g``-strongly convex in ``y``.
        sample_context: ``(key, data) -> xi``, a draw of P_xi.
        sample_conditional: ``(key, xi, data) -> eta``, of P_{eta|xi}; e.g. a pair (train, test), one for g, one for f.
        init_y: ``(x, xi) -> y``, the follower's starting point y_1^0.
        data: any pytree of arrays.
        constraint: the set that y is chosen from: `box`, `simplex`, `ball`, `affine`, `polyhedron` or a `product`.
        mu_g: strong convexity of ``g`` in ``y`` (Assumption 1 (ii)), if known.
        L_g1: a bound of the *per-sample* Hessians of ``g`` in ``y`` (Assumption 1 (iii)), if known.
        lower, inverse: lower solver and inverse-Hessian estimate that suit it; estimators use them when given none.
        n_contexts: number of contexts where they are finitely many and equally likely.
        context_at: ``(i, data) -> xi``, context number i of these.
        support: ``(xi, data) -> (etas, weights)``, all outcomes of a context, stacked, and their probabilities (padding
            has 0), where they are finitely many: for an exact `respond`, ``saa("all")`` and ``exact_top=True``.
        source: where `minimize` reads contexts from that are not in memory; see `from_clients`.
        guess: ``(x, xi, data) -> y``, where `saa` and `antithetic_mlmc` start their solves instead of ``init_y``; it
            changes their cost, not their mean. `warm_started` learns one.
    """

    f: Loss = static()
    g: Loss = static()
    sample_context: Callable[[Key, PyTree], Xi] = static()
    sample_conditional: Callable[[Key, Xi, PyTree], Eta] = static()
    init_y: Callable[[X, Xi], Y] = static()
    data: PyTree
    constraint: Any
    mu_g: float | None = static()
    L_g1: float | None = static()
    numbered: Numbered | None = static()
    support: Callable[[Xi, PyTree], tuple[Eta, jax.Array]] | None = static()
    hints: Hints = static()

    def __init__(
        self,
        *,
        f: Loss,
        g: Loss,
        sample_context: Callable[[Key, PyTree], Xi],
        sample_conditional: Callable[[Key, Xi, PyTree], Eta],
        init_y: Callable[[X, Xi], Y],
        data: PyTree = (),
        constraint: Any = None,
        mu_g: float | None = None,
        L_g1: float | None = None,
        lower: LowerSolver | None = UNSAID,
        inverse: InverseHessian | None = UNSAID,
        n_contexts: int | None = UNSAID,
        context_at: Callable[[Any, PyTree], Xi] | None = UNSAID,
        support: Callable[[Xi, PyTree], tuple[Eta, jax.Array]] | None = None,
        source: Source | None = UNSAID,
        guess: Callable[[X, Xi, PyTree], Y] | None = UNSAID,
        numbered: Numbered | None = None,
        hints: Hints | None = None,
    ) -> None:
        ways = said(lower=lower, inverse=inverse, source=source, guess=guess)
        numbered = by_number(numbered, **said(n_contexts=n_contexts, context_at=context_at))
        values = (f, g, sample_context, sample_conditional, init_y, data, constraint, mu_g, L_g1, numbered, support)
        for field, value in zip(dataclasses.fields(self), (*values, (hints or Hints())._replace(**ways)), strict=True):
            object.__setattr__(self, field.name, value)
        from bilevelax.problems.required import require  # these parts stand on this one

        require(self)

    def __repr__(self) -> str:
        from bilevelax.problems.required import short

        return short(self)

    def replace(self, **changes: Any) -> Problem:
        """The same problem with other parts, named as they are given to `Problem`."""
        return dataclasses.replace(self, **changes)

    n_contexts = property(lambda self: self.numbered and self.numbered.n)
    context_at = property(lambda self: self.numbered and self.numbered.at)
    lower = property(lambda self: self.hints.lower)
    inverse = property(lambda self: self.hints.inverse)
    source = property(lambda self: self.hints.source)
    guess = property(lambda self: self.hints.guess)
    blocks = property(lambda self: self.hints.blocks)

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
        return self.land(x, jax.tree.map(lambda a: jnp.asarray(a, dtype=jnp.result_type(a)), self.init_y(x, xi)), xi)[0]

    # the t for which y - t E grad_2 g tells the face of an answer (`exact/constraints/constraint.py`)
    push = property(lambda self: 0.2 if self.L_g1 is None else 0.5 / self.L_g1)

    def land(self, x: X, z: Y, xi: Xi) -> tuple[Y, Any]:
        """The answer nearest to z and its face; z itself without a constraint."""
        return (z, None) if self.constraint is None else self.constraint.land(z, x, xi)

    def is_small(self, x: X, xi: Xi) -> bool:
        """Whether what is done with answers y is better vectorised than done one by one."""
        return sum(int(leaf.size) for leaf in jax.tree.leaves(jax.eval_shape(self.start, x, xi))) <= SMALL

    def carrying(self, extra: PyTree) -> Problem:
        """The same problem with ``data = (data, extra)``."""

        def own(function: Callable[..., Any] | None) -> Any:
            return None if function is None else lambda *args: function(*args[:-1], args[-1][0])

        readers = ("sample_context", "sample_conditional", "context_at", "support", "guess")
        parts = {name: own(getattr(self, name)) for name in readers}
        return self.replace(data=(self.data, extra), hints=self.hints._replace(blocks=own(self.blocks)), **parts)

    def averaged(self, n: int) -> Problem:
        """The same problem whose ``eta`` is a stack of n draws and whose losses are means over it."""
        if n == 1:
            return self

        def mean(loss: Loss) -> Loss:
            each = jax.vmap(loss, in_axes=(None, None, 0, None))
            return lambda x, y, eta, xi: jnp.mean(each(x, y, eta, xi))

        def sample_conditional(key: Key, xi: Xi, data: PyTree) -> Eta:
            return dataclasses.replace(self, data=data).conditionals(key, xi, n)

        others = {"sample_conditional": sample_conditional, "support": None, "hints": self.hints._replace(blocks=None)}
        return self.replace(f=mean(self.f), g=mean(self.g), **others)

    def weighted(self) -> Problem:
        """The same problem whose ``eta`` is a pair (stack, weights) and whose losses are weighted sums over it."""

        def total(loss: Loss) -> Loss:
            def of_sum(x: X, y: Y, eta: tuple[Eta, jax.Array], xi: Xi) -> jax.Array:
                def term(eta: Eta, weight: jax.Array) -> jax.Array:
                    value = jnp.asarray(loss(x, y, eta, xi))  # a plain number too
                    return weight.astype(value.dtype) * value

                return jnp.sum(jax.vmap(term)(*eta))

            return of_sum

        def sample_conditional(key: Key, xi: Xi, data: PyTree) -> Eta:
            one = self.sample_conditional(key, xi, data)
            return jax.tree.map(lambda a: jnp.asarray(a)[None], one), jnp.ones(1)

        return self.replace(f=total(self.f), g=total(self.g), sample_conditional=sample_conditional, support=None)

    def grad_f(self, x: X, y: Y, eta: Eta, xi: Xi) -> tuple[X, Y]:
        """(grad_1 f, grad_2 f)."""
        both: tuple[X, Y] = jax.grad(self.f, argnums=(0, 1))(x, y, eta, xi)
        return both

    def grad_g(self, x: X, y: Y, eta: Eta, xi: Xi) -> Y:
        """grad_2 g."""
        return jax.grad(self.g, argnums=1)(x, y, eta, xi)

    def value_g(self, x: X, y: Y, eta: Eta, xi: Xi) -> PyTree:
        """(g, grad_2 g)."""
        return jax.value_and_grad(self.g, argnums=1)(x, y, eta, xi)

    def hess_g(self, x: X, y: Y, eta: Eta, xi: Xi, r: Y) -> Y:
        """(grad^2_22 g) r."""
        return jax.jvp(lambda y: self.grad_g(x, y, eta, xi), (y,), (r,))[1]

    def linear_hess_g(self, x: X, y: Y, eta: Eta, xi: Xi) -> Callable[[Y], Y]:
        """r -> (grad^2_22 g) r, linearised once for many r."""
        return jax.linearize(lambda y: self.grad_g(x, y, eta, xi), y)[1]

    def cross_g(self, x: X, y: Y, eta: Eta, xi: Xi, r: Y) -> X:
        """(grad^2_12 g) r, the derivative in x of <grad_2 g, r> (Algorithm 4 prints y)."""
        return jax.vjp(lambda x: self.grad_g(x, y, eta, xi), x)[1](r)[0]
