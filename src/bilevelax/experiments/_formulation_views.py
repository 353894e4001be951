"""What Figure 3's records say: test costs with the lambda chosen on validation, and their tables."""

from __future__ import annotations

from typing import Any

import numpy as np

from bilevelax.experiments._items import Records, Table, tuning_table
from bilevelax.experiments._statistics import Interval, mean, number

EASY = 5  # dimensions in which 50 contexts are enough to learn from
FORMULATIONS = ("ERM", "WDRO", "WDRO-SI")
COMPARED = (("ERM", "network"), ("WDRO", "network"), ("WDRO-SI", "network"), ("ERM", "affine"), ("WDRO-SI", "affine"))


def curves(records: Records, **equal: Any) -> tuple[list[int], np.ndarray]:
    """(iterations, test costs (seeds, iterations))."""
    t = records.distinct("t", kind="curve", **equal)
    return t, np.array(
        [records.values("test", kind="curve", seed=seed, **equal) for seed in records.distinct("seed", kind="curve")]
    )


def chosen(
    records: Records, method: str, decision: str, m: int, grid: list[float], kind: str = "compare"
) -> np.ndarray:
    """Test cost of each seed at the lambda of the grid that has the least validation cost; ERM has no lambda."""
    rows = [
        row
        for row in records.where(kind=kind, method=method, decision=decision, m=m)
        if method == "ERM" or row["lam"] in grid
    ]
    best = lambda seed: min((row for row in rows if row["seed"] == seed), key=lambda row: row["validation"])
    return np.array([best(seed)["test"] for seed in sorted({row["seed"] for row in rows})])


def unchosen(records: Records, method: str, m: int, grid: list[float], kind: str = "compare") -> np.ndarray:
    """Mean test cost of each seed over all lambdas of the grid: what is left without a choice among runs."""
    rows = [
        row
        for row in records.where(kind=kind, method=method, decision="network", m=m)
        if method == "ERM" or row["lam"] in grid
    ]
    return np.array([np.mean([row["test"] for row in rows if row["seed"] == s]) for s in records.distinct("seed")])


def constants(records: Records) -> np.ndarray:
    """Test cost of the best constant order, one for each seed."""
    m = max(records.settings["m"])
    return np.asarray(records.values("constant", kind="compare", method="ERM", decision="network", m=m))


def grids(records: Records) -> dict[str, list[float]]:
    printed = records.settings["lam"]
    return {"paper's lambdas": printed, "wider grid": [*records.settings["wide"], *printed]}


def distance(records: Records, lam: float) -> Interval:
    return mean(records.values("distance", kind="moved", lam=lam))


def by_m_table(records: Records) -> Table:
    rows = []
    for method, decision in COMPARED:
        for label, grid in grids(records).items():
            if method != "ERM" or label == "paper's lambdas":
                cells = (str(mean(chosen(records, method, decision, m, grid))) for m in records.settings["m"])
                rows.append((method, decision, "-" if method == "ERM" else label, *cells))
    columns = ("method", "rule", "lambda", *(f"m = {m}" for m in records.settings["m"]))
    return Table("Test cost, lambda chosen on validation", columns, rows)


def lambda_table(records: Records) -> Table:
    """Mean test cost by lambda at the largest m."""
    lams, m = [*records.settings["wide"], *records.settings["lam"]], max(records.settings["m"])
    rows = []
    for method, decision in COMPARED:
        found = {
            lam: records.values("test", kind="compare", method=method, decision=decision, m=m, lam=lam) for lam in lams
        }
        rows.append((method, decision, *(str(mean(v)) if v and np.max(v) < 1e6 else "-" for v in found.values())))
    far = (number(distance(records, lam).value) for lam in lams)
    rows.append(("distance to which the adversary of WDRO-SI moves a context", "network", *far))
    return Table(f"Test cost by lambda, m = {m}", ("method", "rule", *(f"{lam:g}" for lam in lams)), rows)


def easy_table(records: Records) -> Table:
    """The comparison in few dimensions."""
    rows = []
    for method in FORMULATIONS:
        for label, grid in grids(records).items():
            if method != "ERM" or label == "paper's lambdas":
                costs = [chosen(records, method, "network", m, grid, "easy compare") for m in records.settings["m"]]
                rows.append((method, "-" if method == "ERM" else label, *(str(mean(cost)) for cost in costs)))
    constant = mean(records.values("constant", kind="easy compare", method="ERM", m=max(records.settings["m"])))
    rows.append(("best constant order", "-", *(str(constant) for _ in records.settings["m"])))
    columns = ("method", "lambda", *(f"m = {m}" for m in records.settings["m"]))
    return Table(f"Test cost with contexts in R^{min(EASY, records.settings['d'])}, all else equal", columns, rows)


def tuning(records: Records) -> Table:
    """Validation costs of all step rules."""
    which = {f"{method}, {decision}": {"method": method, "decision": decision} for method, decision in COMPARED}
    return tuning_table(records, "cost", which)
