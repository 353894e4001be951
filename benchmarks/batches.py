"""64 samples a step, as contexts or as batches within a context: what to average."""

from __future__ import annotations

from common import publish
from modes import K, M, compare, problems, repeats

import bilevelax as bx


def run(quick: bool = False) -> None:
    rows = []
    for name, app in problems().items():
        choices = {
            f"{M // size} contexts x batch {size}": bx.minibatch(
                bx.rt_mlmc(K, lower=bx.epoch_sgd(batch=size), inverse=bx.neumann(40), batch=size), M // size
            )
            for size in (1, 4, 16, 64)
        }
        rows += [{"problem": name, **row} for row in compare(app, choices, *repeats(quick))]
    title = f"RT-MLMC, K = {K}: {M} samples a draw, split into contexts and batches (lower level and hypergradient)"
    publish("batches", title, rows, ["Lower ms x variance is better."])
