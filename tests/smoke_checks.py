"""What must hold in the records of each item of the paper at smoke scale: curves fall, oracle calls are exact."""

import numpy as np


def lower_gradients(K):
    """Of DL-SGD with K epochs."""
    return 2 ** (K + 1) - 2


def falls(curves, name):
    """The mean over seeds (rows) ends below its beginning."""
    curves = np.asarray(curves)
    assert curves.ndim == 2 and curves[:, -1].mean() < curves[:, 0].mean(), (name, curves)


def falling_curves(records, column, **where):
    """Curves of rows of one point each, for every method and setting that ``where`` leaves."""
    rows = records.where(kind="curve", **where)
    key = lambda row: tuple(str(row.get(name)) for name in ("method", "setting", "K", "lam", "steps", "T"))
    assert rows
    for found in {key(row) for row in rows}:
        of = [row for row in rows if key(row) == found]
        seeds = sorted({row["seed"] for row in of})
        each = [[row[column] for row in sorted(of, key=lambda r: r["t"]) if row["seed"] == s] for s in seeds]
        falls(each, found)


def totals(records, one_xi=("RT-MLMC", "DL-SGD", "SGD")):
    """Runs to eps-stationarity: |grad F|^2 falls; a step takes one context.

    Gradients of f: one of DL-SGD, two to three of RT-MLMC, whose v^k is v^1 at the first level.
    """
    rows = [row for row in records.rows if "mean_square" in row]
    assert rows
    for row in rows:
        assert row["mean_square"][-1] < row["mean_square"][0], row
        if row["method"] in one_xi:
            assert row["xi"] == 1
        if row["method"] == "RT-MLMC":
            assert 2 <= row["grad_f"] <= 3 and row["eta"] >= row["grad_g"] + 1
        if row["method"] == "DL-SGD":
            assert row["grad_f"] == 1 and row["grad_g"] == lower_gradients(row["K"])


def table1(records):
    totals(records)
    for row in records.where(part="levels") + records.where(part="N"):
        assert row["grad_g"] == lower_gradients(row["k"]) and 0 <= row["n_hat"] <= row["N"] - 1
    falls(records.values("error", part="iterates", c=1.0), "iterates")
    flops = dict(zip(*(records.values(name, part="arithmetic") for name in ("d", "flops")), strict=True))
    assert all(d <= count <= 20 * d for d, count in flops.items())


def times(records):
    for K in records.distinct("K"):
        counts = {name: records.values("grad_g", K=K, method=name)[0] for name in ("DL-SGD", "RT-MLMC")}
        assert set(counts["DL-SGD"]) == {lower_gradients(K)}
        assert set(counts["RT-MLMC"]) <= {lower_gradients(k) for k in range(1, K + 1)}


def table2(records):
    times(records)
    for row in records.where(kind="hessians"):
        assert row["bytes"] == 4 * row["d_y"] * (row["d_y"] if row["version"] == 1 else 3) * (1 + x64())


def x64():
    import jax

    return bool(jax.config.jax_enable_x64)


def tasks(records):
    blocks = records.settings["blocks"]
    for row in records.where(kind="run", method="BSVRB"):
        assert (row["eta"], row["grad_g"]) == (3 * blocks, 2 * blocks)
    fastest = max(records.settings["steps"])
    for M in records.settings["M"]:
        falls(records.values("square", kind="run", method="RT-MLMC", M=M, step=fastest), M)
    for row in records.where(kind="run", method="RT-MLMC"):
        assert 2 * blocks <= row["grad_g"] <= lower_gradients(records.settings["K"]) * blocks


def counted_meta(records):
    """Four tasks a step; all epochs in DL-SGD, eight images for each of MAML's gradients."""
    for row in records.where(kind="curve", method="DL-SGD"):
        assert row["xi"] == 4 * row["t"]
        assert row["grad_g"] == row["xi"] * lower_gradients(int(row["setting"].removeprefix("K = ")))
    for row in records.where(kind="curve", method="RT-MLMC"):
        most = lower_gradients(int(row["setting"].removeprefix("K = ")))
        assert row["xi"] == 4 * row["t"] and 2 * row["xi"] <= row["grad_g"] <= most * row["xi"]
    for row in records.where(kind="curve", method="MAML"):
        assert row["xi"] == 4 * row["t"] and row["grad_g"] == 8 * row["xi"]


def fig1(records):
    """The paper's rule, tuned for so few steps, is left out."""
    counted_meta(records)
    for method in ("DL-SGD", "RT-MLMC"):
        falling_curves(records, "own", method=method, steps="other")
        assert {row["length"] for row in records.where(kind="end", method=method)} == {10.0, "raw"}
    runs = {row["runs"] for row in records.where(kind="budget", length=10.0) if row["method"] != "MAML, tuned longer"}
    assert runs == {3}, "as many for every method"


def fig4(records):
    counted_meta(records)
    falling_curves(records, "own", method="RT-MLMC", steps="other")


def contextual(records):
    """With contexts only RT-MLMC goes on falling."""
    totals(records)
    falls(records.values("square", part="contextual", method="RT-MLMC"), "contextual")


def fig3(records):
    """Training costs fall and stay above their floor; every formulation has as many runs."""
    s = records.settings
    for which in records.distinct("cell", kind="curve"):
        for steps in ("paper", "other"):
            for lam in (1.0, s["lam_small"]):
                falls(records.values("train", kind="curve", cell=which, steps=steps, lam=lam), (which, steps, lam))
    for row in records.where(kind="compare"):
        where = {name: row[name] for name in ("d", "seed", "m", "decision")}
        floor = records.values("train_floor", kind="bounds", **where)[0]
        assert min(row["train"]) >= floor - 1e-6 and len(row["t"]) == len(row["test"]) == 4
        runs = {name: len(records.where(kind="compare", method=name, **where)) for name in ("ERM", "WDRO-SI")}
        assert set(runs.values()) == {len(s["lam"]) + (len(s["wide"]) if row["decision"] == "network" else 0)}
    moved = {lam: records.values("distance", kind="adversary", lam=lam) for lam in (*s["wide"], *s["lam"])}
    assert np.mean(moved[max(moved)]) < np.mean(moved[min(moved)])  # a dearer move is a shorter one


CHECKS = {
    "table1": table1,
    "table2": table2,
    "table3": times,
    "tasks": tasks,
    "fig1": fig1,
    "fig2": lambda records: falling_curves(records, "F", steps="other"),
    "fig3": fig3,
    "fig4": fig4,
    "sbo": contextual,
    "cso": totals,
    "nonconvex": totals,
}
