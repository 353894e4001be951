"""`--capacity` and `--size`: the room that the products of a day share, and orders that fit into it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from bilevelax.cli._newsvendor_prices import COST

if TYPE_CHECKING:
    import numpy as np

ATOMS = 100  # of the law of demand that a capacity is split by
SIZE = COST._replace(example="2")


class Room(NamedTuple):
    """Which day each row belongs to, the room of each day, and what a unit takes of it."""

    days: np.ndarray
    limits: np.ndarray
    sizes: np.ndarray  # (rows, products)

    def unit(self) -> str:
        return "" if (self.sizes == 1).all() else " of room"


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
        sizes = self.room.sizes.ravel()
        needed = least * np.bincount(days, sizes)
        if (needed > self.room.limits + 1e-9).any():
            day = int(np.argmax(needed - self.room.limits))
            orders_of_it = f"{np.bincount(days)[day]} orders of {least:g}"
            raise ValueError(
                f"`--minimum` asks for {needed[day]:g} units{self.room.unit()} on one day ({orders_of_it}), "
                f"and `--capacity` has room for {self.room.limits[day]:g}. Lower the minimum or leave products out."
            )
        costs = self.holding.ravel(), self.backlog.ravel()
        placed = split(orders.ravel(), self.laws, *costs, days, self.room.limits, least, sizes)
        return placed.reshape(orders.shape)


class Wanted(NamedTuple):
    """The options that say how much room there is."""

    capacity: str | None = None
    size: str | None = None

    def is_asked(self) -> bool:
        if self.size is not None and self.capacity is None:
            raise ValueError("`--size` says how much of `--capacity` a unit takes. Give `--capacity`, too.")
        return self.capacity is not None


def shelf_of(model: Any, table: Any, X: Any, wanted: Wanted, file: Path, stock: np.ndarray | None = None) -> Shelf:
    """For the rows of a file; ``stock`` (rows, products) meets demand before what is ordered does."""
    import numpy as np

    from bilevelax.sklearn._scored import costs_of

    schema, outputs = model.schema, model.rule.n_outputs_
    if schema.series is None and outputs == 1:
        raise ValueError(
            "`--capacity` is shared by products, and this model has one: fit with several --target, or --id."
        )
    room = room_of(schema, table, wanted, file)
    atoms = np.moveaxis(model.conditional().atoms(X.to_numpy(float), ATOMS), 1, 2)  # (rows, products, atoms)
    left = atoms if stock is None else atoms - stock[..., None]
    return Shelf(room, left.reshape(len(X) * outputs, ATOMS), *costs_of(model.rule, X, outputs))


def room_of(schema: Any, table: Any, wanted: Wanted, file: Path) -> Room:
    """Rows of a date share it where a row is a product; else each row has its own."""
    import numpy as np

    days = np.arange(len(table))
    if schema.series:
        dates = table[schema.date].astype(str) if schema.date else np.zeros(len(table))
        days = np.unique(dates, return_inverse=True)[1]
    return Room(days, capacity_of(table, str(wanted.capacity), days, file), sizes_of(schema, table, wanted.size, file))


def sizes_of(schema: Any, table: Any, option: str | None, file: Path) -> np.ndarray:
    """Room that a unit takes (rows, products): 1, by product from ``steak=2,fish=1``, or a column of a long table."""
    import numpy as np

    from bilevelax.cli._newsvendor_prices import named_numbers, number_of, require_known
    from bilevelax.tables.demands import numbers_of
    from bilevelax.tables.series import names_of

    shape = len(table), len(schema.targets)
    if option is None:
        return np.ones(shape)
    if "=" in option:
        found = named_numbers("size", option, SIZE)
        rows = names_of(schema.series["ids"], table).astype(str) if schema.series else None
        products = schema.targets if rows is None else [*dict.fromkeys([*schema.series["names"], *rows])]
        require_known("size", found, products)
        of = lambda product: number_of("size", product, found, products)
        if rows is None:
            return np.tile([of(product) for product in products], (len(table), 1))
        each = {product: of(product) for product in dict.fromkeys(rows)}
        return np.array([each[product] for product in rows]).reshape(shape)
    if option not in table.columns or shape[1] > 1:
        column = "" if shape[1] > 1 else f", or a column of {file}"
        raise ValueError(f"`--size` must be one for each product, such as steak=2,fish=1{column}. Got {option!r}.")
    values = numbers_of(table[option]).to_numpy(float)
    if not (np.isfinite(values) & (values > 0)).all():
        at = int(np.argmin(np.isfinite(values) & (values > 0)))
        raise ValueError(f"`--size` must be numbers > 0. Got {values[at]:g} in row {at + 1} of {file}.")
    return values.reshape(shape)


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
