"""Table 3: time of one gradient on WDRO-SI."""

import functools
from collections.abc import Iterator
from typing import Any

from bilevelax.applications import Application, wdro_si
from bilevelax_paper import timing
from bilevelax_paper.claims import ALONE, Found, claims_of
from bilevelax_paper.item import Cell, Config, Drawn, Records

CONFIG = Config.read(__file__)
LAM = 1.0


def run(settings: dict[str, Any], seeds: int) -> Iterator[Cell]:
    @functools.cache
    def load() -> tuple[Application, None, str]:
        given: Any = {name: tuple(v) if isinstance(v, list) else v for name, v in settings["problem"].items()}
        app = wdro_si.make(lam=LAM, danskin=False, **given)
        d = given.get("d", 100)
        return app, None, f"synthetic newsvendor, contexts in R^{d}, lam = {LAM:g}, Neumann series"

    return timing.cells(settings, load, {"problem": settings["problem"], "lam": LAM})


def render(records: Records) -> Drawn:
    return timing.drawn(records, CONFIG)


def savings(records: Records) -> Found:
    return timing.savings_on(CONFIG, records)


def spread(records: Records) -> Found:
    return timing.spread_on(CONFIG, records)


CLAIMS = claims_of(CONFIG, {savings: ALONE, spread: timing.POSSIBLE})
