"""Table 2: time of one gradient on meta-learning."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bilevelax.applications import Application
from bilevelax.experiments import _meta as meta
from bilevelax.experiments import _timing as timing
from bilevelax.experiments._items import Cell, Claim, Config, Records, Rendered
from bilevelax.experiments._timing import Printed
from bilevelax.inverse import InverseHessian, neumann

CONFIG = Config(
    title="Time of one gradient, meta-learning",
    place="Table 2",
    duration="about a minute",
    scales={
        "smoke": {"seeds": 1, "dataset": "synthetic", "small": True, "K": [2], "calls": 4},
        "quick": {"seeds": 1, "dataset": "auto", "small": False, "K": [6, 8, 10, 12], "calls": 100},
        "full": {"seeds": 1, "dataset": "auto", "small": False, "K": [6, 8, 10, 12], "calls": 500},
    },
)
PAPER = {
    6: (Printed(2.65e-02, 6.34e-03), Printed(2.73e-02, 1.46e-02)),
    8: (Printed(7.23e-02, 7.77e-03), Printed(3.41e-02, 1.85e-02)),
    10: (Printed(2.48e-01, 2.75e-02), Printed(4.93e-02, 4.06e-02)),
    12: (Printed(9.38e-01, 3.71e-02), Printed(1.08e-01, 5.44e-02)),
}


def run(settings: dict[str, Any], seeds: int) -> Iterator[Cell]:
    def load() -> tuple[Application, InverseHessian, str]:
        data = meta.load(settings["dataset"], settings["small"])
        return Application(data.fit, data.x1, lambda x: {}), neumann(N=meta.TERMS, scale=1.0), data.source

    return timing.cells(settings, load)


def render(records: Records, out: Path) -> Rendered:
    return timing.render(records, out, "table2", "meta-learning", PAPER)


def claims(records: Records) -> list[Claim]:
    return [timing.faster(records, PAPER, "Meta-learning")]
