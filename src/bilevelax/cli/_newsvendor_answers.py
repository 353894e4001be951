"""What `evaluate` says beside costs: service and its target, ranges that hold, each product, contexts that are off."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import numpy as np

SHOWN = 12  # products in a terminal
OF_PRODUCT = ("demand", "order", "cost", "service", "target")  # of each product, beside its name and days
SHIFTS = {"as seen": None, "too high": "mean", "noisy": "noise", "with outliers": "heavy_tails"}


class Answers(NamedTuple):
    """On later days."""

    target: float  # share of orders that should cover demand, mean over products
    achieved: float
    coverage: float  # share of demands inside the 90 % range
    products: list[dict[str, Any]]  # a row each
    shifts: list[dict[str, Any]]  # a row for each newsvendor: costs as contexts are moved


def answers_of(model: Any, later: Any, evaluated: Any, shift: float | None) -> Answers:
    """Of a model and its outcome on later rows."""
    import numpy as np

    from bilevelax.applications.newsvendor.outlook import inside
    from bilevelax.sklearn.evaluation import by_product, targets

    outcome = evaluated.outcome()
    achieved = float(np.mean(outcome.orders >= outcome.demand))
    seen = model.outlook(later.X, outcome.orders)
    shifts = [] if shift is None else shifted_costs(model, evaluated.methods, later, shift)
    by = by_product(evaluated)
    rows = [{"product": row.name, "days": row.rows} | {name: getattr(row, name) for name in OF_PRODUCT} for row in by]
    found = float(np.mean(targets(evaluated))), achieved, inside(seen, outcome.demand)
    return Answers(*found, rows if len(rows) > 1 else [], shifts)


def shifted_costs(model: Any, newsvendors: dict[str, Any], later: Any, size: float) -> list[dict[str, Any]]:
    """Costs where what is known of the columns that may move is off; demand stays."""
    import numpy as np

    from bilevelax.sklearn.compare import Outcome
    from bilevelax.sklearn.shift import shifted

    columns = [i for i, scale in enumerate(model.rule.move_scales_) if scale > 0]
    if not columns:
        raise ValueError("`--shift` moves the columns that may be off, and this model has none: see --perturb of fit.")
    if not (np.isfinite(size) and size > 0):
        raise ValueError(f"`--shift` must be a positive number of standard deviations, such as 1. Got {size:g}.")
    rows: list[dict[str, Any]] = [{"newsvendor": name} for name in newsvendors]
    for title, kind in SHIFTS.items():
        X = later.X.to_numpy(float)
        moved = X if kind is None else shifted(X, kind, size=size, columns=columns)
        for row, newsvendor in zip(rows, newsvendors.values(), strict=True):
            row[title] = float(Outcome.of(newsvendor, named(moved, later, newsvendor), later.y).costs.mean())
    return rows


def named(X: np.ndarray, later: Any, newsvendor: Any) -> Any:
    """With the names of the columns, where the newsvendor was fitted on them."""
    if not hasattr(newsvendor, "feature_names_in_"):
        return X
    from bilevelax.tables.csv_files import pandas

    return pandas().DataFrame(X, columns=later.X.columns)


def tables_of(answers: Answers) -> list[Any]:
    """For a terminal of 80 columns."""
    from bilevelax.base.text_table import Table, plain
    from bilevelax.tables.demands import printable

    made = []
    if answers.products:
        rows = [
            (
                printable(row["product"])[:24],
                *(plain(row[name]) for name in ("demand", "order", "cost")),
                *(f"{row[name]:.0%}" for name in ("service", "target")),
            )
            for row in answers.products[:SHOWN]
        ]
        more = len(answers.products) - len(rows)
        title = "Products, dearest first" + (f"; {more} more are in --json" if more else "")
        made.append(Table(title, ("", "demand", "order", "cost", "service", "target"), rows))
    if answers.shifts:
        rows = [(row["newsvendor"], *(plain(row[name]) for name in SHIFTS)) for row in answers.shifts]
        made.append(Table("Costs if what is known beforehand is off", ("", *SHIFTS), rows))
    return made


def lines_of(answers: Answers) -> list[str]:
    return [
        f"Service: orders covered demand on {answers.achieved:.0%} of the rows; the target is {answers.target:.0%}.",
        f"The 90 % range of demand held on {answers.coverage:.0%} of the rows.",
    ]
