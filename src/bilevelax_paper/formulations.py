"""Figure 3's records against what the paper says about WDRO-SI: runs chosen on validation, paired differences."""

from typing import Any, NamedTuple

import numpy as np

from bilevelax.base.statistics import Interval, mean
from bilevelax_paper._newsvendors import DEVIATION
from bilevelax_paper.claims import Found, Rule, where
from bilevelax_paper.item import Records, Row, Table
from bilevelax_paper.training import SOLVED

FORMULATIONS = ("ERM", "WDRO", "WDRO-SI")
COMPARED = (("ERM", "network"), ("WDRO", "network"), ("WDRO-SI", "network"), ("ERM", "affine"), ("WDRO-SI", "affine"))
PAPER, WIDER = "paper's lambdas", "wider grid"
FLAT = 0.05  # orders that vary by less over contexts, in units of the demand's noise, are a constant
VISIBLE = 1e-3  # of a test cost: less than a figure shows
STEPS = "the paper's steps"


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

    def chosen(self, grid: list[float], column: str = "test") -> np.ndarray:
        """A column of the run and checkpoint of least validation cost, for each seed."""
        found = []
        for rows in self.rows(grid):
            options = [(row, i) for row in rows for i in range(len(row["t"]))]
            row, i = min(options, key=lambda pair: pair[0]["validation"][pair[1]])
            found.append(row[column][i])
        return np.array(found)

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

    def above_constant(self, grid: list[float]) -> Interval:
        """Test cost of what was picked minus that of the best constant order."""
        return mean(self.chosen(grid) - self.bound("constant"))

    def end_fit(self, grid: list[float]) -> Interval:
        return mean(self.fit(self.ends(grid, "train")).mean(1))


def gap(a: Group, b: Group, grid: list[float]) -> Interval:
    """Test cost of a minus that of b, each as chosen on validation, paired by seed."""
    return mean(a.chosen(grid) - b.chosen(grid))


def run_by_run(a: Group, b: Group, grid: list[float]) -> Interval:
    """The same at the last checkpoint without any choice: runs of equal start, in the mean over a grid."""
    return mean((a.ends(grid) - b.ends(grid)).mean(1))


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


def share_flat(records: Records, d: int, method: str) -> float:
    """The share of runs of network rules that end as a constant."""
    rows = records.where(kind="compare", d=d, method=method, decision="network")
    return float(np.mean([row["spread"][-1] < FLAT for row in rows]))


def by_m_table(records: Records, d: int) -> Table:
    """Test costs of what was chosen on validation."""
    ms, rows = records.settings["m"], []
    for method, decision in COMPARED:
        for label, grid in grids(records).items():
            if decision == "network" or label == PAPER:
                cells = (str(mean(Group(records, d, method, decision, m).chosen(grid))) for m in ms)
                rows.append((method, decision, f"{len(grid)} starts" if method == "ERM" else label, *cells))
    constant = (str(mean(Group(records, d, "ERM", m=m).bound("constant"))) for m in ms)
    rows.append(("best constant order", "-", "-", *constant))
    columns = ("method", "rule", "runs to choose from", *(f"m = {m}" for m in ms))
    return Table(f"Test cost in R^{d}, run and stopping time chosen on validation", columns, rows)


def better(found: Interval) -> bool:
    return found.high < 0


def visible(gain: Interval, cost: float) -> bool:
    return -gain.value > VISIBLE * cost


def too_small(found: dict[str, Interval], cost: float) -> list[str]:
    """Gains that are certain, as runs share start and draws, but too small for a figure."""
    return [words for words, gain in found.items() if better(gain) and not visible(gain, cost)]


def larger_K(records: Records, method: str) -> Found:
    s = records.settings
    few, most, lams = s["K"][0], s["K"][-1], (1.0, s["lam_small"])
    look = lambda column, **equal: records.values(column, kind="curve", method=method, **equal)
    ends = lambda K, lam, steps="paper": np.array(look("test", K=K, lam=lam, steps=steps))[:, -1]
    label = {"paper": STEPS, "other": records.values("rule", kind="curve", steps="other")[0]}
    gain = lambda lam, steps: mean(ends(most, lam, steps) - ends(few, lam, steps))
    gains = {f"lambda = {lam:g}": {words: gain(lam, steps) for steps, words in label.items()} for lam in lams}
    far = lambda lam: mean(look("distance", K=most, lam=lam, steps="paper")).value
    what = f"how far the adversary moves a context at the last x of K = {most}"
    beside = {f"{what}, lambda = {lam:g}": {STEPS: far(lam)} for lam in lams}
    last = np.array([ends(K, 1.0) for K in s["K"]])
    beside["how far any two K end apart on any seed, lambda = 1"] = {STEPS: float(np.ptp(last, axis=0).max())}
    cost = float(ends(most, 1.0).mean())
    named = {f"{lam} with {words}": gain for lam, line in gains.items() for words, gain in line.items()}
    norm = DEVIATION * both_dimensions(records)[0] ** 0.5  # of a context, in the root mean square
    words = {"too_small": too_small(named, cost), "norm": norm, "cost": cost, "visible": f"{VISIBLE:.1%}"}
    lines = {f"K = {most} minus K = {few}, {lam}": line for lam, line in gains.items()}
    return Found(lines, beside, words, min(s["seeds"], s["curve_seeds"]))


