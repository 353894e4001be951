"""Folders of runs with invented numbers, for the tests of what reads them."""

import json

import numpy as np

from bilevelax.core.estimate import Cost

HOSTILE = (
    "<script>alert(1)</script>",  # a folder in a folder: two of them end alike, so both are named in full
    "</script>",
    "\"quoted\" 'twice' `ticks` & more",
    "<!--<script>",
    "line\nbreak",
    "Ünïcödé 数学 \u202eright to left\u2028",
    "very long name " * 16,
)


def save(folder, *, seed=0, steps=20, metrics=("F_gap",), level=None, diagnose=False, price=1, **config):
    """A folder as `Result.save` leaves it, apart from the arrays."""
    rng = np.random.default_rng(seed)
    rows = []
    for i in range(steps + 1):
        t = 50 * i
        cost = Cost(
            xi=8 * t, eta=120 * price * t, grad_f=8 * t, grad_g=96 * price * t, hess_g=24 * t, cross_g=8 * t
        ).asdict()
        row = {"t": t, "seconds": 0.002 * price * t * (1 + 0.1 * rng.random()), **cost}
        if level and i:
            row |= {"level": 1.9} | {f"level_{k}": 400 >> k for k in range(1, level + 1)}
        row |= {name: float(np.exp(-0.25 * i + 0.2 * price + 0.3 * rng.normal())) for name in metrics}
        if diagnose and i % 5 == 0:
            grad2 = float(np.exp(-0.4 * i))
            row |= {
                "bias": 0.02 * price,
                "bias_low": -0.01,
                "bias_high": 0.05 * price,
                "variance": 3 / price / (i + 1),
                "call_seconds": 1e-4,
            }
            row |= {"grad2": grad2, "grad2_low": grad2 / 2, "grad2_high": 2 * grad2}
        rows.append(row)
    manifest = {
        "versions": {"bilevelax": "0.1.0", "jax": "0.10.2"},
        "python": "3.11.2",
        "devices": ["cpu"],
        "x64": False,
        "date": "2026-11-16T00:00:00+00:00",
        "T": 50 * steps,
        "every": 50,
        "key": [0, seed],
        "config": {"seed": seed, "out": str(folder), **config},
        "result": {"cost": cost, "seconds": rows[-1]["seconds"], "compile_seconds": 1.5},
        "structure": {"x": 0},
    }
    folder.mkdir(parents=True)
    (folder / "history.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    (folder / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    return folder


def comparison(root):
    """Three seeds of one estimator, two of another, one of a third."""
    kinds = {"rt_mlmc": ({"K": 8}, 3, 6), "dl_sgd": ({"K": 8}, 2, None), "saa": ({"n": 16}, 1, None)}
    prices = {"rt_mlmc": 1, "dl_sgd": 6, "saa": 2}
    return [
        save(
            root / f"quadratic-{name}-{seed}",
            seed=seed,
            metrics=("distance", "F_gap"),
            level=level,
            diagnose=name != "saa",
            price=prices[name],
            estimator=name,
            **settings,
        )
        for name, (settings, seeds, level) in kinds.items()
        for seed in range(seeds)
    ]
