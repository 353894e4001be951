"""What a set of answers is: nearest points, faces, and how a hypergradient follows them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, dataclass_transform

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from optax import tree

from bilevelax.core.estimate import Cost
from bilevelax.core.problem import Eta, Problem, X, Xi, Y
from bilevelax.exact.constraints.values import Value

Kind = TypeVar("Kind")
Face = Any  # arrays that tell on which face of a set a point lies; each set has its own


class Look(NamedTuple):
    """What `check` tells of an answer: which constraints hold it, and how safely that is known."""

    active: jax.Array  # how many
    multiplier: jax.Array  # the smallest of theirs
    slack: jax.Array  # the smallest of the others'
    independence: jax.Array  # smallest over largest pivot of the active normals' Gram matrix


class Constraint:
    r"""A closed convex set Y(x, xi) of answers, by nearest points and faces.

    A point z of the outside and its nearest point y tell the face: z - y is normal to it. At the follower's
    answer, z = y - t grad_2 g is such a point for every t > 0, so the face is that of the active constraints
    with positive multipliers. Every method takes trees like y.
    """

    def nearest(self, z: jax.Array, at: Any) -> tuple[jax.Array, Face]:
        """The point of the set nearest to z, and its face; ``at`` holds the set's numbers at (x, xi)."""
        raise NotImplementedError

    def along(self, face: Face, r: jax.Array) -> jax.Array:
        """r without its part normal to the face."""
        raise NotImplementedError

    def bent(self, face: Face, r: jax.Array) -> jax.Array:
        """t times the curvature that the face adds to that of g, applied to r: none where faces are flat."""
        return jnp.zeros_like(r)

    def displaced(self, face: Face, at: Any, y: jax.Array, r: jax.Array, rest: jax.Array, t: Any) -> jax.Array:
        """A number whose derivative in x, through ``at``, is what moving bounds add to <grad_2 f, y*>.

        With (r, nu) the solution of W r + J' nu = grad_2 f, J r = 0, it is -<lambda, J r> - <nu, h>; J are the
        active normals, h their residuals, W the Hessian of the Lagrangian, and ``rest`` = J' nu.
        """
        raise NotImplementedError

    def at(self, x: X, xi: Xi, like: Y) -> Any:
        """The set's numbers at (x, xi), for a y of this structure."""
        raise NotImplementedError

    def look(self, face: Face, at: Any, y: jax.Array, force: jax.Array) -> Look:
        """How y is held against ``force`` = -grad_2 g."""
        raise NotImplementedError

    @property
    def values(self) -> dict[str, Value]:
        return {f.name: v for f in dataclasses.fields(self) if isinstance(v := getattr(self, f.name), Value)}  # type: ignore[arg-type]

    @property
    def moves(self) -> bool:
        """Whether the set depends on x."""
        return any(each.moves for each in self.values.values())

    def seeing(self, **picks: Callable[[Any], Any]) -> Constraint:
        """The same set for an x or xi of which ``picks`` are what its functions take."""
        return dataclasses.replace(self, **{name: each.seeing(**picks) for name, each in self.values.items()})  # type: ignore[type-var]

    def land(self, z: Y, x: X, xi: Xi) -> tuple[Y, Face]:
        """`nearest` for trees: (y, face). Not finite where the set is empty."""
        flat, unravel = ravel_pytree(z)
        y, face = self.nearest(flat, self.at(x, xi, z))
        return unravel(y), face

    def tangent(self, face: Face, r: Y) -> Y:
        """`along` for trees."""
        flat, unravel = ravel_pytree(r)
        return unravel(self.along(face, flat))

    def bend(self, face: Face, r: Y) -> Y:
        """`bent` for trees."""
        flat, unravel = ravel_pytree(r)
        return unravel(self.bent(face, flat))

    def shift(self, face: Face, x: X, xi: Xi, y: Y, r: Y, rest: Y, t: Any) -> jax.Array:
        """`displaced` for trees."""
        at_y, along, normal = (ravel_pytree(a)[0] for a in (y, r, rest))
        return self.displaced(face, self.at(x, xi, y), at_y, along, normal, t)

    def moved(self, face: Face, x: X, xi: Xi, y: Y, r: Y, rest: Y, t: Any) -> X:
        """What a set that moves with x adds to the hypergradient; zero for one that stays."""
        return jax.grad(lambda x: self.shift(face, x, xi, y, r, rest, t))(x)

    def seen(self, face: Face, x: X, xi: Xi, y: Y, force: Y) -> Look:
        """`look` for trees."""
        return self.look(face, self.at(x, xi, y), ravel_pytree(y)[0], ravel_pytree(force)[0])

    def held(
        self, problem: Problem, x: X, y: Y, xi: Xi, face: Face, eta: Eta, r: Y | None, grad_x: X, grad_y: Y, cost: Cost
    ) -> tuple[Y | None, X, Cost]:
        """(r along the face, grad_1 f with what moving bounds add, oracle calls): eq. (6) with a constraint."""
        if r is None:
            refuse_moving(self)
            return r, grad_x, cost
        r = self.tangent(face, r)
        if not self.moves:
            return r, grad_x, cost
        rest = tree.sub(grad_y, problem.hess_g(x, y, eta, xi, r))
        return r, tree.add(grad_x, self.moved(face, x, xi, y, r, rest, problem.push)), cost + Cost(hess_g=1)

    def restricted(self, problem: Problem, face: Face, y: Y) -> Problem:
        """g along the face at y, with as much curvature across it as keeps eq. (5) and solvers stable."""
        across, t = problem.L_g1 or 1.0, problem.push

        def g(x: X, new: Y, eta: Eta, xi: Xi) -> jax.Array:
            move = tree.sub(new, y)
            kept = self.tangent(face, move)
            normal, bent = tree.sub(move, kept), self.bend(face, kept)
            extra = across * tree.norm(normal, squared=True) + tree.vdot(kept, bent) / t
            value = problem.g(x, tree.add(y, kept), eta, xi)
            return value + (extra / 2).astype(value.dtype)

        return problem.replace(g=g)


def refuse_moving(constraint: Constraint) -> None:
    """`none` leaves out r, from which what moving bounds add is computed."""
    if constraint.moves:
        raise ValueError(
            "`inverse` of this estimator must not be none() where the problem's `constraint` moves with x: "
            "the gradient would lack what the moving bounds add. Use neumann(), dense() or conjugate_gradient(). "
            f"Got a {type(constraint).__name__.lower()} whose bounds are functions of (x, xi)."
        )


@dataclass_transform(frozen_default=True)
def registered(kind: type[Kind]) -> type[Kind]:
    """A frozen dataclass whose arrays are leaves of the problem."""
    made: type[Kind] = jax.tree_util.register_dataclass(dataclasses.dataclass(frozen=True)(kind))
    return made
