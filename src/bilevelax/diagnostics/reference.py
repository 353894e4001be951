"""Exact gradients of some contexts: what estimators are held against."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import random

from bilevelax.core.estimate import Cost, Estimate, Estimator, first_of_split, stateless
from bilevelax.core.problem import Eta, Key, Problem, X, Xi, Y
from bilevelax.diagnostics.host import flat_rows
from bilevelax.diagnostics.solved import FIRST_HALF, SECOND_HALF, WHOLE, solved
from bilevelax.estimators.saa import saa
from bilevelax.exact.linear import default_tol
from bilevelax.exact.sample_average import Average, Response, of_stack_in_blocks, respond_on, tight_linear, tight_solver

QUICK = {"contexts": 32, "samples": 256}  # for those who must not take long
VANISHING = 100  # times the tolerance of the solves: terms so much smaller than those around are not told from zero


class Reference(NamedTuple):
    """Gradients of M contexts, flattened, by tight solves on many samples."""

    contexts: Xi  # stacked
    y: Y  # y*(x; xi) of each, stacked
    grads: np.ndarray  # (M, d_x)
    noise: np.ndarray  # (M, d_x): one draw of each gradient's own error, zero where it is exact
    terms: np.ndarray  # (M,): squared sizes of grad_1 f and of the implicit term, added
    around: np.ndarray  # (M,): the same with grad f of a point nearby
    lower_error: float  # largest relative error that the solves left in y; 1 where there was no minimum
    tol: float  # of the solves
    unsolved: float = 0.0  # share of contexts without a minimum that was found

    @property
    def grad(self) -> np.ndarray:
        """The gradient of F over these contexts."""
        return self.grads.mean(0)

    @property
    def stderr(self) -> float:
        """Of the norm of `grad`, from the samples of eta."""
        return float(np.sqrt(np.sum(self.noise**2)) / len(self.noise))

    @property
    def scale(self) -> float:
        """Size of the gradient's terms: unlike |grad F|, it does not vanish where they cancel.

        It does where grad f itself vanishes in every context, as at an optimum with y* at f's own
        minimum: then it is zero, and not what rounding leaves.
        """
        here, around = np.sqrt(self.terms.mean()), np.sqrt(np.nan_to_num(self.around, posinf=0.0).mean())
        return float(here) if here > VANISHING * self.tol * around else 0.0


def exact_response(problem: Problem, x: X, xi: Xi, y: Y, etas: Eta, weights: jax.Array) -> tuple[Response, Average]:
    """The hypergradient on weighted samples, solved from y until rounding ends it and added up in blocks.

    Tighter than estimators solve, by another linear solver: an error of theirs is not in what they are held against.
    """
    average = of_stack_in_blocks(problem, x, xi, etas, weights)
    return respond_on(average, y, tight_solver(y), tight_linear()), average


def all_outcomes() -> Estimator:
    """`saa("all")` as a reference: added up in blocks, so that a certificate and a run do not share an error."""

    def estimate(key: Key, problem: Problem, x: X) -> Estimate:
        xi = problem.context(random.split(key)[0])
        if problem.blocks is not None:
            return saa("all").estimate(key, problem, x, ())[0]
        etas, weights = problem.outcomes(xi)
        response, _ = exact_response(problem, x, xi, problem.start(x, xi), etas, weights)
        return Estimate(response.grad, response.cost + Cost(xi=1, eta=len(weights)), response.watched())

    return stateless(estimate, contexts=first_of_split(2))


def reference(key: Key, problem: Problem, x: X, contexts: int, samples: int) -> Reference:
    """Exact gradients of ``contexts`` contexts: on all outcomes where they are known, else on many samples.

    On samples, the first-order bias of the sample average is removed by that of its two halves.
    """
    parts = (WHOLE,) if problem.support is not None else (WHOLE, FIRST_HALF, SECOND_HALF)
    found = solved(key, problem, x, contexts, samples, parts)
    grads = np.split(flat_rows(found.grad), len(parts))
    # the halves have twice the bias of the whole, to first order in 1 / samples: take it away
    exact, noise = grads[0], np.zeros_like(grads[0])
    if len(parts) > 1:
        exact, noise = 2 * grads[0] - (grads[1] + grads[2]) / 2, (grads[1] - grads[2]) / 2
    whole = jax.tree.map(lambda a: a[: len(exact)], found)
    terms, around = (np.asarray(a, float) for a in (whole.terms, whole.around))
    tol = default_tol(jnp.result_type(*jax.tree.leaves(whole.y)))
    left = np.asarray(whole.left)
    unsolved = float(np.mean(~(left < 1)))  # 1 where there is no minimum
    return Reference(whole.xi, whole.y, exact, noise, terms, around, float(np.max(left)), tol, unsolved)
