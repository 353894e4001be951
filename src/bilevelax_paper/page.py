"""Items run and rendered; docs/reproduction.md, and a page for each item, from finished ones."""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bilevelax.base.sentences import text, written
from bilevelax.base.text_table import as_markdown
from bilevelax.report.forest import Line, forest
from bilevelax.run.records import cells as store
from bilevelax_paper import figures
from bilevelax_paper.claims import VERDICTS, Judged, claim_table, judged, measured_tables, readings
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


def section(shown: Shown, page: Path, *, given: str = "", brief: bool = False) -> str:
    """One item: figure, claims, readings, then all that was measured. ``brief`` is part of another page."""
    config, manifest = catalogue.load(shown.name), shown.records.manifest
    scale, target = manifest["scale"], Path(os.path.relpath(shown.figure, page.parent)).as_posix()
    command = f"bilevelax paper {shown.name} --scale {scale} --seeds {manifest['settings']['seeds']}{given}"
    deeper = "#" * brief
    parts = [
        f"{deeper}# {shown.name}: {config.title}\n",
        f"{config.place}. `{command}`, {manifest['seconds']:.0f} s of running ({store.where_and_when(manifest)}).\n",
        as_markdown(claim_table(shown.claims)),
        f"```{{figure}} {target}\n:alt: {config.title} ({shown.figure.stem})\n\n{shown.caption}\n```\n",
        readings(shown.claims),
        f"{deeper}## All that was measured\n",
        *map(as_markdown, measured_tables(shown.claims)),
        *(as_markdown(table) for table in shown.tables if not brief),
    ]
    return "\n".join(parts)


def write(items: Sequence[Shown], page: Path, on_omniglot: Sequence[Shown] = ()) -> Path:
    """The page of verdicts, and in a folder of its name a page for each item, and one for those on Omniglot."""
    items = sorted(items, key=lambda shown: (not shown.name.startswith("table"), not shown.name.startswith("fig")))
    folder = page.with_suffix("")
    folder.mkdir(exist_ok=True)
    for shown in items:
        (own := folder / f"{shown.name}.md").write_text(section(shown, own), encoding="utf-8")
    if on_omniglot:
        own = folder / "omniglot.md"
        more = [section(shown, own, given=" --set dataset=omniglot", brief=True) for shown in on_omniglot]
        own.write_text("\n".join([TEXTS["omniglot"].lstrip(), *more]), encoding="utf-8")
    page.write_text(summary(items, [*(shown.name for shown in items), *["omniglot"] * bool(on_omniglot)]))
    return page


def summary(items: Sequence[Shown], pages: Sequence[str]) -> str:
    """Every claim in a row, with what decides it."""
    effect = lambda claim: (claim.primary, claim.holds, text(claim.primary), claim.verdict)
    row = lambda name, claim: Line(f"{name}: {claim.claim}", f"reproduction/{name}.html", *effect(claim))
    lines = [row(shown.name, claim) for shown in items for claim in shown.claims]
    verdicts = [line.verdict for line in lines]
    counts = ", ".join(f"{verdicts.count(v)} {v}" for v in VERDICTS)
    table = forest(lines, ("claim", "for it where shaded", "measured", "verdict"))
    tree = "\n".join(f"reproduction/{name}" for name in pages)
    hidden = f"```{{toctree}}\n:hidden:\n:maxdepth: 1\n\n{tree}\n```\n"
    return f"{TEXTS['head'].lstrip()}\n{len(verdicts)} claims: {counts}.\n\n```{{raw}} html\n{table}```\n\n{hidden}"


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
