"""`solve`: answers that are certified to be there, and reasons where they are not."""

import os
import signal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fresh_process import QUICK, forked
from jax import random

import bilevelax as bx
from bilevelax.applications import quadratic as quadratic_application
from bilevelax.diagnostics.certify import OF_GRADIENT, Certificate
from bilevelax.exact.evaluate import Evaluation
from bilevelax.run.lanes import LANES, SAMPLES
from bilevelax.run.looks import Look
from bilevelax.run.reasons import notes
from bilevelax.run.records.progress import Progress
from bilevelax.run.sampled import Sample
from bilevelax.run.solve import teller
from bilevelax.run.solving import MOST_SAMPLES, Solving, Wanted


def follower(f, draw, d=2, **more):
    """A leader whose follower answers y = x."""
    return bx.Problem(
        f=lambda x, y, eta, xi: f(y, eta),
        g=lambda x, y, eta, xi: jnp.sum((y - x) ** 2) / 2,
        sample_context=lambda key, data: draw(key),
        sample_conditional=lambda key, xi, data: xi,
        init_y=lambda x, xi: jnp.zeros(d),
        **more,
    )


@pytest.fixture(scope="module")
def easy():
    """A quadratic with little noise against its gradient at x1."""
    return quadratic_application.matrices(d_x=3, d_y=4, d_xi=1, noise=0.05, hessian_noise=0.3)


def test_certified_answers_are_there(easy, key):
    problem = quadratic_application.problem_of(easy)
    x1 = jnp.full(3, 20.0)
    result = bx.solve(problem, x1, key=key, progress=False)
    true = np.linalg.norm(easy.grad_F(np.asarray(result.x)))
    first = np.linalg.norm(easy.grad_F(np.asarray(x1)))
    assert result.certified and true <= result.goal
    assert result.certificate.low <= true**2 <= result.certificate.high <= result.goal**2
    np.testing.assert_allclose(result.goal, 0.01 * first, rtol=0.1)
    assert [stage.m for stage in result.stages] == sorted(stage.m for stage in result.stages)
    assert result.cost.xi >= sum(stage.m for stage in result.stages)
    told = [(row["low"], row["high"]) for row in result.history if row["stage"] == 1]
    assert told and set(told) == {(result.stages[0].low, result.stages[0].high)}
    heads = next(line for line in str(result).splitlines() if "at most" in line and "seconds" in line).split("  ")
    assert {"m", "n", "iterations", "seconds", "statistical", "optimisation"} <= {head.strip() for head in heads}
    assert told[0][0] <= first <= told[0][1]


def test_equal_keys_give_equal_answers(easy, key):
    problem, x1 = quadratic_application.problem_of(easy), jnp.full(3, 20.0)
    a, b = (bx.solve(problem, x1, tol=0.1, key=key, progress=False) for _ in range(2))
    assert (a.x == b.x).all() and a.certificate == b.certificate


def test_stored_contexts_and_outcomes_leave_nothing_to_chance(logistic, key):
    problem, x = logistic, jnp.ones(4)
    result = bx.solve(problem, x, tol=1e-6, key=key, progress=False)
    other = bx.solve(problem, x, tol=1e-6, key=random.key(5), progress=False)
    assert result.certified and [stage.kind for stage in result.stages] == ["exact"] * len(result.stages)
    assert result.certificate.low == result.certificate.high <= result.goal**2
    jax.tree.map(np.testing.assert_array_equal, result.x, other.x)
    exact = bx.certify(problem, result.x, key=key, n=32 * problem.n_contexts)
    np.testing.assert_allclose(exact.estimate**0.5, result.certificate.estimate**0.5, atol=1e-9)


def test_a_constraint_is_kept_and_its_measure_certified(easy, key):
    problem, x1 = quadratic_application.problem_of(easy), jnp.full(3, 20.0)
    box = lambda x: jnp.clip(x, 0.5, 30.0)
    result = bx.solve(problem, x1, key=key, tol=0.02, constraint=box, progress=False)
    x = np.asarray(result.x)
    measure = np.linalg.norm(x - np.clip(x - easy.grad_F(x), 0.5, 30.0))
    assert result.certified and measure <= result.goal and (x >= 0.5).all()
    assert np.linalg.norm(easy.grad_F(x)) > result.goal  # negative control: the bound is active
    assert result.certificate.of == "|x - P(x - grad F)|^2"


