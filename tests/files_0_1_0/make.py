"""How the files beside this one were made: by bilevelax 0.1.0, ``python tests/files_0_1_0/make.py``.

Versions that come later read them (tests/test_files_0_1_0.py) and must never write them again.
"""

import contextlib
import json
import os
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import random

import bilevelax as bx
from bilevelax import datasets

HERE = Path(__file__).parent
T, EVERY, STOPPED = 40, 10, 20  # STOPPED: where the run was interrupted
QUADRATIC = ["run", "quadratic", "--T", "20", "--every", "10", "--K", "2", "-a", "d_x=2", "--contexts", "2"]
FIT = ["--target", "demand", "--max-iter", "60", "--penalty", "1"]
CLIENTS = [{"a": np.arange(3.0 * n).reshape(n, 3), "b": np.arange(n)} for n in (2, 1, 4)]


def run(folder, **settings):
    """A bilevel run whose estimator, optimizer and problem all have something to remember."""
    problem = bx.Problem(
        f=lambda x, y, eta, xi: jnp.sum((y["a"] - eta) ** 2) / 2 + jnp.sum(x["w"] ** 2) / 10,
        g=lambda x, y, eta, xi: jnp.sum((y["a"] - x["w"] * xi - eta) ** 2) / 2 + jnp.sum((y["a"] - x["b"]) ** 2) / 2,
        sample_context=lambda key, data: data[random.randint(key, (), 0, 4)],
        sample_conditional=lambda key, xi, data: xi + random.normal(key, (2,)),
        init_y=lambda x, xi: {"a": x["w"]},
        data=jnp.arange(8.0).reshape(4, 2) / 8,
        mu_g=2.0,
        L_g1=2.0,
    )
    estimator = bx.minibatch(bx.rt_mlmc(3, inverse=bx.neumann(4)), 4)
    settings = {"every": EVERY, "T": T, "metrics": lambda x: {"norm": jnp.sum(x["w"] ** 2)}, **settings}
    x1 = {"w": jnp.ones(2), "b": jnp.zeros(2)}
    saved = bx.Checkpoint(folder, every=EVERY, keep=2)
    return bx.minimize(problem, estimator, optax.adam(0.1), x1, key=random.key(3), checkpoint=saved, **settings)


def run_on_clients(folder, **settings):
    """A run whose contexts are read from the store beside it."""
    loss = lambda y, row: (row["a"] @ y - row["b"]) ** 2 / 200
    problem = bx.from_clients(
        f=lambda x, y, eta, xi: loss(y, eta),
        g=lambda x, y, eta, xi: loss(y, eta) + jnp.sum((y - x) ** 2),
        store=datasets.ClientStore(HERE / "clients"),
        init_y=lambda x, xi: x,
        resident=4,
        mu_g=2.0,
        L_g1=5.0,
    )
    estimator, saved = bx.minibatch(bx.rt_mlmc(2, inverse=bx.neumann(4)), 2), bx.Checkpoint(folder, every=EVERY, keep=2)
    settings = {"key": random.key(3), "T": T, "every": EVERY, "checkpoint": saved, **settings}
    return bx.minimize(problem, estimator, optax.sgd(0.1), jnp.zeros(3), **settings)


def make_client_runs():
    run_on_clients(HERE / "on_clients_finished").save(HERE / "on_clients_result")
    shutil.rmtree(HERE / "on_clients_finished")
    with contextlib.suppress(KeyboardInterrupt):
        run_on_clients(HERE / "on_clients", callbacks=[interrupt])


def interrupt(row, x):
    if row["t"] == STOPPED:
        raise KeyboardInterrupt


def make_runs():
    try:
        run(HERE / "interrupted", callbacks=[interrupt])
    except KeyboardInterrupt:
        shutil.copytree(HERE / "interrupted", HERE / "finished")
    run(HERE / "finished").save(HERE / "result")
    shutil.rmtree(HERE / "finished")


def make_by_commands():
    from typer.testing import CliRunner

    from bilevelax.cli import app

    def invoke(*words):
        done = CliRunner().invoke(app, [str(word) for word in words])
        assert done.exit_code == 0, (done.output, done.exception)

    days = np.arange(60)
    rows = [f"2024-{1 + d // 28:02d}-{1 + d % 28:02d},{10 + d % 7},{d % 5},{20 + 3 * (d % 7) + d % 5}" for d in days]
    (HERE / "demand.csv").write_text("\n".join(["date,warmth,price,demand", *rows]) + "\n")
    invoke(*QUADRATIC, "--out", HERE / "quadratic")
    invoke("newsvendor", "fit", HERE / "demand.csv", *FIT, "--out", HERE / "model")
    invoke("newsvendor", "order", HERE / "model", HERE / "demand.csv", "--out", HERE / "orders.csv")
    invoke("paper", "nonconvex", "--scale", "smoke", "--seeds", "1", "--out", HERE / "paper")


if __name__ == "__main__":
    assert bx.__version__ == "0.1.0" and os.environ.get("JAX_ENABLE_X64")
    make_runs()
    datasets.ClientStore.write(HERE / "clients", CLIENTS)
    make_client_runs()
    make_by_commands()
    print(json.dumps({"jax": jax.__version__}))
