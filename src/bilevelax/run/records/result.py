"""What a run leaves: iterates, history and totals; saved and read again."""

from __future__ import annotations

import dataclasses
from typing import Any

from bilevelax.estimate import Cost
from bilevelax.history import Row, load_run, save_run
from bilevelax.problem import X


@dataclasses.dataclass(frozen=True)
class Result:
    """What `minimize` returns."""

    x: X  # last iterate
    x_hat: X  # uniform iterate, the output of Algorithm 2
    x_mean: X  # mean of the iterates
    history: list[Row]
    cost: Cost  # total oracle calls
    seconds: float  # of the steps, without compilation and metrics
    compile_seconds: float
    manifest: dict[str, Any]

    def save(self, folder: Any) -> None:
        """Write history.jsonl, history.csv, manifest.json and arrays.npz; no pickle."""
        arrays = {"x": self.x, "x_hat": self.x_hat, "x_mean": self.x_mean}
        summary = {"cost": self.cost.asdict(), "seconds": self.seconds, "compile_seconds": self.compile_seconds}
        save_run(folder, arrays, self.history, {**self.manifest, "result": summary})

    @staticmethod
    def load(folder: Any, like: X | None = None) -> Result:
        """Read what `save` wrote. ``like`` gives the structure of x where it is not dicts, lists and tuples."""
        arrays, history, manifest = load_run(folder, like)
        summary = manifest.pop("result")
        return Result(
            **arrays,
            history=history,
            cost=Cost(**summary["cost"]),
            seconds=summary["seconds"],
            compile_seconds=summary["compile_seconds"],
            manifest=manifest,
        )
