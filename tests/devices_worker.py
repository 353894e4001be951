"""``devices_worker.py eight FOLDER``, ``disk``, ``share`` or ``host I N PORT FOLDER T``: runs on a mesh."""

import dataclasses
import json
import os
import sys

os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")

import jax

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_num_cpu_devices", 2 if sys.argv[1] == "host" else 8)

import jax.numpy as jnp
import numpy as np
import optax
from jax import random

import bilevelax as bx
from bilevelax.datasets import ClientStore
from bilevelax.problems.feed import Feeder
from bilevelax.run.devices import columns_of, over_devices

QUADRATIC = bx.Problem(
    f=lambda x, y, eta, xi: jnp.sum((y - xi) ** 2) / 2,
    g=lambda x, y, eta, xi: jnp.sum(y**2) - y @ (x + xi + eta),
    sample_context=lambda key, data: data + random.normal(key, (3,)),
    sample_conditional=lambda key, xi, data: random.normal(key, (3,)),
    init_y=lambda x, xi: x,
    data=np.ones(3),
    mu_g=2.0,
    L_g1=2.0,
)
NUMBERED = dataclasses.replace(
    QUADRATIC,
    sample_context=lambda key, data: data + random.randint(key, (), 0, 8),
    n_contexts=8,
    context_at=lambda i, data: data + i,
)
RT = bx.minibatch(bx.rt_mlmc(2, inverse=bx.neumann(1)), 16)


def pairs(**kw):
    """A table of pairs; its arrays start JAX's devices, which hosts must not before they have found each other."""
    rows = tuple(np.random.default_rng(0).normal(size=(2, 12, 3)))
    return bx.from_joint(f=QUADRATIC.f, g=QUADRATIC.g, rows=rows, init_y=QUADRATIC.init_y, **kw)


def minimize(problem, estimator, T=20, **kw):
    return bx.minimize(
        problem,
        estimator,
        optax.sgd(0.05, momentum=0.5),
        jnp.zeros(3),
        key=random.key(1),
        T=T,
        every=10,
        metrics=lambda x: {"norm": float(jnp.sum(x**2))},
        **kw,
    )


def mesh(n):
    return jax.sharding.Mesh(np.asarray(jax.devices()[:n]), ("contexts",))


def clients(folder):
    rng = np.random.default_rng(0)
    made = ({"a": rng.normal(size=(n, 3)), "b": rng.normal(size=n)} for n in rng.integers(1, 5, 30))
    loss = lambda y, row: (row["a"] @ y - row["b"]) ** 2 / 2
    return bx.from_clients(
        f=lambda x, y, eta, xi: loss(y, eta),
        g=lambda x, y, eta, xi: loss(y, eta) + jnp.sum((y - x) ** 2),
        store=ClientStore.write(f"{folder}/store", made),
        init_y=lambda x, xi: x + 1,
    )


def rows_held(folder):
    """Rows that eight devices hold for 20 steps of 16 clients, of 5 rows each but for one of 2,000."""
    rows = lambda n: {"a": np.zeros((n, 3)), "b": np.zeros(n)}
    store = ClientStore.write(f"{folder}/uneven", map(rows, [5] * 100 + [2000]))
    source = bx.from_clients(lambda *a: 0.0, lambda *a: 0.0, store, init_y=lambda x, xi: x, sampling="rows").source
    feeder = Feeder(source, lambda t: random.split(random.fold_in(random.key(0), t), 16), 20, columns_of(mesh(8)))
    held = feeder.after(0).contexts.rows["b"]
    feeder.close()
    return {"each": [part.data.size for part in held.addressable_shards], "of": store.rows}


