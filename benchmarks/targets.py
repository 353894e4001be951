"""Time to a fixed gap of F and a fixed |grad F| in `minimize`'s own chunks, by every estimator and by jaxopt.

Each family has the same tuning budget: two settings, three learning rates of Adam, falling as
1 / sqrt(t), and so many seconds for each, from two keys; the pair whose worse run is first at the
targets, or comes nearest to them, then runs from other keys until F and grad F, judged exactly on fixed
contexts, are both within their targets.
Where all outcomes of a context are stored, one setting of those on samples takes them all; where a step
has as many contexts as there are, it takes each once, whoever's it is.
``auto`` is what `tune` chooses, with the same three rates. ``search s`` is what finding a setting
took, compilation included and judging left out: for ``auto`` `tune` and its rates, for the others their
twelve pilot runs. ``in all`` adds the run.

``python benchmarks/run.py targets`` compares ``auto``, `saa` and jaxopt; ``python benchmarks/targets.py [NAME ...]``
all families, in all or some of the regimes.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from common import installed, median, publish, slug
from jax import lax, random
from problems import client_tasks, leader_follower, meta, simulated_demand
from rivals import jaxopt_average

import bilevelax as bx
from bilevelax.applications import Application
from bilevelax.diagnostics.contexts import context_number, count_contexts, takes_every
from bilevelax.diagnostics.reference import exact_response
from bilevelax.exact.draws import samples_of
from bilevelax.run import steps

GAP, SLOPE = 0.01, 0.1  # targets: of F(x1) - F*, and of |grad F(x1)|
EVERY = 20  # steps of a chunk at most
SETTLING = (
    50  # steps after which learning rates have fallen by sqrt(2): with constant ones the noise decides who arrives
)
FIRST, APART = 2, 10  # steps between the first looks; later ones are a tenth of the way apart
RATES = (0.01, 0.03, 0.1)
PILOTS = (1, 2)  # keys of the runs that tune
CONTINUOUS = "continuous contexts"
PEERS = ("auto", "saa", "jaxopt")  # the families that take a minute a regime


class Effort(NamedTuple):
    pilot: float  # seconds of a run that tunes
    limit: float  # seconds of a run that counts
    seeds: int
    best: float  # seconds of the search for F*


QUICK, FULL = Effort(0.3, 1.0, 1, 1.0), Effort(2.0, 20.0, 3, 8.0)


class Regime(NamedTuple):
    name: str
    app: Application
    m: int  # contexts of a step
    n: int  # samples of a context that suit it
    contexts: int  # judged
    samples: int

    def batch(self, estimator: bx.Estimator) -> bx.Estimator:
        """Its mean over the contexts of a step: each once where they are all there are."""
        full = self.app.problem.n_contexts == self.m
        return bx.minibatch(estimator, self.m, contexts="spread" if full else "independent")


def judge(regime: Regime) -> Callable[[Any], tuple[float, float]]:
    """x -> (F, |grad F|), exactly, on fixed contexts."""
    J = count_contexts(regime.app.problem, regime.contexts)

    @jax.jit
    def exact(problem: bx.Problem, x: Any) -> tuple[Any, Any]:
        key = random.key(12345)

        def one(i: Any) -> tuple[Any, Any]:
            xi = context_number(i, key, problem, takes_every(problem, regime.contexts))
            eta = samples_of(random.fold_in(random.fold_in(key, i), 1), problem, xi, regime.samples)
            response, _ = exact_response(problem, x, xi, problem.start(x, xi), *eta)
            return problem.weighted().f(x, response.solution.y, eta, xi), response.grad

        F, grad = lax.map(one, jnp.arange(J, dtype=jnp.int32), batch_size=min(J, 32))
        return F.mean(), optax.tree.norm(jax.tree.map(lambda a: a.mean(0), grad))

    return lambda x: tuple(map(float, exact(regime.app.problem, x)))  # type: ignore[return-value]


class Look(NamedTuple):
    seconds: float
    steps: int
    eta: int
    F: float
    slope: float


def chunks(n: int) -> list[int]:
    """n steps, at most EVERY at a time."""
    return [EVERY] * (n // EVERY) + [n % EVERY] * (n % EVERY > 0)


class Compiled(NamedTuple):
    """An estimator's chunk, compiled once for all learning rates and keys."""

    regime: Regime
    estimator: bx.Estimator
    optimizer: Any

    def first(self, rate: float) -> steps.Carry:
        carry = steps.initial_carry(self.regime.app.problem, self.estimator, self.optimizer, self.regime.app.x1)
        carry.opt_state.hyperparams["learning_rate"] = jnp.asarray(rate, float)  # else the second chunk compiles again
        return carry

    def chunk(self, carry: steps.Carry, key: Any, n: int) -> Any:
        settings = {"estimator": self.estimator, "optimizer": self.optimizer, "every": EVERY}
        return jax.block_until_ready(steps.chunk(self.regime.app.problem, carry, key, n, **settings))

    def run(self, rate: float, seed: int, seconds: float, judged: Any, done: Callable[[Look], bool]) -> list[Look]:
        carry, looks, taken, eta = self.first(rate), [], 0.0, 0
        while taken < seconds:
            for n in chunks(max(FIRST, int(carry.t) // APART)):  # judging takes longer than steps
                started = time.perf_counter()
                carry, log = self.chunk(carry, random.key(seed), n)
                taken += time.perf_counter() - started
                eta += int(np.asarray(log.cost.eta)[:n].sum())
            look = Look(taken, int(carry.t), eta, *judged(carry.x))
            looks.append(look)
            if done(look) or not np.isfinite(look.F):
                break
        return looks


def falling_adam() -> Any:
    """Adam whose learning rate, set in its state, falls as 1 / sqrt(1 + t / SETTLING)."""

    def make(learning_rate: float) -> optax.GradientTransformation:
        falling = optax.scale_by_schedule(lambda t: 1 / jnp.sqrt(1 + t / SETTLING))
        return optax.chain(optax.adam(learning_rate), falling)

    return optax.inject_hyperparams(make)(learning_rate=0.1)


def compiled(regime: Regime, estimator: bx.Estimator) -> tuple[Compiled, float]:
    one = Compiled(regime, estimator, falling_adam())
    started = time.perf_counter()
    one.chunk(one.first(0.1), random.key(0), 0)
    return one, time.perf_counter() - started


def antithetic(app: Application, n0: int) -> bx.Estimator:
    return bx.antithetic_mlmc(
        n0, correction_rate=bx.correction_rate(app.problem, app.x1, key=random.key(4), n0=n0, contexts=64)
    )


def chosen(regime: Regime) -> dict[str, bx.Estimator]:
    choice = bx.tune(regime.app.problem, regime.app.x1, key=random.key(3), contexts=regime.m)
    return {f"({choice.choice})": choice.estimator}


def families(regime: Regime) -> dict[str, Callable[[], dict[str, bx.Estimator]]]:
    """Of each its two settings, made when they are asked for: making some takes a pilot."""
    n, many = regime.n, regime.batch
    sizes = (n, 4 * n) if regime.app.problem.support is None else (4 * n, "all")
    inner = bx.epoch_sgd(batch=8), bx.summed_neumann()
    found: dict[str, Callable[[], dict[str, bx.Estimator]]] = {
        "auto": lambda: chosen(regime),
        "saa": lambda: {f"n={k}": many(bx.saa(k)) for k in sizes},
        "antithetic": lambda: {f"n0={k}": many(antithetic(regime.app, k)) for k in (n, 4 * n)},
        "rt_mlmc": lambda: {"K=8": many(bx.rt_mlmc(8)), "K=6, batches of 8": many(bx.rt_mlmc(6, *inner, batch=8))},
        "dl_sgd": lambda: {f"K={k}, batches of 8": many(bx.dl_sgd(k, *inner, batch=8)) for k in (4, 6)},
    }
    if installed("jaxopt"):
        found["jaxopt, vmap of implicit LBFGS"] = lambda: {f"n={k}": jaxopt_average(k, regime.m) for k in sizes}
    return found


class Target(NamedTuple):
    """Both gaps at x1, of which fractions are asked for."""

    F_star: float
    gap: float
    slope: float

    def missed(self, look: Look) -> float:
        """How many times too large the worse of the two is."""
        worse = max((look.F - self.F_star) / (GAP * self.gap), look.slope / (SLOPE * self.slope))
        return worse if np.isfinite(worse) else np.inf

    def reached(self, look: Look) -> bool:
        return self.missed(look) <= 1


class Trial(NamedTuple):
    label: str
    rate: float
    compiled: Compiled
    compile_seconds: float
    seconds: float  # of its pilot runs
    score: tuple[float, float]  # how far off the target, and when


class Search(NamedTuple):
    best: Trial
    seconds: float


def search(
    regime: Regime, settings: Callable[[], dict[str, bx.Estimator]], effort: Effort, target: Target, judged: Any
) -> Search:
    """The setting and learning rate whose worse pilot run is first at the target, else ends nearest to it."""
    started = time.perf_counter()
    made = settings()
    taken, trials = time.perf_counter() - started, []
    for label, estimator in made.items():
        one, seconds = compiled(regime, estimator)
        taken += seconds
        for rate in RATES:
            ends = [one.run(rate, seed, effort.pilot, judged, target.reached)[-1] for seed in PILOTS]
            worse = max((max(1.0, target.missed(look)), look.seconds) for look in ends)
            trials.append(Trial(label, rate, one, seconds, sum(look.seconds for look in ends), worse))
    return Search(min(trials, key=lambda trial: trial.score), taken + sum(trial.seconds for trial in trials))


def lowest(regime: Regime, effort: Effort, judged: Any) -> float:
    """F*: the end of a long run with falling learning rates on many samples."""
    exact = regime.app.problem.support is not None
    one, _ = compiled(regime, regime.batch(bx.saa("all" if exact else 16 * regime.n)))
    carry = one.first(RATES[0])
    for rate in np.geomspace(0.1, 1e-3, 9):
        carry.opt_state.hyperparams["learning_rate"] = jnp.asarray(rate, float)
        started = time.perf_counter()
        while time.perf_counter() - started < effort.best / 9:
            carry, _ = one.chunk(carry, random.key(2), EVERY)
    return judged(carry.x)[0]


def row(regime: Regime, family: str, found: Search, effort: Effort, target: Target, judged: Any) -> Any:
    best = found.best
    runs = [best.compiled.run(best.rate, 100 + s, effort.limit, judged, target.reached) for s in range(effort.seeds)]
    ends = [looks[-1] for looks in runs]
    reached = [target.reached(look) for look in ends]
    seconds = [look.seconds if ok else float("inf") for look, ok in zip(ends, reached, strict=True)]
    return {
        "regime": regime.name,
        "estimator": f"{family} {best.label}, rate {best.rate:g}",
        "in all": found.seconds + median(seconds) if all(reached) else None,
        "seconds": median(seconds) if all(reached) else None,
        "least": min(seconds) if any(reached) else None,
        "most": max(seconds) if all(reached) else None,
        "reached": f"{sum(reached)} of {effort.seeds}",
        "steps": int(median([look.steps for look in ends])),
        "samples of eta": int(median([look.eta for look in ends])),
        "compile s": best.compile_seconds,
        "search s": found.seconds,
    }


def compare(regime: Regime, effort: Effort, everyone: bool) -> list[dict[str, Any]]:
    judged = judge(regime)
    first, slope = judged(regime.app.x1)
    F_star = lowest(regime, effort, judged)
    target = Target(F_star, first - F_star, slope)
    rows = []
    for family, settings in families(regime).items():
        if not everyone and not family.startswith(PEERS):
            continue
        found = search(regime, settings, effort, target, judged)
        rows.append(row(regime, family, found, effort, target, judged))
    return rows


def regimes(quick: bool, names: Sequence[str] = ()) -> dict[str, Regime]:
    """All of them, or those named: making 10,000 clients takes seconds."""
    away = lambda app: app._replace(x1=jnp.ones(4))  # its own x1 is nearly optimal
    if quick:
        return {CONTINUOUS: Regime(CONTINUOUS, away(leader_follower()), 32, 8, 64, 128)}
    made: dict[str, Callable[[], tuple[Any, ...]]] = {
        "20 contexts, full batch": lambda: (meta(d=64, images=50), 20, 16, 20, 0),
        "10,000 contexts": lambda: (client_tasks(10_000), 32, 8, 2048, 0),
        CONTINUOUS: lambda: (away(leader_follower()), 32, 8, 256, 512),
        "expensive draws": lambda: (away(simulated_demand()), 32, 8, 128, 256),
    }
    return {name: Regime(name, *parts()) for name, parts in made.items() if name in (names or made)}


def run(quick: bool = False, names: Sequence[str] = (), everyone: bool = False) -> None:
    effort, found = QUICK if quick else FULL, regimes(quick, names)
    notes = [
        f"Until F - F* <= {GAP:g} (F(x1) - F*) and |grad F| <= {SLOPE:g} |grad F(x1)|; seconds: median, least and most "
        f"of {effort.seeds} keys, without compilation; - where not within {effort.limit:g} s.",
        "samples of eta: of the median run. search s: spent before the run that counts, without judging.",
    ]
    for name in names or found:  # one takes some minutes
        rows = compare(found[name], effort, everyone)
        kind, whom = ("", "") if everyone else ("peers_", ", against a peer")
        publish(f"targets_{kind}{slug(name)}", f"Time to a target: {name}{whom}", rows, notes)


if __name__ == "__main__":
    run(names=sys.argv[1:], everyone=True)
