"""``bilevelax newsvendor``: orders from a CSV file, without Python."""

from __future__ import annotations

import contextlib
import io
import json
import math
import re
from pathlib import Path
from typing import Annotated, Any

import typer

from bilevelax.base.sentences import counted
from bilevelax.base.text_table import Table, plain, show
from bilevelax.cli import _newsvendor_answers, _newsvendor_order, _newsvendor_work
from bilevelax.cli import _newsvendor_options as options
from bilevelax.cli._newsvendor_capacity import Wanted
from bilevelax.cli._newsvendor_choices import with_columns_chosen
from bilevelax.cli._newsvendor_later import recent_drift
from bilevelax.cli._newsvendor_more import explain, update
from bilevelax.cli._newsvendor_past import Asked, read_past
from bilevelax.cli._options import AsJson
from bilevelax.cli._terminal import busy, print_json
from bilevelax.cli._terminal import results as say
from bilevelax.cli._terminal import say as tell

app = typer.Typer(
    help="Orders from a CSV of past days: fit, order, evaluate; `example` shows all three.",
    no_args_is_help=True,
    add_completion=False,
)


def health_block(findings: list[str]) -> list[str]:
    """What to look at in the data, before anything else."""
    if not findings:
        return ["Data health: nothing found to look at"]
    where = " (row 1 is the first below the header)" if any(re.search(r"\brows? \d", each) for each in findings) else ""
    head = f"Data health: {counted(len(findings), 'thing')} to look at{where}"
    return [head, *(f"  ! {finding}" for finding in findings)]


def number(value: float) -> Any:
    """For JSON, which knows no infinity."""
    return float(value) if math.isfinite(value) else str(float(value))


@app.command()
def fit(
    file: options.PastFile,
    target: options.Target,
    holding: options.Holding = "1",
    backlog: options.Backlog = None,
    service_level: options.ServiceLevel = None,
    date: options.Date = None,
    dates: options.Dates = "season",
    holidays: options.Holidays = None,
    lags: options.Lags = None,
    category: options.Category = None,
    ids: options.Ids = None,
    stockout: options.Stockout = None,
    lead_time: options.LeadTime = 0,
    perturb: options.Perturb = None,
    penalty: options.Penalty = "auto",
    folds: options.Folds = 1,
    policy: options.Policy = "auto",
    max_iter: options.MaxIter = None,
    seed: Annotated[int, typer.Option(help="Seed.")] = 0,
    out: Annotated[Path, typer.Option(help="Folder of the model.")] = Path("model"),
    as_json: AsJson = False,
) -> None:
    """Learn an ordering rule from past days.

    Example: bilevelax newsvendor fit demand.csv --target demand --holding 1 --backlog 9 --out model/
    """
    if folds < 1:
        raise ValueError(f"`--folds` must be 1 or more. Got {folds}.")
    from bilevelax.cli._newsvendor_prices import Prices

    prices = Prices(holding, backlog, service_level).checked()
    asked = Asked(target, date, category, dates, ids, stockout, lags, holidays, lead_time, prices)
    settings = {"penalty": options.penalty_option(penalty), "cv": None if folds == 1 else folds}
    settings |= {"policy": options.policy_option(policy), "max_iter": options.steps_option(max_iter)}
    settings |= {"random_state": seed}
    fit_file(file, asked, perturb, settings, out, as_json)


def fit_file(file: Path, asked: Asked, perturb: str | None, settings: dict[str, Any], out: Path, as_json: bool) -> None:
    """Read, learn, save and tell."""
    from bilevelax.cli._newsvendor_prices import costs_of

    with busy(f"Reading {file}"):
        past = read_past(file, asked)
        costs = costs_of(past.schema, asked.prices)
        past = with_columns_chosen(past, costs, asked)
    told = [*past.notes, *_newsvendor_work.subsample_note(len(past.X))]
    head = f"{file}: {len(past.X)} rows, {past.X.shape[1]} features, demand in {', '.join(past.schema.targets)}"
    if not as_json:
        say(head, *health_block(past.health), *past.schema.report(), *told)
    out.mkdir(parents=True, exist_ok=True)  # what cannot be written is known before the work
    tell(f"Learning from {len(past.X)} rows: rules that are tried on later days, then the best of them on all")
    past, lost = _newsvendor_work.with_lost_demand(past, costs)
    model, movable, warned = _newsvendor_work.learn(past, perturb, **costs, **settings)
    warned += recent_drift(model, past)
    _newsvendor_work.save(model, past, out)
    if as_json:
        print_json(fit_document(model, past, movable, [*told, *lost, *warned], out))
        return
    say(*lost, *fit_lines(model, movable, list(past.schema.targets)), *warned, f"Model: {out}")


