"""Lemma 2's claims, figure and table: one gradient estimate against K, N and d."""

from typing import Any

import numpy as np

from bilevelax.base.statistics import Interval, bootstrap, exponent, mean
from bilevelax.core.lower import BLOCK
from bilevelax_paper import figures, lemma2
from bilevelax_paper.claims import Found, Rule, rule, where
from bilevelax_paper.item import Records, Table
from bilevelax_paper.stationarity import COUNTS, L_G1, MU_G


def falls(records: Records, beta0: float) -> float:
    """log2 of the bias per level: over the last five, where the first epochs no longer matter."""
    tail = np.log2(lemma2.biases(records, beta0)[-5:])
    return float(np.polyfit(range(len(tail)), tail, 1)[0])


def same_bias(records: Records) -> Found:
    error = lemma2.mean_error(records)
    return Found({"log2 of the bias, per level": falls(records, 1.0), "sampled mean less the closed form": error})


def printed_bias(records: Records) -> Found:
    return Found({"log2 of the bias, per level": falls(records, 0.25)})


def series(records: Records) -> Found:
    Ns = [N for N in sorted(records.settings["Ns"]) if N <= 32]  # beyond: rounding
    left = np.log([lemma2.neumann_bias(N) for N in Ns])
    return Found({"factor per term, closed form": float(np.exp(np.polyfit(Ns, left, 1)[0]))}, words={"bound": BOUND})


