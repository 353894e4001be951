"""What `update` does: the rows that a model keeps and newer ones, one fit with the same settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from bilevelax.cli._newsvendor_past import Past


class News(NamedTuple):
    """Old and new rows together."""

    past: Past
    new: int
    known: int  # rows of the file that the model has already
    notes: list[str]


def read_news(model: Any, file: Path) -> News:
    """The rows that the folder keeps, then those of the file that are new."""
    import numpy as np

    from bilevelax.cli._newsvendor_later import drift, read_later
    from bilevelax.sklearn.persist import kept_rows

    schema, later = model.schema, read_later(model, file)
    X, y = kept_rows(model.folder, model.rule)
    seen = {row.tobytes() for row in np.column_stack([X, y])}
    rows = np.column_stack([later.X.to_numpy(float), later.y])
    fresh = np.array([row.tobytes() not in seen for row in rows], bool)
    if not fresh.any():
        raise ValueError(
            f"{file} has no row that {model.folder} was not trained on. Give newer days with their demand."
        )
    told = drift(
        model.conditional(), rows[fresh, : X.shape[1]], later.y[fresh], schema.targets, None, "They are learnt now"
    )
    both = later.X.iloc[:0].reindex(range(len(X) + int(fresh.sum())))
    both[:] = np.concatenate([X, rows[fresh, : X.shape[1]]])
    learn_dates(schema, later.table, file)
    history = model.tail().then(later.history) if schema.lags else None
    past = Past(file, schema, both, np.concatenate([y, later.y[fresh]]), [], [], history)
    return News(past, int(fresh.sum()), int((~fresh).sum()), [*later.health, *later.notes, *told])


def learn_dates(schema: Any, table: Any, file: Path) -> None:
    """Months and the last day that the new rows add."""
    from bilevelax.tables.calendar import learn_calendar
    from bilevelax.tables.dates import dates_of

    if schema.date is None or schema.calendar is None:
        return
    newer = learn_calendar(dates_of(table, schema.date, file, schema.day_first), "plain")
    schema.calendar["months"] = sorted({*schema.calendar["months"], *newer["months"]})
    schema.calendar["last"] = max(schema.calendar["last"], newer["last"])


def refit(model: Any, past: Past, out: Path) -> None:
    """With the settings of the model: its penalty is kept, and so are the columns that may move."""
    from bilevelax.cli._newsvendor_options import told_in_option_names
    from bilevelax.cli._newsvendor_work import save
    from bilevelax.cli._terminal import keep_programs
    from bilevelax.sklearn import RobustNewsvendor

    keep_programs()
    settings = model.rule.get_params(deep=False)
    settings |= {"penalty": model.rule.penalty_, "perturb": model.rule.move_scales_, "cv": None}
    again = RobustNewsvendor(**settings)
    with told_in_option_names():
        again.fit(past.X, past.y[:, 0] if past.y.shape[1] == 1 else past.y)
    save(again, past, out)
