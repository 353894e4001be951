"""How often `check` fails a problem that is right: random problems of four kinds, sizes 1 to 1,000.

Problems of one kind and size differ in their data only, so they share their programs: what is counted is checks, not
compilations. A check is an alarm where one of its rows fails; checks with undecided rows are counted apart. The work is
cut into parts, each with draws of its own. Parts that are done stay done: ``--minutes 7`` does some, the next call
others, and the table adds up all of them.
"""

from __future__ import annotations

import argparse
import functools
import json
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.stats
from common import KEPT, publish
from jax import random

import bilevelax as bx

FEW = {"contexts": 8, "samples": 256, "n": 64}  # noisier than the defaults, and quicker


class Settings(NamedTuple):
    """How problems are checked, and how many of each kind at a size."""

    check: dict[str, int]
    x64: bool
    checks: dict[int, int]


SETTINGS = {
    "few draws": Settings(FEW, True, {1: 480, 10: 340, 100: 80, 1000: 24}),
    "few draws, float32": Settings(FEW, False, {1: 120, 10: 80}),
    "defaults": Settings({}, True, {1: 60, 10: 60, 100: 5}),
}
HALF = "softmax"  # half as many of these, which take all their rounds
AT_ONCE = {1: 20, 10: 20, 100: 5, 1000: 1}  # checks in a part
DONE = KEPT.parent / "false_alarms.jsonl"  # a line for each part, committed: pages quote it
Made = tuple[bx.Problem, Callable[[np.random.Generator], tuple[Any, Any]]]  # a problem; data and x drawn


def quadratic(d: int) -> Made:
    """y* = x * scale + xi + E eta, curvatures between 0.5 and 5."""
    problem = bx.Problem(
        f=lambda x, y, eta, xi: jnp.sum((y - xi["goal"]) ** 2) / 2 + 0.1 * jnp.sum(x**2),
        g=lambda x, y, eta, xi: jnp.sum(xi["curve"] * (y - xi["scale"] * x - xi["shift"] - eta) ** 2) / 2,
        sample_context=lambda key, data: {**data, "shift": random.normal(key, (d,))},
        sample_conditional=lambda key, xi, data: random.normal(key, (d,)),
        init_y=lambda x, xi: jnp.zeros(d),
    )

    def draw(rng: np.random.Generator) -> tuple[Any, Any]:
        data = {"goal": rng.normal(size=d), "curve": np.exp(rng.uniform(-0.7, 1.6, d)), "scale": rng.normal(size=d)}
        return data, rng.normal(size=d)

    return problem, draw


