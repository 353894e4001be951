"""What a method needs to reach a target, for every number M of tasks, from the records of the item tasks."""

from __future__ import annotations

import numpy as np

from bilevelax.experiments._items import Records
from bilevelax.experiments._stationarity import or_more, steps_needed
from bilevelax.experiments._statistics import Interval, bootstrap, exponent

COUNTS = ("eta", "grad_g")
HELD = 0.9  # the target counts as reached if that happened within this part of the run, and held since


class Needed:
    """Steps, calls and seconds of one method until |grad F| stays below eps, at each M of the records.

    BSVRB has the step size of the grid that needs the fewest steps at each M, by the upper end of their interval: one
    that some resamples of the seeds never reach the target with is none to rely on. RT-MLMC has one for all M, the
    one whose worst M needs the fewest. A target that was not reached counts as the whole run.
    """

    def __init__(self, records: Records, method: str, eps: float) -> None:
        self.Ms, self.grid = records.settings["M"], records.settings["steps"]
        rows = {M: records.where(kind="run", method=method, M=M) for M in self.Ms}
        self.T = [rows[M][0]["T"] for M in self.Ms]
        squares = [[[r["square"] for r in rows[M] if r["step"] == step] for step in self.grid] for M in self.Ms]
        all_curves = np.asarray(squares)[..., 1:]  # (M, step, seed, chunk)
        self.chunks, self.eps = all_curves.shape[-1], eps
        steps = [[self._needed(curves, i) for curves in of_M] for i, of_M in enumerate(all_curves)]
        late = np.vectorize(or_more)(steps)
        if method == "RT-MLMC":
            best = np.full(len(self.Ms), late.max(0).argmin())
        else:
            sure = [[self._steps(curves, i).high for curves in of_M] for i, of_M in enumerate(all_curves)]
            best = np.where(np.isfinite(sure).any(1), np.argmin(sure, 1), late.argmin(1))
        self.step = [self.grid[j] for j in best]
        self.curves = np.stack([all_curves[i, j] for i, j in enumerate(best)], axis=1)  # (seed, M, chunk)
        self.reached = [bool(np.isfinite(steps[i][j])) for i, j in enumerate(best)]
        self.per_step = {name: [float(np.mean([r[name] for r in rows[M]])) for M in self.Ms] for name in COUNTS}
        timed = lambda M: records.values("seconds_per_step", kind="time", method=method, M=M)
        # the least of the turns: what else a machine does can only add
        self.per_step["seconds_per_step"] = [float(min(timed(M))) for M in self.Ms]

    def _needed(self, curves: np.ndarray, i: int) -> float:
        found = steps_needed(curves, self.T[i] // self.chunks, self.eps)
        return found if found <= HELD * self.T[i] else float("nan")

    def _steps(self, curves: np.ndarray, i: int) -> Interval:
        return bootstrap(lambda curves: or_more(self._needed(curves, i)), curves)

    def amounts(self, name: str | None) -> list[Interval]:
        """Of something counted per step (of steps where nothing is named), for each M."""
        found = []
        for i, T in enumerate(self.T):
            each = 1.0 if name is None else self.per_step[name][i]
            interval = self._steps(self.curves[:, i], i) if self.reached[i] else Interval(T, T, T)
            found.append(Interval(*(each * part for part in interval)))
        return found

    def growth(self, name: str) -> Interval:
        """p of an amount ~ M^p, over the M at which the target was reached."""
        there = [i for i, reached in enumerate(self.reached) if reached]

        def fitted(curves: np.ndarray) -> float:
            found = [self._needed(curves[:, i], i) * self.per_step[name][i] for i in there]
            return exponent([self.Ms[i] for i in there], found) if np.all(np.isfinite(found)) else float("nan")

        return bootstrap(fitted, self.curves) if len(there) > 1 else Interval(0.0, 0.0, 0.0)
