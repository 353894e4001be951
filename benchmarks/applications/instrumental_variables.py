"""IVRegressor on the demand design (Hartford et al. 2017) and on returns to schooling (Card 1995). Not a timing."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable

import numpy as np
from published import Row, compared

from bilevelax.applications.instrumental_variables import Observed, demand_design, grid, sales
from bilevelax.base.errors import require_package
from bilevelax.sklearn import IVRegressor

FIRST = 100  # seed: those below were looked at while defaults were chosen
TRIALS, QUICK = 20, 2
SIZES, RHOS = (1000, 5000), (0.1, 0.25, 0.5, 0.9)
# MSE of DualIV at rho = 0.25, means of 20 trials from its authors' files (KIV, DeepIV there too)
THEIRS = {
    (1000, 0.25): "DualIV 7,084 +- 553, DeepIV 11,190 +- 614, KIV 13,808 +- 808",
    (5000, 0.25): "KIV 14,085, DualIV 27,092",
}
SHOCK = 40.0  # where endogeneity is large beside the structural function
CONTROLS = ["exper", "expersq", "black", "smsa", "south", "smsa66", *(f"reg66{i}" for i in range(2, 10))]
TEXTBOOK = "0.132 +- 0.055 (Wooldridge's textbook, from Card 1995)"


def squared_error(model: IVRegressor) -> float:
    return float(np.mean((model.predict(grid()) - sales(grid())) ** 2))


def told(values: list[float]) -> str:
    error = np.std(values, ddof=1) / len(values) ** 0.5
    return f"{np.mean(values):,.0f} +- {error:,.0f}"


PLAIN = "same functions, instruments ignored"
WAYS: dict[str, Callable[[Observed], IVRegressor]] = {
    "control": lambda rows: IVRegressor("kernel", method="control").fit(*rows),
    "moments": lambda rows: IVRegressor("kernel").fit(*rows),
    PLAIN: lambda rows: IVRegressor("kernel").fit(rows.T, rows.y),
    "two-stage least squares": lambda rows: IVRegressor().fit(*rows),
}
OURS, OTHERS = tuple(WAYS)[:2], tuple(WAYS)[2:]


def trials(n: int, rho: float, many: int, shock: float = 1.0) -> dict[str, list[float]]:
    """Squared errors of each way on the tables with these seeds."""
    tables = [demand_design(n, rho, np.random.default_rng(seed), shock) for seed in range(FIRST, FIRST + many)]
    return {name: [squared_error(fit(rows)) for rows in tables] for name, fit in WAYS.items()}


def demand_row(n: int, rho: float, many: int, shock: float = 1.0) -> Row:
    begun = time.process_time()
    found = trials(n, rho, many, shock)
    name = min(OTHERS, key=lambda each: float(np.mean(found[each])))
    larger = "" if shock == 1 else f", shocks of sales {shock:g} times as large"
    row = Row(
        f"demand design, n = {n}, rho = {rho}{larger}: MSE, smaller is better",
        THEIRS.get((n, rho), "none"),
        "; ".join(f"{told(found[way])}, largest {max(found[way]):,.0f} ({way})" for way in OURS),
        f"{told(found[name])} ({name})",
        time.process_time() - begun,
    )
    print(*row, sep=", ", flush=True)
    return row


def demand_rows(many: int, rhos: tuple[float, ...]) -> list[Row]:
    usual = [demand_row(n, rho, many) for n in SIZES for rho in rhos]
    return [*usual, demand_row(SIZES[-1], RHOS[-1], many, SHOCK)]


def schooling() -> Row:
    """Log wage on years of schooling, which a college nearby moves."""
    begun = time.process_time()
    table = require_package("linearmodels.datasets.card", "this benchmark", "bench").load()
    y, controls = table["lwage"], table[CONTROLS]
    X, Z = (controls.assign(**{name: table[name]})[[name, *CONTROLS]] for name in ("educ", "nearc4"))
    fitted = IVRegressor().fit(X, y, Z)
    from linearmodels.iv import IV2SLS

    theirs = IV2SLS(y, controls.assign(one=1.0), table[["educ"]], table[["nearc4"]]).fit(
        cov_type="unadjusted", debiased=True
    )
    plain = IVRegressor().fit(X, y)
    ours = f"{fitted.coef_[0]:.4f} +- {fitted.stderr_[0]:.4f} (robust {fitted.robust_stderr_[0]:.4f})"
    return Row(
        "returns to schooling (card, 3,010 men): log wage of a year, two-stage least squares on nearc4",
        TEXTBOOK,
        f"{ours}, first-stage F {fitted.first_stage_[0].F:.1f}",
        f"{theirs.params['educ']:.4f} +- {theirs.std_errors['educ']:.4f} (linearmodels); "
        f"{plain.coef_[0]:.4f} +- {plain.stderr_[0]:.4f} (regression)",
        time.process_time() - begun,
    )


NOTES = (
    f"Demand design: means and standard errors of {TRIALS} tables with seeds from {FIRST} on; the defaults of "
    "IVRegressor('kernel') were chosen on seeds 0 to 3, its control function on seeds 0 to 3 and 200 to 211. Nothing "
    "is tuned by table but the penalty, by generalised cross-validation.",
    "That the control function takes the penalty of plain regression was decided on seeds 200 to 209, after rows of "
    "this table had been seen: with a penalty of its own it was behind (328 and 519 at n = 1000, rho = 0.5 and 0.9).",
    "Ours: IVRegressor('kernel', method='control'), and method='moments', the default, which assumes less.",
    "Published: KIV, DualIV and DeepIV as in the files of DualIV's authors, 20 tables.",
    "On this design the shock in prices is small beside the structural function: plain regression with the same "
    "functions is ahead of every method of moments. The last row has larger shocks, and there it is not.",
    "Seconds are CPU seconds of a row, on a shared machine.",
)


def run(quick: bool = False) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="`Z` of IVRegressor")  # no weak instrument in silence
        rows = [schooling(), *(demand_rows(QUICK, RHOS[1:2]) if quick else demand_rows(TRIALS, RHOS))]
    compared("instrumental_variables", "Instrumental variables", rows, NOTES, quick=quick)


if __name__ == "__main__":
    run()