def bowl(y, eta):
    return jnp.sum((y - eta) ** 2) / 2


def normal(key):
    return random.normal(key, (2,))


def powers(square):
    """CSO with F = x^4 / 4 - x, whose mean over n samples of eta is x^4 (1 + 6 s + 3 s^2) / 4 - x, s = square / n."""
    return bx.conditional_stochastic(
        lambda x, u, xi: jnp.sum(u**4 / 4 - u + x * xi),
        lambda x, eta, xi: x * (1 + square**0.5 * eta),
        lambda key, data: random.normal(key, (1,)) / 10,
        lambda key, xi, data: random.normal(key, (1,)),
    )


@pytest.mark.slow
def test_the_end_is_right_where_samples_of_a_context_bias_the_gradient(key):
    """No unbiased estimator is needed at the end: n grows until its bias of order 1/n is below the goal."""
    result = bx.solve(powers(5.0), jnp.full(1, 2.0), key=key, tol=0.05, progress=False)
    true = lambda x: abs(float(x) ** 3 - 1)
    assert result.certified and true(result.x[0]) <= result.goal
    assert result.stages[-1].n > result.stages[0].n
    s = 5.0 / result.stages[0].n
    assert true((1 + 6 * s + 3 * s**2) ** (-1 / 3)) > result.goal  # negative control: the answer for the first n


def test_nothing_is_certified_while_the_bias_of_its_samples_may_count(key):
    """A gradient below the goal whose bias is not: more samples first; where there are no more, a note."""
    solving = Solving(powers(5.0), jnp.full(1, 2.0), key, Wanted(0.01, 1.0, 0.95))
    sample = Sample(powers(5.0), jnp.full(1, 2.0), key, LANES, SAMPLES, False)
    small = Look(
        Certificate(0.1, 0.0, 0.9, 0.95, LANES, OF_GRADIENT), Evaluation(0, 0, 0, 0, LANES), 0.3, 0.1, 2.0, False
    )
    assert solving.verdict(small, sample) is None
    assert solving.verdict(small._replace(bias=0.5), sample) == "certified"  # negative control
    told = lambda look: notes("certified", look, 1.0, solving.known, MOST_SAMPLES, None)
    assert "bias the gradient by 2 or more" in told(small)[0] and not told(small._replace(bias=0.5))
    solving.n = MOST_SAMPLES
    assert solving.verdict(small, sample) == "certified"


def test_samples_grow_where_their_bias_hides_the_gradient(key):
    """Before the gradient at x1 is told from zero there is no goal; contexts alone would grow to no end."""
    solving = Solving(powers(10.0), jnp.full(1, 2.0), key, Wanted(0.01, None, 0.95))
    sample = Sample(powers(10.0), jnp.full(1, 2.0), key, LANES, SAMPLES, False)
    unknown = Look(
        Certificate(4.0, 0.0, 90.0, 0.95, LANES, OF_GRADIENT), Evaluation(0, 0, 0, 0, LANES), 2, 3.0, 6.0, False
    )
    assert not solving.goal and solving.misled(unknown, sample)
    assert not solving.misled(unknown._replace(bias=1.0), sample)  # negative control


def test_a_line_tells_stage_gradient_interval_and_time_left(monkeypatch, capsys):
    """On 80 columns, however small the numbers."""
    monkeypatch.setenv("COLUMNS", "80")
    row = {"stage": 12, "grad": 1.2e-5, "low": 1.1e-6, "high": 1.5e-5, "goal": 1e-5, "t": 3}
    with Progress(100, True, "solve", counts=False) as bar:
        teller(bar, [])(row, None)
    line = capsys.readouterr().err.splitlines()[-1]
    assert "stage 12  |grad F| 1.2e-05  [1.1e-06, 1.5e-05]" in line and "left" in line and len(line.rstrip()) <= 80


FAILURES = {
    "heavy tails": (follower(bowl, lambda key: random.t(key, 1.2, (2,))), "Heavy tails: one context of "),
    "unbounded": (follower(lambda y, eta: jnp.sum(y * (1 + eta)), normal), "Unbounded: x went a million times"),
    "not smooth": (
        follower(lambda y, eta: jnp.sum(jnp.abs(y - 0.1)) + y @ eta / 2, normal),
        "Not smooth: no step lowers F any more; |grad F| is at most",
    ),
    "noise": (follower(bowl, lambda key: 1e3 * normal(key)), "Stalled by noise: |grad F| is at most"),
}


