"""Demand with side information: YAZ, bundled, and the bakery data, read from disk. Needs pandas."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from bilevelax.base.errors import require_package
from bilevelax.datasets.files import locate, verify

WEEKDAYS = ("MON", "TUE", "WED", "THU", "FRI", "SAT", "SUN")
BAKERY = {
    "bakery_data.csv.gz": "e0cb88268b1bd6ea09fa434cdb6071949c1b90f4e70ae50a6626a4a124e72625",
    "bakery_target.csv.gz": "51ed560522fbeca322bb1746402c43dd9ba86c6a8dd2b67beb930a4014e4240f",
}
OBTAIN = "it is part of the package ddop2, as ddop2/datasets/data/bakery_*.csv, compressed with gzip -n"


class Demand(NamedTuple):
    """Contexts and demands in the order of time, as data frames with the same rows."""

    X: Any  # numbers only: calendar columns are one-hot
    y: Any  # one column for each product
    table: Any  # what the file says, weekday corrected


def one_hot(table: Any, columns: tuple[str, ...], drop: tuple[str, ...] = ()) -> Any:
    """The numeric columns as floats and an indicator for each value of ``columns``."""
    pandas = require_package("pandas", "one_hot", "sklearn")
    rest = table.drop(columns=[*columns, *drop]).astype(float)
    indicators = pandas.get_dummies(table[list(columns)], columns=list(columns), dtype=float)
    return pandas.concat([rest, indicators], axis=1)


def _corrected(table: Any) -> Any:
    """``date`` as dates and ``weekday`` computed from them."""
    pandas = require_package("pandas", "load_yaz", "sklearn")
    date = pandas.to_datetime(table["date"], format="%Y-%m-%d")
    return table.assign(date=date, weekday=[WEEKDAYS[i] for i in date.dt.day_of_week])


def load_yaz(closed: bool = False) -> Demand:
    """Seven dishes of a restaurant on 765 days from 2013-10-04, with weather and calendar.

    Bundled with the package; origin and licence are in ``datasets/yaz/NOTICE.md``.

    Args:
        closed: keep the five days on which the restaurant was closed and demand is 0.
    """
    pandas = require_package("pandas", "load_yaz", "sklearn")
    folder = resources.files("bilevelax.datasets") / "yaz"
    with resources.as_file(folder / "yaz_data.csv") as data, resources.as_file(folder / "yaz_target.csv") as target:
        table, y = _corrected(pandas.read_csv(data)), pandas.read_csv(target)
    keep = (table["is_closed"] == 0) | closed
    table, y = table[keep].reset_index(drop=True), y[keep].reset_index(drop=True)
    # the year as a category: as a number, smooth rules would extrapolate it
    X = one_hot(table, ("weekday", "month", "year"), drop=("date",) if closed else ("date", "is_closed"))
    return Demand(X, y.astype(float), table)


def load_bakery(folder: str | Path | None = None, store: int | None = None, product: int | None = None) -> Demand:
    """Three products of 35 bakery stores, 127,575 rows, 2016 to 2019; checksums are verified.

    The file's ``weekday`` is one day late on every row; it is computed from ``date`` here.

    Args:
        folder: where bakery_data.csv.gz and bakery_target.csv.gz are; by default BILEVELAX_DATA.
        store, product: keep only these rows; then X has no such columns.
    """
    pandas = require_package("pandas", "load_bakery", "sklearn")
    paths = []
    for name, digest in BAKERY.items():
        path = locate(name, digest, OBTAIN) if folder is None else Path(folder).expanduser() / name
        if not path.is_file():
            raise ValueError(f"{name} is not in {folder}: {OBTAIN}.")
        verify(path, digest)
        paths.append(path)
    table, y = _corrected(pandas.read_csv(paths[0])), pandas.read_csv(paths[1])
    chosen = {"store": store, "product": product}
    for column, value in chosen.items():
        if value is not None:
            if value not in (known := sorted(set(table[column]))):
                raise ValueError(f"`{column}` of load_bakery must be one of {known}. Got {value!r}.")
            keep = (table[column] == value).to_numpy()
            table, y = table[keep], y[keep]
    order = table.sort_values("date", kind="stable").index
    table, y = table.loc[order].reset_index(drop=True), y.loc[order].reset_index(drop=True)
    categories = ("weekday", "month", *(name for name, value in chosen.items() if value is None))
    X = one_hot(
        table, categories, drop=("date", "year", *(name for name, value in chosen.items() if value is not None))
    )
    return Demand(X, y.astype(float), table)
