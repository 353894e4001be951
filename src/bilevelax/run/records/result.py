"""What a run leaves: iterates, history and totals, at its end and between two chunks; saved and read again."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

from bilevelax.core.estimate import Cost
from bilevelax.core.problem import PyTree, X
from bilevelax.run.records.history import Row


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

    @property
    def recheck(self) -> dict[str, Any] | None:
        """Bias, variance and ``|grad F|^2`` of the estimator at x, with intervals, where `minimize` looked again.

        ``told`` holds what was warned of; ``skipped`` says why nothing was measured.
        """
        return self.manifest.get("recheck")

    def save(self, folder: Any) -> None:
        """Write history.jsonl, history.csv, manifest.json and arrays.npz; no pickle."""
        from bilevelax.run.records.saved import save_run

        arrays = {"x": self.x, "x_hat": self.x_hat, "x_mean": self.x_mean}
        summary = {"cost": self.cost.asdict(), "seconds": self.seconds, "compile_seconds": self.compile_seconds}
        save_run(folder, arrays, self.history, {**self.manifest, "result": summary})

    @staticmethod
    def load(folder: Any, like: X | None = None) -> Result:
        """Read what `save` wrote. ``like`` gives the structure of x where it is not dicts, lists and tuples."""
        from bilevelax.run.records.saved import load_run

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


class Snapshot(NamedTuple):
    """A run between two chunks: what a checkpoint holds."""

    carry: PyTree
    history: list[Row]
    totals: dict[str, Any]  # plain JSON
