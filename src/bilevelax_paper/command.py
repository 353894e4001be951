"""``bilevelax paper ITEM``: the paper's tables and figures, with our numbers beside its own."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bilevelax.base.text_table import Table, show
from bilevelax.cli._terminal import busy, keep_programs, print_json, say
from bilevelax.cli.settings import parse
from bilevelax_paper.items import catalogue

if TYPE_CHECKING:
    from bilevelax_paper.page import Shown

COMMITTED, OMNIGLOT, PAGE = Path("results/paper"), Path("results/omniglot"), Path("docs/reproduction.md")


def paper(
    item: Annotated[str | None, typer.Argument(help="An item of `bilevelax paper --list`, or all.")] = None,
    list_items: Annotated[bool, typer.Option("--list", help="Show the items and how long they take.")] = False,
    scale: Annotated[str, typer.Option(help="smoke (seconds), quick (minutes) or full (the claims).")] = "quick",
    seeds: Annotated[int | None, typer.Option(help="Number of seeds; by default the scale's own.")] = None,
    given: Annotated[
        list[str] | None, typer.Option("--set", help="Another value of a setting: --set dataset=omniglot.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder of records and figures; by default runs/paper-SCALE, or results/paper to render."),
    ] = None,
    again: Annotated[
        str | None, typer.Option(help="Run finished cells with this in their names once more, e.g. to time them alone.")
    ] = None,
    render: Annotated[
        bool, typer.Option("--render", help="Run nothing: draw from finished records; all of them write the page.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print items or claims as JSON.")] = False,
) -> None:
    """Reproduce a table or figure of the paper. An interrupted run goes on where it stopped.

    Example: bilevelax paper table1 --scale quick
    """
    from bilevelax.run.records.cells import is_complete
    from bilevelax_paper import page as pages
    from bilevelax_paper.page import render_item, run_item

    if list_items:
        with busy("Reading the items"):
            table = listing()
        print_json([dict(zip(table.columns, row, strict=True)) for row in table.rows]) if as_json else show(table)
        return
    if item is None and not render:
        raise ValueError("`bilevelax paper` needs an item. See `bilevelax paper --list`, or give all.")
    every = item in (None, "all")
    names = catalogue.names() if every else [str(item)]
    if render:
        folder = out or COMMITTED
        names = with_records(names, folder) if every else names
        with busy(f"Drawing {', '.join(names)}"):
            items = [render_item(name, out=folder) for name in names]
            there = [name for name in names if out is None and is_complete(OMNIGLOT / name)]
            further = [render_item(name, out=OMNIGLOT) for name in there]
    else:
        keep_programs()
        folder = out or Path("runs") / f"paper-{scale}"
        one = partial(run_item, scale=scale, seeds=seeds, out=folder, given=parse(given or []), report=say, again=again)
        items = list(map(one, names))
    if as_json:
        print_json({"folder": str(folder), "items": [told(shown) for shown in items]})
    else:
        for shown in items:
            display(shown)
    if render and every:
        if not PAGE.parent.is_dir():
            raise ValueError(f"{PAGE} can only be written in the repository's root folder. Got {Path.cwd()}.")
        say(f"Page: {pages.write(items, PAGE, further)}")
    if not as_json:
        typer.echo(f"Records and figures: {folder}")


def with_records(names: list[str], folder: Path) -> list[str]:
    """The items that have finished records there; says which have none."""
    from bilevelax.run.records.cells import is_complete

    there = [name for name in names if is_complete(folder / name)]
    if not there:
        raise ValueError(f"There are no records in {folder}. Run from the repository's root folder, or give --out.")
    for name in sorted(set(names) - set(there)):
        say(f"{name}: no finished records in {folder}, left out")
    return there


def listing() -> Table:
    """Every item, its place in the paper and how long scale full takes."""
    configs = [(name, catalogue.load(name)) for name in catalogue.names()]
    rows = [(name, config.place, config.title, config.duration) for name, config in configs]
    return Table("", ("item", "in the paper", "what", "full scale"), rows)


def told(shown: Shown) -> dict[str, Any]:
    """For programs: the claims, and where the figures are."""
    names = {"measured": "measured", "why": "reading"} | {name: name for name in ("claim", "paper", "seeds", "verdict")}
    claims = [{name: getattr(claim, field) for name, field in names.items()} for claim in shown.claims]
    return {"item": shown.name, "claims": claims, "figures": [str(shown.figure)]}


def display(shown: Shown) -> None:
    """Tables and claims in the terminal, and where the figures are."""
    for table in shown.tables:
        show(table)
    typer.secho(f"{shown.name}: {catalogue.load(shown.name).title}", bold=True)
    for claim in shown.claims:
        typer.echo(f"  {claim.verdict:<10}  {claim.claim}.")
        seeds = f"{claim.seeds} seed{'' if claim.seeds == 1 else 's'}"
        typer.echo(f"              Paper: {claim.paper}. Ours: {claim.measured} ({seeds}). {claim.reading}")
    typer.echo(f"Figure: {shown.figure}")
