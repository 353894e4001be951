"""Claims of Lemma 2 and Table 1 against the records."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from bilevelax.experiments import _lemma2 as lemma2
from bilevelax.experiments._items import Claim, Records
from bilevelax.experiments._statistics import bootstrap, exponent, mean
from bilevelax.experiments._table1_data import (
    BOUNDS,
    L_G1,
    MU_G,
    against_N,
    biases,
    levels,
    mean_error,
    per_level,
    rt_variances,
    totals,
)
from bilevelax.experiments._table1_problems import matrices, start


def claims(records: Records, theorem_K: Callable[[float], int]) -> list[Claim]:
    return [
        *bias_claims(records),
        *variance_claims(records),
        *cost_claims(records),
        *total_claims(records, theorem_K),
    ]


def bias_claims(records: Records) -> list[Claim]:
    seeds = records.settings["seeds"]
    right, printed = per_level(biases(records, 1.0)), per_level(biases(records, 0.25))
    error = mean_error(records)
    found, Ns = matrices(), sorted(records.settings["Ns"])
    left = [lemma2.neumann_bias(found, start(found), N, L_G1) for N in Ns if N <= 32]  # beyond: rounding
    rate = float(np.exp(np.polyfit(Ns[: len(left)], np.log(left), 1)[0]))
    bound = 1 - MU_G / (2 * L_G1)
    return [
        Claim(
            "DL-SGD and RT-MLMC have the same bias, which falls like 2^(-K/2)",
            "2^(-K/2) or faster",
            f"2^({right:.2f} K), closed form; sampled mean less the closed form {error}",
            seeds,
            Claim.judge(right <= -0.5 and 0.0 in error, right <= -0.5),
            "beta0 = 1/mu. The mean of EpochSGD contracts by 1 - 1/e a level or better, faster than the bound.",
        ),
        Claim(
            "The same with the printed step size beta0 = 1/(4 mu)",
            "2^(-K/2) or faster",
            f"2^({printed:.2f} K), closed form",
            seeds,
            Claim.judge(printed <= -0.5),
            "An epoch contracts by (1 - e^-c)/c with c = mu beta0: 0.885 for c = 1/4. It holds for c >= 0.74; the "
            "lemma's induction divides by c where it should multiply.",
        ),
        Claim(
            "The series cut at N leaves a bias that falls like (1 - mu/(2L))^N",
            f"{bound:.3f} per term or faster",
            f"{rate:.3f} per term, closed form",
            seeds,
            Claim.judge(rate <= bound),
            "The bound has the smallest per-sample eigenvalue; the mean Hessian's is larger.",
        ),
    ]


def variance_claims(records: Records) -> list[Claim]:
    seeds, swept = records.settings["seeds"], against_N(records)
    last = records.settings["levels"]
    right, printed = rt_variances(records, 1.0), rt_variances(records, 0.25)
    linear = bootstrap(lambda v: float(np.polyfit(range(last), v.mean(0), 1)[0]), right)
    growth = bootstrap(lambda v: float(np.divide(*v.mean(0))), right[:, [last - 1, max(last // 2 - 1, 0)]])
    added = bootstrap(lambda v: float(np.divide(*np.diff(v.mean(0))[::-1])), printed[:, -3:])
    power = {
        method: bootstrap(lambda v: exponent(records.settings["Ns"], v.mean(0)), values)
        for method, values in swept.items()
    }
    return [
        Claim(
            "The variance of RT-MLMC grows at most linearly in K",
            "O(K)",
            f"{linear} per level; from K = {last // 2} to {last} times {growth}",
            seeds,
            Claim.judge(growth.high <= 2),
            "Shared draws in the three terms; beta0 = 1/mu.",
        ),
        Claim(
            "The same with the printed beta0 = 1/(4 mu)",
            "O(K)",
            f"the last level adds {added} times what the level before added",
            seeds,
            Claim.judge(added.low <= 1),
            "Differences fall by 0.885^2 a level while 1/p_k doubles: growth by up to 1.57 a level, exponential in K.",
        ),
        Claim(
            "The variances grow at most like N^2 (DL-SGD) and N^4 (RT-MLMC)",
            "exponents 2; 4",
            f"{power['DL-SGD']}; {power['RT-MLMC']}",
            seeds,
            Claim.judge(power["DL-SGD"].high <= 2 and power["RT-MLMC"].high <= 4),
            "The bounds are loose: products of contractions make both at most linear in N.",
        ),
    ]


def cost_claims(records: Records) -> list[Claim]:
    seeds, swept = records.settings["seeds"], levels(records, part="levels", beta0=1.0)
    K = swept.ks[-1]
    dl, rt = float(swept.at["grad_g"][:, -1].mean()), float(swept.rt_steps(K).mean())
    n_hat = mean(swept.at["n_hat"].ravel())
    exact = all(a == 2 ** (k + 1) - 2 for k, a in zip(swept.ks, swept.at["grad_g"].mean(0), strict=True))
    few, many = records.settings["memory_K"][0], records.settings["memory_K"][-1]
    size = lambda method, K: records.values("bytes", part="memory", method=method, K=K)
    power = {method: exponent(records.settings["dims"], size(method, many)) for method in BOUNDS}
    flat = all(size(method, few) == size(method, many) for method in BOUNDS)
    return [
        Claim(
            "An estimate takes at most 2^(K+1) - 1 (DL-SGD) and on average at most 3K (RT-MLMC) gradients of g",
            f"{2 ** (K + 1) - 1} and {3 * K} at K = {K}",
            f"{dl:g} and {rt:.4g} at K = {K}, counted; n_hat is {n_hat} on average",
            seeds,
            Claim.judge(exact and rt <= 3 * K),
            "Exactly 2^(K+1) - 2 and 2K/(1 - 2^-K) - 2; the samples of eta are two and n_hat (mean (N-1)/2) more. "
            "RT-MLMC takes three gradients of f, DL-SGD one.",
        ),
        Claim(
            "The memory of an iteration is O(d_x + d_y)",
            "exponent 1 in d",
            f"exponents {power['RT-MLMC']:.3f} (RT-MLMC) and {power['DL-SGD']:.3f} (DL-SGD); "
            f"{'the same' if flat else 'not the same'} for K = {few} and {many}",
            seeds,
            Claim.judge(flat and all(abs(p - 1) < 0.05 for p in power.values())),
            "Peak of the compiled program: about 260 vectors of length d, because draws are made 64 at a time.",
        ),
    ]


def total_claims(records: Records, theorem_K: Callable[[float], int]) -> list[Claim]:
    found = []
    for problem in records.settings["problems"]:
        for method, bounds in BOUNDS.items():
            rule, best = (totals(records, problem, method, which) for which in (theorem_K, None))
            g, f, g_best = rule.exponent("grad_g"), rule.exponent("grad_f"), best.exponent("grad_g")
            missed = [eps for eps, T in zip(rule.eps, rule.steps(), strict=True) if not np.isfinite(T.value)]
            reached = not missed
            # the bounds hide logarithms: RT-MLMC takes 2K/(1 - 2^-K) - 2 gradients of g a step
            hidden = exponent(rule.eps, rule.per_step["grad_g"]) if method == "RT-MLMC" else 0.0
            ok = reached and g.low - hidden >= bounds["grad_g"] - 0.4 and f.low >= bounds["grad_f"] - 0.4
            partly = len(rule.eps) - len(missed) >= 3 and g.high - hidden >= bounds["grad_g"] - 0.4
            extra = f" Not within the run: eps = {', '.join(f'{e:g}' for e in missed)}." if missed else ""
            if missed:
                extra += (
                    " These runs are horizon/eps^4 long, and the largest eps leaves them the least time to forget x_1; "
                    f"between the two smallest eps, nearer to the bound, it is {rule.exponent('grad_g', 2)} for g."
                )
            extra += f" Of the exponent of g, {hidden:.2f} is the logarithm K." if hidden else ""
            found.append(
                Claim(
                    f"{method} needs eps^{bounds['grad_g']} gradients of g and eps^{bounds['grad_f']} of f ({problem})",
                    f"{bounds['grad_g']}; {bounds['grad_f']}, up to logarithms",
                    f"{g}; {f}; of g with the best K {g_best}",
                    rule.seeds,
                    Claim.judge(ok, reached or partly),
                    f"eps = {rule.eps[0]:g} to {rule.eps[-1]:g}, alpha = {records.settings['c'][problem]:g} eps^2, "
                    "K = 2 log2(1/eps) + 1; an upper bound. The number of steps goes like eps^-4 because the output is "
                    f"a uniform iterate.{extra}",
                )
            )
    return found