def fit_document(model: Any, past: Any, movable: list[str], notes: list[str], out: Path) -> dict[str, Any]:
    """What was read and learnt, for programs."""
    path = [{"penalty": number(value), "validation_cost": cost} for value, cost in model.path_.items()]
    columns = {"features": list(past.X), "columns": past.schema.columns, "ignored": past.schema.ignored}
    found = {"penalty": number(model.penalty_), "steps": model.n_iter_, "path": path, "notes": notes}
    head = {"model": str(out), "rows": len(past.X), "health": past.health}
    return {**head, **columns, "may_move": movable, **found}


def fit_lines(model: Any, movable: list[str], products: list[str]) -> list[str]:
    """What was learnt, for people."""
    chosen = choice_lines(model, products)
    if not movable:
        return ["May move: nothing", f"So there is no penalty to choose; {model.n_iter_} steps", *chosen]
    tried = ", ".join(f"{value:g}: {plain(cost)}" for value, cost in model.path_.items()) or "not computed"
    price = f"Penalty {model.penalty_:g}, {model.n_iter_} steps (validation cost by penalty {tried})"
    return [f"May move: {', '.join(movable)}", price, *chosen]


def choice_lines(model: Any, products: list[str]) -> list[str]:
    """Which rule won on days held out, and how often it covered demand there."""
    if not model.tried_:
        return []
    costs = ", ".join(f"{name} {plain(cost)}" for name, cost in model.baseline_costs_.items())
    ours = min(each["cost"] for each in model.tried_)
    kind = {"dirac": "days as they were", "forest": "days weighted by a forest"}.get(
        model.chosen_["conditional"], "days"
    )
    rule = f"{model.chosen_['policy']} on {kind}; cost on days held out {plain(ours)}"
    lines = [f"Rule: {rule} ({costs or 'no baselines'})"]
    if model.fallback_:
        lines.append(f"The {model.fallback_} orders: cheapest on those days, or as cheap as the cheapest and simpler")
    names = products if len(products) == len(model.service_target_) > 1 else [""] * len(model.service_target_)
    told = [
        f"{name} {achieved:.0%} ({target:.0%})".strip()
        for name, target, achieved in zip(names, model.service_target_, model.service_achieved_, strict=True)
        if achieved == achieved  # not nan
    ]
    return [*lines, f"Demand covered on days held out (target): {', '.join(told)}"] if told else lines


@app.command()
def order(
    model: options.Folder,
    file: Annotated[Path, typer.Argument(help="CSV of the days to order for.")],
    out: Annotated[Path, typer.Option(help="CSV to write: the columns of FILE and `order`.")] = Path("orders.csv"),
    pack: options.Pack = None,
    minimum: options.Minimum = 0.0,
    capacity: options.Capacity = None,
    size: options.Size = None,
    on_hand: options.OnHand = None,
    on_order: options.OnOrder = None,
    as_json: AsJson = False,
) -> None:
    """Orders for new days.

    Example: bilevelax newsvendor order model/ tomorrow.csv --out orders.csv
    """
    from bilevelax.tables.csv_files import write_with
    from bilevelax.tables.other_files import require_ending

    require_ending(out)
    with busy(f"Orders for the days of {file}"):
        wishes = _newsvendor_order.Wishes(pack, minimum, on_hand, on_order, Wanted(capacity, size))
        ordered = _newsvendor_order.orders_for(model, file, wishes)
        columns = ordered.columns()
        notes = [*ordered.notes, *write_with(file, columns, out)]
    if as_json:
        print_json({"orders": str(out), "rows": len(ordered.orders), "columns": list(columns), "notes": notes})
        return
    say(*notes)
    show(_newsvendor_order.shown(ordered))
    say("covers: the chance that demand is at most the order, from past days like it.")
    say(f"{len(ordered.orders)} orders: {out}")


app.command()(explain)
app.command()(update)


