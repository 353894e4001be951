"""What `solve` learns where it looks on fresh draws: how long grad F is, what F is, what may be trusted."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from bilevelax.base.quantiles import student
from bilevelax.diagnostics.certify import OF_GRADIENT, OF_PROJECTED, Certificate
from bilevelax.diagnostics.intervals import projected_norm, squared_norm
from bilevelax.exact.evaluate import Evaluation
from bilevelax.run.quasi_newton import Projection, stationarity
from bilevelax.run.sampled import Point

SHARE = 0.2  # of the sum of squared gradients that one context of many may make up; more means heavy tails
MANY = 256


class Look(NamedTuple):
    """One look: valid together with all others of its run, since look j errs with probability alpha / (j (j + 1))."""

    certificate: Certificate
    F: Evaluation
    grad: float  # sqrt of the unbiased estimate, or of its lower end where that is negative
    noise: float
    bias: float  # lower bound of its norm: what is surely there
    heavy: bool


def level_of_look(level: float, j: int) -> float:
    """Of look number j = 1, 2, ...: alpha / (j (j + 1)) adds up to alpha over all of them."""
    return 1 - (1 - level) / (j * (j + 1))


def look_at(point: Point, m: int, level: float, j: int, project: Projection | None, about: str = "") -> Look:
    """The look on a sample that x does not depend on; ``about`` says which F it is, where that is not the problem's."""
    spent = level_of_look(level, j)
    measure = stationarity(point, project)
    if not len(point.rows):
        exact = Certificate(measure**2, measure**2, measure**2, level, m, of(project) + about)
        return Look(exact, Evaluation(point.F, point.F, point.F, 0.0, m), measure, 0.0, 0.0, False)
    if project is None:
        estimate, low, high = squared_norm(point.rows, spent)
    else:
        estimate, low, high = projected_norm(point.rows, point.x, project, spent)
    certificate = Certificate(estimate, low, high, level, m, of(project) + about)
    bias = math.sqrt(squared_norm(point.bias, 0.95)[1]) if point.bias.any() else 0.0
    heavy = bool(m >= MANY and point.largest > SHARE)
    return Look(certificate, cost(point, m, level), math.sqrt(max(estimate, low, 0.0)), point.noise, bias, heavy)


def without_interval(look: Look, why: str, effective: float) -> Look:
    """What is left where no interval holds."""
    none = look.certificate._replace(low=0.0, high=math.inf, told=why, effective=effective)
    return look._replace(certificate=none)


def of(project: Projection | None) -> str:
    return OF_GRADIENT if project is None else OF_PROJECTED


def cost(point: Point, m: int, level: float) -> Evaluation:
    """F(x) by Student's interval of the groups' means."""
    B = len(point.costs)
    stderr = float(point.costs.std(ddof=1) / np.sqrt(B))
    reach = student(B - 1, (1 + level) / 2) * stderr
    return Evaluation(point.F, point.F - reach, point.F + reach, stderr, m)


def plain(look: Look | None) -> list[Any] | None:
    """As JSON."""
    return look and [list(part) if isinstance(part, tuple) else part for part in look]


def of_plain(values: list[Any] | None) -> Look | None:
    return None if values is None else Look(Certificate(*values[0]), Evaluation(*values[1]), *values[2:])
