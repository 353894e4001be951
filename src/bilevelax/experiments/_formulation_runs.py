"""The runs behind Figure 3: tuning, all formulations at every m and lambda, and WDRO-SI by K."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bilevelax.experiments import _newsvendors as newsvendors
from bilevelax.experiments import _training as training
from bilevelax.experiments._items import Row
from bilevelax.experiments._trajectories import seed_keys

TUNING_SEED = 999  # used for nothing else


class Study:
    """The pieces of one run of this item, made once."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        self.d, self.T, self.most = settings["d"], settings["T"], max(settings["m"])
        self.estimators = newsvendors.estimators(settings["K_compare"], settings["inner_rate"], settings["T_in"])
        self.trials = functools.cache(self._trials)
        self.season = functools.cache(self._season)

    def widths(self, rule: str) -> tuple[int, ...]:
        return tuple(self.settings["widths"]) if rule == "network" else ()

    def _season(self, seed: int, rule: str) -> newsvendors.Season:
        s = self.settings
        return newsvendors.season(seed, self.widths(rule), d=self.d, M=s["M"], m=self.most, points=s["test_points"])

    def run(
        self, name: str, rule: str, seed: int, lanes: Any, times: tuple[int, ...], estimator: Any, role: int
    ) -> Any:
        """x of all lanes at all times, in one stack, lanes first."""
        season = self.season(seed, rule)
        problem = dataclasses.replace(newsvendors.template(self.widths(rule), self.d, name == "WDRO"), data=season.book)
        key = seed_keys(seed + 1, role)[seed]
        gaps = training.gaps_of(times)
        xs = newsvendors.run_lanes(problem, season.x1, key, newsvendors.lanes_of(lanes), gaps, estimator)
        return jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), xs)

    def costs(self, xs: Any, pairs: Any, rule: str) -> np.ndarray:
        return newsvendors.costs(xs, pairs, self.widths(rule), self.d)

    @property
    def prices(self) -> list[float]:
        return [*self.settings["wide"], *self.settings["lam"]]

    def _trials(self, name: str, rule: str) -> list[training.Trial]:
        """Step rules on validation contexts, at the largest m and lambda = 1, on data of their own seed.

        As many lanes as the comparison has, so that one program serves both.
        """
        rules = training.grid(self.T, **self.settings["grid"])
        n = len(self.settings["m"]) * (1 if name == "ERM" else len(self.prices))
        found: list[training.Trial] = []
        season = self.season(TUNING_SEED, rule)
        for start in range(0, len(rules), n):
            part = rules[start : start + n]
            lanes = [(self.most, 1.0, r) for r in (part * n)[:n]]
            xs = self.run(name, rule, TUNING_SEED, lanes, (self.T,), self.estimators[name], training.ROLE_TUNE)
            losses = self.costs(xs, season.validation, rule)[: len(part)]
            found += [training.Trial(r, float(v)) for r, v in zip(part, losses, strict=True)]
        return found

    def compare(self, name: str, rule: str, seeds: int) -> list[Row]:
        """Every m and lambda of one formulation, with the best of all step rules."""
        trials = self.trials(name, rule)
        chosen = training.best(trials, training.KINDS)
        columns = {"method": name, "decision": rule}
        rows: list[Row] = [
            {"kind": "tuning", **columns, "rule": str(t.rule), "loss": t.loss if np.isfinite(t.loss) else "diverged"}
            for t in trials
        ]
        prices = [1.0] if name == "ERM" else self.prices
        pairs = [(m, lam) for m in self.settings["m"] for lam in prices]
        lanes = [(m, lam, chosen) for m, lam in pairs]
        for seed in range(seeds):
            season = self.season(seed, rule)
            xs = self.run(name, rule, seed, lanes, (self.T,), self.estimators[name], training.ROLE_RUN)
            validation, test = (self.costs(xs, part, rule) for part in (season.validation, season.test))
            constant = newsvendors.best_constant(season.book, season.test)
            for (m, lam), v, t in zip(pairs, validation, test, strict=True):
                found = {"validation": _number(v), "test": _number(t), "constant": constant}
                rows.append(
                    {"kind": "compare", **columns, "seed": seed, "m": m, "lam": lam, "rule": str(chosen), **found}
                )
        return rows

    def moved(self, seeds: int) -> list[Row]:
        """How far the adversary moves a context, at the last rules for every lambda and the largest m."""
        chosen = training.best(self.trials("WDRO-SI", "network"), training.KINDS)
        rows: list[Row] = []
        for seed in range(seeds):
            lanes = [(m, lam, chosen) for m in self.settings["m"] for lam in self.prices]  # as compare has: one program
            xs = self.run("WDRO-SI", "network", seed, lanes, (self.T,), self.estimators["WDRO-SI"], training.ROLE_RUN)
            first = self.settings["m"].index(self.most) * len(self.prices)
            xs = jax.tree.map(lambda a: a[first : first + len(self.prices)], xs)  # noqa: B023 (used at once)
            book = self.season(seed, "network").book
            far = newsvendors.distances(xs, book, jnp.asarray(self.prices, float), self.widths("network"), self.d)
            norm = float(jnp.linalg.norm(book.contexts, axis=1).mean())
            for lam, distance in zip(self.prices, np.asarray(far, float), strict=True):
                rows.append({"kind": "moved", "seed": seed, "lam": lam, "distance": _number(distance), "norm": norm})
        return rows

    def by_K(self, name: str, K: int, seeds: int) -> list[Row]:
        """Curves at the largest m: the paper's steps at lambda = 1 and the smallest one, and the best other steps."""
        trials = self.trials("WDRO-SI", "network")
        rules = {"paper": training.best(trials, ("paper",)), "other": training.best(trials, ("constant", "adam"))}
        kinds = [("paper", 1.0), ("paper", min(self.prices)), ("other", 1.0)]
        times = training.checkpoints_of(self.T, self.settings["points"])
        rows: list[Row] = []
        estimator = newsvendors.by_levels(name, K)
        for seed in range(seeds):
            lanes = [(self.most, lam, rules[which]) for which, lam in kinds]
            xs = self.run("WDRO-SI", "network", seed, lanes, times, estimator, training.ROLE_RUN)
            test = self.costs(xs, self.season(seed, "network").test, "network").reshape(len(kinds), len(times))
            for (which, lam), losses in zip(kinds, test, strict=True):
                columns = {"kind": "curve", "method": name, "K": K, "seed": seed, "steps": which, "lam": lam}
                columns |= {"rule": str(rules[which])}
                rows += [{**columns, "t": t, "test": _number(v)} for t, v in zip(times, losses, strict=True)]
        return rows


def _number(value: float) -> float:
    return float(value) if np.isfinite(value) else float(np.finfo(np.float32).max)
