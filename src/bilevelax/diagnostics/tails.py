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
FEW_EFFECTIVE = 64  # effective contexts below which an interval allows for those that were not met
UNMET = 3.0  # over n: a probability above that of exceeding all that n draws show, 19 times in 20
TOP = 20  # largest of all, at least, that the tail's index is read from
SCOUTS = 8  # contexts looked at quickly, for each one whose gradient is estimated
QUICK = 4096  # numbers in x and y, up to which a quick look is quick
AT_ONCE = 64


class Tails(NamedTuple):
    """How many contexts of a mean carry its variance, and how fast the tail falls: P(|v| > t) ~ t^-tail."""

    effective: float
    tail: float
    largest: float = 0.0  # distance of a context's gradient from their mean
    n: int = 1  # contexts

    @property
    def heavy(self) -> bool:
        return self.effective < LEAST

    @property
    def unmet(self) -> float:
        """What contexts beyond the largest met may add to the mean; nothing where many carry the noise.

        Beyond M lies a probability of at most 3 / n, and there a tail of index a has the mean M a / (a - 1); below an
        index of 2 there is no variance, which every interval needs. Where few contexts carry the noise, an interval
        is given only if the largest happened not to be met: this is for them.
        """
        if self.effective >= FEW_EFFECTIVE:
            return 0.0
        tail = max(self.tail, 2.0)
        return UNMET / self.n * self.largest * tail / (tail - 1)

    def widened(self, interval: tuple[float, float, float]) -> tuple[float, float, float]:
        """An interval of a squared norm that holds for a mean so far away."""
        estimate, low, high = interval
        return estimate, max(np.sqrt(low) - self.unmet, 0.0) ** 2, (np.sqrt(high) + self.unmet) ** 2

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
    farthest = max(a.max() / a.mean() for a in seen) * seen[0].mean()
    return Tails(float(effective[worst]), _hill(seen[worst]), float(np.sqrt(farthest)), np.size(lanes))


def _participating(squares: np.ndarray) -> float:
    """How many of equal size would have the same ratio of moments."""
    scaled = squares / squares.max()
    return float(scaled.sum() ** 2 / (scaled**2).sum())


def _hill(squares: np.ndarray) -> float:
    """Hill's estimator from the largest twentieth."""
    k = max(TOP, len(squares) // 20)
    top = np.log(np.maximum(np.sort(squares)[-min(k, len(squares)) :], np.finfo(float).tiny)) / 2
    return float(1 / max((top - top[0]).mean(), 1e-3))