@pytest.mark.parametrize("reason", FAILURES)
def test_failures_are_told(reason, key, monkeypatch):
    monkeypatch.setattr("bilevelax.run.solving.MOST_CONTEXTS", 2**14)
    problem, words = FAILURES[reason]
    result = bx.solve(problem, jnp.asarray([2.0, 1.0]), key=key, progress=False)
    assert result.reason == reason and not result.certified and result.why.startswith(words)
    assert "was asked for" in result.why or "give atol" in result.why or reason == "heavy tails"


def stored(f):
    """Twenty contexts, their only outcomes known."""
    return follower(f, lambda key: random.randint(key, (), 0, 20, jnp.int32)).replace(
        data=random.normal(random.key(0), (20, 2)),
        sample_conditional=lambda key, i, data: data[i],
        n_contexts=20,
        context_at=lambda i, data: jnp.asarray(i, jnp.int32),
        support=lambda i, data: (data[i][None], jnp.ones(1)),
    )


def test_rounding_far_from_zero_is_no_kink(key):
    """x near 300 holds its gradient to 600 roundings, though a context's own gradients are about 1."""
    far = bx.solve(
        stored(lambda y, eta: jnp.sum((y - eta - 300) ** 2)), jnp.ones(2), key=key, tol=1e-17, progress=False
    )
    assert far.reason == "rounding" and "Use float64" in far.why
    kink = stored(lambda y, eta: jnp.sum(jnp.abs(y - 300)) + y @ eta / 9)
    told = bx.solve(kink, jnp.ones(2), key=key, progress=False)
    assert told.reason == "not smooth"  # negative control


def test_what_is_not_a_number_stops_a_solve(key):
    problem = follower(bowl, lambda key: jnp.log(normal(key)))
    with pytest.raises(bx.RunStopped, match="F and its gradient must be finite at x"):
        bx.solve(problem, jnp.ones(2), key=key, progress=False)


def test_a_sampler_that_ignores_its_key_is_told(key):
    result = bx.solve(follower(bowl, lambda key: jnp.ones(2)), jnp.zeros(2), key=key, progress=False)
    assert result.certified and "a sampler that ignores its key" in result.notes[0]
    moving = bx.solve(follower(bowl, normal), jnp.full(2, 9.0), key=key, tol=0.1, progress=False)
    assert moving.certified and not moving.notes  # negative control


def test_out_of_time(key):
    result = bx.solve(follower(bowl, lambda key: 30 * normal(key)), jnp.ones(2), key=key, budget_seconds=1.0, tol=1e-4)
    assert result.reason == "budget" and "Out of time after 1 s" in result.why


@pytest.mark.parametrize("budget", [3.5, 40.5])
def test_a_budget_is_overrun_by_a_chunk_at_most(budget, key, monkeypatch):
    """On a clock that only chunks move, a second each, in looks, in descent and in the last look."""
    clock = [0.0]
    monkeypatch.setattr("bilevelax.run.solving.time.perf_counter", lambda: clock[0])
    of = Sample.chunk

    def slow(sample, x, c):
        clock[0] += 1.0
        return of(sample, x, c)

    monkeypatch.setattr(Sample, "chunk", slow)
    result = bx.solve(follower(bowl, lambda key: 30 * normal(key)), jnp.ones(2), key=key, budget_seconds=budget)
    assert result.reason == "budget" and clock[0] <= budget + 1
    assert result.certificate.n % LANES == 0 and result.certificate.high > result.goal**2


def test_restarts_find_the_lower_of_two_valleys(key):
    valleys = follower(lambda y, eta: jnp.sum(y**4 / 4 - y**2 / 2 + 0.1 * y) + 0 * eta[0], normal)
    x1 = jnp.full(2, 0.4)
    once = bx.solve(valleys, x1, key=key, progress=False)
    more = bx.solve(valleys, x1, key=key, restarts=6, progress=False)
    assert once.certified and more.certified and more.F.mean < once.F.mean - 0.1
    assert any("not convex" in note for note in once.notes)
    assert more.certificate.level == pytest.approx(1 - 0.05 / 7)


