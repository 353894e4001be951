"""Past days as `fit` and `update` read them: rows with demand in the order of time, encoded."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import numpy as np


class Asked(NamedTuple):
    """What the options of `fit` say of the columns."""

    target: str
    date: str | None = None
    category: str | None = None
    dates: str = "season"
    ids: str | None = None
    stockout: str | None = None
    lags: str | None = None
    holidays: str | None = None
    lead_time: int = 0
    prices: Any = None  # what a wrong order costs


class Past(NamedTuple):
    """A file of past days, read and encoded."""

    file: Path
    schema: Any
    X: Any
    y: np.ndarray
    notes: list[str]
    health: list[str]
    history: Any = None  # demand by day and product, where there are dates
    sold_out: Any = None  # rows (and products) whose demand was at least what was sold


def read_past(file: Path, asked: Asked) -> Past:
    """Rows with known demand, in the order of time where there is a date."""
    from bilevelax.tables import demands, health
    from bilevelax.tables import schema as tables
    from bilevelax.tables.csv_files import read_told
    from bilevelax.tables.stockouts import pile_findings

    told = read_told(file)
    names = lambda option: [] if option is None else tables.named(option, told.table.columns)
    targets, ids, stockout = names(asked.target), names(asked.ids), names(asked.stockout)
    known = demands.targets_of(told.table, targets, file)
    schema = tables.learn_schema(
        known.table, targets, asked.date, file, names(asked.category), told.faults, ids, stockout
    )
    found = [*told.notes, *known.health, *health.date_findings(known.table, schema.date, schema.day_first)]
    found += health.repeated_findings(known.table, targets, known.rows)
    found += [] if stockout else pile_findings(known.y, targets)
    found += health.unused_findings(known.table, schema.ignored, known.rows)
    found += health.column_findings(known.table, schema.columns, known.y, targets)
    return encoded(file, schema, asked, known, found)


def encoded(file: Path, schema: Any, asked: Asked, known: Any, found: list[str]) -> Past:
    """The rows as numbers; the schema learns dates, products, lags and the lead time here."""
    from bilevelax.cli._newsvendor_prices import with_costs
    from bilevelax.tables import health, holidays, lags, series, stockouts
    from bilevelax.tables.calendar import learn_calendar
    from bilevelax.tables.schema import named

    require_what_it_needs(schema, asked)
    notes, history = list(known.notes), None
    schema.whole = bool((known.y % 1 == 0).all())
    if schema.date:
        known, when = in_time_order(known, schema, file, notes)
        if not asked.ids and not health.repeated_findings(known.table, schema.targets, known.rows):
            found += health.same_day_findings(when, known.rows)
        found += [] if asked.ids else health.long_findings(when, schema.columns, schema.date)
        schema.calendar = learn_calendar(when, "trend" if asked.dates == "auto" else asked.dates)
        schema.holidays = holidays.require_country(asked.holidays) if asked.holidays else None
    found += [] if asked.ids else health.zero_findings(known.y, schema.targets)
    if asked.ids:
        schema.series = series.learn_series(named(asked.ids, known.table.columns), known.table, known.y)
        if asked.prices is not None:
            with_costs(schema.series, asked.prices)
    sold_out = stockouts.mask(known.table, schema.stockout, schema.targets, known.y, file) if schema.stockout else None
    if schema.date:
        history = history_of(when, schema, known)
    if asked.lags:
        days = lags.days_asked(asked.lags, None if history is None else history.days)
        schema.lags = lags.learn_lags(days, known.y) if days else None
    X, filled = schema.encode(known.table, file, history)
    past = Past(file, schema, X, known.y, [*notes, *filled], found, history, sold_out)
    return protected(past, asked.lead_time) if asked.lead_time else past


def require_what_it_needs(schema: Any, asked: Asked) -> None:
    """Options that make no sense without a column of dates, or together."""
    for name in ("lags", "holidays", "lead_time"):
        if getattr(asked, name) not in (None, 0, "auto") and not schema.date:
            option = name.replace("_", "-")
            raise ValueError(f"`--{option}` needs a column of dates, one row a day: name it with --date.")
    if asked.ids and len(schema.targets) > 1:
        raise ValueError(
            "`--id` is for tables with one column of demand and a row for each product. Give one --target."
        )
    if asked.lead_time and asked.stockout:
        raise ValueError(
            "`--lead-time` and `--stockout` together are not supported: demand lost on one day is not "
            "known over several. Fit one without the other."
        )
    if not 0 <= asked.lead_time <= 60:
        raise ValueError(f"`--lead-time` must be a number of days from 0 to 60. Got {asked.lead_time}.")


def in_time_order(known: Any, schema: Any, file: Path, notes: list[str]) -> tuple[Any, Any]:
    """(the rows, their dates), sorted."""
    import numpy as np

    from bilevelax.tables.dates import dates_of

    when = dates_of(known.table, schema.date, file, schema.day_first)
    order = np.argsort(when.to_numpy(), kind="stable")
    if (np.diff(order) < 0).any():
        notes.append(f"rows were sorted by {schema.date}")
        table = known.table.iloc[order].reset_index(drop=True)
        known = known._replace(table=table, y=known.y[order], rows=known.rows[order])
        when = when.iloc[order].reset_index(drop=True)
    return known, when


def history_of(when: Any, schema: Any, known: Any) -> Any:
    from bilevelax.tables.windows import History

    return History.of(when, schema.numbers_of_series(known.table), known.y)


def protected(past: Past, lead_time: int) -> Past:
    """Demand over the protection period: the days until an order arrives and the day after, when the next one does."""
    import numpy as np

    from bilevelax.tables.windows import over_period

    past.schema.lead_time = lead_time
    y, missing = over_period(past.history, lead_time + 1)
    whole = np.isfinite(y).all(axis=1)
    if whole.sum() < 2:
        raise ValueError(f"{past.file} has no {lead_time + 1} days in a row: --lead-time {lead_time} needs them.")
    told = [f"demand is that of {lead_time + 1} days: the lead time and one day until the next order arrives"]
    told += [f"{missing} days inside have no row; they count as days without demand"] if missing else []
    return past._replace(X=past.X[whole].reset_index(drop=True), y=y[whole], notes=[*past.notes, *told])
