"""The meta-learning figures: exact gradients, and how claims are judged."""

import jax
import numpy as np
import pytest
from jax import random
from jax.flatten_util import ravel_pytree

from bilevelax.applications._softmax import adapted_scores
from bilevelax.diagnostics.reference import reference
from bilevelax.run.records.cells import digest
from bilevelax_paper import meta, training
from bilevelax_paper import meta_runs as runs
from bilevelax_paper import meta_runs as views
from bilevelax_paper.claims import judged
from bilevelax_paper.item import Records
from bilevelax_paper.items import fig1, fig2, fig4


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
    """MAML's step leaves a bias that 512 calls tell from 0; the rows are what the page prints."""
    data = meta.load("synthetic", small=True)
    (row,) = runs.noise_rows(data, [meta.steps(1, 0.5)], data.x1, calls=512)
    assert row["sd"] > 0 and row["bias_low"] > 0 and row["norm"] > 0
    told = views.noise_tables(Records([row], {}), "x_1")[0].rows[0]
    assert told[:2] == ("MAML", "m = 1, gamma = 0.5") and told[-1].startswith("**")
    (unknown,) = views.noise_tables(Records([{**row, "bias_low": 0.0}], {}), "x_1")
    assert "512 calls" in unknown.title and not unknown.rows[0][-1].startswith("**"), "not told from 0"
    assert views.noise_tables(Records([], {}), "x_1") == []


def test_a_look_is_the_exact_gradient_and_the_scores_of_the_application():
    data = meta.load("synthetic", small=True)
    x = jax.tree.map(lambda a: a + 0.1 * random.normal(random.key(0), a.shape), data.x1)
    look, scores = meta.look(data.fit, data.test, x), adapted_scores(data.test, x)
    exact = reference(random.key(3), data.fit, x, data.fit.n_contexts, 0).grad
    np.testing.assert_allclose(look.slope, np.linalg.norm(exact), rtol=1e-4)
    np.testing.assert_allclose(look.F, meta.losses(data.fit, [x], [random.key(2)], meta.UNTIL_Y_STAR)[0], rtol=1e-6)
    np.testing.assert_allclose([look.tight, look.accuracy], [scores.loss.mean(), scores.accuracy.mean()], rtol=1e-6)
    np.testing.assert_allclose(data.first.F, meta.look(data.fit, data.test, data.x1).F, rtol=1e-12)


def test_parts_of_a_task_share_its_images():
    whole, cut = (meta.load("synthetic", small=True, parts=parts) for parts in (1, 2))
    assert (whole.fit.n_contexts, cut.fit.n_contexts) == (4, 8)
    rows = lambda data, tasks: {tuple(row) for i in tasks for row in np.asarray(data.fit.data.train.features[i])}
    first, second = rows(cut, [0]), rows(cut, [1])
    assert first | second == rows(whole, [0]) and not first & second
    labels = np.asarray(cut.fit.data.train.labels[1])
    assert np.bincount(labels).tolist() == [8, 8, 8], "as many images of every class"


def plan(**more):
    method = meta.steps(1, 0.5)
    return runs.Plan(**{"method": method, "model": method, "length": 10.0, "T": 4, "seeds": 2, "grid": "grid", **more})


SETTINGS = {"dataset": "synthetic", "small": True, "points": 2, "other_seeds": 1}
GRID = {"paper": [0.3, 1.0], "parts": [1], "constant": [0.1], "adam": []}


def test_every_seed_redraws_the_data_and_the_best_other_rule_runs_on_the_first_seeds():
    settings = {**SETTINGS, "grid": GRID}
    rows = list(runs.tuned_runs(settings, runs.tuner(settings), [plan()]))
    tuning, ends = ([row for row in rows if row["kind"] == kind] for kind in ("tuning", "end"))
    (spent,) = (row for row in rows if row["kind"] == "budget")
    assert len(tuning) == spent["runs"] == 3 and spent["seconds"] > 0
    assert [(row["steps"], row["seed"]) for row in ends] == [("paper", 0), ("other", 0), ("paper", 1)]
    first = [row for row in rows if row["kind"] == "curve" and row["t"] == 0 and row["steps"] == "paper"]
    assert first[0]["F"] != first[1]["F"], "another seed, other tasks"
    curve = [row["t"] for row in rows if row["kind"] == "curve" and row["seed"] == 1]
    assert curve == [0, 1, 4] and all(row["tuned_at"] == row["setting"] for row in ends)