def test_a_solve_goes_on_where_it_was_stopped(easy, key, tmp_path):
    problem, x1 = quadratic_application.problem_of(easy), jnp.full(3, 20.0)
    whole = bx.solve(problem, x1, key=key, tol=0.003, progress=False)
    folder = bx.Checkpoint(tmp_path / "run", every=1)
    rows = []

    def stop(row, x):
        rows.append(row)
        if row["stage"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bx.solve(problem, x1, key=key, tol=0.003, checkpoint=folder, callbacks=[stop], progress=False)
    resumed = bx.solve(problem, x1, key=key, tol=0.003, checkpoint=folder, progress=False)
    assert (resumed.x == whole.x).all() and resumed.certificate == whole.certificate
    assert [stage[:5] for stage in resumed.stages] == [stage[:5] for stage in whole.stages]
    again = bx.solve(problem, x1, key=key, tol=0.003, checkpoint=folder, progress=False)
    assert (again.x == whole.x).all() and again.cost == resumed.cost  # nothing was computed
    with pytest.raises(ValueError, match="holds another run: the `key` changed"):
        bx.solve(problem, x1, key=random.key(9), tol=0.003, checkpoint=folder, progress=False)


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ({"tol": 0}, "`tol` of solve must be a positive number. Got 0."),
        ({"level": 1.0}, "`level` of solve must lie between 0 and 1. Got 1.0."),
        ({"restarts": -1}, "`restarts` of solve must be an integer >= 0. Got -1."),
    ],
)
def test_bad_arguments(bad, words, key):
    with pytest.raises(ValueError, match=words):
        bx.solve(follower(bowl, normal), jnp.ones(2), key=key, **bad)


def test_ctrl_c_saves_the_last_whole_stage(easy, key, tmp_path):
    problem, x1 = quadratic_application.problem_of(easy), jnp.full(3, 20.0)
    folder = bx.Checkpoint(tmp_path / "run")
    call = lambda **more: bx.solve(problem, x1, key=key, tol=0.003, checkpoint=folder, progress=False, **more)

    def press(row, x):
        if row["stage"] == 2:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt, match=r"Stopped at t = 1, saved in .* the same call goes on from there"):
        call(callbacks=[press])
    whole = bx.solve(problem, x1, key=key, tol=0.003, progress=False)
    assert (call().x == whole.x).all()


def special_cases():
    draw = lambda key, data: random.normal(key, (2,))
    drawn = lambda key, xi, data: xi + random.normal(key, (2,))
    start = lambda x: jnp.zeros(2)
    away = lambda x, y: jnp.sum((y - 1) ** 2) + jnp.sum(x**2)
    lower = lambda x, y, eta: jnp.sum((y - x - eta) ** 2)
    yield bx.stochastic(lambda x, xi: jnp.sum((x - 0.5 - xi) ** 2), draw)
    yield bx.stochastic_bilevel(lambda x, y, xi: away(x, y) + xi @ x, lower, draw, draw, start)
    yield bx.conditional_stochastic(lambda x, y, xi: away(x, y), lambda x, eta, xi: x + eta - xi, draw, drawn)


@pytest.mark.parametrize("problem", list(special_cases()), ids=("stochastic", "SBO", "CSO"))
def test_special_cases_have_their_known_answer(problem, key):
    """x = 1/2 for all; grad F is 2 (x - 1/2), or twice that where a follower answers x on average."""
    result = bx.solve(problem, jnp.full(2, 8.0), key=key, tol=0.05, progress=False)
    assert result.certified
    np.testing.assert_allclose(result.x, 0.5, atol=result.goal / 2)


MESH = """
import jax, jax.numpy as jnp, numpy as np
from jax import random
import bilevelax as bx
from bilevelax.applications import quadratic
made = quadratic.matrices(d_x=3, d_y=4, d_xi=1, noise=0.05)
mesh = jax.make_mesh((2,), ("contexts",))
call = lambda mesh: bx.solve(
    quadratic.problem_of(made), jnp.full(3, 20.0), key=random.key(0), tol=0.02, mesh=mesh, progress=False
)
one, two = call(None), call(mesh)
assert two.certified and [s.m for s in one.stages] == [s.m for s in two.stages]
np.testing.assert_allclose(one.x, two.x, rtol=1e-3, atol=1e-3)
print("[1]")
"""


