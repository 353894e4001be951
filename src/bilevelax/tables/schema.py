"""From a table to contexts and demands: dates, categories, missing values, and a report of all of it."""

from __future__ import annotations

import csv
import dataclasses
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from bilevelax.base.declared import either, integer, list_of, map_of, number, one_of, record, text
from bilevelax.base.sentences import counted
from bilevelax.tables import calendar as calendars
from bilevelax.tables import holidays as holiday_columns
from bilevelax.tables import lags as lag_columns
from bilevelax.tables import series as products
from bilevelax.tables.columns import MANY_VALUES
from bilevelax.tables.csv_files import pandas, shown
from bilevelax.tables.dates import date_column, dates_of, reads_day_first
from bilevelax.tables.demands import numbers_of, printable
from bilevelax.tables.windows import History, days_of
from bilevelax.tables.words import MISSING_CATEGORY, levels

TOO_MANY = 50  # different words in a column that is then taken for an identifier
MOST_NAMED = 1_000  # categories where `--category` asks for them
THINGS = "store|shop|item|product|article|branch|department|dept|warehouse|filiale|artikel|produkt|markt|laden|lager"
NAMES_ONE = re.compile(
    rf"(^|[_\s-])(id|ids|code|sku|plz|zip|({THINGS})([_\s-]?(id|no|nr|nbr|num|number|nummer))?)$", re.IGNORECASE
)


YES_NO = one_of(True, False)
NUMBER = record({"kind": one_of("number"), "fill": number(), "gaps": YES_NO, "many": YES_NO})
CATEGORY = record({"kind": one_of("category"), "values": list_of(text())})


def _column(how: Any, where: str) -> None:
    record({"kind": one_of("number", "category")}, others=True)(how, where)
    (NUMBER if how["kind"] == "number" else CATEGORY)(how, where)


DECLARED = record(  # a `Schema` that was saved
    {
        "targets": list_of(text(), least=1),
        "date": either(text(), one_of(None)),
        "columns": map_of(text(), _column),
        "ignored": map_of(text(), text()),
        "day_first": YES_NO,
    },
    {
        "calendar": either(calendars.DECLARED, one_of(None)),
        "holidays": either(text(r"[A-Za-z]{2,3}(-[A-Za-z0-9]{1,5})?"), one_of(None)),
        "lags": either(lag_columns.DECLARED, one_of(None)),
        "series": either(products.DECLARED, one_of(None)),
        "stockout": list_of(text()),
        "lead_time": integer(0, 400),
        "whole": YES_NO,
    },
)


