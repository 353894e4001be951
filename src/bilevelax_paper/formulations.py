"""What Figure 3's records say: runs chosen on validation, paired differences, and their tables."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from bilevelax.experiments._items import Records, Row, Table
from bilevelax.experiments._statistics import Interval, half_width, mean, number

SOLVED = 0.9  # of the way to the least training cost: a step rule that gets there has trained the rule
FORMULATIONS = ("ERM", "WDRO", "WDRO-SI")
COMPARED = (("ERM", "network"), ("WDRO", "network"), ("WDRO-SI", "network"), ("ERM", "affine"), ("WDRO-SI", "affine"))
PAPER, WIDER = "paper's lambdas", "wider grid"
FLAT = 0.05  # orders that vary by less over contexts, in units of the demand's noise, are a constant


class Group(NamedTuple):
    """Runs of one kind, of every seed: of ERM too as many as there are lambdas."""

    records: Records
    d: int
    method: str
    decision: str = "network"
    m: int = 0  # 0: the largest

    @property
    def equal(self) -> Row:
        m = self.m or max(self.records.settings["m"])
        return {"d": self.d, "method": self.method, "decision": self.decision, "m": m}

    def rows(self, grid: list[float]) -> list[list[Row]]:
        """The rows of the runs of a grid, a list for each seed."""
        rows = [row for row in self.records.where(kind="compare", **self.equal) if row["lam"] in grid]
        return [[row for row in rows if row["seed"] == seed] for seed in sorted({row["seed"] for row in rows})]

    def picks(self, grid: list[float], last: bool = False) -> list[tuple[Row, int]]:
        """For each seed the run and checkpoint of least validation cost; ``last``: among the last checkpoints."""
        found = []
        for rows in self.rows(grid):
            options = [(row, i) for row in rows for i in range(len(row["t"]))[-1 if last else 0 :]]
            found.append(min(options, key=lambda pair: pair[0]["validation"][pair[1]]))
        return found

    def chosen(self, grid: list[float], column: str = "test", last: bool = False) -> np.ndarray:
        """A column of what was picked, one value for each seed."""
        return np.array([row[column][i] for row, i in self.picks(grid, last)])

    def ends(self, grid: list[float], column: str = "test") -> np.ndarray:
        """A column at the last checkpoint of every run, (seeds, runs)."""
        return np.array([[row[column][-1] for row in rows] for rows in self.rows(grid)])

    def bound(self, name: str) -> np.ndarray:
        """A bound of these costs, one value for each seed."""
        where = {name: self.equal[name] for name in ("d", "decision", "m")}
        return np.array(self.records.values(name, kind="bounds", **where))

    def fit(self, train: np.ndarray) -> np.ndarray:
        """How much of the way from the best constant order to the least possible training cost was gone."""
        most, least = self.bound("train_constant"), self.bound("train_floor")
        shape = (-1, *[1] * (np.ndim(train) - 1))
        return (most.reshape(shape) - train) / (most - least).reshape(shape)

    def chosen_fit(self, grid: list[float]) -> Interval:
        return mean(self.fit(self.chosen(grid, "train")))

    def end_fit(self, grid: list[float]) -> Interval:
        return mean(self.fit(self.ends(grid, "train")).mean(1))


def gap(a: Group, b: Group, grid: list[float], last: bool = False) -> Interval:
    """Test cost of a minus that of b, each as chosen on validation, paired by seed."""
    return mean(a.chosen(grid, last=last) - b.chosen(grid, last=last))


def run_by_run(a: Group, b: Group, grid: list[float]) -> Interval:
    """The same at the last checkpoint without any choice: runs of equal start, in the mean over a grid."""
    return mean((a.ends(grid) - b.ends(grid)).mean(1))


def curves(records: Records, column: str = "test", **equal: Any) -> tuple[list[int], np.ndarray]:
    """(iterations, a column (seeds, iterations))."""
    rows = records.where(kind="curve", **equal)
    return rows[0]["t"], np.array([row[column] for row in rows])


def grids(records: Records) -> dict[str, list[float]]:
    printed = records.settings["lam"]
    return {PAPER: printed, WIDER: [*records.settings["wide"], *printed]}


def both_dimensions(records: Records) -> tuple[int, int]:
    """The paper's dimension, and the small one where there is one."""
    found = records.distinct("d", kind="compare")
    return found[0], found[-1]


def at_adversary(records: Records, d: int, method: str, lam: float, column: str) -> np.ndarray:
    """A column of what the adversary of WDRO-SI does at the last network rule of the run with this lambda, by seed."""
    return np.array(records.values(column, kind="adversary", d=d, method=method, lam=lam))


