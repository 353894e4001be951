"""Calls every public name once, as a user would; prints the names and what failed as JSON. Run in a fresh process."""

import functools
import json
import tempfile
import traceback
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import random

import bilevelax as bx
from bilevelax.applications import quadratic

KEY = random.key(0)
problem, x1, _ = quadratic.make(**quadratic.SMALLEST)
folder = Path(tempfile.mkdtemp())


def f(x, y, eta, xi):
    return jnp.sum((y - eta) ** 2) / 2 + jnp.sum(x**2)


def g(x, y, eta, xi):
    return jnp.sum((y - x * xi - eta) ** 2)


stored = functools.cache(
    lambda: bx.from_arrays(
        f, g, np.ones((3, 2)), np.arange(12.0).reshape(3, 2, 2) / 12, init_y=lambda x, xi: xi, mu_g=2.0, L_g1=2.0
    )
)
pairs = functools.cache(lambda: bx.from_joint(f, g, (rows_of(0), rows_of(1)), init_y=lambda x, xi: 0 * xi))
in_basis = functools.cache(lambda: bx.reduced(pairs(), bx.chebyshev(1)))
short = dict(key=KEY, T=2, every=1, progress=False)
four, steps = bx.saa(4), optax.sgd(0.1)  # one program for all runs that ask for nothing else


def rows_of(seed):
    return np.random.default_rng(seed).uniform(-1, 1, (20, 2))


def with_basis(basis):
    return gradient(bx.saa("all"), bx.reduced(pairs(), basis), x1)


def gradient(estimator, problem=problem, x=x1):
    """One compiled estimate, which must be finite."""
    state = estimator.init(problem, x)
    estimate, _ = jax.jit(estimator.estimate)(KEY, problem, x, state)
    assert all(np.isfinite(leaf).all() and leaf.dtype == np.float32 for leaf in jax.tree.leaves(estimate.grad))
    return estimate


def on(constraint):
    """A gradient of the problem on a set."""
    return gradient(four, problem.replace(constraint=constraint))


def answer(lower):
    """The follower's, after two epochs."""
    return jax.jit(lambda key: lower(key, problem, x1, problem.context(key), 2))(KEY)


def solution(inverse):
    """Of H r = 1."""
    y = jnp.ones(2)
    return jax.jit(lambda key: inverse(key, problem, x1, y, problem.context(key), y)[0])(KEY)


@functools.cache
def result():
    return bx.minimize(problem, four, steps, x1, **short)


def run_with(estimator=None, optimizer=None, **settings):
    """A run of two steps."""
    return bx.minimize(problem, estimator or four, optimizer or steps, x1, **short, **settings)


def stopped():
    """Metrics that are not finite end a run."""
    try:
        run_with(metrics=lambda x: {"loss": float("nan")}, stop_when=lambda row, x: 1 / 0)
    except bx.RunStopped as error:
        return error.result


def federated():
    from bilevelax.datasets import ClientStore

    rows = [{"a": np.ones((n, 2), np.float32)} for n in (2, 3)]
    store = ClientStore.write(folder / "store", rows)
    own = bx.from_clients(f, g, store, init_y=lambda x, xi: x, draw=lambda key, xi: xi.rows["a"][0], mu_g=2.0, L_g1=2.0)
    assert isinstance(own.context(KEY), bx.Client)
    return own


