"""Intervals, exponents, and what a target needs, from made-up records."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bilevelax.base.totals import Totals
from bilevelax_paper import stationarity, timing
from bilevelax_paper.item import Records
from bilevelax_paper.items import table1
from bilevelax_paper.items.tasks import amounts, needed
from bilevelax_paper.timing import spread_of_levels


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
            for step, late in ((0.1, np.inf), (0.01, 10 * np.sqrt(M))):
                square = np.exp(-np.log(10) * t / late)  # 0.1 when t = late
                rows.append({"kind": "run", "method": "BSVRB", "M": M, "seed": seed, "step": step, "T": T})
                rows[-1] |= {"square": square.tolist(), "eta": 3.0, "grad_g": 2.0}
        rows.append({"kind": "time", "method": "BSVRB", "M": M, "turn": 0, "seconds_per_step": 0.5 * M})
    records = Records(rows, {"settings": {"M": Ms, "steps": [0.1, 0.01], "seeds": 2}})
    found, steps = needed(records, "BSVRB", np.sqrt(0.1))
    assert found.missed == [] and steps == [0.01] * 3
    np.testing.assert_allclose([a.value for a in amounts(found, None)], [20, 40, 80], rtol=1e-9)
    np.testing.assert_allclose(
        [found.exponent(name).value for name in ("eta", "seconds_per_step")], [0.5, 1.5], rtol=1e-9
    )
    faster = [row | {"setting": "fast", "square": np.square(row["square"]).tolist()} for row in rows if "square" in row]
    more = {"trackers": {"fast": {}}, "M_trackers": Ms[:2], "few": 2}
    both = Records([*rows, *faster], {"settings": records.settings | more})
    best, options = needed(both, "BSVRB", np.sqrt(0.1), tuned=True)  # squared: half of the steps
    np.testing.assert_allclose([a.value for a in amounts(best, None)], [10, 20], rtol=1e-9)
    assert options == [("fast", 0.01)] * 2 and needed(both, "BSVRB", np.sqrt(0.1))[0].needed == found.needed
    late, _ = needed(records, "BSVRB", np.sqrt(0.002))
    assert late.there == [0, 1] and late.missed == [64]
    assert amounts(late, "eta")[2].value == 3 * 200


def test_steps_over_K_and_the_ratio_to_plain_sgd():
    """T = 2 K eps^-4 with EpochSGD and twice as many with plain SGD, exactly: -4 over K, and 2."""
    eps, of = [0.5, 0.25, 0.125], {"plus": 2, "c": 0.1, "eps": {"RT-MLMC": [], table1.PLAIN: []}}
    rows = []
    for method, times in (("RT-MLMC", 2.0), (table1.PLAIN, 4.0)):
        for e, seed in ((e, seed) for e in eps for seed in range(9)):
            T = times * table1.theorem_K(e, 2) * e**-4
            falls = e**2 * np.exp(1 - 2 * np.arange(1, 51) / 50)  # eps^2 at half of the run
            row = {"part": "totals", "problem": "quadratic", "method": method, "eps": e, "seed": seed}
            counts = {"xi": 1.0, "eta": 1.0, "grad_f": 1.0, "grad_g": 1.0}
            rows.append({**row, **counts, "every": 2 * T / 50, "mean_square": falls.tolist()})
    records = Records(rows, {"settings": {"totals": {"quadratic": of}}})
    found = table1.needed(records, "quadratic", "RT-MLMC")
    np.testing.assert_allclose(found.effects[0], 0.0, atol=1e-9)
    assert found.effects[1].value < -4.3 and found.seeds == 9 and not found.words["missed"]
    np.testing.assert_allclose(table1.plain(records).effects[0], 2.0, rtol=1e-9)
    assert table1.needed(records, "quadratic", "DL-SGD") is None


def test_the_closed_form_of_wdro_si_is_the_gradient():
    """Against differences of F by quadrature over xi, the adversary's answer found by steps on the problem's own g."""
    known = stationarity.known_wdro_si()
    nodes, weights = np.polynomial.hermite_e.hermegauss(4)
    points = np.array(list(itertools.product(nodes, repeat=3)))
    mass = np.array([np.prod(w) for w in itertools.product(weights / weights.sum(), repeat=3)])
    mean = points @ np.array([0.8, -0.5, 0.3]) + stationarity.BENT * (points[:, 0] ** 2 - 1)

    def F(x):
        y = jnp.asarray(points)
        slope = jax.vmap(jax.grad(lambda y, m, xi: known.problem.g(x, y, m, xi)))
        for _ in range(200):
            y = y - slope(y, jnp.asarray(mean), jnp.asarray(points)) / (2 * stationarity.PRICE)
        return mass @ jax.vmap(lambda y, m, xi: known.problem.f(x, y, m, xi))(y, jnp.asarray(mean), jnp.asarray(points))

    x = jnp.array([0.5, -0.2, 0.4])
    exact = np.array([(F(x.at[i].add(1e-5)) - F(x.at[i].add(-1e-5))) / 2e-5 for i in range(3)])
    np.testing.assert_allclose(known.square(x)["square"], exact @ exact, rtol=1e-5)


@pytest.mark.parametrize("K", [1, 2, 5])
def test_the_spread_of_levels_is_that_of_lower_gradients(K):
    """Level k with probability 2^-k / (1 - 2^-K) and 2^(k+1) - 2 lower gradients."""
    times = np.concatenate([np.full(2 ** (K - k), 2 ** (k + 1) - 2.0) for k in range(1, K + 1)])
    np.testing.assert_allclose(spread_of_levels(K), times.std() / times.mean(), rtol=1e-6)
    assert spread_of_levels(K + 1) > spread_of_levels(K)


def test_times_are_compared_process_by_process():
    """Two processes, four and five times: their mean, with Student's interval of two; calls within one are averaged."""
    rows = []
    for seed, times in enumerate((4.0, 5.0)):
        rows.append({"K": 2, "method": "RT-MLMC", "seed": seed, "seconds": [0.5, 1.5], "together": 2.0})
        rows.append({"K": 2, "method": "DL-SGD", "seed": seed, "seconds": [times, times], "together": 2 * times})
    records = Records(rows, {"settings": {}})
    for column in ("seconds", "together"):
        found = timing.ratio(records, column, 2)
        np.testing.assert_allclose(found, [4.5, 4.5 - 6.353, 4.5 + 6.353], atol=1e-3)
    assert timing.samples(records, "seconds", 2).shape == (4, 2)
