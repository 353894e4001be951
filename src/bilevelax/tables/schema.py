"""From a table to contexts and demands: dates, categories, missing values, and a report of all of it."""

from __future__ import annotations

import csv
import dataclasses
import re
from collections import Counter
from typing import Any

import numpy as np

from bilevelax.base.declared import either, list_of, map_of, number, one_of, record, text
from bilevelax.tables import calendar as calendars
from bilevelax.tables.columns import MANY_VALUES
from bilevelax.tables.csv_files import pandas, shown
from bilevelax.tables.dates import date_column, dates_of, reads_day_first
from bilevelax.tables.health import demand_findings, launch_findings

MISSING_CATEGORY = "(missing)"
TOO_MANY = 50  # different words in a column that is then taken for an identifier
MOST_NAMED = 1_000  # categories where `--category` asks for them
NAMES_ONE = re.compile(r"(^|[_\s-])(id|ids|code|sku|store|shop|item|product|article|branch|plz|zip)$", re.IGNORECASE)


def numbers_of(column: Any) -> Any:
    """The column's numbers; not a number where there is none."""
    try:
        return pandas().to_numeric(column, errors="coerce")
    except OverflowError:  # integers of hundreds of digits among texts: as texts they become infinite
        return pandas().to_numeric(column.astype(str), errors="coerce")


def targets_of(table: Any, names: list[str], path: Any) -> tuple[Any, np.ndarray, list[str]]:
    """(rows with known demand, demand (rows, targets), what was left out)."""
    for name in names:
        if name not in table.columns:
            raise ValueError(f"{path} has no column {name!r}; it has {', '.join(map(printable, table.columns))}.")
    numbers = {}
    for name in names:
        numbers[name] = numbers_of(table[name])
        bad = (numbers[name].isna() & table[name].notna()).to_numpy() | np.isinf(numbers[name].to_numpy(float))
        if bad.any():
            at = int(np.argmax(bad))
            raise ValueError(
                f"Column {name!r} of {path} must hold numbers. Got {shown(table[name].iloc[at])} in row {at + 1}."
            )
    y = pandas().DataFrame(numbers)
    known = y.notna().all(axis=1).to_numpy()
    notes = [f"{int((~known).sum())} rows without demand were left out"] if not known.all() else []
    if known.sum() < 2:
        raise ValueError(f"{path} has {int(known.sum())} row(s) with known demand: at least 2 are needed.")
    y_known, rows = y[known].to_numpy(float), np.flatnonzero(known) + 1
    kept = table[known].reset_index(drop=True)
    kept.attrs["health"] = [*table.attrs.get("notes", []), *launch_findings(y, known)]
    kept.attrs["health"] += demand_findings(y_known, names, rows)
    kept.attrs["rows"] = rows
    return kept, y_known, notes


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
    {"calendar": either(calendars.DECLARED, one_of(None))},
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

    def features(self) -> list[str]:
        """Names of the encoded columns."""
        names = calendars.names(self.calendar) if self.date else []
        for name, how in self.columns.items():
            if how["kind"] == "number":
                names += [name, f"{name}={MISSING_CATEGORY}"] if how["gaps"] else [name]
            else:
                names += [f"{name}={value}" for value in how["values"]]
        return names

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

    def encode(self, table: Any, path: Any) -> tuple[Any, list[str]]:
        """(numbers as a data frame, what was filled in or unknown)."""
        names = self.features()
        whole = np.empty((len(names), len(table)))  # of a million rows there is no second copy
        numbers = dict(zip(names, whole, strict=True))
        notes: list[str] = []
        self._require_columns(table, path)
        if self.date:
            when = dates_of(table, self.date, path, self.day_first)
            for name, values in calendars.columns(when, self.calendar).items():
                numbers[name][:] = values
            notes += calendars.unseen(when, self.calendar, self.date)
        for name, how in self.columns.items():
            encode = _numbers if how["kind"] == "number" else _indicators
            columns, note = encode(table[name], name, how, path)
            for column, values in columns.items():
                numbers[column][:] = values
            notes += note
        return pandas().DataFrame(whole.T, columns=names, copy=False), notes

    def _require_columns(self, table: Any, path: Any) -> None:
        for name in [*([self.date] if self.date else []), *self.columns]:
            if name not in table.columns:
                raise ValueError(f"{path} has no column {name!r}, which the model was trained on. Add it.")

    def report(self) -> list[str]:
        """One line for each column: how it is used."""
        read = f"{calendars.described(self.calendar)}{', day first' * self.day_first}"
        lines = [f"{self.date}: {read}"] if self.date else []
        for name, how in self.columns.items():
            if how["kind"] == "number":
                gaps = f", missing values become {how['fill']:g}" if how["gaps"] else ""
                lines.append(f"{name}: number{gaps}")
            else:
                lines.append(f"{name}: category with {len(how['values'])} values")
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
    return made, [f"{name}: {int(gaps.sum())} missing values became {how['fill']:g}"] if gaps.any() else []


