"""Do enough contexts carry the noise of a mean for its interval to hold? Rare ones that matter much may not be met."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, random
from optax import tree

from bilevelax.core import trees
from bilevelax.core.problem import Key, Problem, X
from bilevelax.diagnostics.contexts import takes_every

LEAST = 16  # effective contexts; two cases with 7 to 11 held 38 of 43 times (`benchmarks/certificates.py`)
TOP = 20  # largest of all, at least, that the tail's index is read from
SCOUTS = 8  # contexts looked at quickly, for each one whose gradient is estimated
QUICK = 4096  # numbers in x and y, up to which a quick look is quick
AT_ONCE = 64


class Tails(NamedTuple):
    """How many contexts of a mean carry its variance, and how fast the tail falls: P(|v| > t) ~ t^-tail."""

    effective: float
    tail: float

    @property
    def heavy(self) -> bool:
        return self.effective < LEAST

    def __str__(self) -> str:
        return (
            f"Few contexts carry the noise: {self.effective:.1f} effective ones, tail index {self.tail:.1f}. Rare "
            "contexts decide, so there is no interval; raise n, or draw them more often and weight f"
        )


def scouts_of(problem: Problem, x: X, m: int) -> int:
    """Quick looks for each estimate: none where m contexts are all there are anyway, or x and y are large."""
    if takes_every(problem, m) or problem.source is not None:
        return 0
    y = jax.eval_shape(lambda x, key: problem.start(x, problem.context(key)), x, random.key(0))
    return SCOUTS if sum(leaf.size for leaf in jax.tree.leaves((x, y))) <= QUICK else 0


def scouted(key: Key, problem: Problem, x: X, n: int) -> jax.Array:
    """|grad f|^2 in n contexts, one draw of eta each, one step of the follower from its start: cheap, and as heavy."""

    def one(i: jax.Array) -> jax.Array:
        key_xi, key_eta = random.split(random.fold_in(key, i))
        xi = problem.context(key_xi)
        eta, y = problem.conditional(key_eta, xi), problem.start(x, xi)
        y = problem.land(x, trees.add_scale(y, -problem.push, problem.grad_g(x, y, eta, xi)), xi)[0]
        return sum(tree.norm(a, squared=True).astype(float) for a in problem.grad_f(x, y, eta, xi))

    return lax.map(one, jnp.arange(n, dtype=jnp.int32), batch_size=min(n, AT_ONCE))


def tails_of(lanes: np.ndarray, scouts: np.ndarray) -> Tails | None:
    """From squared deviations of estimates, and of quick looks at more contexts; None where nothing is random."""
    seen = [a[np.isfinite(a)] for a in (np.ravel(lanes).astype(float), np.ravel(scouts).astype(float))]
    seen = [a for a in seen if a.sum() > 0]
    if not seen or np.size(lanes) < TOP:
        return None
    effective = [np.size(lanes) / len(a) * _participating(a) for a in seen]
    worst = int(np.argmin(effective))
    return Tails(float(effective[worst]), _hill(seen[worst]))


def _participating(squares: np.ndarray) -> float:
    """How many of equal size would have the same ratio of moments."""
    scaled = squares / squares.max()
    return float(scaled.sum() ** 2 / (scaled**2).sum())


def _hill(squares: np.ndarray) -> float:
    """Hill's estimator from the largest twentieth."""
    k = max(TOP, len(squares) // 20)
    top = np.log(np.maximum(np.sort(squares)[-min(k, len(squares)) :], np.finfo(float).tiny)) / 2
    return float(1 / max((top - top[0]).mean(), 1e-3))