CALLS = {
    "Basis": lambda: isinstance(bx.chebyshev(1), bx.Basis),
    "Certificate": lambda: isinstance(certificate(), bx.Certificate),
    "Checkpoint": lambda: run_with(checkpoint=bx.Checkpoint(folder / "run", every=1)),
    "Client": lambda: bx.Client(0, np.ones((2, 1)), np.ones(2, bool)),
    "Constants": lambda: isinstance(constants(), bx.Constants),
    "Cost": lambda: (bx.Cost(xi=1) + bx.Cost(eta=2)).times(3).asdict()["eta"] == 6,
    "Curvature": lambda: isinstance(curvature(), bx.Curvature),
    "Estimate": lambda: isinstance(gradient(bx.saa(2)), bx.Estimate),
    "Estimator": lambda: bx.Estimator(lambda problem, x: (), lambda key, problem, x, s: (bx.Estimate(x, 0, {}), s)),
    "Evaluation": lambda: isinstance(evaluation(), bx.Evaluation),
    "Iterates": lambda: isinstance(answer(bx.sgd()), bx.Iterates),
    "LowerSolver": lambda: isinstance(bx.sgd(), bx.LowerSolver),
    "Problem": lambda: bx.Problem(
        f=f,
        g=g,
        sample_context=lambda key, data: random.normal(key, (2,)),
        sample_conditional=lambda key, xi, data: random.normal(key, (2,)),
        init_y=lambda x, xi: xi,
    ),
    "Report": lambda: isinstance(report(), bx.Report) and report().ok,
    "Result": lambda: bx.Result.load(result().save(folder / "saved") or folder / "saved"),
    "RunStopped": stopped,
    "Solved": lambda: isinstance(solved(), bx.Solved),
    "Stage": lambda: all(isinstance(stage, bx.Stage) for stage in solved().stages),
    "Tuned": lambda: isinstance(tuned(), bx.Tuned),
    "amortised": lambda: gradient(bx.amortised(warm_up=2, width=4), pairs(), x1),
    "answers": lambda: bx.answers(in_basis(), x1, jnp.zeros((3, 2)), rows_of(2)),
    "antithetic_mlmc": lambda: gradient(bx.antithetic_mlmc(2, levels=2)),
    "append_to": lambda: run_with(callbacks=[bx.append_to(folder / "rows.jsonl")]),
    "affine": lambda: on(bx.affine(np.ones((1, 2)), 1.0)),
    "ball": lambda: on(bx.ball(0.1)),
    "box": lambda: on(bx.box(-0.1, 0.1)),
    "nonnegative": lambda: on(bx.nonnegative()),
    "polyhedron": lambda: on(bx.polyhedron(np.array([[1.0, 2.0], [-1.0, 0.5]]), 0.1)),
    "product": lambda: on(bx.product(bx.box(0.0, 0.1))),
    "simplex": lambda: on(bx.simplex()),
    "averaged_step": lambda: answer(bx.averaged_step()),
    "bsvrb": lambda: gradient(bx.bsvrb(), stored(), x1),
    "cache": lambda: str(bx.cache()),
    "certified": lambda: run_with(stop_when=bx.certified(100.0, n=32, estimator=four)),
    "certify": lambda: certificate().high >= certificate().low,
    "chebyshev": lambda: with_basis(bx.chebyshev(1)),
    "check": lambda: bool(str(report())),
    "conditional_stochastic": lambda: gradient(
        bx.rt_mlmc(2),
        bx.conditional_stochastic(
            lambda x, y, xi: jnp.sum((y - xi) ** 2),
            lambda x, eta, xi: x * eta,
            lambda key, data: random.normal(key, (2,)),
            lambda key, xi, data: random.normal(key, (2,)),
            init_y=lambda x, xi: xi,
        ),
    ),
    "conjugate_gradient": lambda: solution(bx.conjugate_gradient(4, 3)),
    "constants": lambda: constants().mu_g > 0,
    "correction_rate": lambda: 0 < bx.correction_rate(problem, x1, key=KEY, n0=2, levels=2, contexts=8) <= 1,
    "curvature": lambda: curvature().smallest > 0,
    "dense": lambda: solution(bx.dense(4)),
    "dl_sgd": lambda: gradient(bx.dl_sgd(2)),
    "envelope": lambda: gradient(bx.envelope()),
    "epoch_sgd": lambda: answer(bx.epoch_sgd()),
    "evaluate": lambda: evaluation().high > evaluation().low,
    "fourier": lambda: with_basis(bx.fourier(1)),
    "from_arrays": stored,
    "from_clients": federated,
    "from_joint": pairs,
    "from_splits": lambda: bx.from_splits(f, g, np.ones((1, 2)), *np.ones((2, 1, 3, 2)), init_y=lambda x, xi: xi),
    "frozen": lambda: answer(bx.frozen()),
    "hypergradient": lambda: bx.hypergradient(KEY, problem, x1, jnp.ones(2), problem.context(KEY), bx.none()),
    "imaml": lambda: gradient(bx.imaml(2, steps=2)),
    "maml": lambda: gradient(bx.maml()),
    "minibatch": lambda: gradient(bx.minibatch(bx.rt_mlmc(2), 4)),
    "minimize": lambda: run_with(diagnose=1).history,
    "neumann": lambda: solution(bx.neumann()),
    "newton_solver": lambda: gradient(bx.saa(2, solver=bx.newton_solver(iterations=4))),
    "none": lambda: solution(bx.none()) is None,
    "optax_steps": lambda: answer(bx.optax_steps(optax.adam(0.1), 3)),
    "projected": lambda: run_with(optimizer=bx.projected(optax.sgd(0.1), lambda x: jnp.clip(x, 0, 1))),
    "random_features": lambda: with_basis(bx.random_features(4, key=KEY)),
    "reduced": in_basis,
    "respond": lambda: bx.respond(problem, x1, problem.context(KEY), key=KEY, n=16),
    "rt_mlmc": lambda: gradient(bx.rt_mlmc(2)),
    "saa": lambda: gradient(bx.saa(2)),
    "sgd": lambda: answer(bx.sgd()),
    "single_loop": lambda: gradient(bx.single_loop()),
    "smooth_products": lambda: with_basis(bx.smooth_products(4)),
    "solve": lambda: solved().why,
    "splines": lambda: with_basis(bx.splines(3)),
    "sqrt_then_linear": lambda: run_with(optimizer=optax.sgd(bx.sqrt_then_linear(2))),
    "stateless": lambda: gradient(bx.stateless(lambda key, problem, x: bx.Estimate(x, bx.Cost(xi=1), {}))),
    "stochastic": lambda: gradient(
        bx.rt_mlmc(1), bx.stochastic(lambda x, xi: jnp.sum((x - xi) ** 2), lambda key, data: random.normal(key, (2,)))
    ),
    "stochastic_bilevel": lambda: gradient(
        bx.dl_sgd(2),
        bx.stochastic_bilevel(
            lambda x, y, xi: jnp.sum((y - xi) ** 2),
            lambda x, y, eta: jnp.sum((y - x - eta) ** 2),
            lambda key, data: random.normal(key, (2,)),
            lambda key, data: random.normal(key, (2,)),
            lambda x: x,
            mu_g=2.0,
            L_g1=2.0,
        ),
    ),
    "summed_neumann": lambda: solution(bx.summed_neumann()),
    "tune": lambda: tuned().estimator,
    "warm_regression": lambda: run_with(bx.warm_started(bx.minibatch(bx.saa(2), 2), bx.warm_regression())),
    "warm_started": lambda: gradient(bx.warm_started(bx.minibatch(bx.saa(2), 2)), stored(), x1),
    "warm_table": lambda: gradient(bx.warm_started(bx.minibatch(bx.saa(2), 2), bx.warm_table()), stored(), x1),
}
certificate = functools.cache(lambda: bx.certify(problem, x1, key=KEY, n=32, estimator=four))
constants = functools.cache(lambda: bx.constants(problem, x1, key=KEY, contexts=2, samples=4))
curvature = functools.cache(lambda: bx.curvature(problem, x1, key=KEY, contexts=2, samples=4))
evaluation = functools.cache(lambda: bx.evaluate(problem, x1, key=KEY, n=4, samples=8))
report = functools.cache(lambda: bx.check(stored(), x1, key=KEY, progress=False))
solved = functools.cache(lambda: bx.solve(stored(), x1, key=KEY, progress=False))
tuned = functools.cache(lambda: bx.tune(problem, x1, key=KEY, budget_seconds=1.0, contexts=4, among={"saa": four}))


def main():
    failed = {}
    for name, call in CALLS.items():
        try:
            outcome = call()
            assert outcome is not None and outcome is not False
        except Exception:
            failed[name] = traceback.format_exc()
    print(json.dumps({"called": sorted(CALLS), "failed": failed, "x64": jax.config.jax_enable_x64}))


if __name__ == "__main__":
    main()
