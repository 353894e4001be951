"""Days on which demand was lost: what a column says of them, and a pile-up that looks like one."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from bilevelax.tables.demands import numbers_of

YES = ("1", "1.0", "true", "yes", "y", "x", "ja", "oui", "si", "soldout", "sold out")
NO = ("0", "0.0", "false", "no", "n", "", "nan", "none", "-", "nein", "non")
PILE = 0.05  # of the rows at the largest demand: sales may have ended at a stock
LEAST = 5  # rows


def mask(table: Any, columns: list[str], targets: list[str], y: np.ndarray, path: Any) -> np.ndarray:
    """(rows, targets): True where demand was at least what was sold.

    A column says yes or no, or holds the stock that could be sold: a day is sold out where sales reach it. One column
    counts for all products, else each product has its own, in the order of ``--target``.
    """
    if len(columns) not in (1, len(targets)):
        raise ValueError(
            f"`--stockout` must name one column, or one for each of {', '.join(targets)}. Got {', '.join(columns)}."
        )
    for name in columns:
        if name not in table.columns:
            raise ValueError(f"`--stockout` names {name!r}, which is no column of {path}.")
    own = columns if len(columns) == len(targets) else columns * len(targets)
    return np.column_stack([_sold_out(table[name], name, y[:, j], path) for j, name in enumerate(own)])


def _sold_out(column: Any, name: str, sold: np.ndarray, path: Any) -> np.ndarray:
    words = column.astype(object).where(column.notna(), "").astype(str).str.strip().str.lower()
    if words.isin((*YES, *NO)).all():
        return words.isin(YES).to_numpy()
    stock = numbers_of(column)
    bad = (stock.isna() & column.notna()).to_numpy()
    if bad.any():
        odd = bad & ~words.isin((*YES, *NO)).to_numpy()
        at = int(np.argmax(odd if odd.any() else bad))
        raise ValueError(
            f"Column {name!r} of {path} must say yes or no (1 or 0), or hold the stock of the day. "
            f"Got {column.iloc[at]!r} in row {at + 1}."
        )
    return sold >= stock.to_numpy(float) * (1 - 1e-9)  # not where the stock is missing


class Pile(NamedTuple):
    """Many days at exactly the largest demand of a product."""

    product: str
    top: float
    share: float


def piles(y: np.ndarray, targets: list[str]) -> list[Pile]:
    found = []
    for name, values in zip(targets, y.T, strict=True):
        top = float(values.max())
        share = float(np.mean(values == top))
        different = len(np.unique(values)) >= 2 * LEAST  # of few values one is the largest often
        if different and share >= PILE and share * len(values) >= LEAST:
            found.append(Pile(name, top, share))
    return found


def pile_findings(y: np.ndarray, targets: list[str]) -> list[str]:
    """Sales that ended at a stock? Asked before a model is fitted."""
    return [
        f"{name} is {top:.12g} on {share:.0%} of the rows, and never more: did it sell out? Then demand was "
        "higher: name the column that says so with --stockout"
        for name, top, share in piles(y, targets)
    ]


def chance_findings(y: np.ndarray, targets: list[str]) -> list[str]:
    """Nothing is known above a pile: chances to cover demand are told with it."""
    return [
        f"{name}: {share:.0%} of past days are at {top:.12g} and none is above. Where they sold out, demand was "
        f"higher, and the chance to cover it is less than told for orders of {top:.12g} and more"
        for name, top, share in piles(y, targets)
    ]
