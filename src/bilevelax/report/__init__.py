"""One HTML file that compares runs: offline, self-contained, made from the records that `Result.save` writes."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from bilevelax.report.compare import group
from bilevelax.report.records import read_all
from bilevelax.report.render import render


def report(runs: Iterable[str | Path], out: str | Path, *, title: str = "Comparison of runs") -> Path:
    """Write a page that compares runs, and return its path.

    Runs that differ only in their seed become one line with a band.

    Args:
        runs: folders of saved runs, or folders that hold such folders.
        out: the HTML file to write; needs no network and no other file.
        title: heading of the page.
    """
    path = Path(out)
    if path.is_dir():
        raise ValueError(f"`out` of report must be a file to write, e.g. report.html. Got the folder {str(path)!r}.")
    text = render(group(read_all(runs)), title)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


__all__ = ["report"]
