"""Later days with their demand, as `evaluate` and `update` read them, and what they say of a model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from bilevelax.base.sentences import counted

if TYPE_CHECKING:
    import numpy as np

DRIFT = 2.0  # standard errors, each twice that of independent rows
FEWEST = 20  # rows that may speak of a drift


class Later(NamedTuple):
    """Rows of a file, encoded as a model asks for."""

    table: Any
    X: Any
    y: np.ndarray
    notes: list[str]
    health: list[str]
    history: Any = None

    def take(self, rows: Any) -> Later:
        table, X = (a.iloc[rows].reset_index(drop=True) for a in (self.table, self.X))
        return self._replace(table=table, X=X, y=self.y[rows])


def read_later(model: Any, file: Path) -> Later:
    """Rows with demand: that of the protection period under a lead time, the estimated one on days that sold out."""
    from bilevelax.tables.csv_files import read_told
    from bilevelax.tables.dates import dates_of
    from bilevelax.tables.demands import targets_of
    from bilevelax.tables.windows import History

    schema, told = model.schema, read_told(file)
    known, history = targets_of(told.table, schema.targets, file), None
    if schema.date and (schema.lags or schema.lead_time) and schema.date in known.table.columns:
        when = dates_of(known.table, schema.date, file, schema.day_first)
        history = History.of(when, schema.numbers_of_series(known.table), known.y)
    X, notes = schema.encode(known.table, file, model.tail().then(history) if schema.lags else None)
    health = [*told.notes, *known.health]
    later = Later(known.table, X, known.y, [*known.notes, *notes], health, history)
    return with_demand(model, over_the_period(later, schema.lead_time), file)


def over_the_period(later: Later, lead_time: int) -> Later:
    if not lead_time:
        return later
    import numpy as np

    from bilevelax.tables.windows import over_period

    y, _ = over_period(later.history, lead_time + 1)
    whole = np.flatnonzero(np.isfinite(y).all(axis=1))
    told = f"demand is that of {lead_time + 1} days, and orders are the level that stock is filled up to"
    return later._replace(y=y, notes=[*later.notes, told]).take(whole)


def with_demand(model: Any, later: Later, file: Path) -> Later:
    """What was asked for on days that sold out, from the law of demand beyond what was sold."""
    import numpy as np

    from bilevelax.applications.newsvendor import censored
    from bilevelax.tables import stockouts

    columns = model.schema.stockout
    if not columns:
        return later
    if any(name not in later.table.columns for name in columns):
        note = f"{file} has no column {columns[0]}, so what was sold counts as the demand"
        return later._replace(notes=[*later.notes, note])
    lost = stockouts.mask(later.table, columns, model.schema.targets, later.y, file)
    y = censored.beyond_sales(model.conditional(), later.X.to_numpy(float), later.y, lost)
    sold_out = counted(int(lost.any(axis=1).sum()), "row")
    note = f"{sold_out} sold out; the demand there is estimated from past days that sold more"
    return later._replace(y=np.asarray(y), notes=[*later.notes, note])


REFIT = "Refit with newer rows: bilevelax newsvendor update"
RECENT = 28  # rows at the end of a file, or a twentieth of it
OLD_ROWS = "The rule learns from all rows alike: try --dates auto, or leave old rows out"


def recent_drift(model: Any, past: Any) -> list[str]:
    """Whether the last rows of training differ from the others; no row speaks for itself."""
    import numpy as np

    from bilevelax.applications.newsvendor.weights import Conditional

    n = max(RECENT, len(past.y) // 20)
    conditional = getattr(model, "conditional_", None)
    if not isinstance(conditional, Conditional) or conditional.votes_for_itself or len(past.y) < 4 * n:
        return []
    rows = np.arange(len(past.y) - n, len(past.y))
    X = past.X.to_numpy(float)[rows]
    return drift(conditional, X, past.y[rows], past.schema.targets, rows, OLD_ROWS)


def drift(
    conditional: Any, X: np.ndarray, y: np.ndarray, names: list[str], own: Any = None, advice: str = REFIT
) -> list[str]:
    """Whether demand is higher or lower than on past days like these: the mean place of demands in their laws.

    Places P(D <= y | xi) are uniform where nothing has changed, with mean 1/2 and variance 1/12.
    """
    import numpy as np

    from bilevelax.applications.newsvendor.outlook import place_of

    if len(y) < FEWEST:
        return []
    off, told = DRIFT * 2 * np.sqrt(1 / (12 * len(y))), []
    means = place_of(conditional, X, y, own).mean(axis=0)
    for way, found in (("above", means > 0.5 + off), ("below", means < 0.5 - off)):
        if found.any():
            where = " to ".join(dict.fromkeys(f"{end(means[found]):.0%}" for end in (np.min, np.max)))
            told.append(
                f"{', '.join(np.array(names)[found])}: demand of the last {len(y)} rows is {way} that of earlier days "
                f"like them (a typical one lies at {where} of their range, not at 50%). {advice}"
            )
    return told
