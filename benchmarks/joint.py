"""A table of n pairs and no conditional sampler: how far is each way's gradient from the contextual one?

Errors are relative to the exact gradient, root mean squares over tables. Not a timing.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from common import KEPT, cell, keep, publish
from jax import lax, random
from joint_cases import CASES, Case, contextual, exact, table

import bilevelax as bx
from bilevelax.base.compiling import jit_once
from bilevelax.problems.joint import Rows
from bilevelax.sklearn import Forest, with_conditional

PICTURE = Path(__file__).parents[1] / "docs" / "_static" / "joint.svg"
SIZES, DIMENSIONS, TABLES = (256, 1024, 4096), (1, 2, 5, 20), 3
STEPS = 400  # estimates of `amortised`, of which the second half is averaged
GROUP, CONTEXTS = 8, 32  # samples of a context with the true conditional, contexts of a call
ATOMS = 128  # rows that the forest may weigh for a context
FUNCTIONS, MANY = 100, 10  # random features, and coordinates from which on they are tried
WAVES = "reduced, random features"
PAIRS_ONLY = ("reduced", WAVES, "amortised", "forest")
TRUE = "true conditional"
COLOURS = ("#0072b2", "#56b4e9", "#d55e00", "#009e73", "#555555")


def basis_for(d: int) -> bx.Basis:
    """What docs/joint.md advises: products in few coordinates, sums in many."""
    return bx.chebyshev(5) if d <= 2 else bx.chebyshev(3) if d <= 5 else bx.splines(5)


def sizes_of(name: str) -> tuple[int, ...]:
    """The largest table for the cheapest problem only: all of it in five minutes."""
    return SIZES if name == "quadratic" else SIZES[:2]


def filled(rows: Any, most: int) -> Any:
    """A table repeated to the largest size: the same distribution, and one program for tables of all sizes."""
    return jax.tree.map(lambda a: jnp.tile(a, (-(-most // len(a)), *[1] * (a.ndim - 1)))[:most], rows)


class Ways:
    """Gradients of one case in one dimension by each way; each is one program, whatever the table."""

    def __init__(self, case: Case, d: int, most: int) -> None:
        self.case, self.d, self.x, self.most = case, d, case.x, most
        self.pairs = bx.from_joint(case.f, case.g, filled(table(case, d, min(SIZES), 0), most), init_y=case.init_y)
        self.programs: dict[str, Callable[..., Any]] = {}

    def gradient(self, way: str, problem: bx.Problem, estimator: bx.Estimator, key: Any) -> Any:
        """One estimate; ``problem`` of a way differs in its data only, so that its program is compiled once."""
        if way not in self.programs:
            estimate = lambda key, data: estimator.estimate(key, problem.replace(data=data), self.x, ())[0]
            self.programs[way] = jit_once()(estimate)
        return self.programs[way](key, problem.data)

    def of_table(self, rows: Any, seed: int) -> dict[str, np.ndarray]:
        n, key = len(rows[0]), random.key(1000 + seed)
        whole = self.pairs.replace(data=Rows(*filled(rows, self.most)))
        found = {
            "reduced": self.reduced("reduced", whole, basis_for(self.d), key),
            "amortised": self.settled(whole, key),
            "forest": self.forest(rows, key),
        }
        if self.d >= MANY:
            waves = bx.random_features(min(FUNCTIONS, n // 8), key=random.key(seed))
            found[WAVES] = self.reduced(WAVES, whole, waves, key)
        return {way: np.asarray(grad) for way, grad in found.items()}

    def reduced(self, way: str, whole: bx.Problem, basis: bx.Basis, key: Any) -> Any:
        problem = bx.reduced(whole, basis)
        return self.gradient(f"{way} {problem.data.phi.shape}", problem, bx.saa("all"), key).grad

    def settled(self, whole: bx.Problem, key: Any) -> Any:
        """The mean direction of `amortised` over the second half of a run at one x."""
        estimator = bx.amortised(warm_up=0)

        def run(key: Any, data: Any) -> Any:
            problem = whole.replace(data=data)

            def one(state: Any, key: Any) -> tuple[Any, Any]:
                estimate, state = estimator.estimate(key, problem, self.x, state)
                return state, estimate.grad

            grads = lax.scan(one, estimator.init(problem, self.x), random.split(key, STEPS))[1]
            return jnp.mean(grads[STEPS // 2 :], axis=0)

        if "amortised" not in self.programs:
            self.programs["amortised"] = jit_once()(run)
        return self.programs["amortised"](key, whole.data)

    def forest(self, rows: Any, key: Any) -> Any:
        """The exact gradient with a forest's conditional: what `antithetic_mlmc` on it is an unbiased estimate of."""
        pairs = bx.from_joint(self.case.f, self.case.g, rows, init_y=self.case.init_y)
        fitted = with_conditional(pairs, Forest(min_samples_leaf=10), ATOMS)
        pad = lambda a: jnp.pad(a, ((0, 0), (0, ATOMS - a.shape[1])))
        whole = filled(fitted.data._replace(rows=pad(fitted.data.rows), weights=pad(fitted.data.weights)), self.most)
        problem = fitted.replace(data=whole, n_contexts=self.most)
        every = bx.minibatch(bx.saa("all"), self.most, contexts="spread")
        return self.gradient("forest", problem, every, key).grad

    def true(self, n: int, seed: int) -> tuple[np.ndarray, float]:
        """The antithetic estimator with the true conditional, from about n draws of eta; and how many it took."""
        estimator = bx.minibatch(bx.antithetic_mlmc(GROUP), CONTEXTS)
        keys = random.split(random.key(2000 + seed), n // (GROUP * CONTEXTS))
        found = [self.gradient(TRUE, contextual(self.case, self.d), estimator, key) for key in keys]
        return np.mean([each.grad for each in found], axis=0), float(sum(each.cost.eta for each in found))


def relative(grads: Any, wanted: np.ndarray) -> float:
    return float(np.sqrt(np.mean([np.sum((each - wanted) ** 2) for each in grads])) / np.linalg.norm(wanted))


def measured(case: Case, d: int, sizes: tuple[int, ...], tables: int) -> Iterator[dict[str, Any]]:
    ways, wanted = Ways(case, d, max(sizes)), exact(case, d)
    for n in sizes:
        found = [ways.of_table(table(case, d, n, seed), seed) for seed in range(tables)]
        errors = {way: relative([each[way] for each in found], wanted) for way in PAIRS_ONLY if way in found[0]}
        true = [ways.true(n, seed) for seed in range(4 * tables)]
        drawn = float(np.mean([eta for _, eta in true]))
        row = {"pairs": n, **errors, TRUE: relative([grad for grad, _ in true], wanted), "draws of eta": drawn}
        print(f"d = {d}", *(f"{name}: {cell(value)}" for name, value in row.items()), sep=", ", flush=True)
        yield row


def run(quick: bool = False, names: Sequence[str] = tuple(CASES)) -> None:
    """One record for each problem, written when it is done; the picture is drawn from all that there are."""
    dimensions, tables = ((5,), 2) if quick else (DIMENSIONS, TABLES)
    for name in names[:1] if quick else names:
        sizes = SIZES[:1] if quick else sizes_of(name)
        rows = [{"problem": name, "d": d, **row} for d in dimensions for row in measured(CASES[name], d, sizes, tables)]
        notes = [
            f"Root mean squares over {tables} tables ({4 * tables} runs with the true conditional). reduced: "
            "chebyshev(5) for d = 1, 2, chebyshev(3) for 5, splines(5) for 20."
        ]
        publish(f"joint_{name}", f"Relative error of the gradient from a table of pairs: {name}", rows, notes)
        if not quick:
            keep(f"joint_{name}")
            draw()


def kept() -> list[dict[str, Any]]:
    """All rows of the committed records."""
    records = [KEPT / f"joint_{name}.json" for name in CASES]
    return [row for path in records if path.exists() for row in json.loads(path.read_text())["rows"]]


def draw() -> None:
    import matplotlib as mpl
    import matplotlib.pyplot as plt

    mpl.rcParams["svg.hashsalt"] = "joint"
    rows = kept()
    names, dimensions = (list(dict.fromkeys(row[column] for row in rows)) for column in ("problem", "d"))
    shape = len(names), len(dimensions)
    size = 9.5, 0.8 + 1.9 * len(names)
    figure, axes = plt.subplots(*shape, figsize=size, sharex=True, sharey="row", layout="constrained", squeeze=False)
    for line, name in zip(axes, names, strict=True):
        for axis, d in zip(line, dimensions, strict=True):
            here = [row for row in rows if row["problem"] == name and row["d"] == d]
            for way, colour in zip((*PAIRS_ONLY, TRUE), COLOURS, strict=True):
                style = {"linestyle": "dashed"} if way == TRUE else {}
                sizes = [row["draws of eta"] if way == TRUE else row["pairs"] for row in here]
                axis.loglog(
                    sizes, [row.get(way, np.nan) for row in here], marker="o", ms=3, label=way, color=colour, **style
                )
            axis.set_title(f"{name}, d = {d}", fontsize=10)
            axis.set_xticks(SIZES, [str(n) for n in SIZES])
            axis.minorticks_off()
            axis.grid(alpha=0.3)
        line[0].set_ylabel("relative error")
    figure.supxlabel("pairs in the table; with the true conditional, draws of eta", fontsize=10)
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=5, frameon=False)
    figure.savefig(PICTURE, metadata={"Date": None})


def winners() -> str:
    """The table of docs/joint.md, from the committed records: the smallest error of pairs alone is bold."""
    columns = (*PAIRS_ONLY, TRUE)
    lines = ["| problem | d | pairs | " + " | ".join(columns) + " |", "|" + "---|" * (3 + len(columns))]
    for row in kept():
        best = min(row[way] for way in PAIRS_ONLY if way in row)
        mark = lambda way, row=row, best=best: "**" if way != TRUE and row[way] == best else ""
        bold = [f"{mark(way)}{row[way]:.3f}{mark(way)}" if way in row else "" for way in columns]
        lines.append(f"| {row['problem']} | {row['d']} | {row['pairs']:,} | " + " | ".join(bold) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    if sys.argv[1:] == ["table"]:
        print(winners())
    else:
        run(names=sys.argv[1:] or tuple(CASES))
