"""Do enough contexts carry the noise of a mean for its interval to hold? Rare ones that matter much may not be met."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, random
from optax import tree

from bilevelax.base.compiling import program
from bilevelax.base.effective import LEAST, ROUNDING, least_of, participating
from bilevelax.core import trees
from bilevelax.core.problem import Key, Problem, X
from bilevelax.diagnostics.contexts import takes_every

FEW_EFFECTIVE = 64  # effective contexts below which an interval allows for those that were not met
UNMET = 3.0  # over n: a probability above that of exceeding all that n draws show, 19 times in 20
TOP = 20  # largest of all, at least, that the tail's index is read from
SCOUTS = 8  # contexts looked at quickly, for each one whose gradient is estimated
QUICK = 4096  # numbers in x and y, up to which a quick look is quick
AT_ONCE = 64
ROLE = 2**31 + 5  # beyond every stage and restart of `solve`: samples are addressed by (key, stage)
LOOKS, DRAWS = 8192, 32  # at contexts, for who certifies on a sample of them; of eta in each
EFFORT = 2**27  # numbers that drawing for these looks may make on its way: less than a second
ENOUGH, MET = 4096, 2.0  # contexts of a sample that are looked at themselves; effective ones that it then must hold


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


def scouted(key: Key, problem: Problem, x: X, n: int, draws: int = 1) -> jax.Array:
    """|grad f|^2 in n contexts, by a draw of eta or several, one step of the follower: cheap, and as heavy."""

    def one(i: jax.Array) -> jax.Array:
        key_xi, key_eta = random.split(random.fold_in(key, i))
        xi = problem.context(key_xi)
        eta, y = problem.conditional(key_eta, xi), problem.start(x, xi)
        mean = problem
        if draws > 1:
            mean, eta = problem.weighted(), (problem.conditionals(key_eta, xi, draws), jnp.full(draws, 1 / draws))
        y = problem.land(x, trees.add_scale(y, -problem.push, mean.grad_g(x, y, eta, xi)), xi)[0]
        return sum(tree.norm(a, squared=True).astype(float) for a in mean.grad_f(x, y, eta, xi))

    return lax.map(one, jnp.arange(n, dtype=jnp.int32), batch_size=min(n, AT_ONCE))


def looked(key: Key, stage: np.uint32, problem: Problem, x: X, draws: int) -> jax.Array:
    """`scouted`, with a key of its own for each stage."""
    return scouted(random.fold_in(random.fold_in(key, ROLE), stage), problem, x, LOOKS, draws)


# what it takes is the time of compiling
quick_looks = partial(program("at once", static_argnames="draws"), straight=False)(looked)


def draws_for(work: int) -> int:
    """Of eta in each of the looks, where a draw makes so many numbers on its way: few where draws are expensive."""
    return int(np.clip(EFFORT // (LOOKS * max(work, 1)), 1, DRAWS))


def few_of_sample(key: Key, stage: int, problem: Problem, x: X, m: int, draws: int) -> Tails | None:
    """The tails of m contexts by quick looks at many more, where too few of the m carry the noise; else None.

    Fewer than 16, or a sixteenth of them where m is small. Of `ENOUGH` contexts those who took them know better: only
    what they may not have met counts. None too where m are all there are, or a look is not quick.
    """
    if not scouts_of(problem, x, m):
        return None
    tails = tails_of(np.zeros(m), np.asarray(quick_looks(key, np.uint32(stage), problem, x, draws=draws)))
    least = least_of(m) if m < ENOUGH else MET
    return tails if tails is not None and tails.effective < least else None


def alike(rows: np.ndarray, eps: float) -> float:
    """Squared distance from these gradients up to which rounding alone may move one."""
    return float((ROUNDING * eps) ** 2 * np.sum(rows**2) / len(rows))


def tails_of(lanes: np.ndarray, scouts: np.ndarray, hidden: float = 0.0) -> Tails | None:
    """From squared deviations of estimates, and of quick looks at more contexts; None where nothing is random.

    Deviations that are all ``hidden`` by rounding say nothing of contexts.
    """
    lanes = lanes if np.nanmax(lanes, initial=0.0) > hidden else np.zeros_like(lanes)
    seen = [a[np.isfinite(a)] for a in (np.ravel(lanes).astype(float), np.ravel(scouts).astype(float))]
    seen = [a for a in seen if a.sum() > 0]
    if not seen or np.size(lanes) < TOP:
        return None
    effective = [np.size(lanes) / len(a) * participating(a) for a in seen]
    worst = int(np.argmin(effective))
    farthest = max(a.max() / a.mean() for a in seen) * seen[0].mean()
    return Tails(float(effective[worst]), _hill(seen[worst]), float(np.sqrt(farthest)), np.size(lanes))


def _hill(squares: np.ndarray) -> float:
    """Hill's estimator from the largest twentieth."""
    k = max(TOP, len(squares) // 20)
    top = np.log(np.maximum(np.sort(squares)[-min(k, len(squares)) :], np.finfo(float).tiny)) / 2
    return float(1 / max((top - top[0]).mean(), 1e-3))
