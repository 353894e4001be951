"""The runs behind Figure 3: tuning, all formulations at every m and lambda, and WDRO-SI by K."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bilevelax.run.records.cells import rounded
from bilevelax_paper import _newsvendor_looks as looks
from bilevelax_paper import _newsvendors as newsvendors
from bilevelax_paper import training
from bilevelax_paper.formulations import COMPARED
from bilevelax_paper.item import Row
from bilevelax_paper.training import Trial, best, both_rules, seed_keys, tuning_rows

TUNING = 900  # the first seed of those that are used for nothing else
CHECKPOINTS = (8, 4, 2, 1)  # of a run of the comparison: T / 8, T / 4, ...
Times = tuple[int, ...]
Lane = tuple[int, int, float, training.Rule]  # which start, m, lambda, steps


class Study:
    """The pieces of one run in d dimensions; run i of a method has the i-th x_1 and, where it has one, lambda."""

    def __init__(self, settings: dict[str, Any], d: int) -> None:
        self.settings, self.d = settings, d
        self.T, self.most = settings["T"], max(settings["m"])
        self.prices: list[float] = [*settings["lam"], *settings["wide"]]
        self.times = tuple(max(1, self.T // part) for part in CHECKPOINTS)
        self.estimators = newsvendors.estimators(settings["K_compare"], settings["T_in"], d)
        self.trials = functools.cache(self._trials)
        self.season = functools.cache(self._season)

    def widths(self, decision: str) -> tuple[int, ...]:
        return tuple(self.settings["widths"]) if decision == "network" else ()

    def _season(self, seed: int, decision: str) -> newsvendors.Season:
        s = self.settings
        made = functools.partial(newsvendors.season, seed, self.widths(decision), d=self.d, M=s["M"], m=self.most)
        return made(points=s["test_points"], starts=len(self.prices))

    def problem(self, name: str, decision: str, seed: int) -> Any:
        template = newsvendors.template(self.widths(decision), self.d, name == "WDRO")
        return dataclasses.replace(template, data=self.season(seed, decision).book)

    def run(self, name: str, decision: str, seed: int, lanes: list[Lane], estimator: Any, role: int) -> Any:
        """x of all lanes at all checkpoints, lanes first; in parts of equal size: one program serves all runs."""
        n = len(self.settings["m"]) * len(self.settings["lam"])
        season, problem = self.season(seed, decision), self.problem(name, decision, seed)
        key, gaps = seed_keys(seed + 1, role)[seed], training.gaps_of(self.times)
        parts = []
        for start in range(0, len(lanes), n):
            part = lanes[start : start + n]
            full = newsvendors.lanes_of(season.starts, (part * n)[:n])
            xs = newsvendors.run_lanes(problem, key, full, gaps, estimator)
            parts.append(jax.tree.map(lambda a: a[: len(part)].reshape(-1, *a.shape[2:]), xs))  # noqa: B023
        return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *parts)

    def costs(self, xs: Any, lanes: list[Lane], decision: str, seed: int, times: Times) -> dict[str, list[list[float]]]:
        """For each lane a list over the checkpoints."""
        ms = jnp.asarray([m for _, m, _, _ in lanes for _ in times], jnp.int32)
        found = looks.costs(xs, ms, self.season(seed, decision), self.widths(decision), self.d)
        return {name: rounded(np.asarray(a).reshape(len(lanes), len(times)), 6) for name, a in found._asdict().items()}

    def _trials(self, name: str, decision: str) -> list[Trial]:
        """Step rules at the largest m and lambda = 1: least validation cost, and how far they train."""
        seeds, lanes = self.tuning()
        run = lambda seed: self.run(name, decision, seed, lanes, self.estimators[name], training.ROLE_TUNE)
        return self.tried(decision, [run(seed) for seed in seeds], self.times)

    def tuning(self) -> tuple[range, list[Lane]]:
        """Seeds that are used for nothing else, and a lane for every step rule."""
        rules = training.grid(self.T, **self.settings["grid"])
        return range(TUNING, TUNING + self.settings["tuning_seeds"]), [(0, self.most, 1.0, rule) for rule in rules]

    def tried(self, decision: str, xs: list[Any], times: Times) -> list[Trial]:
        """What the stacked x of every tuning seed say of the rules."""
        seeds, lanes = self.tuning()
        each, fits = [], []
        for seed, of_seed in zip(seeds, xs, strict=True):
            found = self.costs(of_seed, lanes, decision, seed, times)
            limits = looks.bounds(self.season(seed, decision), self.most, decision == "affine")
            each.append(np.min(found["validation"], axis=1))
            fits.append(limits.fit(np.asarray(found["train"])[:, -1]))
        rules = [rule for *_, rule in lanes]
        return [Trial(*found) for found in zip(rules, np.transpose(each), np.mean(fits, axis=0), strict=True)]

    def steps(self, decision: str) -> training.Rule:
        """One step rule for all formulations, by their mean validation cost, that trains every one of them."""
        trials = zip(*(self.trials(name, of) for name, of in COMPARED if of == decision), strict=True)
        all_of = lambda same: (np.concatenate([trial.each for trial in same]), min(trial.fit for trial in same))
        return best([Trial(same[0].rule, *all_of(same)) for same in trials], training.KINDS)

    def compare(self, name: str, decision: str, seeds: range) -> list[Row]:
        """Every m and lambda of one formulation."""
        chosen = self.steps(decision)
        columns: Row = {"d": self.d, "method": name, "decision": decision}
        rows: list[Row] = tuning_rows(self.trials(name, decision), "fit", **columns)
        grids = [self.settings["lam"], self.settings["wide"]][: 1 if decision == "affine" else 2]
        price = lambda lam: 1.0 if name == "ERM" else lam
        starts = [(self.prices.index(lam), m, price(lam)) for part in grids for m in self.settings["m"] for lam in part]
        lanes = [(*start, chosen) for start in starts]
        for seed in seeds:
            xs = self.run(name, decision, seed, lanes, self.estimators[name], training.ROLE_RUN)
            found = self.costs(xs, lanes, decision, seed, self.times)
            for i, (start, m, _, _) in enumerate(lanes):
                row = {"kind": "compare", **columns, "seed": seed, "m": m, "lam": self.prices[start]}
                rows.append(row | {"rule": str(chosen), "t": list(self.times)} | {n: v[i] for n, v in found.items()})
            if decision == "network" and name != "WDRO":
                rows += self.adversary(xs, lanes, {**columns, "seed": seed})
        return rows

    def adversary(self, xs: Any, lanes: list[Lane], columns: Row) -> list[Row]:
        """What the adversary of WDRO-SI does at the last rules of the largest m (ERM: the lambda of the start)."""
        which = [i for i, (_, m, _, _) in enumerate(lanes) if m == self.most]
        ends = len(self.times) * (np.asarray(which) + 1) - 1
        prices = [self.prices[lanes[i][0]] for i in which]
        found = self.moved(jax.tree.map(lambda a: a[ends], xs), prices, columns["seed"])
        return [{"kind": "adversary", **columns, "lam": lam} | row for lam, row in zip(prices, found, strict=True)]

    def moved(self, xs: Any, prices: list[float], seed: int) -> list[Row]:
        """What the adversary of WDRO-SI does at each of the stacked network rules, trained on all demands."""
        ms = jnp.full(len(prices), self.most, jnp.int32)
        book, widths = self.season(seed, "network").book, self.widths("network")
        found = looks.adversary(xs, jnp.asarray(prices, float), ms, book, widths, self.d)
        lists = {name: rounded(np.asarray(a).reshape(len(prices), 1), 6) for name, a in found._asdict().items()}
        return [{name: values[i][0] for name, values in lists.items()} for i in range(len(prices))]

    def bounds(self, seeds: range) -> list[Row]:
        """What costs lie between, for each seed, m and class of rules."""
        return [
            {"kind": "bounds", "d": self.d, "seed": seed, "m": m, "decision": decision}
            | looks.bounds(self.season(seed, "network"), m, decision == "affine")._asdict()
            for seed in seeds
            for m in self.settings["m"]
            for decision in ("network", "affine")
        ]

    def by_K(self, name: str, K: int, seeds: range) -> list[Row]:
        """Curves at the largest m: the paper's steps and the best others, at lambda = 1 and at a smaller one."""
        trials = self.level_trials()
        rules = both_rules(trials)
        kinds = [(which, lam) for lam in (1.0, self.settings["lam_small"]) for which in rules]
        lanes: list[Lane] = [(0, self.most, lam, rules[which]) for which, lam in kinds]
        times = training.checkpoints_of(self.T, self.settings["points"])
        xs = self.run_seasons(seeds, lanes, times, newsvendors.by_levels(name, K), training.ROLE_RUN)
        first = name == "RT-MLMC" and self.settings["K"][0] == K
        rows = tuning_rows(trials, "fit", method="by K") if first else []
        n = len(lanes) * len(times)
        for seed in seeds:
            mine = jax.tree.map(lambda a: a[seed].reshape(n, *a.shape[3:]), xs)  # noqa: B023 (used at once)
            rows += self.curve_rows(mine, lanes, times, {"kind": "curve", "method": name, "K": K, "seed": seed}, kinds)
        return rows

    def curve_rows(
        self, xs: Any, lanes: list[Lane], times: Times, columns: Row, kinds: list[tuple[str, float]]
    ) -> list[Row]:
        seed = columns["seed"]
        lists = self.costs(xs, lanes, "network", seed, times)
        ends = self.moved(jax.tree.map(lambda a: a[len(times) - 1 :: len(times)], xs), [lam for _, lam in kinds], seed)
        return [
            {**columns, "steps": which, "lam": lam, "rule": str(lanes[i][3]), "t": list(times)}
            | {name: v[i] for name, v in lists.items()}
            | ends[i]
            for i, (which, lam) in enumerate(kinds)
        ]

    def run_seasons(self, seeds: range, lanes: list[Lane], times: Times, estimator: Any, role: int) -> Any:
        """x of network rules for WDRO-SI, (seeds, lanes, times, ...)."""
        seasons = [self.season(seed, "network") for seed in seeds]
        keys = seed_keys(max(seeds) + 1, role)[jnp.asarray(list(seeds))]
        return newsvendors.run_seasons(
            newsvendors.template(self.widths("network"), self.d, False),
            newsvendors.stack([season.book for season in seasons]),
            keys,
            newsvendors.stack([newsvendors.lanes_of(season.starts, lanes) for season in seasons]),
            training.gaps_of(times),
            estimator,
        )

    @functools.cache  # noqa: B019 (a study lives as long as its item)
    def level_trials(self) -> list[Trial]:
        """Step rules for all curves by K, as `_trials` but by the last x, with RT-MLMC at one K."""
        seeds, lanes = self.tuning()
        estimator = newsvendors.by_levels("RT-MLMC", self.settings["K_tune"])
        xs = self.run_seasons(seeds, lanes, (self.T,), estimator, training.ROLE_TUNE)
        last = [jax.tree.map(lambda a, i=i: a[i, :, 0], xs) for i in range(len(seeds))]
        return self.tried("network", last, (self.T,))
