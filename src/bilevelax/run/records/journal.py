"""Rows appended to a file as a run goes, which can be cut back to a mark: none is lost or doubled after a kill."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from bilevelax.run.records.history import Row


class Journal:
    """A JSONL file of rows. ``mark`` tells where it stands; ``rewind`` goes back to a mark."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.rows = self.bytes = 0
        self.digest = hashlib.sha256()

    def append(self, rows: list[Row]) -> None:
        """Write the rows that are not there yet, given all of them."""
        text = "".join(json.dumps(row) + "\n" for row in rows[self.rows :]).encode()
        with open(self.path, "ab") as file:
            file.write(text)
        self.rows, self.bytes = len(rows), self.bytes + len(text)
        self.digest.update(text)

    def mark(self) -> dict[str, Any]:
        """Where the file stands, once that is on the disk."""
        with open(self.path, "ab") as file:
            os.fsync(file.fileno())
        return {"rows": self.rows, "bytes": self.bytes, "sha256": self.digest.hexdigest()}

    def read(self, mark: dict[str, Any]) -> list[Row]:
        """The rows before the mark, or ValueError where the file does not hold them as they were."""
        if not self.path.is_file():
            raise ValueError(f"{self.path.name} is gone")
        with open(self.path, "rb") as file:
            text = file.read(mark["bytes"])
        if hashlib.sha256(text).hexdigest() != mark["sha256"]:
            raise ValueError(f"{self.path.name} was cut or changed")
        return [json.loads(line) for line in text.splitlines()]

    def rewind(self, mark: dict[str, Any] | None) -> None:
        """Forget what comes after the mark; None forgets everything."""
        self.path.touch()
        self.rows, self.bytes = (mark["rows"], mark["bytes"]) if mark else (0, 0)
        with open(self.path, "r+b") as file:
            self.digest = hashlib.sha256(file.read(self.bytes))
            file.truncate(self.bytes)
