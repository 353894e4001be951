"""`--capacity`: the room that the products of a day share, worked out once, and orders that fit into it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import numpy as np

ATOMS = 100  # of the law of demand that a capacity is split by


class Room(NamedTuple):
    """Which day each row belongs to, and the units of each day."""

    days: np.ndarray
    limits: np.ndarray


class Shelf(NamedTuple):
    """A room, and what its units are worth to each row and product."""

    room: Room
    laws: np.ndarray  # (rows * products, atoms), equally likely demands
    holding: np.ndarray  # (rows, products)
    backlog: np.ndarray

    def split(self, orders: np.ndarray, least: float = 0.0) -> np.ndarray:
        """Orders (rows, products) that fit, each of at least so many units."""
        import numpy as np

        from bilevelax.applications.newsvendor.capacity import split

        days, orders = np.repeat(self.room.days, orders.shape[1]), np.maximum(orders, least)
        needed = least * np.bincount(days)
        if (needed > self.room.limits + 1e-9).any():
            day = int(np.argmax(needed - self.room.limits))
            orders_of_it = f"{np.bincount(days)[day]} orders of {least:g}"
            raise ValueError(
                f"`--minimum` asks for {needed[day]:g} units on one day ({orders_of_it}), "
                f"and `--capacity` has room for {self.room.limits[day]:g}. Lower the minimum or leave products out."
            )
        costs = self.holding.ravel(), self.backlog.ravel()
        return split(orders.ravel(), self.laws, *costs, days, self.room.limits, least).reshape(orders.shape)


def shelf_of(model: Any, table: Any, X: Any, capacity: str, file: Path, stock: np.ndarray | None = None) -> Shelf:
    """For the rows of a file; ``stock`` (rows, products) meets demand before what is ordered does."""
    import numpy as np

    from bilevelax.sklearn._scored import costs_of

    schema, outputs = model.schema, model.rule.n_outputs_
    if schema.series is None and outputs == 1:
        raise ValueError(
            "`--capacity` is shared by products, and this model has one: fit with several --target, or --id."
        )
    room = room_of(schema, table, capacity, file)
    atoms = np.moveaxis(model.conditional().atoms(X.to_numpy(float), ATOMS), 1, 2)  # (rows, products, atoms)
    left = atoms if stock is None else atoms - stock[..., None]
    return Shelf(room, left.reshape(len(X) * outputs, ATOMS), *costs_of(model.rule, X, outputs))


def room_of(schema: Any, table: Any, capacity: str, file: Path) -> Room:
    """Rows of a date share it where a row is a product; else each row has its own."""
    import numpy as np

    days = np.arange(len(table))
    if schema.series:
        dates = table[schema.date].astype(str) if schema.date else np.zeros(len(table))
        days = np.unique(dates, return_inverse=True)[1]
    return Room(days, capacity_of(table, capacity, days, file))


def capacity_of(table: Any, option: str, day: np.ndarray, file: Path) -> np.ndarray:
    """Units of each day: a number, or a column that says the same on all rows of a day."""
    import numpy as np

    from bilevelax.tables.demands import numbers_of

    days = int(day.max()) + 1
    if option in table.columns:
        values = numbers_of(table[option]).to_numpy(float)
    else:
        try:
            values = np.full(len(day), float(option))
        except ValueError:
            raise ValueError(f"`--capacity` must be a number or a column of {file}. Got {option!r}.") from None
    if not (np.isfinite(values).all() and (values >= 0).all()):
        at = int(np.argmin(np.isfinite(values) & (values >= 0)))
        raise ValueError(f"`--capacity` must be numbers >= 0. Got {values[at]:g} in row {at + 1} of {file}.")
    limits = np.full(days, -np.inf)
    np.maximum.at(limits, day, values)
    differ = np.flatnonzero(values < limits[day])
    if len(differ):
        raise ValueError(
            f"Column {option!r} of {file} must be the same on all rows of a day. Row {differ[0] + 1} differs."
        )
    return limits