def within_seeds(values: np.ndarray) -> list[Interval]:
    """Means of the columns of (seeds, columns), with intervals that leave out what the seeds' markets differ by.

    Each seed's own mean is replaced by that of all seeds, and the width corrected for the columns
    (Cousineau 2005 and Morey 2008, Tutorials in Quantitative Methods for Psychology).
    """
    n = values.shape[1]
    levelled = values - values.mean(1, keepdims=True) + values.mean()
    half = half_width(levelled) * np.sqrt(n / max(n - 1, 1))
    return [Interval(float(v), float(v - h), float(v + h)) for v, h in zip(values.mean(0), half, strict=True)]


def share_flat(records: Records, d: int, method: str) -> float:
    """The share of runs of network rules that end as a constant."""
    rows = records.where(kind="compare", d=d, method=method, decision="network")
    return float(np.mean([row["spread"][-1] < FLAT for row in rows]))


def by_m_table(records: Records, d: int) -> Table:
    """Test costs of what was chosen on validation."""
    ms = records.settings["m"]
    rows = []
    for method, decision in COMPARED:
        for label, grid in grids(records).items():
            if decision == "network" or label == PAPER:
                cells = (str(mean(Group(records, d, method, decision, m).chosen(grid))) for m in ms)
                rows.append((method, decision, f"{len(grid)} starts" if method == "ERM" else label, *cells))
    constant = (str(mean(Group(records, d, "ERM", m=m).bound("constant"))) for m in ms)
    rows.append(("best constant order", "-", "-", *constant))
    columns = ("method", "rule", "runs to choose from", *(f"m = {m}" for m in ms))
    return Table(f"Test cost in R^{d}, run and stopping time chosen on validation", columns, rows)


def end_table(records: Records, d: int) -> Table:
    """Where training ends without a choice, at the largest m."""
    lams = sorted(grids(records)[WIDER])
    rows = []
    for method, decision in COMPARED:
        group = Group(records, d, method, decision)
        tests, fits = group.ends(lams), group.fit(group.ends(lams, "train"))
        cells = {
            row["lam"]: f"{tests[:, i].mean():.4g} ({fits[:, i].mean():.0%})"
            for i, row in enumerate(group.rows(lams)[0])
        }
        rows.append((method, decision, *(cells.get(lam, "-") for lam in lams)))
    ours = Group(records, d, "WDRO-SI")
    for other in ("ERM", "WDRO"):
        apart = (str(run_by_run(ours, Group(records, d, other), [lam])) for lam in lams)
        rows.append((f"WDRO-SI minus {other}, run by run", "network", *apart))
    look = lambda column, fold: (number(float(fold(at_adversary(records, d, "WDRO-SI", lam, column)))) for lam in lams)
    rows.append(("distance to which the adversary moves a context", "network", *look("distance", np.mean)))
    rows.append(("least curvature of E g in u", "network", *look("least", np.min)))
    rows.append(("largest curvature of E g in u", "network", *look("most", np.max)))
    title = (
        f"At the end of training in R^{d}, m = {max(records.settings['m'])}, by lambda (of ERM: the run with the same "
        "start): mean test cost, and how much of the way from the best constant order to the least possible training "
        "cost was gone. Below, the adversary of WDRO-SI at its rules, over contexts and seeds: E g is not convex "
        "where its curvature is negative, and the steps of EpochSGD assume 0.5 to 2"
    )
    return Table(title, ("method", "rule", *(f"{lam:g}" for lam in lams)), rows)


def tuning(records: Records) -> Table:
    """Validation costs of all step rules, and how far they train."""
    which = {
        f"{method}, {decision}, R^{d}": {"d": d, "method": method, "decision": decision}
        for d in dict.fromkeys(both_dimensions(records))
        for method, decision in COMPARED
    }
    which |= {"RT-MLMC, for the curves by K": {"method": "by K"}}
    rules = records.distinct("rule", kind="tuning")
    rows = []
    for rule in rules:
        found = (records.where(kind="tuning", rule=rule, **equal)[0] for equal in which.values())
        rows.append((rule, *(f"{shown(row['loss'])} ({shown_fit(row['fit'])})" for row in found)))
    title = (
        f"Tuning: validation cost of every step rule, mean over {records.settings['tuning_seeds']} seeds of their own, "
        f"at the best checkpoint (by K: the last); in brackets how far it trains. Of those that train to {SOLVED:.0%} "
        "the one with the least cost is used, in the comparison the least mean over the formulations of a class"
    )
    return Table(title, ("steps", *which), rows)


def shown(value: Any) -> str:
    return f"{value:#.4g}" if isinstance(value, float) else value  # a word where it diverged


def shown_fit(value: float) -> str:
    return f"{value:.0%}" if abs(value) < 10 else "diverged"