def test_of_several_settings_the_one_of_least_validation_loss_runs():
    settings = {**SETTINGS, "grid": {**GRID, "paper": [0.3], "constant": []}}
    several = [plan(method=m, model=m) for m in (meta.steps(1, 0.05), meta.steps(1, 5.0))]
    tuned = runs.tuner(settings)
    rows = list(runs.tuned_runs(settings, tuned, several, "MAML, tuned longer"))
    losses = [tuned(p.model, p.length, p.T, "grid")[0][0].loss for p in several]
    chosen = several[int(np.argmin(losses))].method.setting
    assert {row["setting"] for row in rows} == {chosen} and {row["method"] for row in rows} == {"MAML, tuned longer"}
    assert [row["runs"] for row in rows if row["kind"] == "budget"] == [2]


def test_cells_do_not_depend_on_which_others_there_are():
    """A record stays valid where lengths, K or seeds of others change."""
    config = fig1.CONFIG.settings("full", None)
    fewer = {**config, "other_lengths": [], "K": {"RT-MLMC": [6], "DL-SGD": [6]}}
    cells = [{cell.name: digest(cell, s) for cell in fig1.run(s, s["seeds"])} for s in (config, fewer)]
    both = [name for name in cells[1] if "noise" not in name]
    assert len(cells[1]) < len(cells[0]) and all(cells[0][name] == cells[1][name] for name in both)
    other = {**config, "length_T": 7}
    changed = {cell.name: digest(cell, other) for cell in fig1.run(other, other["seeds"])}
    assert {name for name in changed if changed[name] != cells[0][name]} == {
        n for n in changed if "length 5" in n or "raw" in n
    }


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
            found = {"own": own + shift, "tight": tight + shift}
            rows += [{"kind": "curve", **columns, "t": 0, "own": start, "tight": start}]
            rows += [{"kind": "curve", **columns, "t": time, **found} for time in {50, t}]
            rows.append({"kind": "end", **columns, "t": t, "tight": tight + shift, "validation": validation, **more})
    return rows


def at_length(length, rows):
    return [{**row, "length": length} for row in rows]


def fig1_records(rt_12=1.70, dl_12=1.70, raw_12=None):
    rows = end_rows("MAML", "m = 1, gamma = 0.5", 200, own=1.9, tight=1.8, validation=1.9, whole=1.85)
    rows += end_rows("DL-SGD", "K = 6", 200, own=1.80, tight=1.70, validation=1.8)
    rows += end_rows("DL-SGD", "K = 12", 200, own=dl_12, tight=1.69, validation=1.7)
    rows += end_rows("RT-MLMC", "K = 6", 200, own=1.80, tight=1.70, validation=1.6)
    rows += end_rows("RT-MLMC", "K = 12", 200, own=rt_12, tight=1.60, validation=1.7)
    rows = at_length(10.0, rows)
    if raw_12 is not None:
        rows += at_length("raw", end_rows("RT-MLMC", "K = 6", 50, own=1.8, tight=1.7, validation=1.6))
        rows += at_length("raw", end_rows("RT-MLMC", "K = 12", 50, own=raw_12, tight=1.6, validation=1.7))
        rows += at_length("raw", end_rows("DL-SGD", "K = 6", 50, own=1.8, tight=1.7, validation=1.6))
        rows += at_length(
            "raw", end_rows("MAML", "m = 1, gamma = 0.5", 50, own=1.9, tight=1.8, validation=1.9, whole=1.85)
        )
    settings = {"T": 200, "seeds": 2, "length": 10.0, "other_lengths": ["raw"], "small": False}
    return Records(rows, {"settings": settings})


def test_claims_of_figure_1_are_judged_at_the_papers_K():
    records = fig1_records()
    of = judge(fig1, records)
    assert of("RT-MLMC: larger K generalises better").verdict == "reproduced"
    dl = of("DL-SGD: larger K generalises better")
    assert "K = 12 minus K = 6 after 200 iterations, own adaptation: -0.1 [-0.1, -0.1]" in dl.measured
    assert dl.verdict == "reproduced"
    maml = of("RT-MLMC beats MAML")
    assert "K = 6 with the paper's steps" in maml.measured and maml.verdict == "reproduced", (
        "validation chooses, not the test"
    )
    assert of(MATCHES).verdict == "reproduced"