def linear(records: Records) -> Found:
    last = records.settings["levels"]
    found = lemma2.by_level(records).rt_variance()
    growth = bootstrap(lambda v: float(np.divide(*v.mean(0))), found[:, [last - 1, max(last // 2 - 1, 0)]])
    slope = bootstrap(lambda v: float(np.polyfit(range(last), v.mean(0), 1)[0]), found)
    return Found({f"from K = {last // 2} to {last}, times": growth}, {"per level": slope})


def added(records: Records) -> Found:
    found = lemma2.by_level(records, 0.25).rt_variance()[:, -3:]
    ratio = bootstrap(lambda v: float(np.divide(*np.diff(v.mean(0))[::-1])), found)
    return Found({"the last level adds, times what the level before added": ratio})


def powers_of_N(records: Records) -> Found:
    power = lambda values: bootstrap(lambda v: exponent(records.settings["Ns"], v.mean(0)), values)
    return Found({"exponent of N": {method: power(values) for method, values in lemma2.against_N(records).items()}})


def counted(records: Records) -> Found:
    """Gradients of g of one estimate at the largest K."""
    swept, K = lemma2.by_level(records), records.settings["levels"]
    most, rt = swept.at["grad_g"].mean(0), swept.rt_steps()[-1]
    words = {"dl": 2 ** (K + 1) - 1, "rt": 3 * K}
    words |= {"kept": [2 ** (k + 1) - 2 for k in swept.ks] == most.tolist() and rt <= 3 * K}
    return Found({"gradients of g": {"DL-SGD": f"{most[-1]:g}", "RT-MLMC": f"{rt:.4g}"}}, words=words)


def samples_of_eta(records: Records) -> Found:
    """One for each gradient of g, two more, and n_hat of the series."""
    swept, N, K = lemma2.by_level(records), records.settings["N"], records.settings["levels"]
    dl, n_hat = swept.at["grad_g"][:, -1].mean() + 2, mean(swept.at["n_hat"].ravel())
    rt, most = Interval(*(swept.rt_steps()[-1] + 2 + part for part in n_hat)), dl + N - 1
    words = {"n_hat": n_hat, "N_dl": N + 2 ** (K + 1) - 1, "N_rt": N + 3 * K}
    words["kept"] = counted(records).words["kept"] and most <= words["N_dl"] and rt.high <= words["N_rt"]
    average: Any = {"DL-SGD": f"{dl + n_hat.value:.1f}", "RT-MLMC": rt}
    return Found({"samples of eta, on average": average, "at most": {"DL-SGD": f"{most:g}"}}, words=words)


def memory(records: Records) -> Found:
    dims, Ks = records.settings["dims"], records.settings["memory_K"]
    size = lambda method, K: records.values("bytes", part="memory", method=method, K=K)
    powers = {method: exponent(dims, size(method, Ks[-1])) for method in lemma2.MAKERS}
    flat = all(size(method, Ks[0]) == size(method, Ks[-1]) for method in lemma2.MAKERS)
    vectors = size("RT-MLMC", Ks[-1])[-1] / dims[-1] / (8 if records.manifest["machine"]["x64"] else 4)
    beside = {f"the same for K = {Ks[0]} and {Ks[-1]}": "yes" if flat else "no"}
    kept = flat and all(abs(power - 1) < 0.05 for power in powers.values())
    words = {"vectors": f"{vectors:.0f}", "block": BLOCK, "kept": kept}
    return Found({"exponent of d": {method: f"{power:.3f}" for method, power in powers.items()}}, beside, words)


def products(records: Records) -> Found:
    dims, flops = records.settings["dims"], records.values("flops", part="arithmetic")
    n_hat = lambda N: mean(lemma2.Levels(records, part="N", N=N).at["n_hat"].ravel())
    each, power = {N: n_hat(N) for N in sorted(records.settings["Ns"])}, exponent(dims, flops)
    lines: Any = {**{f"products, N = {N}": n for N, n in each.items()}, "exponent of d, one product": f"{power:.3f}"}
    beside = {f"operations of one product at d = {dims[-1]:,}": f"{flops[-1] / dims[-1]:.3g} d"}
    return Found(lines, beside, {"kept": abs(power - 1) < 0.05 and all(n.low <= N for N, n in each.items())})


BOUND = 1 - MU_G / (2 * L_G1)
FALLS = rule(lambda rate, error: 0.0 in error)
KEPT = Rule(lambda found: found.words["kept"])
RULES: dict[Any, Rule] = {
    same_bias: FALLS,
    printed_bias: where(lambda rate: rate <= -0.5),
    series: where(lambda factor: factor <= BOUND),
    linear: where(lambda growth: growth.high <= 2),
    added: where(lambda ratio: ratio.low <= 1),
    powers_of_N: rule(lambda dl, rt: dl.high <= 2 and rt.high <= 4),
    **dict.fromkeys((counted, samples_of_eta, memory, products), KEPT),
}


def draw(records: Records, axes: Any) -> None:
    """Bias, variance against K and N, memory, gradients of g and samples of eta, a panel each."""
    swept, K = lemma2.by_level(records), range(1, records.settings["levels"] + 1)
    axes[1].set_yscale("log")
    for beta0, name, style in ((1.0, "1/mu", "solid"), (0.25, "1/(4 mu), printed", "dotted")):
        look: Any = {"color": figures.colour("RT-MLMC"), "linestyle": style, "label": f"both, beta0 = {name}"}
        axes[0].plot(K, lemma2.biases(records, beta0), **look)
        variance = lemma2.by_level(records, beta0).rt_variance()
        figures.band(axes[1], K, variance, "RT-MLMC", f"RT-MLMC, beta0 = {name}", linestyle=style)
    first = lemma2.biases(records, 1.0)[0]
    figures.reference(axes[0], K, [first * 2 ** (-(k - 1) / 2) for k in K], "slope of the bound, 2^(-K/2)")
    axes[0].set(yscale="log", xlabel="K", ylabel="|bias|", title="bias (exact)")
    figures.band(axes[1], K, swept.dl_variance(), "DL-SGD")
    axes[1].set(xlabel="K", ylabel="variance (trace)", title="variance against K")
    draw_sizes(records, *axes[2:4])
    for panel, extra, bound, name in zip(
        axes[4:6], (0.0, swept.at["n_hat"].mean() + 2), (0, records.settings["N"]), ("grad_g", "eta"), strict=True
    ):
        for method, steps in (("DL-SGD", swept.at["grad_g"].mean(0)), ("RT-MLMC", np.asarray(swept.rt_steps()))):
            panel.plot(K, steps + extra, color=figures.colour(method), marker="o", markersize=3, label=method)
        figures.reference(panel, K, [bound + 2.0 ** (k + 1) - 1 for k in K], "bounds of Lemma 2")
        figures.reference(panel, K, [bound + 3 * k for k in K], "")
        panel.set(yscale="log", xlabel="K", ylabel=f"{COUNTS[name]} per estimate", title=f"expected {COUNTS[name]}")


def draw_sizes(records: Records, variance: Any, memory: Any) -> None:
    """Variance against N, and bytes at the largest K against d."""
    Ns, dims = records.settings["Ns"], records.settings["dims"]
    for method, values in lemma2.against_N(records).items():
        figures.points(variance, Ns, [mean(column) for column in values.T], method)
        size = records.values("bytes", part="memory", method=method, K=records.settings["memory_K"][-1])
        memory.plot(dims, np.divide(size, 1e6), color=figures.colour(method), marker="o", markersize=3, label=method)
    base = float(values[:, 0].mean())
    figures.reference(variance, Ns, [base * (N / Ns[0]) ** 2 for N in Ns], "slope 2 (DL bound; RT bound: 4)")
    variance.set(**figures.LOG_LOG, xlabel="N", ylabel="variance (trace)", title="variance against N")
    memory.set(**figures.LOG_LOG, xlabel="d = d_x = d_y", ylabel="peak memory (MB)", title="memory of one estimate")
    figures.ticks(variance, Ns)


def table(records: Records) -> Table:
    swept, bias = lemma2.by_level(records), lemma2.biases(records, 1.0)
    dl, rt = ([str(mean(column)) for column in v.T] for v in (swept.dl_variance(), swept.rt_variance()))
    steps = [f"{n:g}" for n in swept.at["grad_g"].mean(0)], [f"{n:.4g}" for n in swept.rt_steps()]
    rows = list(zip(map(str, swept.ks), (f"{b:.3g}" for b in bias), dl, rt, *steps, strict=True))
    columns = ("K", "bias of both", "variance DL-SGD", "variance RT-MLMC", "gradients of g, DL-SGD", "RT-MLMC")
    return Table(f"One estimate, N = {records.settings['N']}, beta0 = 1/mu", columns, rows)
