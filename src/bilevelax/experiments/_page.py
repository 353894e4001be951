"""docs/reproduction.md from finished items."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bilevelax.experiments import catalogue
from bilevelax.experiments._items import Claim, Table
from bilevelax.experiments._run import Shown

HEAD = """# Reproduction of the paper

Written by `bilevelax paper all --render` from the records in `results/paper`; not edited by hand. For every claim of
"Contextual Stochastic Bilevel Optimization" (Hu, Wang, Xie, Krause, Kuhn, NeurIPS 2023): what we measured, with a 95 %
confidence interval and the number of seeds, whether it was reproduced, and why. All seeds that were run are shown.
`bilevelax paper --list` names the items, `bilevelax paper ITEM --scale quick` repeats one in about two minutes.
The seconds of an item are those its parts took. A load above the number of cores tells of other programs beside it:
on a quiet machine they are fewer, about what the list says.
"""

OMNIGLOT = """## The same on Omniglot

Meta-learning once more, on 20 alphabets of handwritten characters instead of tinyImageNet: shorter runs and fewer
seeds, so that what holds on both datasets can be told from what belongs to one. Alphabets share no labels, so a common
x has little to offer them: compare the last losses with those after 0 iterations. These rows are not counted above.
"""


def markdown(table: Table) -> str:
    """The table in Markdown, its title in bold above it."""
    lines = [_line(table.columns), "|" + "---|" * len(table.columns), *map(_line, table.rows)]
    return (f"**{table.title}**\n\n" if table.title else "") + "\n".join(lines) + "\n"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", "<br>") for cell in cells) + " |"


def claim_table(title: str, claims: Sequence[Claim]) -> Table:
    """One row per claim; each part of the measurement on its own line. Few columns: the page is narrow."""
    columns = ("claim", "ours, 95 % interval", "verdict", "why")
    rows = [
        (
            f"{c.claim}\n*Paper: {c.paper}*",
            c.measured.replace("; ", "\n"),
            f"**{c.verdict}**\n{c.seeds} seed{'' if c.seeds == 1 else 's'}",
            c.why,
        )
        for c in claims
    ]
    return Table(title, columns, rows)


def where_and_when(manifest: Mapping[str, Any]) -> str:
    """The days of the cells, the machine, and how busy it was at their ends."""
    machine, cells = manifest["machine"], manifest["cells"].values()
    days = sorted({cell["date"][:10] for cell in cells})
    loads = [cell["load"] for cell in cells if cell["load"] is not None]
    span = lambda first, last: first if first == last else f"{first} to {last}"
    load = f"load {span(*(f'{load:.1f}' for load in (min(loads), max(loads))))}, " if loads else ""
    return (
        f"{span(days[0], days[-1])}, {machine['cpu']}, {machine['cores']} cores, {load}jax {machine['versions']['jax']}"
    )


def section(shown: Shown, page: Path, *, given: str = "", brief: bool = False) -> str:
    """One item: command (with ``given`` settings), claims, tables, figures. ``brief`` leaves the tables out."""
    config, manifest = catalogue.load(shown.name), shown.records.manifest
    scale = manifest["scale"]
    command = f"bilevelax paper {shown.name} --scale {scale} --seeds {manifest['settings']['seeds']}{given}"
    parts = [
        *([] if brief else [f"(item-{shown.name})="]),
        f"##{'#' if brief else ''} {shown.name}: {config.title}\n",
        f"{config.place}. `{command}`, {manifest['seconds']:.0f} s of running ({where_and_when(manifest)}).\n",
        markdown(claim_table("", shown.claims)),
        *(markdown(table) for table in shown.rendered.tables if not brief),
    ]
    for path, caption in shown.rendered.figures:
        target = Path(os.path.relpath(path, page.parent)).as_posix()
        parts.append(f"```{{figure}} {target}\n:alt: {config.title} ({path.stem})\n\n{caption}\n```\n")
    return "\n".join(parts)


def omniglot(items: Sequence[Shown], page: Path) -> str:
    """The meta-learning items on Omniglot, claims and figures only."""
    sections = (section(shown, page, given=" --set dataset=omniglot", brief=True) for shown in items)
    return "\n".join([OMNIGLOT, *sections])


def verdict_table(items: Sequence[Shown]) -> Table:
    """Every claim in a line, with a link to its section."""
    rows = [
        (f"[{shown.name}](#item-{shown.name})", c.claim, f"**{c.verdict}**") for shown in items for c in shown.claims
    ]
    return Table("", ("item", "claim", "verdict"), rows)


def in_order(items: Sequence[Shown]) -> list[Shown]:
    """Tables, figures, then the rest."""
    return sorted(items, key=lambda shown: (not shown.name.startswith("table"), not shown.name.startswith("fig")))


def write(items: Sequence[Shown], page: Path, on_omniglot: Sequence[Shown] = ()) -> Path:
    """The whole page: a summary of verdicts, then a section for each item, then those on Omniglot."""
    items = in_order(items)
    verdicts = [claim.verdict for shown in items for claim in shown.claims]
    counts = ", ".join(f"{verdicts.count(v)} {v}" for v in dict.fromkeys(verdicts))
    body = "\n".join(section(shown, page) for shown in items)
    more = f"\n{omniglot(on_omniglot, page)}" if on_omniglot else ""
    page.write_text(
        f"{HEAD}\n{len(verdicts)} claims: {counts}.\n\n{markdown(verdict_table(items))}\n{body}{more}", encoding="utf-8"
    )
    return page
