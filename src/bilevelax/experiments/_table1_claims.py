"""Claims of Lemma 2 and Table 1 against the records."""

from __future__ import annotations

import numpy as np

from bilevelax.experiments import _lemma2 as lemma2
from bilevelax.experiments import _table1_epochs as epochs
from bilevelax.experiments._items import Claim, Records
from bilevelax.experiments._stationarity import Totals
from bilevelax.experiments._statistics import Interval, bootstrap, exponent, mean
from bilevelax.experiments._table1_data import (
    BOUNDS,
    L_G1,
    MU_G,
    TheoremK,
    against_N,
    biases,
    levels,
    mean_error,
    per_level,
    rt_variances,
    totals,
)
from bilevelax.experiments._table1_problems import matrices, start
from bilevelax.lower import BLOCK


def claims(records: Records, theorem_K: TheoremK) -> list[Claim]:
    return [
        *bias_claims(records),
        *variance_claims(records),
        *epochs.claims(records),
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
            "lemma's induction takes the division by c = 1/4 for one by 4.",
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
    """Lemma 2's counts."""
    seeds, swept = records.settings["seeds"], levels(records, part="levels", beta0=1.0)
    K, N = swept.ks[-1], records.settings["N"]
    dl, rt = float(swept.at["grad_g"][:, -1].mean()), float(swept.rt_steps(K).mean())
    n_hat = mean(swept.at["n_hat"].ravel())
    exact = all(a == 2 ** (k + 1) - 2 for k, a in zip(swept.ks, swept.at["grad_g"].mean(0), strict=True))
    most = dl + N - 1 + 2
    samples = [Interval(*(steps + 2 + part for part in n_hat)) for steps in (dl, rt)]
    return [
        Claim(
            "An estimate takes at most 2^(K+1) - 1 (DL-SGD) and on average at most 3K (RT-MLMC) gradients of g",
            f"{2 ** (K + 1) - 1} and {3 * K} at K = {K}",
            f"{dl:g} and {rt:.4g} at K = {K}, counted",
            seeds,
            Claim.judge(exact and rt <= 3 * K),
            "Exactly 2^(K+1) - 2 and 2K/(1 - 2^-K) - 2. RT-MLMC takes three gradients of f, DL-SGD one.",
        ),
        Claim(
            "An estimate takes at most N + 2^(K+1) - 1 (DL-SGD) and on average at most N + 3K (RT-MLMC) samples of eta",
            f"{N + 2 ** (K + 1) - 1} and {N + 3 * K} at K = {K}, N = {N}",
            f"DL-SGD: {samples[0].value:.1f} on average, {most:g} at most; RT-MLMC: {samples[1]} on average",
            seeds,
            Claim.judge(exact and most <= N + 2 ** (K + 1) - 1 and samples[1].high <= N + 3 * K),
            f"One for each lower gradient, two for f and the cross derivative, n_hat for the series: {n_hat} on "
            "average, (N-1)/2 in theory and not N, for 0 <= n_hat < N. The bound of DL-SGD is met with equality at "
            "n_hat = N - 1; that of RT-MLMC is loose: (N-1)/2 + 2K/(1 - 2^-K).",
        ),
        *size_claims(records),
    ]


def size_claims(records: Records) -> list[Claim]:
    """Memory and arithmetic against d and N."""
    seeds, dims = records.settings["seeds"], records.settings["dims"]
    few, many = records.settings["memory_K"][0], records.settings["memory_K"][-1]
    size = lambda method, K: records.values("bytes", part="memory", method=method, K=K)
    power = {method: exponent(dims, size(method, many)) for method in BOUNDS}
    flat = all(size(method, few) == size(method, many) for method in BOUNDS)
    vectors = size("RT-MLMC", many)[-1] / dims[-1] / (8 if records.manifest["machine"]["x64"] else 4)
    Ns = sorted(records.settings["Ns"])
    products = [mean(levels(records, part="N", N=N).at["n_hat"].ravel()) for N in Ns]
    flops = records.values("flops", part="arithmetic")
    in_d, loose = exponent(dims, flops), [N for N, n in zip(Ns, products, strict=True) if n.low > N]
    return [
        Claim(
            "The memory of an iteration is O(d_x + d_y)",
            "exponent 1 in d",
            f"exponents {power['RT-MLMC']:.3f} (RT-MLMC) and {power['DL-SGD']:.3f} (DL-SGD); "
            f"{'the same' if flat else 'not the same'} for K = {few} and {many}",
            seeds,
            Claim.judge(flat and all(abs(p - 1) < 0.05 for p in power.values())),
            f"Peak of the compiled program: {vectors:.0f} vectors of length d, because draws are made {BLOCK} at once.",
        ),
        Claim(
            "The implicit term takes O(N d) operations on average",
            "N products of O(d)",
            f"a product takes {flops[-1] / dims[-1]:.3g} d operations at d = {dims[-1]:,}, exponent {in_d:.3f} in d; "
            f"products: {', '.join(f'{n} (N = {N})' for N, n in zip(Ns, products, strict=True))}",
            seeds,
            Claim.judge(abs(in_d - 1) < 0.05 and not loose),
            "Hessian-vector products by automatic differentiation on a g that itself takes O(d), as the compiler "
            "counts them; RT-MLMC takes them at three points.",
        ),
    ]


def total_claims(records: Records, theorem_K: TheoremK) -> list[Claim]:
    return [
        total_claim(records, theorem_K, problem, method)
        for problem in records.settings["problems"]
        for method in BOUNDS
    ]


def total_claim(records: Records, theorem_K: TheoremK, problem: str, method: str) -> Claim:
    bounds = BOUNDS[method]
    rule, best = (totals(records, problem, method, which) for which in (theorem_K, None))
    g, f, g_best = rule.exponent("grad_g"), rule.exponent("grad_f"), best.exponent("grad_g")
    # the bounds hide logarithms: RT-MLMC takes 2K/(1 - 2^-K) - 2 gradients of g a step
    hidden = exponent(rule.eps, rule.per_step["grad_g"]) if method == "RT-MLMC" else 0.0
    near = lambda p, bound: p >= bound - 0.4
    ok = not rule.missed and near(g.low - hidden, bounds["grad_g"]) and near(f.low, bounds["grad_f"])
    partly = not rule.missed and near(g.value - hidden, bounds["grad_g"])
    slopes = ", ".join(f"{p:.2f}" for p in rule.neighbours())
    why = (
        f"eps = {rule.eps[0]:g} to {rule.eps[-1]:g}, alpha = {records.settings['c'][problem]:g} eps^2, "
        f"K = 2 log2(1/eps) + {records.settings['plus'][problem]}; an upper bound. The number of steps goes like "
        "eps^-4 because the output is a uniform iterate."
    )
    return Claim(
        f"{method} needs eps^{bounds['grad_g']} gradients of g and eps^{bounds['grad_f']} of f ({problem})",
        f"{bounds['grad_g']}; {bounds['grad_f']}, up to logarithms",
        f"{g}; {f}; of g with the best K {g_best}",
        rule.seeds,
        Claim.judge(ok, partly),
        why
        + (
            ""
            if ok
            else f" Of f between neighbouring eps, from the largest: {slopes}. Reproduced means that the interval "
            "is within 0.4 of the bound, partly that the estimate is."
        )
        + (f" Of the exponent of g, {hidden:.2f} is the logarithm K." if hidden else "")
        + (f" Not within the run: {missed_words(rule)}." if rule.missed else "")
        + fewer_words(records, theorem_K, problem, method),
    )


def fewer_words(records: Records, theorem_K: TheoremK, problem: str, method: str) -> str:
    """What one epoch less would have missed, if that was run."""
    if 1 not in records.settings["fewer"]:
        return ""
    fewer = totals(records, problem, method, theorem_K, fewer=1)
    return f" With one epoch less not within the run: {missed_words(fewer)}." if fewer.missed else ""


def missed_words(found: Totals) -> str:
    """The eps that were missed, and whether more steps would have helped."""
    words = []
    for i, eps in enumerate(found.eps):
        if eps in found.missed:
            curve = found.curves[:, i].mean(0) / eps**2
            least, last = float(curve.min()), float(curve[-1])
            rises = last > 1.05 * least
            words.append(
                f"eps = {eps:g} (E|grad F|^2 "
                + (
                    f"falls to {least:.2f} eps^2 and rises to {last:.2f}: a bias"
                    if rises
                    else f"ends at {last:.2f} eps^2"
                )
                + ")"
            )
    return ", ".join(words)