@app.command()
def evaluate(
    model: options.Folder,
    file: Annotated[Path, typer.Argument(help="CSV of later days with their demand.")],
    out: Annotated[
        list[Path] | None,
        typer.Option(help="File to write: a page (.html) or a picture (.png, .svg, .pdf). May be repeated."),
    ] = None,
    capacity: options.Capacity = None,
    size: options.Size = None,
    shift: options.Shift = None,
    as_json: AsJson = False,
) -> None:
    """Costs on later days, against baselines trained on the rows that the model keeps, at most its last 20,000.

    Example: bilevelax newsvendor evaluate model/ later.csv --out evaluation.html
    """
    files = out or [Path("evaluation.html")]
    for path in files:
        _newsvendor_work.require_drawable(path)
    tell(f"Fitting baselines and ordering for the days of {file}")
    judged = _newsvendor_work.judge(model, file, Wanted(capacity, size), shift)
    written = [str(_newsvendor_work.draw(judged, file, path)) for path in files]
    table = judged.evaluated.comparison.table
    if as_json:
        rows = [{"newsvendor": str(name), **{k: number(v) for k, v in row.items()}} for name, row in table.iterrows()]
        found = {"rows": len(judged.evaluated.X), "table": rows, **judged.answers._asdict()}
        print_json({**found, "files": written, "notes": judged.told()})
        return
    say(*(health_block(judged.health) if judged.health else []), *judged.notes)
    show(shown(table))
    for each in _newsvendor_answers.tables_of(judged.answers):
        show(each)
    say(*judged.who_orders(), *_newsvendor_answers.lines_of(judged.answers))
    say("cost: mean of a row; service: share of orders that cover demand;")
    say("filled: share of demand met; worst: mean of the dearest tenth;")
    say("diff: to the first row, with its 95 % paired bootstrap interval.")
    say(*(f"{'Report' if path.endswith('.html') else 'Plot'}: {path}" for path in written))


HEADS = {  # columns of the table in a terminal
    "mean_cost": "cost",
    "service_level": "service",
    "fill_rate": "filled",
    "worst_decile_cost": "worst",
    "difference": "diff",
}


SHARES = ("service_level", "fill_rate")


def shown(table: Any) -> Table:
    """The comparison as a table for a terminal of 80 columns."""
    cell = lambda row, column: (
        f"{100 * row[column]:.1f} %" if column in SHARES else plain(row[column], column == "difference")
    )
    rows = [
        (str(name), *(cell(row, column) for column in HEADS), f"{plain(row['low'])}..{plain(row['high'])}")
        for name, row in table.iterrows()
    ]
    return Table("Costs on the test rows", ("", *HEADS.values(), "95 %"), rows)


@app.command()
def example(
    out: Annotated[Path, typer.Option(help="Folder of files, model, plot and report.")] = Path("demo"),
    max_iter: Annotated[int, typer.Option(help="Training steps.")] = 800,
    as_json: AsJson = False,
) -> None:
    """YAZ end to end: seven dishes of a restaurant, trained on 570 days, evaluated on the 190 days after."""
    from bilevelax.datasets import load_yaz

    data = load_yaz()
    out.mkdir(parents=True, exist_ok=True)
    cut = round(0.75 * len(data.y))
    whole = data.table.drop(columns=["weekday", "month", "year", "is_closed"]).join(data.y)
    whole[:cut].to_csv(out / "past.csv", index=False)
    whole[cut:].to_csv(out / "later.csv", index=False)
    steps = [
        ["fit", f"{out}/past.csv", "--target", ",".join(data.y), "--holding", "1", "--backlog", "9"],
        ["order", f"{out}/model", f"{out}/later.csv", "--out", f"{out}/orders.csv"],
        ["evaluate", f"{out}/model", f"{out}/later.csv", "--out", f"{out}/newsvendor.png"],
    ]
    steps[0] += ["--max-iter", str(max_iter), "--out", f"{out}/model"]
    steps[2] += ["--out", f"{out}/newsvendor.html"]
    command = typer.main.get_command(app)
    results = {}
    for words in steps:
        if as_json:
            with contextlib.redirect_stdout(io.StringIO()) as said:
                command.main([*words, "--json"], standalone_mode=False)
            results[words[0]] = json.loads(said.getvalue())
        else:
            say(*[""] * (words[0] != "fit"), f"bilevelax newsvendor {' '.join(words)}")
            command.main(words, standalone_mode=False)
    if as_json:
        print_json(results)
