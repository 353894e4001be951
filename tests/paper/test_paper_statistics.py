"""Intervals, exponents, and what a target needs, from made-up records."""

import numpy as np
import pytest

from bilevelax.experiments._items import VERDICTS, Claim, Records
from bilevelax.experiments._stationarity import Totals
from bilevelax.experiments._statistics import Interval, bootstrap, exponent, mean, number
from bilevelax.experiments._tasks_needed import Needed


def test_statistics():
    assert exponent([1, 2, 4], [3, 24, 192]) == pytest.approx(3)
    rng = np.random.default_rng(0)
    inside = [0.0 in mean(rng.normal(size=5)) for _ in range(400)]
    assert 0.91 <= np.mean(inside) <= 0.98  # 0.95, three standard errors of 0.011
    found = bootstrap(np.mean, rng.normal(size=200))
    assert found.low < 0.07 < found.high + 0.3 and 0.2 < found.high - found.low < 0.36  # 2 * 1.96 / sqrt(200) = 0.28
    assert str(Interval(1.0, 0.5, 2.0)) == "1 [0.5, 2]"
    assert [Claim.judge(True), Claim.judge(False, True), Claim.judge(False)] == list(VERDICTS)


@pytest.mark.parametrize("n", [4, 8])
def test_a_bootstrapped_mean_is_as_uncertain_as_students(n):
    """The plain percentile interval of 4 values is half as wide, of 8 values 0.78."""
    rng = np.random.default_rng(1)
    width = lambda interval: interval.high - interval.low
    samples = rng.normal(size=(20, n))
    assert np.mean([width(bootstrap(np.mean, s)) / width(mean(s)) for s in samples]) == pytest.approx(1, abs=0.08)


def test_resamples_without_an_answer_widen_the_interval():
    """nan unless at least 2 of 8 drawn values are positive: one resample in 28 has fewer."""
    samples = np.array([1.0, 2.0, 3.0, 1.5, -1.0, -1.0, -1.0, -1.0])
    positive = lambda s: float(np.mean(s[s > 0])) if np.sum(s > 0) > 1 else float("nan")
    found = bootstrap(positive, samples)
    assert found.value == pytest.approx(1.875) and (found.low, found.high) == (-np.inf, np.inf)
    late = lambda s: float(np.nan_to_num(positive(s), nan=np.inf))  # later than seen, not unknown
    assert 1 <= bootstrap(late, samples).low < 1.875 and bootstrap(late, samples).high == np.inf


def test_numbers_are_read_without_counting_zeros():
    shown = [number(v) for v in (0.0, 1290.4, 999.6, -0.01034, 2.5, 3.4e7, 2e-5, float("nan"))]
    assert shown == ["0", "1,290", "1,000", "-0.0103", "2.5", "3.4e7", "2e-5", "nan"]


def totals_of(curve):
    """Four seeds whose running means of |grad F|^2 / eps^2 are ``curve(eps, seed, t / T)``, T = eps^-4."""
    rows = []
    for eps in (0.5, 0.25, 0.125):
        fraction = 2 * np.arange(1, 51) / 50
        for seed in range(4):
            mean_square = eps**2 * np.broadcast_to(curve(eps, seed, fraction), fraction.shape)
            counts = {"xi": 1.0, "eta": 2.0, "grad_f": 3.0, "grad_g": 4.0}
            every = 2 * eps**-4 / 50
            rows.append({"eps": eps, "seed": seed, "every": every, "mean_square": mean_square.tolist(), **counts})
    return Totals(rows)


def test_exponents_are_fitted_to_the_same_eps_in_every_resample():
    falls = lambda t: np.exp(1 - t)  # 1 at t = T
    sure = totals_of(lambda eps, seed, t: falls(t))
    assert sure.exponent("grad_g") == pytest.approx((-4, -4, -4)) and sure.missed == []
    np.testing.assert_allclose([c.value for c in sure.calls("grad_g")], [4 * 2.0**4, 4 * 4.0**4, 4 * 8.0**4])
    missed = totals_of(lambda eps, seed, t: 2.0 if eps == 0.5 else falls(t))
    assert missed.missed == [0.5] and missed.exponent() == pytest.approx((-4, -4, -4))
    assert missed.steps()[0].low == np.inf
    luck = totals_of(lambda eps, seed, t: 2.5 if (eps, seed) == (0.5, 0) else falls(t))  # not with that seed twice
    assert luck.missed == [] and (luck.exponent().low, luck.exponent().high) == (-np.inf, np.inf)
    assert np.isfinite(luck.steps()[0].low) and luck.steps()[0].high == np.inf


def test_needed_amounts_grow_as_the_runs_say():
    """Runs that cross the target after 10 sqrt(M) steps with one step size and never with the other."""
    Ms, chunks = [4, 16, 64], 50
    rows = []
    for M in Ms:
        T = chunks * 4
        t = 4.0 * np.arange(chunks + 1)
        for seed in range(2):
            for step, needed in ((0.1, np.inf), (0.01, 10 * np.sqrt(M))):
                square = np.exp(-np.log(10) * t / needed)  # 0.1 when t = needed
                rows.append({"kind": "run", "method": "BSVRB", "M": M, "seed": seed, "step": step, "T": T})
                rows[-1] |= {"square": square.tolist(), "eta": 3.0, "grad_g": 2.0}
        rows.append({"kind": "time", "method": "BSVRB", "M": M, "turn": 0, "seconds_per_step": 0.5 * M})
    records = Records(rows, {"settings": {"M": Ms, "steps": [0.1, 0.01], "seeds": 2}})
    found = Needed(records, "BSVRB", np.sqrt(0.1))
    assert found.reached == [True] * 3 and found.step == [0.01] * 3
    np.testing.assert_allclose([a.value for a in found.amounts(None)], [20, 40, 80], rtol=1e-9)
    np.testing.assert_allclose(
        [found.growth(name).value for name in ("eta", "seconds_per_step")], [0.5, 1.5], rtol=1e-9
    )
    late = Needed(records, "BSVRB", np.sqrt(0.002))
    assert late.reached == [True, True, False]
    assert late.amounts("eta")[2].value == 3 * 200