@dataclasses.dataclass
class Schema:
    """How the columns of a table become numbers; learnt once, applied to every later table."""

    targets: list[str]
    date: str | None
    columns: dict[str, dict[str, Any]]  # name: {"kind": "number" | "category", ...}
    ignored: dict[str, str]  # name: why
    day_first: bool = False
    calendar: calendars.Calendar | None = None
    holidays: str | None = None  # a country's code
    lags: lag_columns.Lags | None = None
    series: products.Series | None = None  # of a long table
    stockout: list[str] = dataclasses.field(default_factory=list)  # columns that tell of lost demand
    lead_time: int = 0  # days until an order arrives
    whole: bool = False  # demand was always a whole number

    def features(self) -> list[str]:
        """Names of the encoded columns; costs come first, so that their numbers stay if others are left out."""
        names = [*products.cost_columns(self.series), *(calendars.names(self.calendar) if self.date else [])]
        names += holiday_columns.NAMES if self.holidays else ()
        for name, how in self.columns.items():
            if how["kind"] == "number":
                names += [name, f"{name}={MISSING_CATEGORY}"] if how["gaps"] else [name]
            else:
                names += [f"{name}={value}" for value in how["values"]]
        return [*names, *([products.LEVEL] if self.series else []), *lag_columns.names(self.lags, self.targets)]

    def movable(self, wanted: list[str] | None) -> list[str]:
        """Columns that the adversary may move: numbers with many values, or those asked for."""
        if wanted is None:
            return [name for name, how in self.columns.items() if how["kind"] == "number" and how["many"]]
        for name in wanted:
            if self.columns.get(name, {}).get("kind") != "number":
                numbers = [name for name, how in self.columns.items() if how["kind"] == "number"]
                known = ", ".join(map(printable, numbers)) or "none"
                raise ValueError(f"`--perturb` names {name!r}, which is no column of numbers; those are {known}.")
        return wanted

    def encode(self, table: Any, path: Any, history: History | None = None) -> tuple[Any, list[str]]:
        """(numbers as a data frame, what was filled in or unknown); ``history``: the demands that lags look back to."""
        names = self.features()
        whole = np.empty((len(names), len(table)))  # of a million rows there is no second copy
        numbers = dict(zip(names, whole, strict=True))
        notes: list[str] = []
        self._require_columns(table, path)
        for columns, note in self._parts(table, path, history):
            for column, values in columns.items():
                numbers[column][:] = values
            notes += note
        return pandas().DataFrame(whole.T, columns=names, copy=False), notes

    def _parts(self, table: Any, path: Any, history: History | None) -> Iterator[tuple[dict[str, Any], list[str]]]:
        """Encoded columns with what to tell of them, part by part."""
        when = dates_of(table, self.date, path, self.day_first) if self.date else None
        if when is not None and self.date:
            unseen = calendars.unseen(when, self.calendar, self.date)
            yield calendars.columns(when, self.calendar), unseen
            if self.holidays:
                yield holiday_columns.columns(when, self.holidays), []
        for name, how in self.columns.items():
            yield (_numbers if how["kind"] == "number" else _indicators)(table[name], name, how, path)
        series = self.numbers_of_series(table)
        if self.series:
            yield products.columns(self.series, series)
        if self.lags:
            if history is None or when is None:
                raise ValueError(f"Lags need dates and past demand, which {path} does not have. Fit without --lags.")
            yield lag_columns.columns(self.lags, self.targets, history, days_of(when), series)

    def numbers_of_series(self, table: Any) -> np.ndarray:
        """Which series each row belongs to; -1 for one that is new, 0 where there is one only."""
        return products.numbers(self.series, table) if self.series else np.zeros(len(table), int)

    def _require_columns(self, table: Any, path: Any) -> None:
        ids = self.series["ids"] if self.series else []
        for name in [*([self.date] if self.date else []), *ids, *self.columns]:
            if name not in table.columns:
                raise ValueError(f"{path} has no column {name!r}, which the model was trained on. Add it.")

    def report(self) -> list[str]:
        """One line for each column: how it is used."""
        read = f"{calendars.described(self.calendar)}{', day first' * self.day_first}"
        read += f", public holidays of {self.holidays}" if self.holidays else ""
        lines = [f"{self.date}: {read}"] if self.date else []
        for name, how in self.columns.items():
            if how["kind"] == "number":
                gaps = f", missing values become {how['fill']:g}" if how["gaps"] else ""
                lines.append(f"{name}: number{gaps}")
            else:
                lines.append(f"{name}: category with {len(how['values'])} values")
        lines += [products.described(self.series)] if self.series else []
        lines += [f"past demand: {', '.join(lag_columns.names(self.lags, self.targets))}"] if self.lags else []
        return lines + [f"{name}: not used, {why}" for name, why in self.ignored.items()]


def _numbers(column: Any, name: str, how: dict[str, Any], path: Any) -> tuple[dict[str, np.ndarray], list[str]]:
    values = numbers_of(column)
    bad = (values.isna() & column.notna()).to_numpy()
    if bad.any():
        at = int(np.argmax(bad))
        raise ValueError(f"Column {name!r} of {path} must hold numbers. Got {shown(column.iloc[at])} in row {at + 1}.")
    gaps = (~np.isfinite(values.to_numpy(float))).astype(float)
    made = {name: np.where(gaps > 0, how["fill"], values.to_numpy(float))}
    if how["gaps"]:
        made[f"{name}={MISSING_CATEGORY}"] = gaps
    return made, [f"{name}: {counted(int(gaps.sum()), 'missing value')} became {how['fill']:g}"] if gaps.any() else []


