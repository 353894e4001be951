"""Figures and tables of Table 1 from its records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from bilevelax.experiments import _figures as figures
from bilevelax.experiments import _table1_epochs as epochs
from bilevelax.experiments._items import Records, Rendered, Table
from bilevelax.experiments._stationarity import Totals
from bilevelax.experiments._statistics import mean
from bilevelax.experiments._table1_data import BOUNDS, NAMES, TheoremK, against_N, biases, levels, rt_variances, totals


def draw_estimates(records: Records, out: Path) -> Path:
    """Bias, variance against K and N, cost, memory."""
    figure, axes = figures.panels(6, rows=2)
    K = range(1, records.settings["levels"] + 1)
    for beta0, name, style in ((1.0, "1/mu", "solid"), (0.25, "1/(4 mu), printed", "dotted")):
        axes[0].plot(
            K, biases(records, beta0), color=figures.colour("RT-MLMC"), linestyle=style, label=f"both, beta0 = {name}"
        )
        axes[1].set_yscale("log")
        figures.band(axes[1], K, rt_variances(records, beta0), "RT-MLMC", f"RT-MLMC, beta0 = {name}", linestyle=style)
    first = biases(records, 1.0)[0]
    figures.reference(axes[0], K, [first * 2 ** (-(k - 1) / 2) for k in K], "slope of the bound, 2^(-K/2)")
    axes[0].set(yscale="log", xlabel="K", ylabel="|bias|", title="bias (exact)")
    figures.band(axes[1], K, levels(records, part="levels", beta0=1.0).dl_variance(), "DL-SGD")
    axes[1].set(xlabel="K", ylabel="variance (trace)", title="variance against K")
    Ns = records.settings["Ns"]
    axes[2].set(xscale="log", yscale="log", xlabel="N", ylabel="variance (trace)", title="variance against N")
    for method, values in against_N(records).items():
        figures.points(axes[2], Ns, [mean(column) for column in values.T], method)
    base = float(against_N(records)["RT-MLMC"][:, 0].mean())
    figures.reference(axes[2], Ns, [base * (N / Ns[0]) ** 2 for N in Ns], "slope 2 (DL bound; RT bound: 4)")
    figures.ticks(axes[2], Ns)
    draw_costs(records, axes[3:5])
    draw_memory(records, axes[5])
    for panel in axes:
        panel.legend(frameon=False)
    return figures.save(figure, out, "estimates")


def draw_costs(records: Records, axes: Any) -> None:
    swept = levels(records, part="levels", beta0=1.0)
    n_hat = float(swept.at["n_hat"].mean())
    for panel, extra, label in ((axes[0], 0.0, NAMES["grad_g"]), (axes[1], n_hat + 2, NAMES["eta"])):
        panel.plot(
            swept.ks,
            swept.at["grad_g"].mean(0) + extra,
            color=figures.colour("DL-SGD"),
            marker="o",
            markersize=3,
            label="DL-SGD",
        )
        rt = [float(swept.rt_steps(K).mean()) + extra for K in swept.ks]
        panel.plot(swept.ks, rt, color=figures.colour("RT-MLMC"), marker="o", markersize=3, label="RT-MLMC")
        bound = records.settings["N"] if extra else 0
        figures.reference(panel, swept.ks, [bound + 2.0 ** (K + 1) - 1 for K in swept.ks], "bounds of Lemma 2")
        figures.reference(panel, swept.ks, [bound + 3 * K for K in swept.ks], "")
        panel.set(yscale="log", xlabel="K", ylabel=f"{label} per estimate", title=f"expected {label}")


def draw_memory(records: Records, panel: Any) -> None:
    for method in ("RT-MLMC", "DL-SGD"):
        for K, style in zip(records.settings["memory_K"], ("dotted", "solid"), strict=False):
            rows = records.where(part="memory", method=method, K=K)
            size = [row["bytes"] / 1e6 for row in rows]
            kind = {"linestyle": style, "marker": "o" if style == "solid" else "x", "markersize": 4}
            panel.plot(
                [row["d"] for row in rows], size, color=figures.colour(method), label=f"{method}, K = {K}", **kind
            )
    panel.set(
        xscale="log", yscale="log", xlabel="d = d_x = d_y", ylabel="peak memory (MB)", title="memory of one estimate"
    )


def draw_totals(records: Records, out: Path, theorem_K: TheoremK) -> Path:
    """Gradients of g against eps, a panel for each problem."""
    names = records.settings["problems"]
    figure, axes = figures.panels(len(names), sharey=True)
    for panel, problem in zip(axes, names, strict=True):
        panel.set(
            xscale="log",
            yscale="log",
            xlabel="eps",
            ylabel=NAMES["grad_g"],
            title=f"{problem}: total to eps-stationarity",
        )
        for method, bounds in BOUNDS.items():
            found = totals(records, problem, method, theorem_K)
            calls = found.calls("grad_g")
            figures.points(panel, found.eps, calls, method, f"{method}, K of the theorem")
            best = totals(records, problem, method, None)
            figures.points(
                panel, best.eps, best.calls("grad_g"), method, f"{method}, best K", linestyle="dotted", marker="x"
            )
            there = [(e, c.value) for e, c in zip(found.eps, calls, strict=True) if np.isfinite(c.value)]
            if there:
                e0, first = there[0]
                line = [first * (e / e0) ** bounds["grad_g"] for e in found.eps]
                style = "dashed" if method == "RT-MLMC" else "dashdot"
                figures.reference(panel, found.eps, line, f"slope {bounds['grad_g']} ({method})", style)
        figures.ticks(panel, found.eps)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    return figures.save(figure, out, "totals")


def K_table(records: Records) -> Table:
    """Gradients of g for every K that was run: what "best" is chosen from."""
    rows = []
    for problem in records.settings["problems"]:
        for method in BOUNDS:
            for eps in records.settings["eps"]:
                there = records.where(part="totals", problem=problem, method=method, eps=eps)
                found = {K: Totals([row for row in there if row["K"] == K]) for K in sorted({r["K"] for r in there})}
                cells = (f"K = {K}: {total.calls('grad_g')[0]}" for K, total in found.items())
                rows.append((problem, method, f"{eps:g}", "\n".join(cells).replace("inf", "more")))
    return Table(
        "Gradients of g until E|grad F|^2 <= eps^2, by K", ("problem", "method", "eps", "gradients of g"), rows
    )


def exponent_table(records: Records, theorem_K: TheoremK) -> Table:
    rows = []
    for problem in records.settings["problems"]:
        for method, bounds in BOUNDS.items():
            for rule in (theorem_K, None):
                found = totals(records, problem, method, rule)
                cells = [f"{found.exponent(kind)} (bound {bound})" for kind, bound in bounds.items()]
                rows.append((problem, method, "theorem" if rule else "best", *cells))
    return Table("Exponents of eps", ("problem", "method", "K", *(NAMES[kind] for kind in BOUNDS["RT-MLMC"])), rows)


def estimate_table(records: Records) -> Table:
    swept = levels(records, part="levels", beta0=1.0)
    bias = biases(records, 1.0)
    rt = rt_variances(records, 1.0)
    rows = [
        (
            str(K),
            f"{bias[i]:.3g}",
            str(mean(swept.dl_variance()[:, i])),
            str(mean(rt[:, i])),
            f"{swept.at['grad_g'][:, i].mean():g}",
            f"{swept.rt_steps(K).mean():.4g}",
        )
        for i, K in enumerate(swept.ks)
    ]
    columns = ("K", "bias of both", "variance DL-SGD", "variance RT-MLMC", "gradients of g, DL-SGD", "RT-MLMC")
    return Table(f"One estimate, N = {records.settings['N']}, beta0 = 1/mu", columns, rows)


def render(records: Records, out: Path, theorem_K: TheoremK) -> Rendered:
    one = "Bias, variance, cost and memory of one gradient estimate against K, N and d; bands are 95 % over seeds."
    total = "Gradients of g until E|grad F|^2 <= eps^2, with the theorem's K and with the best of those tried."
    drawn = [(draw_estimates(records, out), one), (draw_totals(records, out, theorem_K), total)]
    tables = [estimate_table(records), epochs.table(records), exponent_table(records, theorem_K), K_table(records)]
    return Rendered(drawn, tables)
