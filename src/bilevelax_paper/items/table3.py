"""Table 3: time of one gradient on WDRO-SI."""

from collections.abc import Iterator
from typing import Any

from bilevelax.applications import Application, wdro_si
from bilevelax_paper import timing
from bilevelax_paper.claims import Found, claims_of
from bilevelax_paper.item import Cell, Config, Drawn, Records, Row

CONFIG = Config.read(__file__)
LAM = 1.0


def load(settings: Row) -> tuple[Application, None, str]:
    given: Any = {name: tuple(v) if isinstance(v, list) else v for name, v in settings["problem"].items()}
    app = wdro_si.make(lam=LAM, danskin=False, **given)
    return app, None, f"synthetic newsvendor, contexts in R^{given.get('d', 100)}, lam = {LAM:g}, Neumann series"


def run(settings: dict[str, Any], seeds: int) -> Iterator[Cell]:
    return timing.cells(settings, seeds, load, {"problem": settings["problem"], "lam": LAM})


def render(records: Records) -> Drawn:
    return timing.drawn(records, CONFIG)


def savings(records: Records) -> Found:
    return timing.savings_on(CONFIG, records)


def spread(records: Records) -> Found:
    return timing.spread_on(CONFIG, records)


CLAIMS = claims_of(CONFIG, {savings: timing.FAST, spread: timing.POSSIBLE})
