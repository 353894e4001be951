"""Published numbers with and without the faulty fusion of XLA: ``python benchmarks/fusion_compared.py [WORD ...]``.

Every computation behind a published number that adds up or maps over many rows at once is run at its published size,
with short runs where only their length differs, in two processes: one with XLA as it comes, one with the fusion off
(`bilevelax._xla`). Words select the cases that have one of them in their name. The control is what the fusion is known
to get wrong.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import random
from jax.flatten_util import ravel_pytree

from bilevelax._xla import FLAG, SWITCH, jaxlib_version

FEW = {"paper": [0.3], "parts": [1], "constant": [], "adam": [0.01]}  # step rules


def control() -> Any:
    """Values of the self-test, compiled by `jax.jit` alone."""
    W = jnp.asarray(np.cos(1.0 + np.arange(6.0)).reshape(2, 3) + 0.5, jnp.float32)
    rows = jnp.asarray(np.sin(np.arange(120_000.0)).reshape(-1, 3), jnp.float32)
    return jax.jit(jax.vmap(lambda e: jnp.sum((W @ e) ** 2)))(rows)


def item(name: str, part: str, **given: Any) -> Any:
    """The numbers of those cells of an item of the paper at scale full whose name has a part, without times."""
    from bilevelax_paper.items import catalogue

    module = catalogue.module(name)
    settings = module.CONFIG.settings("full", 1, given)
    rows = [row for cell in module.run(settings, 1) if part in cell.name for row in cell.work()]
    keep = lambda key, value: "seconds" not in key and not isinstance(value, str)
    return [np.asarray(value, float) for row in rows for key, value in row.items() if keep(key, value)]


def figure_3(d: int) -> Any:
    short = {"T": 8, "points": 1, "tuning_seeds": 1, "curve_seeds": 1, "grid": FEW, "lam": [1.0], "wide": []}
    return item("fig3", f"ERM, affine rule in R^{d}", **short)


def tasks() -> Any:
    return item("tasks", "M = ", M=[20_000, 100_000], steps=[0.1], T=50, rounds=0, turns=0)


def table_1() -> Any:
    return item("table1", "= 1", levels=6)


def metrics_of_wdro_si() -> Any:
    from bilevelax.applications import wdro_si

    app = wdro_si.make()
    return app.metrics(app.x1)


def gradient_of_meta_learning() -> Any:
    from problems import meta

    from bilevelax.diagnostics.reference import reference

    app = meta(d=64)
    return reference(random.key(0), app.problem, app.x1, 20, 0).grad


def targets(name: str) -> Any:
    from targets import judge, regimes

    regime = regimes(quick=False)[name]
    return judge(regime)(regime.app.x1)


def orders(products: int) -> Any:
    """What RobustNewsvendor orders on YAZ after a short training."""
    from bilevelax.datasets import load_yaz
    from bilevelax.sklearn import RobustNewsvendor

    data, cut = load_yaz(), 573
    y = data.y.iloc[:cut, :products]
    model = RobustNewsvendor(1, 9, penalty=0.3, max_iter=40, random_state=0)
    return model.fit(data.X[:cut], y if products > 1 else y.iloc[:, 0]).predict(data.X[cut:])


CASES: Mapping[str, Callable[[], Any]] = {
    "control: 40,000 values of rows in R^3": control,
    "Figure 3: costs on 20,000 test contexts in R^5": lambda: figure_3(5),
    "Figure 3: costs on 20,000 test contexts in R^100": lambda: figure_3(100),
    "wdro_si: test cost on 200,000 points, 10,000 at once": metrics_of_wdro_si,
    "Complexity by tasks: tables of 20,000 and 100,000 rows in R^2": tasks,
    "Table 1: moments of 256 estimates at each level": table_1,
    "choosing: F and |grad F|, 32 x 512 samples in R^4 at once": lambda: targets("continuous contexts"),
    "choosing: F and |grad F| of 2,048 clients": lambda: targets("10,000 contexts"),
    "benchmarks: exact gradient of 20 tasks of 4,500 images": gradient_of_meta_learning,
    "newsvendor: orders after training on 16,384 pairs a step": lambda: orders(1),
    "newsvendor: the same for seven dishes": lambda: orders(7),
}


def chosen() -> dict[str, Callable[[], Any]]:
    words = [word for word in sys.argv[1:] if not word.startswith("--")] or [""]
    return {name: case for name, case in CASES.items() if any(word in name for word in words)}


def numbers(found: Any) -> list[float]:
    return np.asarray(ravel_pytree(found)[0], float).tolist()


def in_a_process(switch: str) -> Iterator[list[float]]:
    """The numbers of every case, as they come."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("XLA", "JAX"))}
    command = [sys.executable, __file__, *sys.argv[1:], "--numbers"]
    with subprocess.Popen(command, env=clean | {SWITCH: switch}, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield from map(json.loads, process.stdout)


def main() -> None:
    print(f"jaxlib {jaxlib_version()}: largest difference with and without {FLAG}, relative to the largest number")
    for name, *pair in zip(chosen(), in_a_process("0"), in_a_process("1"), strict=True):
        with_fusion, without = map(np.asarray, pair)
        difference = np.max(np.abs(with_fusion - without)) / np.max(np.abs(without))
        print(f"{difference:9.1e}  {len(without):8,} numbers  {name}", flush=True)


if __name__ == "__main__":
    if "--numbers" not in sys.argv:
        main()
    else:
        warnings.simplefilter("ignore")
        for case in chosen().values():
            print(json.dumps(numbers(case())), flush=True)
