"""What the documents show is run as users run it: README, guides, extending, examples/.

The fast suite compiles it quickly, the slow one as users do; so does the gallery of the docs with examples/.
"""

import importlib
import re
import sys
from pathlib import Path

import jax
import numpy as np
import optax
import pytest
from fresh_process import QUICK, forked, in_a_fresh_process, python
from jax import random
from test_docs import blocks

import bilevelax as bx
from bilevelax.testing import check_estimator, check_problem

ROOT = Path(__file__).parents[2]


def execute(code, shown, folder=None, **environment):
    """Run in a fresh process; ``shown`` is an expression of what to look at afterwards."""
    code = f"{code}\nimport json\nprint(json.dumps({shown}))"
    return in_a_fresh_process(code, folder, forked if environment else python, **environment)


def test_readme_script(flags):
    script, *_ = blocks("README.md")
    w, b = execute(script, '[result.x["w"].tolist(), float(result.x["b"])]', **flags)
    np.testing.assert_allclose(w, [2.0, -1.0, 0.0], atol=0.1)
    np.testing.assert_allclose(b, 0.25, atol=0.1)


@pytest.mark.parametrize("number", [1, 2])
def test_readme_blocks(number, flags):
    """The analyst's and the federated engineer's."""
    assert execute(blocks("README.md")[number], "model.n_features_in_", **flags) > 0


def test_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) < 150
    assert all(len(block.splitlines()) <= 20 for block in blocks("README.md"))


def test_getting_started(flags):
    low, mean, high = execute("\n".join(blocks("docs/getting_started.md")), "[F.low, F.mean, F.high]", **flags)
    assert low < mean < high


@pytest.mark.parametrize("page", ["writing_a_problem", "federated"])
def test_guides(page, flags):
    assert execute("\n".join(blocks(f"docs/{page}.md")), "True", **flags)


PRELUDE = """
import jax, jax.numpy as jnp, optax
import bilevelax as bx
from bilevelax.applications import quadratic

app = quadratic.make()
problem, x1, key = app.problem, app.x1, jax.random.key(0)
x, estimator, optimizer = x1, bx.minibatch(bx.saa(8), 4), optax.adam(0.1)
"""
CLIENTS = """
import numpy as np
f = lambda x, y, eta, xi: (y - eta["b"]) ** 2 + 0.1 * x**2
g = lambda x, y, eta, xi: (y - eta["a"]) ** 2 + (y - x) ** 2
x1 = jnp.zeros(())
clients = [(np.arange(3.0 + i), np.ones(3 + i)) for i in range(5)]
"""


@pytest.mark.slow
@pytest.mark.parametrize("page", ["correctness", "scaling"])
def test_pages_with_a_problem_of_their_own(page, tmp_path):
    """As printed, but for a few steps only."""
    first, *others = blocks(f"docs/{page}.md")
    code = "\n".join([PRELUDE, first, CLIENTS if page == "scaling" else "", *others])
    assert execute(re.sub(r"T=[\d_]+", "T=4", code), "bool(result.history)", tmp_path)


@pytest.mark.slow
def test_a_csv_of_ones_own(tmp_path):
    rng, days = np.random.default_rng(0), np.arange("2023-01-01", "2023-07-20", dtype="datetime64[D]")
    temperature, rain, promotion = rng.normal(15, 5, 200), rng.gamma(1, 2, 200), rng.integers(0, 2, 200)
    demand = 20 + temperature + 5 * promotion + rng.normal(0, 2, 200)
    rows = zip(days, temperature, rain, promotion, demand, strict=True)
    text = "date,temperature,rain,promotion,demand\n" + "".join(",".join(map(str, row)) + "\n" for row in rows)
    (tmp_path / "demand.csv").write_text(text)
    (block,) = blocks("docs/newsvendor.md")
    orders = np.asarray(execute(block, "orders.tolist()", tmp_path))
    assert orders.shape == (7,) and abs(orders.mean() - demand[-7:].mean()) < 10


@pytest.fixture
def extensions(tmp_path, monkeypatch):
    """The two blocks of docs/extending.md as modules."""
    for name, code in zip(("pricing", "naive"), blocks("docs/extending.md"), strict=True):
        (tmp_path / f"{name}.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in ("pricing", "naive"):
        sys.modules.pop(name, None)


def test_extending(extensions, key):
    app = importlib.import_module("pricing").make()
    check_problem(app.problem, app.x1, key=key)
    with jax.numpy_dtype_promotion("standard"):
        adam = optax.adam(optax.linear_schedule(0.1, 0.0, 300))
        result = bx.minimize(
            app.problem, bx.minibatch(bx.rt_mlmc(5), 8), adam, app.x1, key=key, T=300, metrics=app.metrics
        )
    assert abs(result.history[-1]["price"] - 0.75) < 0.05
    estimator = importlib.import_module("naive").naive(K=3)
    check_estimator(estimator, app.problem, app.x1, key=key)
    # f = -x y and the implicit term is left out, so the gradient is minus the follower's answer
    key_xi, key_y, _ = random.split(key, 3)
    y = bx.epoch_sgd()(key_y, app.problem, app.x1, app.problem.context(key_xi), 3)
    np.testing.assert_allclose(estimator.estimate(key, app.problem, app.x1, ())[0].grad, -y.last, rtol=1e-12)


def test_check_of_parts_outside_the_tree(extensions, flags):
    start = forked if flags else python
    run = lambda target: start("-m", "bilevelax", "check", target, folder=extensions, **flags)
    assert run("pricing:make").returncode == 0
    failed = run("pricing:nothing")
    assert failed.returncode == 1 and "Module 'pricing' has no 'nothing'" in failed.stderr
    assert "Traceback" not in failed.stderr


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.name)
def test_examples_run(path, tmp_path):
    """Long runs for 20 steps only; the gallery has them whole."""
    (tmp_path / path.name).write_text(re.sub(r"\bT=\d{3,}", "T=20", path.read_text()))
    done = forked(tmp_path / path.name, folder=tmp_path, BILEVELAX_QUICK="1", XLA_FLAGS=QUICK)
    assert done.returncode == 0, done.stderr
