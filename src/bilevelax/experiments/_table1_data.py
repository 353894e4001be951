"""What Table 1's records say: biases, variances, totals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from bilevelax.experiments import _lemma2 as lemma2
from bilevelax.experiments import _stationarity as stationarity
from bilevelax.experiments._items import Records, Row
from bilevelax.experiments._statistics import Interval, mean
from bilevelax.experiments._table1_problems import matrices, start

BOUNDS = {
    "RT-MLMC": {"grad_g": -4, "eta": -4, "grad_f": -4, "xi": -4},
    "DL-SGD": {"grad_g": -6, "eta": -6, "grad_f": -4, "xi": -4},
}
NAMES = {"xi": "samples of xi", "eta": "samples of eta", "grad_f": "gradients of f", "grad_g": "gradients of g"}
MU_G, L_G1 = 0.8, 1.8  # 1 times 0.8 and 1.5 times 1.2, the extreme per-sample eigenvalues


def levels(records: Records, **where: Any) -> lemma2.Levels:
    return lemma2.Levels(records.where(**where))


def biases(records: Records, beta0: float) -> list[float]:
    """Closed form, for K = 1, 2, ... of the sweep."""
    found, N = matrices(), records.settings["N"]
    x = start(found)
    return [lemma2.bias(found, x, K, beta0=beta0, N=N, L=L_G1) for K in range(1, records.settings["levels"] + 1)]


def per_level(values: list[float]) -> float:
    """log2 of the last values' change per level: over the last five, where the first epochs no longer matter."""
    tail = np.log2(values[-5:])
    return float(np.polyfit(range(len(tail)), tail, 1)[0])


def mean_error(records: Records) -> Interval:
    """Of RT-MLMC's and DL-SGD's common mean at the largest K, along the closed form's bias, less that bias."""
    found, K = matrices(), records.settings["levels"]
    x = start(found)
    expected = found.expected_v_k(x, K + 1, beta0=1.0, N=records.settings["N"], L=L_G1)
    direction = expected - found.grad_F(x)
    size = float(np.linalg.norm(direction))
    swept = levels(records, part="levels", beta0=1.0)
    return mean((swept.rt_mean(K) - expected) @ (direction / size))


def rt_variances(records: Records, beta0: float) -> np.ndarray:
    """(seeds, K)."""
    swept = levels(records, part="levels", beta0=beta0)
    return np.stack([swept.rt_variance(K) for K in swept.ks], axis=1)


def against_N(records: Records) -> dict[str, np.ndarray]:
    """(seeds, N) variances at the largest K of that sweep."""
    each = [levels(records, part="N", N=N) for N in records.settings["Ns"]]
    return {
        "DL-SGD": np.stack([swept.dl_variance()[:, -1] for swept in each], axis=1),
        "RT-MLMC": np.stack([swept.rt_variance(swept.ks[-1]) for swept in each], axis=1),
    }


TheoremK = Callable[[str, float], int]  # (problem, eps) -> K


def totals(
    records: Records, problem: str, method: str, theorem_K: TheoremK | None, fewer: int = 0
) -> stationarity.Totals:
    """With the theorem's K or ``fewer``, or (None) the K that surely (upper end) needs the fewest gradients of g."""
    rows: list[Row] = []
    for eps in records.settings["eps"]:
        there = records.where(part="totals", problem=problem, method=method, eps=eps)
        by_K = {K: [row for row in there if row["K"] == K] for K in sorted({row["K"] for row in there})}
        if theorem_K:
            rows += by_K[max(1, theorem_K(problem, eps) - fewer)]
        else:
            found = {K: stationarity.Totals(group) for K, group in by_K.items()}
            rows += by_K[min(found, key=lambda K: found[K].calls("grad_g")[0].high)]
    return stationarity.Totals(rows)
