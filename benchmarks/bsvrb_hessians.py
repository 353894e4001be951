"""What version 1 of BSVRB costs in the paper's meta-learning size: softmax regression, d_y = 10 x 512.

Times one step on one block (after compilation) and reports the peak memory of the process, for
version 1 and version 2, of a problem with two contexts in float32:

    python benchmarks/bsvrb_hessians.py [d]        # d features, 512 by default
"""

import resource
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
from jax import random

import bilevelax as bl

CLASSES, CONTEXTS, SAMPLES = 10, 2, 64


def problem_of(d: int) -> bl.Problem:
    rng = np.random.default_rng(0)
    features = rng.normal(size=(CONTEXTS, SAMPLES, d)).astype(np.float32) / np.sqrt(d).astype(np.float32)
    labels = rng.integers(CLASSES, size=(CONTEXTS, SAMPLES))

    def loss(y, eta):
        a, label = eta
        logits = y @ a
        return jax.nn.logsumexp(logits) - logits[label]

    return bl.from_arrays(
        f=lambda x, y, eta, xi: loss(y, eta),
        g=lambda x, y, eta, xi: loss(y, eta) + jnp.sum((y - x) ** 2),
        contexts=np.arange(CONTEXTS),
        outcomes=(features, labels),
        init_y=lambda x, xi: x,
        mu_g=2.0,
        L_g1=4.0,
    )


def main() -> None:
    d = int(sys.argv[1]) if len(sys.argv) > 1 else 512
    problem, x = problem_of(d), jnp.zeros((CLASSES, d), jnp.float32)
    for version in (2, 1):
        estimator = bl.bsvrb(version, blocks=1, largest=CLASSES * d)
        state = estimator.init(problem, x)
        step = jax.jit(estimator.estimate).lower(random.key(0), problem, x, state).compile()
        started = time.perf_counter()
        jax.block_until_ready(step(random.key(0), problem, x, state))
        seconds = time.perf_counter() - started
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
        print(f"version {version}: d_y = {x.size}, one step on one block {seconds:.3g} s, peak memory {peak:.2f} GB")


if __name__ == "__main__":
    main()