def _indicators(column: Any, name: str, how: dict[str, Any], path: Any) -> tuple[dict[str, np.ndarray], list[str]]:
    codes, words = _levels(column)
    at = {value: np.isin(codes, [i for i, word in enumerate(words) if word == value]) for value in how["values"]}
    new = sorted(set(words) - set(how["values"]))
    rows = len(codes) - int(sum(inside.sum() for inside in at.values()))
    shown = ", ".join(new[:3]) + (", ..." if len(new) > 3 else "")
    notes = (
        [f"{name}: {rows} rows with values not seen in training ({shown}) count as none of the known"] if new else []
    )
    return {f"{name}={value}": inside for value, inside in at.items()}, notes


def _levels(column: Any) -> tuple[np.ndarray, list[str]]:
    """(number of each row's word, the words); a missing value is a word, too."""
    codes, found = pandas().factorize(column)
    words = [_word(value) for value in found]
    if (codes < 0).any():
        codes, words = np.where(codes < 0, len(words), codes), [*words, MISSING_CATEGORY]
    return codes, words


def _word(value: Any) -> str:
    """A category's name, the same for 7, 7.0 and 007: how a number is read depends on the rest of its column."""
    text = str(value).strip()
    try:
        number = float(text)
    except ValueError:
        return text
    if not np.isfinite(number):
        return text
    return str(int(number)) if number.is_integer() else repr(number)


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
    return {"kind": "category", "values": sorted(set(_levels(column)[1]))}


def are_names(column: Any, name: str) -> bool:
    """Whether whole numbers are names: a store's number is none to compute with."""
    values = column.dropna().to_numpy(float)
    return bool(NAMES_ONE.search(str(name))) and bool((values % 1 == 0).all())


def learn_schema(table: Any, targets: list[str], date: str | None, path: Any, category: Any = ()) -> Schema:
    """Decide how each column is used; those of ``category`` hold names, whatever they look like."""
    date = date_column(table) if date is None else date
    if date is not None and date not in table.columns:
        raise ValueError(f"{path} has no column {date!r}, which holds the dates: name it with --date.")
    for name in category:
        if name not in table.columns or name in targets:
            raise ValueError(f"`--category` names {name!r}, which is no column of {path} beside the demand.")
    day_first = date is not None and reads_day_first(table[date])
    columns: dict[str, dict[str, Any]] = {}
    ignored: dict[str, str] = {}
    for name in table.columns:
        if name not in targets and name != date:
            used = _use(table[name], name, name in category)
            if isinstance(used, str):
                ignored[name] = used
            else:
                columns[name] = used
    if not columns and date is None:
        raise ValueError(f"{path} has no column that could be used beside {', '.join(targets)}.")
    schema = Schema(targets, date, columns, ignored, day_first)
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


def printable(text: Any) -> str:
    """Control characters spelled out: a column's name cannot move the cursor or colour the screen."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(text))
