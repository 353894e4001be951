"""What `check` found: rows, a verdict, and how they print."""

from __future__ import annotations

from typing import NamedTuple

from bilevelax.base.text_table import Table, as_text
from bilevelax.diagnostics.constants import Constants
from bilevelax.diagnostics.reference import Reference


class CheckRow(NamedTuple):
    """One line of a report. ``ok`` is None where noise leaves it open."""

    name: str
    ok: bool | None
    value: str
    expected: str
    remedy: str = ""


class Report(NamedTuple):
    """What `check` found; printing it shows the verdict and the table."""

    rows: tuple[CheckRow, ...]
    constants: Constants | None = None
    reference: Reference | None = None

    @property
    def ok(self) -> bool:
        return all(row.ok is not False for row in self.rows)

    @property
    def failed(self) -> tuple[CheckRow, ...]:
        return tuple(row for row in self.rows if row.ok is False)

    @property
    def verdict(self) -> str:
        if self.failed:
            return f"FAILED: {len(self.failed)} of {len(self.rows)} checks; first: {self.failed[0].name}."
        open_ = [row.name for row in self.rows if row.ok is None]
        if open_:
            passed = len(self.rows) - len(open_)
            return f"OK so far: {passed} of {len(self.rows)} checks passed; undecided: {', '.join(open_)}."
        return f"OK: {len(self.rows)} checks passed."

    def __str__(self) -> str:
        marks = {True: "ok", False: "FAILED", None: "open"}
        rows = [(row.name, marks[row.ok], row.value, row.expected, row.remedy) for row in self.rows]
        table = Table("", ("check", "", "found", "expected", "what to change"), rows)
        return f"{self.verdict}\n{as_text(table)}"
