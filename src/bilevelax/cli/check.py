"""``bilevelax check module:attribute``: the public contract, run on anyone's code."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Annotated, Any

import typer

from bilevelax import applications, estimators
from bilevelax.applications import Application
from bilevelax.cli._terminal import busy, keep_programs, print_json


def load(target: str) -> Any:
    """The object that ``module:attribute`` names; a factory is called without arguments."""
    module, colon, attribute = target.partition(":")
    if not colon or not attribute:
        raise ValueError(f"What to check must read module:attribute, e.g. my_problem:app. Got {target!r}.")
    sys.path.insert(0, os.getcwd())
    try:
        found = importlib.import_module(module)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and module.startswith(error.name or "?"):
            raise ValueError(f"There is no module {module!r} here. Run from the folder that holds it.") from error
        raise failed(module, "be imported", error) from error
    if not hasattr(found, attribute):
        public = [name for name in vars(found) if not name.startswith("_")]
        raise ValueError(f"Module {module!r} has no {attribute!r}. It has: {', '.join(public) or 'nothing'}.")
    from bilevelax.core.estimate import Estimator

    value = getattr(found, attribute)
    if not callable(value) or isinstance(value, Application | Estimator):
        return value
    try:
        return value()
    except Exception as error:
        raise failed(target, "be called without arguments", error) from error


def failed(target: str, action: str, error: Exception) -> ValueError:
    """A mistake in the code that is checked, as a sentence."""
    told = f"{type(error).__name__}: {error}".rstrip(".")
    return ValueError(f"{target} cannot {action} ({told}). Mend it, or see where with --debug.")


def check(
    target: Annotated[
        str,
        typer.Argument(
            help="module:attribute: an Application, a pair (problem, x), an Estimator, or a factory of one."
        ),
    ],
    on: Annotated[str, typer.Option(help="Application on which an estimator is checked.")] = "quadratic",
    estimator: Annotated[
        str | None, typer.Option(help="Estimator that is checked on an application; by default the unbiased one.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the draws.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the rows as JSON.")] = False,
) -> None:
    """Check a problem or an estimator of yours; exits non-zero and says what is wrong.

    Example: bilevelax check my_problem:app --estimator rt_mlmc
    """
    from jax import random

    from bilevelax import Estimator, Problem
    from bilevelax import check as diagnose
    from bilevelax.testing import check_estimator

    keep_programs()
    value, key = load(target), random.key(seed)
    if type(value) is tuple and len(value) == 2 and isinstance(value[0], Problem):
        value = Application(*value, lambda x: {})
    if isinstance(value, Application):
        chosen = None if estimator is None else {estimator: estimators.catalogue.load(estimator)()}
        report = diagnose(value.problem, value.x1, key=key, estimator=chosen)
        if as_json:
            print_json({"target": target, "ok": report.ok, "rows": [row._asdict() for row in report.rows]})
        else:
            typer.echo(f"{target}: {report}")
        if not report.ok:
            raise typer.Exit(1)
    elif isinstance(value, Estimator):
        application = applications.catalogue.load(on)()
        with busy(f"Checking {target} on {on}; up to a minute"):
            check_estimator(value, application.problem, application.x1, key=key)
        if as_json:
            print_json({"target": target, "ok": True, "on": on})
        else:
            typer.echo(f"{target}: the estimator keeps its contract on {on}.")
    else:
        raise ValueError(
            f"{target} must be an Application, a pair (problem, x) or an Estimator. Got {type(value).__name__}. "
            "Build one with bilevelax.applications.Application, or give the problem together with an x."
        )