def test_a_mesh_gives_the_answer_of_one_device():
    done = forked("-c", MESH, timeout=300, XLA_FLAGS=f"--xla_force_host_platform_device_count=2 {QUICK}")
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize(
    ("constraint", "words"),
    [
        (lambda x: x[:1], r"`constraint` of solve must return an x of shape \(2,\). Got \(1,\)."),
        (lambda x: x / 2, "must be a projection, which leaves points of the set where they are. Projected a second"),
        (3.0, "`constraint` of solve must be a function x -> x. Got 3.0."),
    ],
)
def test_what_is_no_projection_is_refused(constraint, words, key):
    """One of another shape was broadcast: x had equal entries, and was certified."""
    with pytest.raises(ValueError, match=words):
        bx.solve(follower(bowl, normal), jnp.ones(2), key=key, constraint=constraint, progress=False)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"callbacks": lambda row, x: None}, r"`callbacks` of solve must be a list of functions \(row, x\). Got "),
        ({"callbacks": [3]}, r"`callbacks` of solve must be a list of functions \(row, x\). Got \[3\]."),
        ({"checkpoint": "folder"}, "`checkpoint` of solve must be a Checkpoint, e.g. .* Got 'folder'."),
        ({"checkpoint": bx.Checkpoint("a"), "resume": "x"}, "`resume` of solve must be one of 'auto', 'restart'."),
        ({"mesh": 2}, "`mesh` of solve must have one axis, that of the contexts. Got 2; make one with"),
    ],
)
def test_bad_company(settings, words, key):
    """Each was an AttributeError or a TypeError, or spoke of `minimize`."""
    with pytest.raises(ValueError, match=words):
        bx.solve(follower(bowl, normal), jnp.ones(2), key=key, progress=False, **settings)


def test_a_saved_solve_says_what_changed(key, tmp_path):
    """`constraint` and `level`, not an optimizer and an estimator that nobody gave."""
    problem, same = follower(bowl, normal), {"key": key, "tol": 0.1, "progress": False}
    call = lambda **more: bx.solve(
        problem, jnp.full(2, 9.0), checkpoint=bx.Checkpoint(tmp_path / "run"), **same, **more
    )
    call(constraint=lambda x: jnp.clip(x, 0, 20))
    with pytest.raises(ValueError, match="the `constraint` changed"):
        call(constraint=lambda x: jnp.clip(x, 0, 30))
    with pytest.raises(ValueError, match=r"a setting of `solve` changed: level is 0.9, was 0.95"):
        call(constraint=lambda x: jnp.clip(x, 0, 20), level=0.9)


def rarely(p):
    """grad F = x - 1 by contexts of probability p that count 1 / p."""
    draw = lambda key: jnp.where(random.uniform(key) < p, 1 / p, 0.0)[None]
    return follower(lambda y, xi: jnp.sum((y - xi) ** 2) / 2, draw, d=1)


def solved_to(atol, p):
    return bx.solve(rarely(p), jnp.full(1, 0.3), key=random.key(1), progress=False, atol=atol)


def test_no_certificate_where_rare_contexts_decide(monkeypatch):
    """Five hundred contexts may hold none of those: quick looks at more meet them."""
    monkeypatch.setattr("bilevelax.run.solving.MOST_CONTEXTS", 2**12)
    result = solved_to(0.05, 1e-4)
    assert result.reason == "heavy tails" and "effective ones, so no interval holds" in result.why
    assert result.certificate.norm_high == np.inf and "no interval" in str(result.certificate)
    monkeypatch.setattr("bilevelax.run.solving.few_of_sample", lambda *a: None)
    blind = solved_to(0.05, 1e-4)
    assert blind.certified and abs(float(blind.x[0]) - 1) > 0.5, "the test has no power"


def test_more_contexts_are_taken_where_few_are_met():
    """One in forty: 64 contexts hold one or two of them, 640 sixteen."""
    result = solved_to(0.5, 1 / 40)
    assert result.certified and result.stages[-1].m >= 640
    assert abs(float(result.x[0]) - 1) <= result.certificate.norm_high <= 0.5
