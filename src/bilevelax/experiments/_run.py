"""Run and render items of the paper."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from bilevelax.experiments import _records, catalogue
from bilevelax.experiments._items import Claim, Records, Rendered


class Shown(NamedTuple):
    """An item with all that there is to show of it."""

    name: str
    records: Records
    rendered: Rendered
    claims: list[Claim]


def run_item(
    name: str,
    *,
    scale: str,
    seeds: int | None,
    out: Path,
    given: Mapping[str, Any] | None = None,
    report: Callable[[str], None] = lambda line: None,
    again: str | None = None,
) -> Shown:
    """Run what is not finished yet of an item, and the cells ``again``, in the folder ``out / name``; render it."""
    module = catalogue.module(name)
    settings = module.CONFIG.settings(scale, seeds, given)
    _records.collect(name, out / name, scale, settings, module.run(settings, settings["seeds"]), report, again)
    return render_item(name, out=out)


def render_item(name: str, *, out: Path) -> Shown:
    """Figures, tables and claims from finished records in ``out / name``."""
    module = catalogue.module(name)
    records = _records.read(name, out / name)
    return Shown(name, records, module.render(records, out / name), module.claims(records))
