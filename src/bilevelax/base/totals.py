"""What runs needed until they reached a target, with intervals over seeds, against the target or another size."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bilevelax.base.statistics import Interval, bootstrap, exponent, steps_needed


class Totals:
    """Steps and calls until a mean square is at most eps^2, against eps or another column of the rows.

    A row is that of a seed. Its ``mean_square`` has a value after each ``every`` steps; other numbers are counts of one
    step. The target counts as reached within ``held`` of the run.
    """

    def __init__(self, rows: Sequence[Mapping[str, Any]], size: str = "eps", held: float = 1.0) -> None:
        self.sizes = sorted({row[size] for row in rows}, reverse=size == "eps")
        groups = [[row for row in rows if row[size] == one] for one in self.sizes]
        self.eps, self.every = ([group[0][name] for group in groups] for name in ("eps", "every"))
        self.seeds, self.held = len(groups[0]), held
        self.curves = np.asarray([[row["mean_square"] for row in group] for group in groups]).swapaxes(0, 1)
        mean_of = lambda name: [float(np.mean([row[name] for row in group])) for group in groups]
        self.per_step = {name: mean_of(name) for name, value in rows[0].items() if isinstance(value, int | float)}
        self.needed = [self._needed(self.curves, i) for i in range(len(self.sizes))]
        self.there = [i for i, T in enumerate(self.needed) if np.isfinite(T)]
        self.missed = [size for i, size in enumerate(self.sizes) if i not in self.there]
        self.steps = functools.cache(self._steps)  # thousands of resamples for each size

    def length(self, i: int) -> int:
        """Steps of the whole run at size number i."""
        return self.every[i] * self.curves.shape[2]

    def _needed(self, curves: np.ndarray, i: int) -> float:
        """Steps at size number i according to these curves, (seeds, sizes, chunks)."""
        found = steps_needed(curves[:, i], self.every[i], self.eps[i])
        return found if found <= self.held * self.length(i) else float("nan")

    def needed_by(self, seeds: np.ndarray, i: int) -> float:
        """Steps at size number i in the mean over these seeds."""
        return self._needed(self.curves[seeds], i)

    def _steps(self) -> list[Interval]:
        """T for each size; a resample that ends above eps would need more steps than were run."""
        late = lambda i: lambda curves: float(np.nan_to_num(self._needed(curves, i), nan=np.inf))
        return [bootstrap(late(i), self.curves) for i in range(len(self.sizes))]

    def calls(self, name: str) -> list[Interval]:
        """Oracle calls of one kind for each size."""
        return [Interval(*(n * part for part in T)) for n, T in zip(self.per_step[name], self.steps(), strict=True)]

    def exponent(self, name: str | None = None) -> Interval:
        """p of calls ~ size^p (of steps where no kind is named), over the sizes that the mean of all seeds reached."""
        if len(self.there) < 2 or name is None:
            return self._exponent
        each = self._fitted([self.per_step[name][i] for i in self.there])
        return Interval(*(part + each for part in self._exponent))  # slopes of logarithms add up

    def beyond(self, bound: float, name: str | None = None, logarithm: Sequence[float] | None = None) -> Interval:
        """The exponent less a bound's, of calls or steps over a ``logarithm`` at each size: negative is worse."""
        hidden = self._fitted([logarithm[i] for i in self.there]) if logarithm and len(self.there) > 1 else 0.0
        return Interval(*(part - hidden - bound for part in self.exponent(name)))

    def _fitted(self, amounts: Sequence[float]) -> float:
        reached = [self.sizes[i] for i in self.there]
        return exponent(reached, amounts) if np.all(np.isfinite(amounts)) else float("nan")

    @functools.cached_property
    def _exponent(self) -> Interval:
        if len(self.there) < 2:
            return Interval(*[float("nan")] * 3)
        return bootstrap(lambda curves: self._fitted([self._needed(curves, i) for i in self.there]), self.curves)

    def neighbours(self) -> list[float]:
        """p of steps ~ size^p between each size and the next, of those that were reached."""
        between = lambda *pair: exponent([self.sizes[i] for i in pair], [self.needed[i] for i in pair])
        return list(itertools.starmap(between, itertools.pairwise(self.there)))
