"""Table 3: time of one gradient on WDRO-SI."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bilevelax.applications import Application, wdro_si
from bilevelax.experiments import _timing as timing
from bilevelax.experiments._items import Cell, Claim, Config, Records, Rendered
from bilevelax.experiments._timing import Printed

CONFIG = Config(
    title="Time of one gradient, WDRO with side information",
    place="Table 3",
    duration="about a minute",
    scales={
        "smoke": {"seeds": 1, "K": [2], "calls": 4, "problem": {"d": 5, "M": 4, "m": 3, "widths": [4]}},
        "quick": {"seeds": 1, "K": [2, 4, 6, 8], "calls": 500, "problem": {}},
        "full": {"seeds": 1, "K": [2, 4, 6, 8, 10, 12], "calls": 1000, "problem": {}},
    },
)
LAM = 1.0
PAPER = {
    2: (Printed(1.27e-02, 2.67e-03), Printed(5.04e-03, 7.26e-04)),
    4: (Printed(5.25e-02, 2.58e-03), Printed(1.25e-02, 8.26e-03)),
    6: (Printed(1.68e-01, 2.74e-03), Printed(2.02e-02, 9.39e-03)),
    8: (Printed(4.63e-01, 2.08e-03), Printed(3.41e-02, 1.68e-02)),
}


def run(settings: dict[str, Any], seeds: int) -> Iterator[Cell]:
    @functools.cache
    def load() -> tuple[Application, None, str]:
        given: Any = {name: tuple(v) if isinstance(v, list) else v for name, v in settings["problem"].items()}
        app = wdro_si.make(lam=LAM, danskin=False, **given)
        d = given.get("d", 100)
        return app, None, f"synthetic newsvendor, contexts in R^{d}, lam = {LAM:g}, Neumann series"

    return timing.cells(settings, load, {"problem": settings["problem"], "lam": LAM})


def render(records: Records, out: Path) -> Rendered:
    return timing.render(records, out, "table3", "WDRO-SI", PAPER)


def claims(records: Records) -> list[Claim]:
    return [timing.faster(records, PAPER, "WDRO-SI")]
