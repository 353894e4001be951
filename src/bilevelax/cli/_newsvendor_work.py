"""What the newsvendor commands do, apart from how they tell it: past days, a rule, its costs on later days."""

from __future__ import annotations

import dataclasses
import math
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from bilevelax.cli._newsvendor_options import OWNER, in_option_names, told_in_option_names
from bilevelax.cli._newsvendor_past import Past
from bilevelax.cli._terminal import keep_programs

if TYPE_CHECKING:
    import numpy as np

    from bilevelax.cli._newsvendor_capacity import Wanted

KEPT = 20_000  # training rows kept in the model for the baselines of `evaluate`
JUDGED = 20_000  # rows of a file that `evaluate` looks at, evenly spaced


class JudgedModel(NamedTuple):
    """A rule and the baselines on later days."""

    evaluated: Any
    schema: Any
    health: list[str]  # to look at first
    notes: list[str]
    answers: Any

    def told(self) -> list[str]:
        return [*self.health, *self.notes]

    def who_orders(self) -> list[str]:
        """Told where a baseline, or its mean with the rule, took the rule's place."""
        rule = self.evaluated.rule
        moved = ", corrected on days held out" if any(rule.shift_) else ""
        return [f"What this model orders is the {rule.fallback_}{moved}, as fit told."] if rule.fallback_ else []


def subsample_note(rows: int) -> list[str]:
    """What a large file is cut down to."""
    from bilevelax.applications.newsvendor import weights
    from bilevelax.sklearn import _candidate

    if rows <= weights.FOREST_ROWS:
        return []
    contexts = min(rows, _candidate.MOST_ROWS)
    return [f"The forest sees {weights.FOREST_ROWS} of the {rows} rows, the policy {contexts}; chosen at random."]


def with_lost_demand(past: Past, costs: dict[str, Any]) -> tuple[Past, list[str]]:
    """(the rows with a demand in place of each sale that ended with the stock, what to tell of it)."""
    if past.sold_out is None:
        return past, []
    import numpy as np

    from bilevelax.applications.newsvendor import censored
    from bilevelax.sklearn import SampleAverage
    from bilevelax.sklearn._scored import levels_of
    from bilevelax.sklearn.conditional import Forest

    levels = levels_of(SampleAverage(**costs), past.X, len(past.schema.targets)).max(axis=0)
    told = [
        censored.identified(past.y[:, j], past.sold_out[:, j], float(levels[j]), name)
        for j, name in enumerate(past.schema.targets)
    ]
    return past._replace(y=censored.demands(Forest(), np.asarray(past.X, float), past.y, past.sold_out)), told


def learn(past: Past, perturb: str | None, **settings: Any) -> tuple[Any, list[str], list[str]]:
    """(fitted model, the columns that may move, warnings)."""
    from bilevelax.sklearn import RobustNewsvendor
    from bilevelax.tables.schema import named

    keep_programs()
    movable = past.schema.movable(None if perturb is None else named(perturb, past.schema.columns))
    places = {name: j for j, name in enumerate(past.X)}
    numbers = [places[name] for name in movable]
    if not numbers and settings["penalty"] == "cv":
        settings["penalty"] = math.inf  # every price of moving nothing is the same problem
    model = RobustNewsvendor(perturb=numbers or "none", verbose=sys.stderr.isatty(), **settings)
    with warnings.catch_warnings(record=True) as caught, told_in_option_names():
        warnings.simplefilter("always", UserWarning)
        model.fit(past.X, past.y[:, 0] if past.y.shape[1] == 1 else past.y)
    model.verbose = 0  # of this terminal, not of the model
    own = [in_option_names(str(each.message)) for each in caught if OWNER in str(each.message)]
    return model, movable, own


def save(model: Any, past: Past, out: Path) -> None:
    from bilevelax.sklearn.persist import save_newsvendor

    arrays = {"X": past.X[-KEPT:].to_numpy(float), "y": past.y[-KEPT:]}
    if past.schema.lags:
        arrays |= stored_tail(past.history, past.schema.lags)
    save_newsvendor(model, out, {"schema": dataclasses.asdict(past.schema)}, **arrays)


def stored_tail(history: Any, lags: Any) -> dict[str, np.ndarray]:
    """The demands that lags of the days to come look back to."""
    from bilevelax.tables.lags import TIMES

    tail = history.since(int(history.days.max()) - (TIMES + 1) * max(lags["days"]))
    return {f"tail_{name}": a.astype(float) for name, a in tail._asdict().items()}


class Model(NamedTuple):
    """A model folder: the rule, and how tables become its contexts."""

    folder: Path
    rule: Any
    schema: Any

    def tail(self) -> Any:
        """The last demands of training as a `History`, where lags need them."""
        if not self.schema.lags:
            return None
        from bilevelax.base.npz import read_arrays
        from bilevelax.tables.windows import History

        def shapes(headers: Any) -> dict[str, tuple[int, ...]]:
            rows = headers["tail_days"].shape[:1]
            return {"tail_days": rows, "tail_series": rows, "tail_y": (*rows, len(self.schema.targets))}

        names = ("tail_days", "tail_series", "tail_y")
        found = read_arrays(self.folder / "arrays.npz", names, shapes=shapes)
        return History(found["tail_days"].astype(int), found["tail_series"].astype(int), found["tail_y"])

    def conditional(self) -> Any:
        """The law of demand given contexts, on the rows that the folder keeps."""
        return self.rule._demand_given_contexts()

    def outlook(self, X: Any, orders: np.ndarray) -> Any:
        """The range of demand at each row and the chance to cover it."""
        from bilevelax.applications.newsvendor.outlook import outlook

        return outlook(self.conditional(), X.to_numpy(float), orders)


