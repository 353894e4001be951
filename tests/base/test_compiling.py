"""The compiler: right numbers where it can be wrong, in programs of ours and around them."""

import os
from importlib.metadata import version

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fresh_process import in_a_fresh_process
from jax import random

import bilevelax as bx
from bilevelax import _xla
from bilevelax.base import compiling, self_test
from bilevelax.base.compiling import LEVEL, jit_once, program
from bilevelax.base.self_test import compiler_errors


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("ours", [True, False])
def test_gradients_and_values_of_long_batches_are_right(dtype, ours):
    assert compiler_errors(dtype=dtype, ours=ours) == []


ERRORS = """
import json
{before}
import bilevelax, bilevelax.base.self_test as compiling
print(json.dumps([len(compiling.compiler_errors(ours=ours)) for ours in (True, False)]))
"""
STARTED = "import jax; jax.numpy.ones(3).sum().block_until_ready()"


def test_an_import_before_jax_starts_makes_every_program_right():
    assert in_a_fresh_process(ERRORS.format(before="import jax")) == [0, 0]


def test_an_import_after_jax_has_started_makes_our_programs_right():
    assert in_a_fresh_process(ERRORS.format(before=STARTED))[0] == 0


def test_the_self_test_can_fail():
    """Control: with our flags left out, the versions that are known to be wrong are found to be."""
    ours, plain = in_a_fresh_process(ERRORS.format(before=""), BILEVELAX_XLA_FLAGS="0")
    known = _xla.jaxlib_version() in ("0.9.1", "0.9.2", "0.10.0", "0.10.1", "0.10.2")
    assert ours == plain and (plain > 0 or not known)


KINDS = ("gradient", "product with the Hessian", "one of 40,000 values")
QUICK = """
import json
import numpy as np
import bilevelax.base.self_test as compiling
found = [compiling.compiler_errors(sizes=(40_000,), products=(2,), dtype=dtype) for dtype in (np.float32, np.float64)]
print(json.dumps([[each.what for each in wrong] for wrong in found]))
"""


@pytest.mark.skipif(_xla.jaxlib_version() != "0.10.2", reason="the kinds of fault are those of one version")
def test_the_short_test_of_every_process_finds_each_kind_of_fault():
    for found in in_a_fresh_process(QUICK, BILEVELAX_XLA_FLAGS="0"):
        assert len(found) == len(KINDS) and all(kind in what for kind, what in zip(KINDS, found, strict=True))


