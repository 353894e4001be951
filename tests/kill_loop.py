"""``kill_loop.py FOLDER CHUNKS KILLS SEED``: run, kill (SIGKILL) at random moments, resume; tell what was reached.

Children are forked before JAX starts, so that a life costs a second and not an import.
"""

import json
import math
import os
import random as dice
import signal
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint  # noqa: F401 (imported once, for all children)
from jax import random

import bilevelax as bx

EVERY = 5
PAUSE = 0.02  # a chunk lasts: kills fall into steps, too


def minimize(chunks, checkpoint):
    def estimate(key, problem, x, state):
        """Noise, and memory: an average of what was seen, and a key that moves."""
        moved = random.fold_in(state["key"], 1)
        noisy = jax.tree.map(lambda a: a + 0.1 * random.normal(moved, a.shape, a.dtype), x)
        mean = jax.tree.map(lambda m, a: 0.9 * m + 0.1 * a, state["mean"], noisy)
        return bx.Estimate(mean, bx.Cost(xi=1, eta=2), {"level": 1.0}), {"key": moved, "mean": mean}

    estimator = bx.Estimator(lambda problem, x: {"key": random.key(3), "mean": x}, estimate)
    problem = bx.stochastic(lambda x, xi: jnp.sum(x["w"]) * xi, lambda key, data: random.normal(key))
    return bx.minimize(
        problem,
        estimator,
        optax.adam(0.05),
        {"w": jnp.arange(4.0), "b": jnp.asarray(1.0)},
        key=random.key(0),
        T=chunks * EVERY,
        every=EVERY,
        metrics=lambda x: {"norm": jnp.sum(x["w"] ** 2)},
        callbacks=[lambda row, x: time.sleep(PAUSE)] if checkpoint else [],
        checkpoint=checkpoint,
    )


def record(result, path):
    arrays = {f"{part}_{name}": a for part in ("x", "x_hat", "x_mean") for name, a in getattr(result, part).items()}
    np.savez(path, **{name: np.asarray(a) for name, a in arrays.items()})
    rows = [{name: value for name, value in row.items() if name != "seconds"} for row in result.history]
    with open(f"{path}.json", "w") as file:
        json.dump({"rows": rows, "cost": result.cost.asdict()}, file)


def rows(folder):
    """How many rows of history are there."""
    try:
        with open(f"{folder}/run/history.jsonl", "rb") as file:
            return file.read().count(b"\n")
    except FileNotFoundError:
        return 0


def life(chunks, folder, seconds, most):
    """One child, killed after these seconds or this many rows; True if it came to its end before."""
    last = rows(folder) + most
    child = os.fork()
    if child == 0:
        try:
            checkpoint = bx.Checkpoint(f"{folder}/run", every=EVERY, keep=2)
            record(minimize(chunks, checkpoint), f"{folder}/killed.npz")
            os._exit(0)
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
            os._exit(1)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and rows(folder) < last:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            assert status == 0, f"the child failed: {status}"
            return True
        time.sleep(0.005)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return False


def main(folder, chunks, kills, seed):
    moments = dice.Random(seed)
    share = chunks // (kills + 1)  # of the rows: there are some left for every kill, however fast the machine
    done, killed = False, 0
    while not done:
        limits = (moments.uniform(0.2, 2.5), share) if killed < kills else (600, math.inf)
        done = life(chunks, folder, *limits)
        killed += not done
    print(f"{killed} kills", flush=True)
    record(minimize(chunks, None), f"{folder}/whole.npz")


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
