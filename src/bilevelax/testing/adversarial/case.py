"""A row of the table: a case, how it is built and asked about, and what must be said."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import random

import bilevelax as bx

KEY = random.key  # made where it is used: importing allocates nothing
SMALL = {"contexts": 4, "samples": 256, "n": 64}


class Case(NamedTuple):
    """``ask()`` returns what the library says, as text, or raises; ``says`` must be found in it, ``never`` must not."""

    name: str
    ask: Callable[[], Any]
    says: str
    never: str = "Traceback"
    slow: bool = False  # compiles much

    def failed(self) -> str:
        """What was said instead; empty where the case is met."""
        told = said(self.ask)
        fine = re.search(self.says, told, re.DOTALL) and not re.search(self.never, told)
        return "" if fine else told


def said(ask: Callable[[], Any]) -> str:
    """Result, warnings and the refusal of an action in one text. Only refusals of ours, ValueErrors, are sentences."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            result = str(ask())
        except ValueError as error:
            result = f"refused: {error}"
    told = [f"warned: {each.message}" for each in caught if issubclass(each.category, RuntimeWarning | UserWarning)]
    return "\n".join([result, *told])


def rows_of(report: Any) -> str:
    """The verdict of a `check` and its rows, one a line."""
    marks = {True: "ok", False: "FAILED", None: "open"}
    lines = [f"{row.name} {marks[row.ok]} {row.value}; {row.remedy}" for row in report.rows]
    return "\n".join([report.verdict, *lines])


def plain(f: Any = None, g: Any = None, d: int = 2, dtype: Any = float, **changes: Any) -> bx.Problem:
    """y* = x + E eta in R^d, paid by its distance from xi."""
    draw = lambda key: random.normal(key, (d,), dtype)
    return bx.Problem(
        **{
            "f": f or (lambda x, y, eta, xi: jnp.sum((y - xi) ** 2) / 2),
            "g": g or (lambda x, y, eta, xi: jnp.sum((y - x - eta) ** 2) / 2),
            "sample_context": lambda key, data: draw(key),
            "sample_conditional": lambda key, xi, data: draw(key) / 10,
            "init_y": lambda x, xi: jnp.zeros(d, dtype),
            **changes,
        }
    )


def alone(f: Any, g: Any, init: Any) -> bx.Problem:
    """A problem whose f and g see x and y only."""
    return plain(
        lambda x, y, eta, xi: f(x, y),
        lambda x, y, eta, xi: g(x, y),
        d=1,
        init_y=lambda x, xi: jnp.asarray(init, float),
    )