def test_flags_of_the_user_stay(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=false")
    _xla.switch_off_fusion()
    _xla.switch_off_fusion()
    assert os.environ["XLA_FLAGS"] == f"--xla_cpu_enable_fast_math=false {_xla.FLAG}"
    monkeypatch.setenv("XLA_FLAGS", f"{_xla.FLAG}1")
    _xla.switch_off_fusion()
    assert os.environ["XLA_FLAGS"] == f"{_xla.FLAG}1"
    monkeypatch.setenv("XLA_FLAGS", "")
    monkeypatch.setenv(_xla.SWITCH, "0")
    _xla.switch_off_fusion()
    assert os.environ["XLA_FLAGS"] == ""


@pytest.mark.parametrize("found", ["0.8.3", "0.11.0", "1.0"])
def test_a_jaxlib_that_may_not_know_the_flag_is_not_given_it(found, monkeypatch):
    monkeypatch.setattr(_xla, "jaxlib_version", lambda: found)
    assert not _xla.is_switched_off() and compiling.fusion_off() == {}


def test_a_wrong_compiler_is_told_once_with_a_remedy(monkeypatch):
    monkeypatch.setattr(self_test, "compiler_errors", lambda **kw: [self_test.Wrong("a gradient", 0.14)])
    self_test.warn_of_wrong_numbers.cache_clear()
    with pytest.warns(RuntimeWarning, match=r"jaxlib .* computes wrongly on this CPU: a gradient is 14% off. Set XLA_"):
        self_test.warn_of_wrong_numbers()
    self_test.warn_of_wrong_numbers()  # not again
    self_test.warn_of_wrong_numbers.cache_clear()


def test_minimize_asks_and_check_tells_first(monkeypatch, quadratic, x, key):
    asked = []
    monkeypatch.setattr("bilevelax.base.self_test.warn_of_wrong_numbers", lambda: asked.append(1))
    monkeypatch.setattr(
        "bilevelax.diagnostics.check.compiler_errors", lambda **kw: [self_test.Wrong("a gradient", 0.14)]
    )
    import optax

    bx.minimize(quadratic, bx.saa(2), optax.sgd(0.1), x, key=key, T=1)
    assert asked
    report = bx.check(quadratic, x, key=key, estimator=bx.saa(2), contexts=2, samples=8, n=32)
    first = report.rows[0]
    assert first.name == "compiler" and first.ok is False and not report.ok and "XLA_FLAGS=" in first.remedy


def test_all_of_33_000_stored_outcomes_count():
    """The gradient of saa("all") is that of NumPy, on a number of rows that the fusion gets wrong."""
    rng = np.random.default_rng(0)
    W, rows = rng.normal(size=(2, 3)), rng.normal(size=(33_000, 3)) + np.linspace(0, 3, 33_000)[:, None]
    problem = bx.from_arrays(
        f=lambda x, y, eta, xi: jnp.sum(jnp.asarray(W, y.dtype) @ (eta - y)) ** 2 + jnp.sum(x),
        g=lambda x, y, eta, xi: jnp.sum((y - x) ** 2),
        contexts=jnp.zeros((1, 1), jnp.float32),
        outcomes=jnp.asarray(rows[None], jnp.float32),
        init_y=lambda x, xi: x,
    )
    x = jnp.ones(3, jnp.float32)
    estimate = program()(lambda x: bx.saa("all").estimate(random.key(0), problem, x, ())[0].grad)
    right = 1 - 2 * np.mean((rows - 1) @ W.sum(0)) * W.sum(0)
    np.testing.assert_allclose(estimate(x), right, rtol=1e-3)


@pytest.mark.parametrize("soon", [True, False])
def test_little_work_is_compiled_at_once(soon, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "")
    asked, made = [], []
    monkeypatch.setattr(
        jax, "jit", lambda f, compiler_options=None, **_: made.append(compiler_options) or _labelled(made)
    )
    call = jit_once(lambda *args: asked.append(args) or soon)(lambda a, b=0: None)
    assert call(1, b=2)[LEVEL] == (0 if soon else 1)
    assert asked == [(1,)]  # what is given by name does not decide


def _labelled(made):
    """A compiled program that tells its options."""
    options = made[-1]
    return lambda *args, **kwargs: options


@pytest.mark.parametrize(("flags", "level"), [("", {LEVEL: 1}), (f"--{LEVEL}=0", {})])
def test_a_level_in_the_environment_is_respected(flags, level, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", flags)
    given = jit_once(static_argnames="n").keywords
    assert given == {"options": level, "settings": {"static_argnames": "n"}, "soon": None}
    double = jit_once(static_argnames="n")(lambda x, n: n * x)
    assert float(double(jnp.ones(()), n=2)) == 2


def test_programs_may_be_called_inside_others():
    """JAX takes options of the compiler for outermost programs only."""
    double = jit_once()(lambda x: 2 * x)
    assert float(jax.jit(lambda x: double(x) + program()(lambda x: x)(x))(jnp.ones(()))) == 3
    assert jax.vmap(double)(jnp.ones(3)).shape == (3,)


def test_diagnose_works_without_flags():
    code = """
import json, jax.numpy as jnp, optax, bilevelax as bx
from jax import random
from bilevelax.applications import quadratic
made = quadratic.make()
result = bx.minimize(made.problem, bx.saa(4), optax.sgd(0.1), made.x1, key=random.key(0), T=2, every=1, diagnose=1)
print(json.dumps(sorted({"bias", "variance", "grad2"} & set(result.history[-1]))))
"""
    assert in_a_fresh_process(code) == ["bias", "grad2", "variance"]


def test_the_version_of_jaxlib_is_the_installed_one():
    """It is read from a file, since `importlib.metadata` is slow; a wrong one would leave the fusion on."""
    assert _xla.jaxlib_version() == version("jaxlib")