def share_of_work(m=64, devices=8):
    """Operations of one device's program over those of the program for one device, for `amortised`."""
    estimator = bx.amortised(m=m, steps=1, warm_up=0, width=32)
    here, state = mesh(devices), estimator.init(QUADRATIC, jnp.zeros(3))
    everywhere = jax.sharding.NamedSharding(here, jax.sharding.PartitionSpec())
    arguments = jax.device_put((random.key(1), jnp.zeros(3), state), everywhere)

    def operations(estimator):
        step = jax.jit(lambda key, x, state: estimator.estimate(key, QUADRATIC, x, state)[0].grad)
        return step.lower(*arguments).compile().cost_analysis()["flops"]

    whole = operations(estimator)
    print(json.dumps(operations(over_devices(estimator, here)) / whole))


def eight(folder):
    maml = bx.minibatch(bx.maml(), 8, "loop")
    cases = (
        ("rt_mlmc", QUADRATIC, RT, (8, 8)),
        ("maml from a store", clients(folder), maml, (8,)),
        ("shared", QUADRATIC, bx.minibatch(bx.rt_mlmc(1, inverse=bx.neumann(1)), 4, "shared"), (4,)),
        ("spread", NUMBERED, bx.minibatch(bx.maml(), 8, contexts="spread"), (4,)),
        ("warm started", QUADRATIC, bx.warm_started(bx.minibatch(bx.saa(2), 8), bx.warm_regression()), (4,)),
        ("amortised", QUADRATIC, bx.amortised(m=8, steps=1, warm_up=4, width=4), (4,)),
        ("reduced", bx.reduced(pairs(), bx.chebyshev(1)), bx.minibatch(bx.saa("all"), 8), (4,)),
    )
    print(json.dumps({"devices": len(jax.devices()), "rows": rows_held(folder), **compared(cases)}))


def disk():
    """Rows that are read when they are drawn."""
    streamed = pairs(stream=True)
    cases = (
        ("amortised", streamed, bx.amortised(m=8, steps=1, warm_up=4, width=4), (4,)),
        ("reduced", bx.reduced(streamed, bx.chebyshev(1)), bx.minibatch(bx.saa(16), 8), (8,)),
    )
    print(json.dumps(compared(cases)))


def compared(cases):
    """Runs on one device and on meshes."""
    found = {}
    for name, problem, estimator, sizes in cases:
        one = minimize(problem, estimator)
        many = [minimize(problem, estimator, mesh=mesh(n)) for n in sizes]
        found[name] = {
            "error": max(float(jnp.max(jnp.abs(each.x - one.x))) for each in many),
            "size": float(jnp.max(jnp.abs(one.x))),
            "cost": [each.cost == one.cost for each in many],
            "rows": [[row.get("level", 0), row.get("level_1", 0), row["norm"]] for row in many[0].history[1:]],
            "rows of one": [[row.get("level", 0), row.get("level_1", 0), row["norm"]] for row in one.history[1:]],
        }
        if len(sizes) > 1:
            found[name]["same bits"] = bool((many[0].x == many[1].x).all() and (many[0].x_hat == many[1].x_hat).all())
    return found


def host(i, n, port, folder, T):
    """One of n processes with two devices each; prints what it reached."""
    jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=int(n), process_id=int(i))
    bx.cache()  # where it is new it starts JAX's devices: not before the processes have found each other
    print("ready", flush=True)
    die = lambda row, x: os.kill(os.getpid(), 9) if i == "1" and row["t"] == int(os.environ.get("DIE_AT", -1)) else None
    result = minimize(
        QUADRATIC,
        bx.minibatch(bx.maml(), 8),  # quick to compile
        int(T),
        mesh=mesh(2 * int(n)),
        checkpoint=bx.Checkpoint(folder, every=10),
        callbacks=[die],
    )
    rows = [{name: value for name, value in row.items() if name != "seconds"} for row in result.history]
    resumed = result.manifest.get("resumed_at", [])
    print(json.dumps({"x": np.asarray(result.x).tolist(), "rows": rows, "resumed": resumed}), flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "eight":
        bx.cache()
    {"eight": eight, "disk": disk, "share": share_of_work, "host": host}[sys.argv[1]](*sys.argv[2:])
