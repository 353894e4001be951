"""``bilevelax paper ITEM``: the paper's tables and figures, with our numbers beside its own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table as RichTable

from bilevelax.cli.settings import parse
from bilevelax.experiments import _page, catalogue
from bilevelax.experiments._items import Table
from bilevelax.experiments._records import is_complete
from bilevelax.experiments._run import Shown, render_item, run_item

WIDE = 200  # columns of a table in a file or a pipe, where nothing wraps
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
) -> None:
    """Reproduce a table or figure of the paper. An interrupted run goes on where it stopped.

    Example: bilevelax paper table1 --scale quick
    """
    if list_items:
        show(listing())
        return
    if item is None and not render:
        raise ValueError("`bilevelax paper` needs an item. See `bilevelax paper --list`, or give all.")
    names = catalogue.names() if item in (None, "all") else [item]
    if render:
        folder = out or COMMITTED
        if len(names) > 1:
            names = with_records(names, folder)
        items = [render_item(name, out=folder) for name in names]
        further = [render_item(name, out=OMNIGLOT) for name in names if out is None and is_complete(OMNIGLOT / name)]
    else:
        folder = out or Path("runs") / f"paper-{scale}"
        chosen = parse(given or [])
        items = [
            run_item(name, scale=scale, seeds=seeds, out=folder, given=chosen, report=typer.echo, again=again)
            for name in names
        ]
    for shown in items:
        display(shown)
    if render and item in (None, "all"):
        if not PAGE.parent.is_dir():
            raise ValueError(f"{PAGE} can only be written in the repository's root folder. Got {Path.cwd()}.")
        typer.echo(f"Page: {_page.write(items, PAGE, further)}")


def with_records(names: list[str], folder: Path) -> list[str]:
    """The items that have finished records there; says which have none."""
    there = [name for name in names if is_complete(folder / name)]
    if not there:
        raise ValueError(f"There are no records in {folder}. Run from the repository's root folder, or give --out.")
    for name in sorted(set(names) - set(there)):
        typer.echo(f"{name}: no finished records in {folder}, left out")
    return there


def listing() -> Table:
    """Every item, its place in the paper and how long scale full takes."""
    configs = [(name, catalogue.load(name)) for name in catalogue.names()]
    rows = [(name, config.place, config.title, config.duration) for name, config in configs]
    return Table("", ("item", "in the paper", "what", "full scale"), rows)


def display(shown: Shown) -> None:
    """Tables and claims in the terminal, and where the figures are."""
    title = catalogue.load(shown.name).title
    for table in shown.rendered.tables:
        show(table)
    typer.secho(f"{shown.name}: {title}", bold=True)
    for claim in shown.claims:
        typer.echo(f"  {claim.verdict:<10}  {claim.claim}.")
        typer.echo(f"              Paper: {claim.paper}. Ours: {claim.measured} ({claim.seeds} seeds). {claim.why}")
    for path, _ in shown.rendered.figures:
        typer.echo(f"Figure: {path}")


def show(table: Table) -> None:
    rich = RichTable(title=table.title or None, title_justify="left")
    for column in table.columns:
        rich.add_column(column, overflow="fold")
    for row in table.rows:
        rich.add_row(*row)
    console = Console()
    (console if console.is_terminal else Console(width=WIDE)).print(rich, markup=False)
