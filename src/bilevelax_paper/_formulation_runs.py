"""The runs behind Figure 3: tuning, all formulations at every m and lambda, and WDRO-SI by K."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bilevelax.experiments import _newsvendor_looks as looks
from bilevelax.experiments import _newsvendors as newsvendors
from bilevelax.experiments import _training as training
from bilevelax.experiments._formulation_views import COMPARED, SOLVED
from bilevelax.experiments._items import Row
from bilevelax.experiments._trajectories import seed_keys

TUNING = 900  # the first seed of those that are used for nothing else
CHECKPOINTS = (8, 4, 2, 1)  # of a run of the comparison: T / 8, T / 4, ...
Lane = tuple[int, int, float, training.Rule]  # which start, m, lambda, steps


class Study:
    """The pieces of one run of this item in d dimensions, made once.

    Run i of a method starts at the i-th x_1 of its seed, with the i-th lambda where the method has one: every method
    has as many runs to choose from, and runs of equal number share their start, of ERM and WDRO-SI also all draws.
    """

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
        """x of all lanes at all checkpoints, in one stack, lanes first.

        In parts of as many lanes as the paper's lambdas need, filled up: one program serves tuning and comparison.
        """
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

    def costs(self, xs: Any, lanes: list[Lane], decision: str, seed: int) -> dict[str, list[list[float]]]:
        """For each lane a list over the checkpoints."""
        ms = jnp.asarray([m for _, m, _, _ in lanes for _ in self.times], jnp.int32)
        found = looks.costs(xs, ms, self.season(seed, decision), self.widths(decision), self.d)
        return {name: looks.listed(a, (len(lanes), len(self.times))) for name, a in found._asdict().items()}

    def _trials(self, name: str, decision: str) -> list[Trial]:
        """Step rules at the largest m and lambda = 1, on seeds of their own.

        By the least validation cost of a checkpoint, among the rules that train: those that end at SOLVED of the way
        from the best constant order to the least possible training cost, in the mean over the seeds.
        """
        rules = training.grid(self.T, **self.settings["grid"])
        lanes = [(0, self.most, 1.0, rule) for rule in rules]
        each, fits = [], []
        for seed in range(TUNING, TUNING + self.settings["tuning_seeds"]):
            xs = self.run(name, decision, seed, lanes, self.estimators[name], training.ROLE_TUNE)
            found = self.costs(xs, lanes, decision, seed)
            limits = looks.bounds(self.season(seed, decision), self.most, decision == "affine")
            each.append(np.min(found["validation"], axis=1))
            fits.append(limits.fit(np.asarray(found["train"])[:, -1]))
        return [Trial(*found) for found in zip(rules, np.transpose(each), np.mean(fits, axis=0), strict=True)]

    def steps(self, decision: str) -> training.Rule:
        """One step rule for all formulations, by their mean validation cost: so runs of equal number differ in the
        formulation only. It must train every one of them."""
        each = [self.trials(name, of) for name, of in COMPARED if of == decision]
        common = [
            Trial(same[0].rule, np.concatenate([trial.each for trial in same]), min(trial.fit for trial in same))
            for same in zip(*each, strict=True)
        ]
        return best(common, training.KINDS)

    def compare(self, name: str, decision: str, seeds: range) -> list[Row]:
        """Every m and lambda of one formulation."""
        chosen = self.steps(decision)
        columns: Row = {"d": self.d, "method": name, "decision": decision}
        rows: list[Row] = tuning_rows(self.trials(name, decision), columns)
        lanes = [
            (start, m, 1.0 if name == "ERM" else self.prices[start], chosen)
            for part in (
                [self.settings["lam"]] if decision == "affine" else [self.settings["lam"], self.settings["wide"]]
            )
            for m in self.settings["m"]
            for start in map(self.prices.index, part)
        ]
        for seed in seeds:
            xs = self.run(name, decision, seed, lanes, self.estimators[name], training.ROLE_RUN)
            found = self.costs(xs, lanes, decision, seed)
            for i, (start, m, _, _) in enumerate(lanes):
                row = {"kind": "compare", **columns, "seed": seed, "m": m, "lam": self.prices[start]}
                rows.append(row | {"rule": str(chosen), "t": list(self.times)} | {n: v[i] for n, v in found.items()})
            if decision == "network" and name != "WDRO":
                rows += self.adversary(xs, lanes, {**columns, "seed": seed})
        return rows

    def adversary(self, xs: Any, lanes: list[Lane], columns: Row) -> list[Row]:
        """What the adversary of WDRO-SI does at the last rules of the largest m.

        At those of ERM it has the lambda of the WDRO-SI run with the same start.
        """
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
        lists = {name: looks.listed(a, (len(prices), 1)) for name, a in found._asdict().items()}
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
        rules = {"paper": best(trials, ("paper",)), "other": best(trials, ("constant", "adam"))}
        kinds = [(which, lam) for lam in (1.0, self.settings["lam_small"]) for which in rules]
        lanes: list[Lane] = [(0, self.most, lam, rules[which]) for which, lam in kinds]
        times = training.checkpoints_of(self.T, self.settings["points"])
        xs = self.run_seasons(seeds, lanes, times, newsvendors.by_levels(name, K), training.ROLE_RUN)
        first = name == "RT-MLMC" and self.settings["K"][0] == K
        rows = tuning_rows(trials, {"method": "by K"}) if first else []
        n = len(lanes) * len(times)
        for seed in seeds:
            mine = jax.tree.map(lambda a: a[seed].reshape(n, *a.shape[3:]), xs)  # noqa: B023 (used at once)
            rows += self.curve_rows(mine, lanes, times, {"kind": "curve", "method": name, "K": K, "seed": seed}, kinds)
        return rows

    def curve_rows(
        self, xs: Any, lanes: list[Lane], times: tuple[int, ...], columns: Row, kinds: list[tuple[str, float]]
    ) -> list[Row]:
        shape, seed = (len(lanes), len(times)), columns["seed"]
        ms = jnp.full(len(lanes) * len(times), self.most, jnp.int32)
        found = looks.costs(xs, ms, self.season(seed, "network"), self.widths("network"), self.d)
        lists = {name: looks.listed(a, shape) for name, a in found._asdict().items()}
        ends = self.moved(jax.tree.map(lambda a: a[len(times) - 1 :: len(times)], xs), [lam for _, lam in kinds], seed)
        return [
            {**columns, "steps": which, "lam": lam, "rule": str(lanes[i][3]), "t": list(times)}
            | {name: v[i] for name, v in lists.items()}
            | ends[i]
            for i, (which, lam) in enumerate(kinds)
        ]

    def run_seasons(self, seeds: range, lanes: list[Lane], times: tuple[int, ...], estimator: Any, role: int) -> Any:
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
        rules = training.grid(self.T, **self.settings["grid"])
        lanes: list[Lane] = [(0, self.most, 1.0, rule) for rule in rules]
        seeds = range(TUNING, TUNING + self.settings["tuning_seeds"])
        estimator = newsvendors.by_levels("RT-MLMC", self.settings["K_tune"])
        xs = self.run_seasons(seeds, lanes, (self.T,), estimator, training.ROLE_TUNE)
        ms = jnp.full(len(lanes), self.most, jnp.int32)
        each, fits = [], []
        for i, seed in enumerate(seeds):
            season = self.season(seed, "network")
            mine = jax.tree.map(lambda a: a[i, :, 0], xs)  # noqa: B023 (used at once)
            found = looks.costs(mine, ms, season, self.widths("network"), self.d)
            each.append(np.asarray(found.validation, float))
            fits.append(looks.bounds(season, self.most, False).fit(np.asarray(found.train, float)))
        return [Trial(*found) for found in zip(rules, np.transpose(each), np.mean(fits, axis=0), strict=True)]


class Trial(NamedTuple):
    """A step rule, its validation cost on each tuning seed, and how far it trains (1: all the way)."""

    rule: training.Rule
    each: np.ndarray
    fit: float

    @property
    def loss(self) -> float:
        return float(self.each.mean())


def best(trials: list[Trial], kinds: tuple[str, ...]) -> training.Rule:
    """Of these kinds the rule of least validation cost among those that train; if none does, what trains most."""
    of_kind = [trial for trial in trials if trial.rule.kind in kinds]
    enough = min(SOLVED, max(trial.fit for trial in of_kind))
    return min((trial for trial in of_kind if trial.fit >= enough), key=lambda trial: trial.loss).rule


def tuning_rows(trials: list[Trial], columns: Row) -> list[Row]:
    return [
        {"kind": "tuning", **columns, "rule": str(t.rule), "loss": t.loss if np.isfinite(t.loss) else "diverged"}
        | {"losses": [training.finite(loss) for loss in t.each], "fit": training.finite(t.fit)}
        for t in trials
    ]
