"""Table 3: time of one gradient on WDRO-SI."""

from collections.abc import Iterator
from functools import partial
from typing import Any

from bilevelax.applications import Application, wdro_si
from bilevelax_paper import timing
from bilevelax_paper.claims import claims_of
from bilevelax_paper.item import Cell, Config, Row

CONFIG = Config.read(__file__)
LAM = 1.0


def load(settings: Row) -> tuple[Application, None, str]:
    given: Any = {name: tuple(v) if isinstance(v, list) else v for name, v in settings["problem"].items()}
    app = wdro_si.make(lam=LAM, danskin=False, **given)
    return app, None, f"synthetic newsvendor, contexts in R^{given.get('d', 100)}, lam = {LAM:g}, Neumann series"


def run(settings: dict[str, Any], seeds: int) -> Iterator[Cell]:
    return timing.cells(settings, seeds, load, {"problem": settings["problem"], "lam": LAM})


render = partial(timing.drawn, config=CONFIG)
CLAIMS = claims_of(CONFIG, timing.rules(CONFIG))