def _indicators(column: Any, name: str, how: dict[str, Any], path: Any) -> tuple[dict[str, np.ndarray], list[str]]:
    codes, words = levels(column)
    at = {value: np.isin(codes, [i for i, word in enumerate(words) if word == value]) for value in how["values"]}
    new = sorted(set(words) - set(how["values"]))
    rows = len(codes) - int(sum(inside.sum() for inside in at.values()))
    shown = ", ".join(new[:3]) + (", ..." if len(new) > 3 else "")
    told = f"{name}: {counted(rows, 'row')} with values not seen in training ({shown}): taken as none of the known"
    notes = [told] if new else []
    return {f"{name}={value}": inside for value, inside in at.items()}, notes


def _use(column: Any, name: str, asked: bool) -> dict[str, Any] | str:
    """How a column is used, or why it is not."""
    different = column.nunique(dropna=False)
    if different < 2:
        return "it is constant"
    number = pandas().api.types.is_numeric_dtype(column)
    if number and not asked and not (different <= TOO_MANY and are_names(column, name)):
        values = column.to_numpy(float)
        finite = values[np.isfinite(values)]
        if not len(finite):
            return "it holds no finite number"
        gaps, many = len(finite) < len(values), bool(different > MANY_VALUES)
        return {"kind": "number", "fill": float(np.median(finite)), "gaps": gaps, "many": many}
    if different > (MOST_NAMED if asked else TOO_MANY):
        return f"{different} different words look like an identifier"
    return {"kind": "category", "values": sorted(set(levels(column)[1]))}


def are_names(column: Any, name: str) -> bool:
    """Whether whole numbers are names: a store's number is none to compute with."""
    values = column.dropna().to_numpy(float)
    return bool(NAMES_ONE.search(str(name))) and bool((values % 1 == 0).all())


def learn_schema(
    table: Any,
    targets: list[str],
    date: str | None,
    path: Any,
    category: Any = (),
    faults: Any = None,
    ids: Any = (),
    unknown: Any = (),
) -> Schema:
    """Decide how each column is used; those of ``category`` hold names, whatever they look like.

    Args:
        table, path: the file.
        targets, date: columns of demand and dates; None: by its name.
        category: columns whose numbers are names.
        faults: those of `read_told`: a column of numbers with words in it is used as names only.
        ids: columns that name the product of a row.
        unknown: columns that nobody knows before the day.
    """
    date = date_column(table) if date is None else date
    if date is not None and date not in table.columns:
        raise ValueError(f"{path} has no column {date!r}, which holds the dates: name it with --date.")
    for name in (*category, *ids):
        if name not in table.columns or name in targets:
            option = "category" if name in category else "id"
            raise ValueError(f"`--{option}` names {name!r}, which is no column of {path} beside the demand.")
    day_first = date is not None and reads_day_first(table[date])
    columns: dict[str, dict[str, Any]] = {}
    ignored: dict[str, str] = {}
    for name in table.columns:
        if name not in (*targets, *unknown) and name != date:
            if faults and name in faults and name not in (*category, *ids):
                raise ValueError(faults[name])
            many = name in ids and table[name].nunique(dropna=False) > TOO_MANY
            as_names = name in (*category, *ids)
            used = "but the typical demand of its products is" if many else _use(table[name], name, as_names)
            if isinstance(used, str):
                ignored[name] = used
            else:
                columns[name] = used
    if not columns and date is None:
        raise ValueError(f"{path} has no column that could be used beside {', '.join(targets)}.")
    schema = Schema(targets, date, columns, ignored, day_first, stockout=list(unknown))
    twice = [name for name, times in Counter(schema.features()).items() if times > 1]
    if twice:
        raise ValueError(f"Two columns of {path} would both become {twice[0]!r}. Rename one of them.")
    return schema


def named(option: str, columns: Any) -> list[str]:
    """The columns that an option names: one whole name, or names separated by commas (quoted if they hold one)."""
    if option in columns:
        return [option]
    names = next(csv.reader([option], skipinitialspace=True), [])
    return list(dict.fromkeys(name.strip() for name in names if name.strip()))
