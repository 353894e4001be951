"""What `explain` does: an order against the mean order of past days, column by column."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import numpy as np

PAST = 32  # past days to compare with, evenly spaced
MOST_ROWS = 1000  # of a file


class Explained(NamedTuple):
    """Parts (rows, drivers, products) of orders: typical + their sum = order."""

    drivers: list[str]
    days: list[str]  # how each row is called
    values: list[list[str]]  # of each driver, row by row
    orders: np.ndarray  # (rows, products)
    typical: np.ndarray  # (products,)
    parts: np.ndarray
    notes: list[str]


def explain_file(model: Any, file: Path) -> Explained:
    """Why the rule orders what it does on the rows of a file."""
    import numpy as np

    from bilevelax.applications.newsvendor.shapley import shapley
    from bilevelax.sklearn.persist import kept_rows
    from bilevelax.tables import drivers
    from bilevelax.tables.csv_files import pandas, read_told
    from bilevelax.tables.dates import dates_of

    told, schema = read_told(file), model.schema
    if not len(told.table):
        raise ValueError(f"{file} has no rows below its header. Add one for each day to explain.")
    table = told.table.iloc[:MOST_ROWS]
    X, notes = schema.encode(table, file, model.tail())
    kept = kept_rows(model.folder, model.rule)[0]
    past = kept[np.linspace(0, len(kept) - 1, min(PAST, len(kept))).astype(int)]
    found = drivers.groups(schema)
    named = lambda values: pandas().DataFrame(values, columns=X.columns)
    rule = lambda values: np.asarray(model.rule.predict(named(values))).reshape(len(values), -1)
    contexts = X.to_numpy(float)
    parts = np.stack([shapley(rule, row, past, list(found.values())) for row in contexts])
    when = dates_of(table, schema.date, file, schema.day_first) if schema.date else None
    days = [f"{day:%Y-%m-%d}" for day in when] if when is not None else [f"row {i + 1}" for i in range(len(table))]
    values = [[drivers.value_of(name, schema, table, when, i) for name in found] for i in range(len(table))]
    return Explained(list(found), days, values, rule(contexts), rule(past).mean(axis=0), parts, [*told.notes, *notes])


def columns_of(explained: Explained, targets: list[str]) -> dict[str, Any]:
    """To be written beside the file: the typical order, the part of each driver, the order."""
    made: dict[str, Any] = {}
    for j, target in enumerate(targets):
        end = "" if len(targets) == 1 else f"_{target}"
        made[f"typical{end}"] = explained.typical[j].repeat(len(explained.orders)).round(6)
        made |= {f"by {name}{end}": explained.parts[:, g, j].round(6) for g, name in enumerate(explained.drivers)}
        made[f"order{end}"] = explained.orders[:, j].round(6)
    return made


def table_of(explained: Explained, row: int, target: int, title: str) -> Any:
    """One order for a terminal: drivers, largest first."""
    import numpy as np

    from bilevelax.base.text_table import Table, plain
    from bilevelax.tables.demands import printable

    parts = explained.parts[row, :, target]
    rows = [("typical order", "", plain(explained.typical[target]))]
    for g in np.argsort(-np.abs(parts), kind="stable"):
        rows.append(
            (
                printable(explained.drivers[g])[:30],
                printable(explained.values[row][g])[:24],
                plain(float(parts[g]), signed=True),
            )
        )
    rows.append(("order", "", plain(explained.orders[row, target])))
    return Table(title, ("", "value", "units"), rows)
