"""A progress bar with the time left, in terminals and notebooks; silent elsewhere."""

from __future__ import annotations

import importlib.util
from typing import Any

SHOWN = ("t", "seconds", "xi", "eta", "grad_f", "grad_g", "hess_g", "cross_g")  # not repeated beside the bar


class Progress:
    """``with Progress(T) as bar: bar.update(t, row)``."""

    def __init__(self, total: int, enabled: bool | None = None, label: str = "minimize") -> None:
        self.total, self.label = total, label
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
                progress.BarColumn(),
                progress.MofNCompleteColumn(),
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

    def update(self, done: int, row: dict[str, float]) -> None:
        if self.bar:
            values = "  ".join(f"{name} {value:.4g}" for name, value in row.items() if name not in SHOWN)
            self.bar.update(self.task, completed=done, values=values)

    def __exit__(self, *error: Any) -> None:
        if self.bar:
            self.bar.stop()
