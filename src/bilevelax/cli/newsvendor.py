"""``bilevelax newsvendor``: orders from a CSV file, without Python."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

app = typer.Typer(
    help="Orders from a CSV of past days: fit, order, evaluate; `example` shows all three.",
    no_args_is_help=True,
    add_completion=False,
)
KEPT = 20_000  # training rows kept in the model for the baselines of `evaluate`


def console() -> Console:
    return Console(highlight=False, soft_wrap=True)


def say(*lines: str) -> None:
    for line in lines:
        console().print(line, markup=False)


def cost_option(name: str, value: float) -> float:
    if not (np.isfinite(value) and value > 0):
        raise ValueError(f"`--{name}` must be a positive number. Got {value:g}.")
    return value


def penalty_option(word: str) -> Any:
    if word == "cv":
        return word
    try:
        return float(word)
    except ValueError:
        raise ValueError(f"`--penalty` must be a number, inf or cv. Got {word!r}.") from None


def train(
    file: Path,
    targets: list[str],
    holding: float,
    backlog: float,
    date: str | None,
    perturb: list[str] | None,
    **kw: Any,
) -> tuple[Any, Any, Any, np.ndarray]:
    """(model, schema, contexts, demands) from a file, with a report on the screen."""
    from bilevelax.sklearn import RobustNewsvendor, _weights, newsvendor, tables

    table, y, notes = tables.targets_of(tables.read_table(file), targets, file)
    schema = tables.learn_schema(table, targets, date, file)
    if schema.date:
        order = np.argsort(tables.dates_of(table, schema.date, file).to_numpy(), kind="stable")
        if (np.diff(order) < 0).any():
            notes.append(f"rows were sorted by {schema.date}")
        table, y = table.iloc[order].reset_index(drop=True), y[order]
    X, found = schema.encode(table, file)
    movable = schema.movable(perturb)
    say(
        f"{file}: {len(X)} rows, {X.shape[1]} features, demand in {', '.join(targets)}",
        *schema.report(),
        *notes,
        *found,
    )
    say(f"May move: {', '.join(movable) or 'nothing'}")
    if len(X) > _weights.FOREST_ROWS:
        contexts = min(len(X), newsvendor.CONTEXTS)
        say(f"The forest sees {_weights.FOREST_ROWS} of the {len(X)} rows, the policy {contexts}; chosen at random.")
    model = RobustNewsvendor(holding, backlog, perturb=[list(X).index(name) for name in movable] or "none", **kw)
    model.fit(X, y[:, 0] if len(targets) == 1 else y)
    tried = ", ".join(f"{penalty:g}: {cost:.4g}" for penalty, cost in model.path_.items())
    say(f"Penalty {model.penalty_:g}, {model.n_iter_} steps (validation cost by penalty {tried or 'not computed'})")
    return model, schema, X, y


def save(model: Any, schema: Any, X: Any, y: np.ndarray, out: Path) -> None:
    from bilevelax.sklearn.persist import save_newsvendor

    arrays = {"X": X.to_numpy(float)[-KEPT:], "y": y[-KEPT:]}
    save_newsvendor(model, out, {"schema": dataclasses.asdict(schema)}, **arrays)


def load(folder: Path) -> tuple[Any, Any]:
    """(model, schema)"""
    from bilevelax.sklearn.persist import load_newsvendor
    from bilevelax.sklearn.tables import Schema

    model, record = load_newsvendor(folder)
    if "schema" not in record:
        raise ValueError(
            f"{folder} was not written by `bilevelax newsvendor fit`: it has no schema of the columns. Fit again."
        )
    return model, Schema(**record["schema"])


@app.command()
def fit(
    file: Annotated[Path, typer.Argument(help="CSV of past days, one row each.")],
    target: Annotated[str, typer.Option(help="Column of the demand; several, separated by commas.")],
    holding: Annotated[float, typer.Option(help="Cost of a unit left over.")] = 1.0,
    backlog: Annotated[float, typer.Option(help="Cost of a unit missing.")] = 3.0,
    date: Annotated[str | None, typer.Option(help="Column of dates; by default `date`, if there is one.")] = None,
    perturb: Annotated[
        str | None, typer.Option(help="Columns whose values may be off, separated by commas; by default measurements.")
    ] = None,
    penalty: Annotated[str, typer.Option(help="Price of moving them: a number, inf, or cv to choose.")] = "cv",
    policy: Annotated[str, typer.Option(help="mlp or linear.")] = "mlp",
    max_iter: Annotated[int, typer.Option(help="Most training steps.")] = 400,
    seed: Annotated[int, typer.Option(help="Seed.")] = 0,
    out: Annotated[Path, typer.Option(help="Folder of the model.")] = Path("model"),
) -> None:
    """Learn an ordering rule from past days.

    Example: bilevelax newsvendor fit demand.csv --target demand --holding 1 --backlog 9 --out model/
    """
    trained = train(
        file,
        [name.strip() for name in target.split(",")],
        cost_option("holding", holding),
        cost_option("backlog", backlog),
        date,
        None if perturb is None else [name.strip() for name in perturb.split(",") if name.strip()],
        penalty=penalty_option(penalty),
        policy=policy,
        max_iter=max_iter,
        random_state=seed,
    )
    save(*trained, out)
    say(f"Model: {out}")


@app.command()
def order(
    model: Annotated[Path, typer.Argument(help="Folder written by fit.")],
    file: Annotated[Path, typer.Argument(help="CSV of the days to order for.")],
    out: Annotated[Path, typer.Option(help="CSV to write: the columns of FILE and `order`.")] = Path("orders.csv"),
) -> None:
    """Orders for new days.

    Example: bilevelax newsvendor order model/ tomorrow.csv --out orders.csv
    """
    from bilevelax.sklearn.tables import read_table

    rule, schema = load(model)
    table = read_table(file)
    if not len(table):
        raise ValueError(f"{file} has no rows below its header. Add one for each day to order for.")
    X, notes = schema.encode(table, file)
    orders = np.asarray(rule.predict(X)).reshape(len(X), -1)
    names = ["order"] if len(schema.targets) == 1 else [f"order_{name}" for name in schema.targets]
    table.assign(**dict(zip(names, orders.T, strict=True))).to_csv(out, index=False)
    say(*notes, f"{len(table)} orders: {out}")


@app.command()
def evaluate(
    model: Annotated[Path, typer.Argument(help="Folder written by fit.")],
    file: Annotated[Path, typer.Argument(help="CSV of later days with their demand.")],
    out: Annotated[Path, typer.Option(help="PNG to draw.")] = Path("evaluation.png"),
) -> None:
    """Costs on later days, against baselines trained on the same rows as the model."""
    from bilevelax.datasets.files import read_arrays
    from bilevelax.sklearn import baselines
    from bilevelax.sklearn.compare import Outcome, tabulate
    from bilevelax.sklearn.plots import plot_comparison
    from bilevelax.sklearn.tables import read_table, targets_of

    rule, schema = load(model)
    table, y, notes = targets_of(read_table(file), schema.targets, file)
    X, found = schema.encode(table, file)
    arrays = read_arrays(model / "arrays.npz", ("X", "y"))
    outcomes = {"robust": Outcome.of(rule, X, y)}
    for name, baseline in baselines(rule.holding_cost, rule.backlog_cost, random_state=0).items():
        outcomes[name] = Outcome.of(baseline.fit(arrays["X"], arrays["y"]), X.to_numpy(float), y)
    comparison = tabulate(outcomes, outcomes["quantile"], "robust")
    say(*notes, *found)
    console().print(shown(comparison.table))
    say("relative: cost / mean demand; service: share of orders that cover demand; filled: share of demand met;")
    say("worst: mean of the dearest tenth; diff: to the first row, with its 95 % paired bootstrap interval.")
    say(f"Plot: {plot_comparison(comparison, out)}")


HEADS = {  # columns of the table in a terminal
    "mean_cost": "cost",
    "relative_cost": "relative",
    "service_level": "service",
    "fill_rate": "filled",
    "worst_decile_cost": "worst",
    "difference": "diff",
}


def shown(table: Any) -> Table:
    """The comparison as a table for a terminal of 80 columns."""
    made = Table(title="Costs on the test rows", title_justify="left", box=None, padding=(0, 1))
    made.add_column("", no_wrap=True)
    for head in (*HEADS.values(), "95 %"):
        made.add_column(head, justify="right", no_wrap=True)
    for name, row in table.iterrows():
        cells = [f"{row[column]:.3g}" for column in HEADS]
        made.add_row(str(name), *cells, f"{row['low']:.3g}..{row['high']:.3g}")
    return made


@app.command()
def example(
    out: Annotated[Path, typer.Option(help="Folder of files, model and plot.")] = Path("demo"),
    max_iter: Annotated[int, typer.Option(help="Most training steps.")] = 400,
) -> None:
    """YAZ end to end: seven dishes of a restaurant, trained on 570 days, evaluated on the 190 days after."""
    from bilevelax.datasets import load_yaz

    data = load_yaz()
    out.mkdir(parents=True, exist_ok=True)
    cut = round(0.75 * len(data.y))
    whole = data.table.drop(columns=["weekday", "month", "year", "is_closed"]).join(data.y)
    whole[:cut].to_csv(out / "past.csv", index=False)
    whole[cut:].to_csv(out / "later.csv", index=False)
    targets = ",".join(data.y)
    say(f"bilevelax newsvendor fit {out}/past.csv --target {targets} --holding 1 --backlog 9 --out {out}/model")
    fit(out / "past.csv", targets, 1.0, 9.0, None, None, "cv", "mlp", max_iter, 0, out / "model")
    say("", f"bilevelax newsvendor order {out}/model {out}/later.csv --out {out}/orders.csv")
    order(out / "model", out / "later.csv", out / "orders.csv")
    say("", f"bilevelax newsvendor evaluate {out}/model {out}/later.csv --out {out}/newsvendor.png")
    evaluate(out / "model", out / "later.csv", out / "newsvendor.png")
    say(f"Model and report: {out / 'model' / 'model.json'}")