def against(records: Records, other: str) -> Found:
    s, wider, (big, easy) = records.settings, grids(records), both_dimensions(records)
    pair = {d: (Group(records, d, "WDRO-SI"), Group(records, d, other)) for d in (big, easy)}
    chosen = lambda grid: {f"R^{d}": gap(*pair[d], grid) for d in pair}
    # the paper's ERM and WDRO see no context: none of their orders costs less than the best constant one
    lines = {f"{other} without contexts, at its best": {f"R^{d}": pair[d][0].above_constant(s["lam"]) for d in pair}}
    lines |= {f"{other} with contexts, on validation, {label}": chosen(grid) for label, grid in wider.items()}
    lines[f"at the end of training, mean over the {WIDER}"] = {f"R^{easy}": run_by_run(*pair[easy], wider[WIDER])}
    end = {f"R^{d}": run_by_run(*pair[d], s["lam"]) for d in pair}
    beside: dict[str, Any] = {f"at the end of training, mean over the {PAPER}": end}
    for i, name in enumerate(("WDRO-SI", other)):
        share = lambda of, i=i: {f"R^{d}": f"{of(pair[d][i]):.0%}" for d in pair}
        stopped = share(lambda group: group.fit(group.chosen(s["lam"], "train")).mean())
        beside[f"{name}: share of the way to the least training cost, where stopped"] = stopped
        beside[f"{name}: the same at the end"] = share(lambda group: group.end_fit(s["lam"]).value)
        flat = share(lambda group: share_flat(records, group.d, group.method))
        beside[f"{name}: share of rules that end as a constant"] = flat
    words = {"other": other, "most": max(s["m"]), "easy": easy}
    if other == "ERM":
        far = lambda lam: float(at_adversary(records, big, "ERM", lam, "distance").mean())
        for lam in (min(s["lam"]), max(s["lam"])):
            beside[f"how far the adversary moves a context at ERM's rules, lambda = {lam:g}"] = {f"R^{big}": far(lam)}
        words |= same_minimiser(records, big)
    else:
        dear = run_by_run(pair[easy][0], Group(records, easy, "ERM"), wider[WIDER])
        words |= {"dear": dear if dear.low > 0 else None}
    return Found(lines, beside, words)


def same_minimiser(records: Records, d: int) -> dict[str, Any]:
    """Why ERM and WDRO-SI agree: where rules fit and E g is convex they have the same minimisers."""
    lams = records.settings["lam"]
    fits = [Group(records, d, name).end_fit(lams).value for name in ("ERM", "WDRO-SI")]
    convex = [lam for lam in lams if at_adversary(records, d, "ERM", lam, "least").min() > 0]
    said = "every lambda" if convex == lams else ", ".join(f"lambda = {lam:g}" for lam in convex) or "no lambda"
    return {"convex": said, "alike": min(fits) >= SOLVED and convex == lams}


def more_demands(records: Records) -> Found:
    lams, few, many = (pick(records.settings[name]) for name, pick in (("lam", list), ("m", min), ("m", max)))
    group = lambda d, m, name="WDRO-SI": Group(records, d, name, m=m)
    dims, what = both_dimensions(records), f"m = {many} minus m = {few}"
    chosen = lambda name: {f"R^{d}": gap(group(d, many, name), group(d, few, name), lams) for d in dims}
    ends = {f"R^{d}": run_by_run(group(d, many), group(d, few), lams) for d in dims}
    beside = {f"{what}, ERM chosen on validation": chosen("ERM")}
    constant = lambda m: {f"R^{d}": group(d, m).above_constant(lams) for d in dims}
    beside[f"WDRO-SI minus the best constant order, m = {few}"] = constant(few)
    lines = {f"{what}, chosen on validation": chosen("WDRO-SI")}
    return Found({**lines, f"{what}, at the end of training, mean over all runs": ends}, beside)


def networks(records: Records) -> Found:
    lams, dims = records.settings["lam"], both_dimensions(records)
    group = lambda d, decision="affine", name="WDRO-SI": Group(records, d, name, decision)
    found = lambda name: {f"R^{d}": gap(group(d, "network", name), group(d, "affine", name), lams) for d in dims}
    fits = {f"R^{d}": f"{group(d).end_fit(lams).value:.0%}" for d in dims}
    what = f"network minus affine at m = {max(records.settings['m'])}, chosen on validation"
    beside: dict[str, Any] = {f"{what}, ERM": found("ERM")}
    beside["affine rules of WDRO-SI: share of the way to their own least training cost"] = fits
    constant = {f"R^{d}": group(d).above_constant(lams) for d in dims}
    beside["affine rules of WDRO-SI minus the best constant order"] = constant
    return Found({f"{what}, WDRO-SI": found("WDRO-SI")}, beside)


FIRST = where(better, first=1)  # the first line, in the paper's dimension, decides
SEEN = Rule(lambda f: visible(f.effects[0], f.words["cost"]), better)
RULES = {larger_K: SEEN, **dict.fromkeys((against, more_demands, networks), FIRST)}
