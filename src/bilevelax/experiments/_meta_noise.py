"""Noise and bias of one gradient of each meta-learning method: what the reasons on the page rest on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from bilevelax.applications._softmax import everything
from bilevelax.diagnostics.certify import batch_means
from bilevelax.diagnostics.check import relative_bias
from bilevelax.diagnostics.reference import exact_response, flat_rows
from bilevelax.experiments import _meta as meta
from bilevelax.experiments import _training as training
from bilevelax.experiments._items import Records, Row, Table
from bilevelax.experiments._statistics import number
from bilevelax.experiments._trajectories import seed_keys
from bilevelax.problem import Problem, X

TITLE = "One gradient"


@jax.jit
def exact_gradient(problem: Problem, x: X) -> X:
    """grad F(x) on all images of all tasks."""

    def one(i: jax.Array) -> X:
        images = jax.tree.map(lambda a: a[None], everything(problem.data, i))
        return exact_response(problem, x, i, problem.start(x, i), images, jnp.ones(1))[0].grad

    tasks = lax.map(one, jnp.arange(problem.n_contexts, dtype=jnp.int32))
    return jax.tree.map(lambda a: jnp.mean(a, axis=0), tasks)


def rows_at(data: meta.Data, methods: Sequence[meta.Method], x: X, calls: int) -> list[Row]:
    """``sd``: square root of E|v - E v|^2 of one gradient v at x; ``bias``: |E v - grad F| / |grad F|, with its
    interval; ``norm``: |grad F|."""
    exact = flat_rows(jax.tree.map(lambda a: a[None], exact_gradient(data.fit, x)))[0]
    norm = float(np.linalg.norm(exact))
    key = seed_keys(1, training.ROLE_RUN)[0]
    rows: list[Row] = []
    for method in methods:
        found = flat_rows(batch_means(key, data.fit, x, estimator=method.estimator, batches=calls))
        bias = relative_bias(found - exact, norm, 0.0)
        sd = float(np.sqrt(found.var(0, ddof=1).sum()))
        columns = {"kind": "noise", "method": method.name, "setting": method.setting, "calls": calls}
        values = {"sd": sd, "norm": norm, "bias": bias.estimate, "bias_low": bias.low, "bias_high": bias.high}
        rows.append({**columns, **{name: training.finite(value) for name, value in values.items()}})
    return rows


def last_x(data: meta.Data, method: meta.Method, trials: Sequence[training.Trial], T: int) -> X:
    """Where the method ends with the paper's steps, on the first seed."""
    rule = meta.both_rules(trials)["paper"]
    curve = training.train(data.fit, data.x1, method.estimator, rule, seed=0, checkpoints=(T,))
    return jax.tree.map(lambda a: a[-1], curve.x)


def tables(records: Records, where: str) -> list[Table]:
    """Of every method, at the place that ``where`` names; none where it was not measured (scale smoke)."""
    rows = records.where(kind="noise")
    if not rows:
        return []
    shown = [
        (
            row["method"],
            row["setting"],
            number(row["sd"]),
            f"{row['sd'] / row['norm']:.3g}",
            f"{row['bias']:.2g} [{row['bias_low']:.2g}, {row['bias_high']:.2g}]",
        )
        for row in rows
    ]
    title = f"{TITLE} at {where}, {rows[0]['calls']} calls; |grad F| = {number(rows[0]['norm'])} there"
    return [Table(title, ("method", "", "standard deviation", "the same / |grad F|", "bias / |grad F|"), shown)]


def sentence(records: Records, which: Iterable[dict[str, str]]) -> str:
    """Noise of those of these methods that were measured, and their biases as far as the calls tell them from 0."""
    found = [row for one in which for row in records.where(kind="noise", **one)]
    if not found:
        return ""
    name = lambda row: f"{row['method']} {row['setting']}"
    noises = ", ".join(f"{name(row)}: {row['sd'] / row['norm']:.3g}" for row in found)
    biases = ", ".join(f"{name(row)}: {row['bias']:.2g}" for row in found if row["bias_low"] > 0)
    told = f"bias told from 0: {biases}" if biases else "no bias is told from 0"
    calls = found[0]["calls"]
    return f"Measured standard deviation of a gradient, in units of |grad F|: {noises}; {told} by {calls} calls."
