"""A progress bar with the time left, in terminals and notebooks; silent elsewhere."""

from __future__ import annotations

import importlib.util
from typing import Any

from bilevelax.run.records.history import is_level_count

LEFT_OUT = ("t", "seconds", "xi", "eta", "grad_f", "grad_g", "hess_g", "cross_g", "level")  # told by the bar, or dull
BAR, SHORT_BAR = 20, 5
TIMES = 2 * len("0:00:00") + len("left") + 6  # what stands beside the label, the bar, the counts and the values


class Progress:
    """``with Progress(T) as bar: bar.update(t, row)``."""

    def __init__(self, total: int, enabled: bool | None = None, label: str = "minimize", counts: bool = True) -> None:
        self.total, self.label, self.counts = total, label, counts
        self.bar: Any = None
        if enabled is False:
            return
        if importlib.util.find_spec("rich") is None:
            if enabled:
                raise ValueError(f"`progress` of {label} needs rich, which is not installed: pip install rich.")
            return
        from rich import progress
        from rich.console import Console

        console = Console(stderr=True)
        if enabled or console.is_terminal or console.is_jupyter:
            self.bar = progress.Progress(
                progress.TextColumn("{task.description}"),
                progress.BarColumn(BAR if counts else SHORT_BAR),
                *([progress.MofNCompleteColumn()] if counts else []),
                progress.TimeElapsedColumn(),
                progress.TextColumn("left"),
                progress.TimeRemainingColumn(),
                progress.TextColumn("{task.fields[values]}"),
                console=console,
            )

    def __enter__(self) -> Progress:
        if self.bar:
            self.bar.start()
            self.task = self.bar.add_task(self.label, total=self.total, values="")
        return self

    def note(self, text: str) -> None:
        """What is being done before the first step."""
        if self.bar:
            self.bar.update(self.task, values=text)

    def stage(self, done: int, text: str) -> None:
        """So many stages are done, and what is done now."""
        self.update(done, {})
        self.note(text)

    def update(self, done: int, row: dict[str, float]) -> None:
        if self.bar:
            self.bar.update(self.task, completed=done, values=self.values(row))

    def told(self, done: int, parts: list[str]) -> None:
        """Likewise in words, the most important first."""
        if self.bar:
            self.bar.update(self.task, completed=done, values=self.fitting(parts))

    def values(self, row: dict[str, float]) -> str:
        shown = [name for name in row if name not in LEFT_OUT and not is_level_count(name)]
        return self.fitting([f"{name} {row[name]:.4g}" for name in shown])

    def fitting(self, parts: list[str]) -> str:
        """As many as fit in the line: they must not squeeze out the time left."""
        bar = BAR + len(f"{self.total}/{self.total} ") if self.counts else SHORT_BAR
        room = self.bar.console.width - TIMES - bar - len(self.label)
        text = ""
        for part in parts:
            longer = f"{text}  {part}".strip()
            if len(longer) > room:
                break
            text = longer
        return text

    def __exit__(self, *error: Any) -> None:
        if self.bar:
            self.bar.stop()