def load(folder: Path) -> Model:
    from bilevelax.sklearn.persist import load_newsvendor
    from bilevelax.tables.schema import Schema

    model, record = load_newsvendor(folder)
    if "schema" not in record:
        raise ValueError(
            f"{folder} was not written by `bilevelax newsvendor fit`: it has no schema of the columns. Fit again."
        )
    return Model(folder, model, Schema(**record["schema"]))


def judge(folder: Path, file: Path, room: Wanted | None = None, shift: float | None = None) -> JudgedModel:
    """Costs on the days of a file, against baselines fitted on the rows that the model keeps."""
    import numpy as np

    from bilevelax.cli._newsvendor_answers import answers_of
    from bilevelax.cli._newsvendor_capacity import Wanted, shelf_of
    from bilevelax.cli._newsvendor_later import drift, read_later
    from bilevelax.sklearn.compare import Outcome
    from bilevelax.sklearn.persist import kept_rows
    from bilevelax.tables.health import trained_on

    model = load(folder)
    rule, later = model.rule, read_later(model, file)
    notes = list(later.notes)
    if len(later.y) > JUDGED:
        notes.append(f"{JUDGED} of the {len(later.y)} rows are looked at, evenly spaced")
        later = later.take(np.linspace(0, len(later.y) - 1, JUDGED).astype(int))
    kept, X = kept_rows(folder, rule), later.X.to_numpy(float)
    own = trained_on(X, later.y, *kept)
    notes += [] if own else drift(model.conditional(), X, later.y, model.schema.targets)
    if len(kept[0]) == KEPT:
        notes.append(f"baselines were fitted on the last {KEPT} of the model's rows")
    others = fitted_baselines(model, kept)
    outcomes = {"robust": Outcome.of(rule, later.X, later.y)}
    outcomes |= {name: Outcome.of(baseline, X, later.y) for name, baseline in others.items()}
    room = room or Wanted()
    if room.is_asked():
        require_no_stock(model.schema)
        shelf = shelf_of(model, later.table, later.X, room, file)
        fit_in = lambda each: Outcome.at(shelf.split(each.orders), each.demand, X, rule)
        outcomes = {name: fit_in(each) for name, each in outcomes.items()}
    newsvendors = {"robust": rule, **others}
    found = evaluated(model, later, outcomes, newsvendors, file)
    return JudgedModel(found, model.schema, [*own, *later.health], notes, answers_of(model, later, found, shift))


def require_no_stock(schema: Any) -> None:
    if schema.lead_time:
        raise ValueError(
            "`evaluate --capacity` is not for a lead time: what was in stock on those days is not known. "
            "`order --capacity` splits orders of new days."
        )


def evaluated(model: Model, later: Any, outcomes: dict[str, Any], newsvendors: dict[str, Any], file: Path) -> Any:
    """What the page and the pictures are made of."""
    from bilevelax.sklearn.compare import tabulate
    from bilevelax.sklearn.evaluation import Evaluated
    from bilevelax.tables.dates import dates_of
    from bilevelax.tables.series import names_of

    schema, scales = model.schema, model.rule.move_scales_
    when = dates_of(later.table, schema.date, file, schema.day_first).to_numpy() if schema.date else None
    movable = [name for name, factor in zip(later.X, scales, strict=True) if factor > 0]
    table = tabulate(outcomes, outcomes["quantile"], "robust")
    X = later.X.to_numpy(float)
    series = names_of(schema.series["ids"], later.table).astype(str) if schema.series else None
    return Evaluated(table, newsvendors, X, when, schema.targets, movable, scales, model.conditional(), series)


def fitted_baselines(model: Model, kept: tuple[np.ndarray, np.ndarray]) -> dict[str, Any]:
    """In a long table, the same order every day is one for each product."""
    from bilevelax.run.records.progress import Progress
    from bilevelax.sklearn import WeightedSampleAverage, baselines
    from bilevelax.sklearn.conditional import Groups
    from bilevelax.tables.drivers import groups

    costs = model.rule.holding_cost, model.rule.backlog_cost
    others = baselines(*costs, random_state=0)
    if model.schema.series:
        others["quantile"] = WeightedSampleAverage(*costs, conditional=Groups(groups(model.schema)["product"]))
    with Progress(len(others), label="baselines") as bar:
        for done, (name, baseline) in enumerate(others.items()):
            bar.stage(done, name)
            baseline.fit(*kept)
        bar.update(len(others), {})
    return others


def require_drawable(out: Path) -> None:
    """Known before anything is computed."""
    if out.suffix.lower() not in (".html", ".png", ".svg", ".pdf"):
        raise ValueError(f"`--out` must end in .html, .png, .svg or .pdf. Got {str(out)!r}.")


def draw(judged: JudgedModel, file: Path, out: Path) -> Path:
    """Write the evaluation: a page where ``out`` ends in .html, else a picture."""
    from bilevelax.sklearn.evaluation_page import page
    from bilevelax.sklearn.plots import plot_orders
    from bilevelax.tables import drivers

    if out.suffix.lower() != ".html":
        return plot_orders(judged.evaluated, out)
    rule = judged.evaluated.rule
    price = f"{rule.penalty_:g}" if math.isfinite(rule.penalty_) else "none, forecasts are taken as right"
    told = [*judged.schema.report(), f"price of a wrong forecast (penalty): {price}", *judged.who_orders()]
    text = page(judged.evaluated, file.name, told, judged.told(), drivers.groups(judged.schema))
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(text, encoding="utf-8")
    return out
