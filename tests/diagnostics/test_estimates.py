"""Minibatches of multilevel estimators."""

import bilevelax as bx
from bilevelax.diagnostics import estimates


def test_levels_inside_a_minibatch_stay_unvectorised(quadratic, x, key):
    """In a vmap every lane would run all levels: a `cond` becomes a `select`, a `while` runs to the longest."""
    assert estimates.batched(bx.minibatch(bx.rt_mlmc(3), 4), 8).settings.mode == "loop"
    assert estimates.batched(bx.rt_mlmc(3), 8).settings.mode == "stratified"