def softmax(d: int) -> Made:
    """Three classes, a prior x that y stays near; y and x have about d numbers."""
    d = max(d // 3, 1)  # features

    def loss(y: Any, sample: Any) -> Any:
        scores = y @ sample[0]
        return jax.nn.logsumexp(scores) - scores[sample[1]]

    def sample_conditional(key: Any, xi: Any, data: Any) -> Any:
        def one(key: Any) -> Any:
            key_a, key_b = random.split(key)
            a = random.normal(key_a, (d,)) / np.sqrt(d)
            return a, random.categorical(key_b, (data["truth"] + xi) @ a)

        return jax.tree.map(lambda *rows: jnp.stack(rows), *map(one, random.split(key)))

    row = lambda eta, i: jax.tree.map(lambda a: a[i], eta)
    problem = bx.Problem(
        f=lambda x, y, eta, xi: loss(y, row(eta, 1)) + 0.01 * jnp.sum(x**2),
        g=lambda x, y, eta, xi: loss(y, row(eta, 0)) + jnp.sum((y - x) ** 2) / 2,
        sample_context=lambda key, data: random.normal(key, (3, d)),
        sample_conditional=sample_conditional,
        init_y=lambda x, xi: x,
    )
    return problem, lambda rng: ({"truth": 2 * rng.normal(size=(3, d))}, rng.normal(size=(3, d)) / np.sqrt(d))


def newsvendor(d: int) -> Made:
    """d products with smooth costs; x moves what too little costs."""
    cost = lambda y, demand, under: jnp.sum(jax.nn.softplus(y - demand) + under * jax.nn.softplus(demand - y))
    problem = bx.Problem(
        f=lambda x, y, eta, xi: cost(y, eta, 2.0) / d + 0.1 * jnp.sum(x**2),
        g=lambda x, y, eta, xi: cost(y, eta, jax.nn.softplus(x) + 0.1) + 0.05 * jnp.sum(y**2),
        sample_context=lambda key, data: data["level"] * random.normal(key, (d,)),
        sample_conditional=lambda key, xi, data: xi + random.exponential(key, (d,)),
        init_y=lambda x, xi: xi,
    )
    return problem, lambda rng: ({"level": np.exp(rng.normal(size=d) / 2)}, rng.normal(size=d))


def conditional(d: int) -> Made:
    """Conditional stochastic optimization: a smooth loss of a conditional mean."""
    problem = bx.conditional_stochastic(
        lambda x, y, xi: jnp.sum(jnp.sqrt(1 + y**2)) + 0.05 * jnp.sum(x**2),
        lambda x, eta, xi: jnp.tanh(eta) * x - xi,
        sample_context=lambda key, data: data["level"] * random.normal(key, (d,)),
        sample_conditional=lambda key, xi, data: xi + random.normal(key, (d,)),
    )
    return problem, lambda rng: ({"level": np.exp(rng.normal(size=d) / 2)}, rng.normal(size=d))


KINDS = {"quadratic": quadratic, "softmax": softmax, "newsvendor": newsvendor, "CSO": conditional}


class Part(NamedTuple):
    """Some checks of random problems of one kind and size; its number is their seed."""

    settings: str
    problems: str
    size: int
    number: int

    @property
    def checks(self) -> int:
        return AT_ONCE[self.size]


def parts() -> list[Part]:
    """All of them: small sizes first, and at any time about the same share of each kind and size is done."""
    found = []
    for settings, each in SETTINGS.items():
        for size, checks in each.checks.items():
            for problems in KINDS:
                count = max(checks // AT_ONCE[size] // (1 + (problems == HALF)), 1)
                found += [((size > 10, (i + 1) / count), Part(settings, problems, size, i)) for i in range(count)]
    return [part for _, part in sorted(found, key=lambda each: each[0])]


def done(part: Part) -> dict[str, Any]:
    """What `check` said in this part."""
    problem, draw = made(part.problems, part.size)
    rng = np.random.default_rng([part.number, part.size, list(KINDS).index(part.problems)])
    started, failed, undecided = time.process_time(), [], []
    for i in range(part.checks):
        data, x = jax.tree.map(lambda a: jnp.asarray(a, float), draw(rng))
        key = random.fold_in(random.key(part.number), i)
        report = bx.check(problem.replace(data=data), x, key=key, progress=False, **SETTINGS[part.settings].check)
        failed += [[i, *row] for row in report.failed]
        undecided += [[i, *row] for row in report.rows if row.ok is None]
    count = lambda rows: len({i for i, *_ in rows})
    told = {"checks": part.checks, "alarms": count(failed), "undecided": count(undecided)}
    return {**part._asdict(), **told, "CPU s": round(time.process_time() - started, 1), "failed": failed}


@functools.cache
def made(problems: str, size: int) -> Made:
    """One problem for all parts of a kind and size: programs are kept by it."""
    return KINDS[problems](size)


def added(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The table: parts of equal settings, kind and size in one row."""
    rows: dict[tuple[str, str, int], dict[str, Any]] = {}
    for part in records:
        name = part["settings"], part["problems"], part["size"]
        row = rows.setdefault(name, dict(zip(("settings", "problems", "size"), name, strict=True)))
        for column in ("checks", "alarms", "undecided", "CPU s"):
            row[column] = round(row.get(column, 0) + part[column], 1)
    return list(rows.values())


def most(alarms: int, checks: int) -> float:
    """The 95 % upper bound of a probability that came true so often (Clopper and Pearson)."""
    return float(scipy.stats.beta.ppf(0.95, alarms + 1, checks - alarms))


def note(settings: str, records: list[dict[str, Any]]) -> str:
    checks, alarms, undecided = (sum(part[column] for part in records) for column in ("checks", "alarms", "undecided"))
    bound = f"{100 * most(alarms, checks):.2g} % at most, surely to 95 %"
    return f"{settings}: {alarms} alarms in {checks:,} checks of right problems ({bound}); {undecided} undecided."


def run(quick: bool = False, minutes: float = np.inf, only: str = "", size: int | None = None) -> None:
    """Parts that are not done yet, for so long, and the table of all that are. Several processes may share the work."""
    bx.cache()
    records = [json.loads(line) for line in DONE.read_text().splitlines()] if DONE.exists() and not quick else []
    known = {tuple(record[name] for name in Part._fields) for record in records}
    until = time.monotonic() + 60 * minutes
    for part in parts():
        wanted = part not in known and only in part.problems and size in (None, part.size)
        wanted = wanted and time.monotonic() < until
        if wanted and (not quick or (part.number == 0 and part.size == 1)):
            jax.config.update("jax_enable_x64", SETTINGS[part.settings].x64)
            records.append(done(part))
            if not quick:
                with DONE.open("a") as file:  # a line is written whole, whoever else writes
                    file.write(json.dumps(records[-1]) + "\n")
    notes = [note("All", records)]
    notes += [note(name, some) for name in SETTINGS if (some := [each for each in records if each["settings"] == name])]
    notes += [json.dumps(part) for part in records if part["failed"]]
    publish("false_alarms", "False alarms of check", added(records), notes)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=np.inf, help="begin no part after so long")
    parser.add_argument("--only", default="", help=f"one of {', '.join(KINDS)}")
    parser.add_argument("--size", type=int, help="one of 1, 10, 100, 1000")
    run(**vars(parser.parse_args()))
