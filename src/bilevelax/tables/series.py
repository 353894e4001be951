"""Long tables: a row for each day and product, with columns that name the product (``--id store,item``)."""

from __future__ import annotations

from typing import Any

import numpy as np

from bilevelax.base.declared import list_of, number, record, text
from bilevelax.base.sentences import counted
from bilevelax.tables.words import levels

Series = dict[str, Any]  # as stored in a model

BETWEEN = " / "  # of the parts of a series' name
LEVEL = "typical demand of the product"
SHRINK = 5.0  # rows' worth of the mean of all: a product with few days borrows from the others
COSTS = {"holding": "cost of a unit left over", "backlog": "cost of a unit missing"}  # those that differ by product
DECLARED = record(
    {"ids": list_of(text(), least=1), "names": list_of(text(), least=1), "levels": list_of(number())},
    {name: list_of(number(1e-300), least=2) for name in COSTS},  # of each product, then of one that is new
)


def names_of(ids: list[str], table: Any) -> np.ndarray:
    """The name of each row's series: the words of its ids."""
    parts = []
    for name in ids:
        codes, words = levels(table[name])
        parts.append(np.array(words, dtype=object)[codes])
    joined = parts[0]
    for part in parts[1:]:
        joined = joined + BETWEEN + part
    return joined


def learn_series(ids: list[str], table: Any, y: np.ndarray) -> Series:
    """The series of a table with their typical demand: (sum + 5 m) / (days + 5), m the mean over all rows."""
    names, codes = np.unique(names_of(ids, table).astype(str), return_inverse=True)
    total, days = np.bincount(codes, y[:, 0]), np.bincount(codes)
    typical = (total + SHRINK * y[:, 0].mean()) / (days + SHRINK)
    return {"ids": ids, "names": [str(name) for name in names], "levels": [float(level) for level in typical]}


def numbers(series: Series, table: Any) -> np.ndarray:
    """The number of each row's series; -1 for one that is not known."""
    place = {name: i for i, name in enumerate(series["names"])}
    return np.array([place.get(str(name), -1) for name in names_of(series["ids"], table)], int)


def columns(series: Series, of: np.ndarray) -> tuple[dict[str, np.ndarray], list[str]]:
    """The typical demand of each row's series, that of all where it is new."""
    typical = np.array([*series["levels"], float(np.mean(series["levels"]))])
    new = int((of < 0).sum())
    told = f"{counted(new, 'row is', 'rows are')} of products not seen in training, which are taken for typical ones"
    costs = {column: np.array(series[name])[of] for name, column in COSTS.items() if name in series}
    return {LEVEL: typical[of], **costs}, [told] if new else []


def cost_columns(series: Series | None) -> list[str]:
    """Columns of costs that differ by product."""
    return [column for name, column in COSTS.items() if series and name in series]


def described(series: Series) -> str:
    told = f"{', '.join(series['ids'])}: one model for {len(series['names'])} products"
    return told + "".join(f", {column} by product" for column in cost_columns(series))
