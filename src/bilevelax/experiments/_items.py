"""What an item of the paper consists of; see the package's description."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bilevelax.errors import require_choice, require_integer

SCALES = ("smoke", "quick", "full")
VERDICTS = ("reproduced", "partly", "not")
Row = dict[str, Any]  # flat and plain: numbers, strings, lists of them


class Config(NamedTuple):
    """What is fixed about an item before it runs."""

    title: str
    place: str  # in the paper
    duration: str  # of scale full, on 2 cores
    scales: Mapping[str, Mapping[str, Any]]  # scale -> settings; ``seeds`` is one of them

    def settings(self, scale: str, seeds: int | None, given: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The settings of a scale, with the number of seeds and the other settings that were asked for."""
        require_choice("--scale", "bilevelax paper", scale, SCALES)
        chosen = dict(self.scales[scale])
        for name, value in (given or {}).items():
            if name not in chosen:
                raise ValueError(f"This item has no setting {name!r}. It has: {', '.join(chosen)}.")
            chosen[name] = value
        if seeds is not None:
            require_integer("--seeds", "bilevelax paper", seeds, 1)
            chosen["seeds"] = seeds
        return chosen


class Cell(NamedTuple):
    """A part of an experiment that is run, or has been run, as a whole.

    ``of``: all that its rows depend on beside the seeds, settings as well as constants of the code. A finished cell
    counts as long as that stays the same; without it, as long as no setting at all changes.
    """

    name: str
    work: Callable[[], Iterable[Row]]
    of: Mapping[str, Any] | None = None


class Records(NamedTuple):
    """The rows of all cells, each with its ``cell``, and how they came about."""

    rows: list[Row]
    manifest: dict[str, Any]

    @property
    def settings(self) -> dict[str, Any]:
        return self.manifest["settings"]

    def where(self, **equal: Any) -> list[Row]:
        """The rows that have these values in these columns."""
        return [row for row in self.rows if all(row.get(name) == value for name, value in equal.items())]

    def values(self, column: str, **equal: Any) -> list[Any]:
        """One column, in the order of the rows, of the rows that have these values."""
        return [row[column] for row in self.where(**equal) if column in row]

    def distinct(self, column: str, **equal: Any) -> list[Any]:
        """The values that a column takes, in order of appearance."""
        return list(dict.fromkeys(self.values(column, **equal)))


class Table(NamedTuple):
    """Strings under column names."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


def tuning_table(records: Records, what: str, names: Mapping[str, Mapping[str, Any]]) -> Table:
    """What every step rule gave on validation: a row for each rule, a column for each name of rows it belongs to."""
    rules = records.distinct("rule", kind="tuning")
    found = {
        name: {row["rule"]: row["loss"] for row in records.where(kind="tuning", **where)}
        for name, where in names.items()
    }
    shown = lambda value: f"{value:#.4g}" if isinstance(value, float) else value  # a word where it diverged
    rows = [(rule, *(shown(losses.get(rule, "-")) for losses in found.values())) for rule in rules]
    return Table(f"Tuning: validation {what} of every step rule, one seed", ("steps", *names), rows)


class Rendered(NamedTuple):
    """What an item shows: files of figures (SVG) with captions, and tables."""

    figures: Sequence[tuple[Path, str]]
    tables: Sequence[Table]


class Claim(NamedTuple):
    """One claim of the paper against what was measured."""

    claim: str  # in words
    paper: str  # its number, where it gives one
    measured: str  # with its confidence interval
    seeds: int
    verdict: str  # one of VERDICTS
    why: str

    @staticmethod
    def judge(ok: bool, partly: bool = False) -> str:
        """The verdict for a claim that held, held in part, or did not."""
        return VERDICTS[0] if ok else VERDICTS[1] if partly else VERDICTS[2]
