"""The meta-learning figures: exact gradients, and how claims are judged."""

import jax
import numpy as np
import pytest
from jax import random
from jax.flatten_util import ravel_pytree

from bilevelax.diagnostics.reference import reference
from bilevelax_paper import meta
from bilevelax_paper import meta_runs as runs
from bilevelax_paper import meta_runs as views
from bilevelax_paper.claims import judged
from bilevelax_paper.item import Records
from bilevelax_paper.items import fig1, fig4


@pytest.fixture(scope="module", autouse=True)
def standard_promotion():
    """As a user would run them."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def test_the_exact_gradient_is_that_of_the_loss_after_exact_adaptation():
    data = meta.load("synthetic", small=True)
    x = jax.tree.map(lambda a: a + 0.1 * random.normal(random.key(0), a.shape), data.x1)
    direction = jax.tree.map(lambda a: random.normal(random.key(1), a.shape), x)
    h = 1e-4
    near = [jax.tree.map(lambda a, d, s=s: a + s * h * d, x, direction) for s in (1, -1)]
    plus, minus = meta.losses(data.fit, near, [random.key(2)] * 2, meta.UNTIL_Y_STAR)
    exact = reference(random.key(3), data.fit, x, data.fit.n_contexts, 0).grad  # as in `noise_rows`
    slope = exact @ ravel_pytree(direction)[0]
    np.testing.assert_allclose(slope, (plus - minus) / (2 * h), rtol=1e-5)


def test_noise_and_bias_of_one_step():
    """MAML's step leaves a bias that 64 calls tell from 0; the rows are what the page prints."""
    data = meta.load("synthetic", small=True)
    (row,) = runs.noise_rows(data, [meta.steps(1, 0.5)], data.x1, calls=64)
    assert row["sd"] > 0 and row["bias_low"] > 0 and row["norm"] > 0
    told = views.noise_tables(Records([row], {}), "x_1")[0].rows[0]
    assert told[:2] == ("MAML", "m = 1, gamma = 0.5") and told[-1].startswith("**")
    (unknown,) = views.noise_tables(Records([{**row, "bias_low": 0.0}], {}), "x_1")
    assert "64 calls" in unknown.title and not unknown.rows[0][-1].startswith("**"), "not told from 0"
    assert views.noise_tables(Records([], {}), "x_1") == []


MATCHES = "RT-MLMC matches DL-SGD at equal iterations"


def judge(item, records):
    """All claims by their texts; those that the records cannot answer are not asked for."""
    return lambda text: judged([claim for claim in item.CLAIMS if claim.text == text], records)[0]


def end_rows(method, setting, t, *, own, tight, validation, start=2.0, **more):
    """Two seeds that differ by 0.002, with both kinds of steps."""
    rows = []
    for steps in ("paper", "other"):
        for seed in range(2):
            columns = {"method": method, "setting": setting, "steps": steps, "seed": seed, "rule": "r"}
            shift = 0.002 * seed
            rows += [{"kind": "curve", **columns, "t": 0, "own": start}]
            rows += [{"kind": "curve", **columns, "t": time, "own": own + shift} for time in {50, t}]
            rows.append({"kind": "end", **columns, "t": t, "tight": tight + shift, "validation": validation, **more})
    return rows


def fig1_records(rt_12=1.70, dl_12=1.70):
    rows = end_rows("MAML", "m = 1, gamma = 0.5", 200, own=1.9, tight=1.8, validation=1.9, whole=1.85)
    rows += end_rows("DL-SGD", "K = 6", 200, own=1.80, tight=1.70, validation=1.8)
    rows += end_rows("DL-SGD", "K = 12", 50, own=dl_12, tight=1.69, validation=1.7)
    rows += end_rows("RT-MLMC", "K = 6", 200, own=1.80, tight=1.70, validation=1.6)
    rows += end_rows("RT-MLMC", "K = 12", 200, own=rt_12, tight=1.60, validation=1.7)
    settings = {"T": 200, "seeds": 2, "K": [6, 12], "K_tuned": 6, "T_of_K": {"12": 50}, "small": False}
    return Records(rows, {"settings": settings})


def test_claims_of_figure_1_are_judged_at_the_papers_K():
    records = fig1_records()
    of = judge(fig1, records)
    assert of("RT-MLMC: larger K generalises better").verdict == "reproduced"
    dl = of("DL-SGD: larger K generalises better")
    assert "K = 12 minus K = 6 after 50 iterations, own adaptation: -0.1 [-0.1, -0.1]" in dl.measured
    assert dl.verdict == "partly", "at T there is only one K left"
    maml = of("RT-MLMC beats MAML")
    assert "K = 6 with the paper's steps" in maml.measured and maml.verdict == "reproduced", (
        "validation chooses, not the test"
    )
    assert of(MATCHES).verdict == "reproduced"


def test_a_lead_that_the_interval_does_not_confirm_is_no_match():
    assert judge(fig1, fig1_records(rt_12=1.76))(MATCHES).verdict == "partly"
    assert judge(fig1, fig1_records(rt_12=1.74))(MATCHES).verdict == "reproduced"


def test_claims_of_figure_4_are_judged_with_both_kinds_of_steps():
    rows = []
    for gamma, own in ((0.005, 1.9), (0.01, 1.91), (0.2, 2.0), (1.0, 2.5)):
        name = f"m = 1, gamma = {gamma:g}"
        rows += end_rows("MAML", name, 200, own=own, tight=1.7, validation=own, whole=2.0 - gamma)
    records = Records(rows, {"settings": {"seeds": 2, "gamma_m": 0.1, "m": [4]}})
    of = judge(fig4, records)
    large = of("One-step MAML degrades at large inner steps")
    assert large.verdict == "reproduced" and "falls with gamma throughout" in large.reading
    assert "gamma = 0.2 minus 0.005: 0.1 [0.1, 0.1] with the paper's steps" in large.measured
    assert of("One-step MAML is flat at small inner steps").verdict == "reproduced"
    worse = [{**r, "own": 1.0} if r.get("t") == 200 and r["steps"] == "other" and "own" in r else r for r in rows]
    assert judge(fig4, Records(worse, records.manifest))(large.claim).verdict == "partly"
