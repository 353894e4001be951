"""Items run and rendered, and docs/reproduction.md from finished ones."""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bilevelax.base.text_table import as_markdown
from bilevelax.run.records import cells as store
from bilevelax_paper import figures
from bilevelax_paper.claims import Judged, claim_table, judged, measured_tables, readings, written
from bilevelax_paper.item import Records, Table, declared
from bilevelax_paper.items import catalogue

TEXTS = declared(Path(__file__).with_suffix(".toml"))


class Shown(NamedTuple):
    """An item with all that there is to show of it."""

    name: str
    records: Records
    figure: Path  # SVG, a PNG beside it
    caption: str
    tables: Sequence[Table]
    claims: list[Judged]


def where_and_when(manifest: Mapping[str, Any]) -> str:
    """The days of the cells, the machine, and how busy it was at their ends."""
    machine, cells = manifest["machine"], manifest["cells"].values()
    days = sorted({cell["date"][:10] for cell in cells})
    loads = [cell["load"] for cell in cells if cell["load"] is not None]
    span = lambda first, last: first if first == last else f"{first} to {last}"
    load = f"load {span(*(f'{load:.1f}' for load in (min(loads), max(loads))))}, " if loads else ""
    version = machine["versions"]["jax"]
    return f"{span(days[0], days[-1])}, {machine['cpu']}, {machine['cores']} cores, {load}jax {version}"


def section(shown: Shown, page: Path, *, given: str = "", brief: bool = False) -> str:
    """One item: command (with ``given`` settings), claims, tables, figures. ``brief`` leaves the tables out."""
    config, manifest = catalogue.load(shown.name), shown.records.manifest
    scale, target = manifest["scale"], Path(os.path.relpath(shown.figure, page.parent)).as_posix()
    command = f"bilevelax paper {shown.name} --scale {scale} --seeds {manifest['settings']['seeds']}{given}"
    parts = [
        *([] if brief else [f"(item-{shown.name})="]),
        f"##{'#' if brief else ''} {shown.name}: {config.title}\n",
        f"{config.place}. `{command}`, {manifest['seconds']:.0f} s of running ({where_and_when(manifest)}).\n",
        as_markdown(claim_table(shown.claims)),
        *map(as_markdown, measured_tables(shown.claims)),
        readings(shown.claims),
        *(as_markdown(table) for table in shown.tables if not brief),
        f"```{{figure}} {target}\n:alt: {config.title} ({shown.figure.stem})\n\n{shown.caption}\n```\n",
    ]
    return "\n".join(parts)


def write(items: Sequence[Shown], page: Path, on_omniglot: Sequence[Shown] = ()) -> Path:
    """The whole page: a summary of verdicts, then a section for each item, then those on Omniglot."""
    items = sorted(items, key=lambda shown: (not shown.name.startswith("table"), not shown.name.startswith("fig")))
    link = lambda shown: f"[{shown.name}](#item-{shown.name})"
    rows = [(link(shown), claim.claim, f"**{claim.verdict}**") for shown in items for claim in shown.claims]
    verdicts = [claim.verdict for shown in items for claim in shown.claims]
    counts = ", ".join(f"{verdicts.count(v)} {v}" for v in dict.fromkeys(verdicts))
    table = as_markdown(Table("", ("item", "claim", "verdict"), rows))
    summary = f"{TEXTS['head']}\n{len(verdicts)} claims: {counts}.\n\n{table}"
    more = [section(shown, page, given=" --set dataset=omniglot", brief=True) for shown in on_omniglot]
    parts = [summary, *(section(shown, page) for shown in items), *([TEXTS["omniglot"], *more] if more else [])]
    page.write_text("\n".join(parts), encoding="utf-8")
    return page


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
    store.collect(name, out / name, scale, settings, module.run(settings, settings["seeds"]), report, again)
    return render_item(name, out=out)


def render_item(name: str, *, out: Path) -> Shown:
    """Figures, tables and claims from finished records in ``out / name``."""
    module = catalogue.module(name)
    records = store.read(name, out / name)
    drawn, caption = module.render(records), module.CONFIG.texts["caption"]
    path, told = figures.save(drawn.figure, out / name, name), written(caption, {**records.settings, **drawn.words})
    return Shown(name, records, path, told, drawn.tables, judged(module.CLAIMS, records))
