"""``python benchmarks/pin.py``: does this jaxlib compute rightly, and how fast does it compile and run our programs?

Run it under each version that might be pinned; it needs nothing but the library itself.
"""

from __future__ import annotations

import statistics
import time

import jax
import numpy as np
from jax import random
from toy import toy

import bilevelax as bx
from bilevelax.base.compiling import program
from bilevelax.base.self_test import compiler_errors

CALLS = 60


ESTIMATORS = {
    "rt_mlmc(8)": bx.rt_mlmc(8),
    "minibatch(rt_mlmc(8), 64)": bx.minibatch(bx.rt_mlmc(8), 64),
    "minibatch(saa(32), 64)": bx.minibatch(bx.saa(32), 64),
    "minibatch(antithetic_mlmc(32), 64)": bx.minibatch(bx.antithetic_mlmc(32), 64),
}


def main() -> None:
    print("jaxlib", jax.lib.__version__ if hasattr(jax.lib, "__version__") else jax.__version__)
    for dtype in (np.float32, np.float64):
        for ours in (True, False):
            print(
                f"{dtype.__name__}, {'ours' if ours else 'plain'}:", compiler_errors(dtype=dtype, ours=ours) or "right"
            )
    problem, x = toy()
    keys = list(random.split(random.key(0), CALLS))
    for name, estimator in ESTIMATORS.items():
        gradient = program()(lambda key, x, each=estimator: each.estimate(key, problem, x, ())[0].grad)
        seconds = []
        for key in [keys[0], *keys]:
            started = time.perf_counter()
            jax.block_until_ready(gradient(key, x))
            seconds.append(time.perf_counter() - started)
        print(f"{name}: compile {seconds[0]:.1f} s, run {1e3 * statistics.median(seconds[1:]):.3f} ms")


if __name__ == "__main__":
    main()
