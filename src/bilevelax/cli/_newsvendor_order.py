"""What `order` does, apart from how it tells it: orders for new days, and how sure they are."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from bilevelax.cli._newsvendor_capacity import Room, Wanted, shelf_of
from bilevelax.cli._newsvendor_options import told_in_option_names
from bilevelax.cli._newsvendor_work import Model, load

if TYPE_CHECKING:
    import numpy as np

SHOWN = 10  # rows of a table in a terminal


class Wishes(NamedTuple):
    """What the options of `order` ask for."""

    pack: float | None = None
    minimum: float = 0.0
    on_hand: str | None = None
    on_order: str | None = None
    room: Wanted = Wanted()


class Ordered(NamedTuple):
    """Orders (rows, products) for the rows of a file."""

    model: Model
    table: Any
    X: Any
    orders: np.ndarray
    outlook: Any  # None where the model keeps no rows
    notes: list[str]

    def columns(self) -> dict[str, np.ndarray]:
        """Name: values, to be written beside the columns of the file."""
        import numpy as np

        targets = self.model.schema.targets
        made = {}
        for j, target in enumerate(targets):
            end = "" if len(targets) == 1 else f"_{target}"
            made[f"order{end}"] = self.orders[:, j]
            if self.outlook is not None:
                for name, values in zip(("low", "middle", "high"), self.outlook[:3], strict=True):
                    made[f"demand_{NAMES[name]}{end}"] = np.round(values[:, j], 6)
                made[f"chance{end}"] = np.round(self.outlook.chance[:, j], 4)
        return made


NAMES = {"low": "5", "middle": "50", "high": "95"}  # per cent


def orders_for(folder: Path, file: Path, wishes: Wishes) -> Ordered:
    """Orders for the rows of a file."""
    from bilevelax.tables.csv_files import read_told
    from bilevelax.tables.stockouts import chance_findings

    model, told = load(folder), read_told(file)
    if not len(told.table):
        raise ValueError(f"{file} has no rows below its header. Add one for each day to order for.")
    X, notes = model.schema.encode(told.table, file, model.tail())
    with told_in_option_names():
        orders = model.rule.predict(X).reshape(len(X), -1)
    pack = 1.0 if wishes.pack is None and model.schema.whole else wishes.pack
    least, room = least_order(pack, wishes.minimum), None
    stock = stock_of(told.table, model.schema, wishes, file)
    orders = (orders - stock).clip(0) if stock is not None else orders
    if wishes.room.is_asked():
        shelf = shelf_of(model, told.table, X, wishes.room, file, stock)
        orders, room = shelf.split(orders, least), shelf.room
    orders = in_packs(orders, pack, wishes.minimum, room)
    seen = model.outlook(X, orders if stock is None else orders + stock)
    unknown = chance_findings(model.conditional().y_, model.schema.targets)
    return Ordered(model, told.table, X, orders, seen, [*told.notes, *notes, *unknown])


def stock_of(table: Any, schema: Any, wishes: Wishes, file: Path) -> np.ndarray | None:
    """What is there or on its way (rows, products): a base-stock order fills up to the demand of the protection period.

    Where a row has several products, each has columns of its own: on_hand_steak.
    """
    import numpy as np

    from bilevelax.tables.demands import numbers_of

    if not schema.lead_time:
        if wishes.on_hand or wishes.on_order:
            raise ValueError("`--on-hand` and `--on-order` are for models fitted with --lead-time.")
        return None
    total = np.zeros((len(table), len(schema.targets)))
    asked = {"on-hand": wishes.on_hand or "on_hand", "on-order": wishes.on_order or "on_order"}
    for (option, stem), (j, target) in itertools.product(asked.items(), enumerate(schema.targets)):
        name = stem if len(schema.targets) == 1 else f"{stem}_{target}"
        if name not in table.columns:
            raise ValueError(
                f"{file} has no column {name!r}: orders with a lead time need what is in stock and what is on its way, "
                f"0 where there is none. Add it, or name another with --{option}."
            )
        values = numbers_of(table[name]).to_numpy(float)
        if not np.isfinite(values).all():
            at = int(np.argmin(np.isfinite(values)))
            raise ValueError(f"Column {name!r} of {file} must hold a number in every row. Row {at + 1} has none.")
        total[:, j] += values
    return total


def least_order(pack: float | None, minimum: float) -> float:
    """The units that an order has at least: ``minimum``, in whole packs where there is a pack."""
    if not (math.isfinite(minimum) and minimum >= 0):
        raise ValueError(f"`--minimum` must be a number >= 0. Got {minimum:g}.")
    if pack is not None and not (math.isfinite(pack) and pack >= 0):
        raise ValueError(f"`--pack` must be a positive number of units, or 0 for any amount. Got {pack:g}.")
    return math.ceil(minimum / pack - 1e-9) * pack if pack else minimum


def in_packs(orders: np.ndarray, pack: float | None, minimum: float, room: Room | None = None) -> np.ndarray:
    """Orders of at least ``minimum``, in whole packs: the nearest number of them that is enough for the minimum.

    Without a pack, or with one of 0 units, orders are as they were computed. Under a capacity the packs of a day fit
    into its room.
    """
    import numpy as np

    least = least_order(pack, minimum)
    if not pack:
        return np.maximum(orders, least) if least else orders
    nearest = np.floor(orders / pack + 0.5)
    nearest = nearest if room is None else packs_within(nearest, orders / pack, room, pack)
    packs = np.maximum(nearest * pack, least)
    return packs.astype(int) if float(pack).is_integer() else packs


def packs_within(nearest: np.ndarray, wanted: np.ndarray, room: Room, pack: float) -> np.ndarray:
    """The nearest whole numbers, or where a day has no room for them those below, and above where most is missing."""
    import numpy as np

    packs, limits = nearest.copy(), room.limits / pack + 1e-9
    for day in np.flatnonzero(np.bincount(room.days, (room.sizes * nearest).sum(axis=1)) > limits):
        rows = np.flatnonzero(room.days == day)
        below, sizes = np.floor(wanted[rows] + 1e-9), room.sizes[rows].ravel()
        left, up = limits[day] - (room.sizes[rows] * below).sum(), np.zeros(below.size)
        for place in np.argsort(-(wanted[rows] - below).ravel(), kind="stable"):
            if left < sizes.min():
                break
            if sizes[place] <= left:
                up[place], left = 1, left - sizes[place]
        packs[rows] = below + up.reshape(below.shape)
    return packs


def shown(ordered: Ordered) -> Any:
    """The first orders as a table for a terminal of 80 columns."""
    from bilevelax.base.text_table import Table, plain
    from bilevelax.tables.demands import printable

    schema, rows = ordered.model.schema, []
    amount = lambda value: f"{value:,.0f}" if float(value).is_integer() else plain(value)  # whole units as such
    for i in range(len(ordered.orders)):
        for j, target in enumerate(schema.targets):
            what = [] if len(schema.targets) == 1 else [printable(target)[:16]]
            if schema.series:
                what = [printable(" / ".join(str(ordered.table[name].iloc[i]) for name in schema.series["ids"]))[:24]]
            day = str(ordered.table[schema.date].iloc[i])[:10] if schema.date else str(i + 1)
            sure = [amount(values[i, j]) for values in ordered.outlook[:3]] if ordered.outlook is not None else []
            sure += [f"{ordered.outlook.chance[i, j]:.0%}"] if ordered.outlook is not None else []
            rows.append((day, *what, amount(ordered.orders[i, j]), *sure))
            if len(rows) == SHOWN:
                break
        if len(rows) == SHOWN:
            break
    product = ("product",) if schema.series or len(schema.targets) > 1 else ()
    heads = ("demand 5 %", "50 %", "95 %", "covers") if ordered.outlook is not None else ()
    return Table("Orders", ("day" if schema.date else "row", *product, "order", *heads), rows)