def test_other_lengths_of_the_features_have_a_say_but_do_not_decide():
    claim = "RT-MLMC: larger K generalises better"
    agrees, disagrees = (judge(fig1, fig1_records(raw_12=own))(claim) for own in (1.7, 1.9))
    assert agrees.verdict == "reproduced" and "own adaptation, raw features" in agrees.measured
    assert disagrees.verdict == "partly" and disagrees.primary == agrees.primary
    assert judge(fig1, fig1_records(rt_12=1.9, raw_12=1.7))(claim).verdict == "not"


def test_with_one_K_nothing_is_said_of_a_larger_one():
    records = fig1_records()
    rows = [row for row in records.rows if (row["method"], row["setting"]) != ("DL-SGD", "K = 12")]
    claims = [claim.text for claim in fig1.CLAIMS if claim.statistic(Records(rows, records.manifest))]
    assert claims[:2] == ["RT-MLMC: larger K generalises better", "DL-SGD beats MAML"]


def test_longer_tuning_of_maml_is_a_line_of_its_own():
    records = fig1_records()
    longer = end_rows("MAML, tuned longer", "m = 1, gamma = 1", 200, own=1.5, tight=1.5, validation=1.5, whole=1.5)
    found = judge(fig1, Records(records.rows + at_length(10.0, longer), records.manifest))("DL-SGD beats MAML")
    assert (
        found.verdict == "partly"
        and "minus MAML, tuned longer (m = 1, gamma = 1), own adaptation: 0.2" in found.measured
    )


def test_a_lead_that_the_interval_does_not_confirm_is_no_match():
    assert judge(fig1, fig1_records(rt_12=1.76))(MATCHES).verdict == "partly"
    assert judge(fig1, fig1_records(rt_12=1.74))(MATCHES).verdict == "reproduced"


def test_claims_of_figure_4_are_judged_with_both_kinds_of_steps():
    rows = []
    for gamma, own in ((0.005, 1.9), (0.01, 1.91), (0.2, 2.0), (1.0, 2.5)):
        name = f"m = 1, gamma = {gamma:g}"
        rows += end_rows("MAML", name, 200, own=own, tight=1.7, validation=own, whole=2.0 - gamma)
    settings = {"seeds": 2, "gamma_m": 0.1, "m": [4], "length": 10.0, "other_lengths": []}
    records = Records(at_length(10.0, rows), {"settings": settings})
    of = judge(fig4, records)
    large = of("One-step MAML degrades at large inner steps")
    assert large.verdict == "reproduced" and "falls with gamma throughout" in large.reading
    assert "gamma = 0.2 minus 0.005: 0.1 [0.1, 0.1] with the paper's steps" in large.measured
    assert of("One-step MAML is flat at small inner steps").verdict == "reproduced"
    worse = [{**r, "own": 1.0} if r["t"] == 200 and r["steps"] == "other" and "own" in r else r for r in records.rows]
    assert judge(fig4, Records(worse, records.manifest))(large.claim).verdict == "partly"


def fig2_records(late):
    rows = []
    for (M, budget), ours in {(20, 0.0): 1.7, (20, 1.0): 1.9, (20, 3.0): late, (200, 3.0): 1.9}.items():
        for method, loss in (("RT-MLMC", ours), ("BSVRB", 1.8)):
            found = end_rows(method, "s", 50, own=loss, tight=loss, validation=loss)
            rows += [{**row, "M": M, "budget": budget} for row in found]
    budgets = [[20, 0.0], [20, 1.0], [20, 3.0], [200, 3.0]]
    return Records(rows, {"settings": {"seeds": 2, "T": 50, "tasks": 20, "budgets": budgets}})


def test_the_largest_budget_of_figure_2_decides_and_the_others_have_a_say():
    by_time = "RT-MLMC beats BSVRB v2 by time"
    late, never = (judge(fig2, fig2_records(loss))(by_time) for loss in (1.7, 1.9))
    assert late.verdict == "partly" and "20 tasks, 3 s: -0.1 [-0.1, -0.1]" in late.measured
    assert never.verdict == "not" and "200 tasks, 3 s: 0.1" in never.measured
    assert judge(fig2, fig2_records(1.7))("RT-MLMC beats BSVRB v2 by iterations").verdict == "reproduced"


def test_both_methods_of_figure_2_try_as_many_configurations_in_every_budget():
    settings = fig2.CONFIG.settings("full", None)
    rules = len(training.grid(100, **settings["grid"]))
    cells = list(fig2.run(settings, settings["seeds"]))
    assert {rules * len(cell.of["settings"]) for cell in cells} == {24} and len(cells) == 2 * len(settings["budgets"])
    for cell in cells:
        assert len(cell.of["T"]) == len(cell.of["settings"])
