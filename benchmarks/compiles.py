"""What a user waits for: programs compiled, their operations and seconds, the first time and with a filled cache.

Each task runs in a process of its own, twice with one `bx.cache`, on the newsvendor of the README, y in R^3. CPU
seconds are those of the task, without imports; operations are those of the programs as the compiler gets them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

EVENTS = {
    "trace": "jaxpr_trace_duration",
    "lower": "jaxpr_to_mlir_module_duration",
    "compile": "backend_compile_duration",
}


def tasks() -> dict[str, Callable[[], Any]]:
    import numpy as np
    import optax
    from jax import random
    from toy import toy

    import bilevelax as bx
    from bilevelax.sklearn import RobustNewsvendor

    (problem, x), key, adam = toy(), random.key(0), optax.adam(1e-2)
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(200, 3))
    demand = 5 + rows @ [2.0, -1.0, 0.0] + 0.1 * rng.normal(size=200)
    return {
        "check": lambda: bx.check(problem, x, key=key),
        "constants": lambda: bx.constants(problem, x, key=key),
        "certify": lambda: bx.certify(problem, x, key=key),
        "tune": lambda: bx.tune(problem, x, key=key),
        "minimize": lambda: bx.minimize(problem, bx.minibatch(bx.saa(32), 32), adam, x, key=key, T=100),
        "minimize, auto": lambda: bx.minimize(problem, "auto", adam, x, key=key, T=100),
        "newsvendor fit": lambda: RobustNewsvendor(holding_cost=1.0, backlog_cost=9.0).fit(rows, demand),
    }


def one(name: str, folder: Path) -> dict[str, Any]:
    """One task in this process, with the cache in a folder."""
    import jax

    import bilevelax as bx

    os.environ.pop("BILEVELAX_CACHE", None)  # it might say no
    assert bx.cache(folder / "cache").on
    jax.config.update("jax_dump_ir_to", str(folder / "programs"))
    task = tasks()[name]
    jax.devices()
    before = {path.name for path in (folder / "programs").glob("*.mlir")}
    seconds: dict[str, list[float]] = {event: [] for event in EVENTS.values()}

    def listen(event: str, took: float, **about: Any) -> None:
        seconds.get(event.rsplit("/", 1)[-1], []).append(took)

    jax.monitoring.register_event_duration_secs_listener(listen)
    started, cpu = time.perf_counter(), time.process_time()
    task()
    cpu, wall = time.process_time() - cpu, time.perf_counter() - started
    dumped = [path for path in (folder / "programs").glob("*.mlir") if path.name not in before]
    return {
        "programs": len(seconds[EVENTS["compile"]]),
        "operations": sum(path.read_text().count(" = ") for path in dumped),
        **{f"{stage} s": sum(seconds[event]) for stage, event in EVENTS.items()},
        "CPU s": cpu,
        "s": wall,
    }


def run(quick: bool = False) -> None:
    from common import publish

    found = []
    for name in ("constants", "certify") if quick else tasks():
        with tempfile.TemporaryDirectory() as folder:
            for cache in ("empty", "filled"):
                command = [sys.executable, __file__, name, folder + "/" + cache]
                Path(folder, cache).mkdir()
                if cache == "filled":
                    Path(folder, "empty", "cache").rename(Path(folder, cache, "cache"))
                told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
                found.append({"task": name, "cache": cache, **json.loads(told.splitlines()[-1])})
    notes = ["Trace, lower and compile in seconds of the clock; with a filled cache compile is reading."]
    publish("compiles", "Programs compiled", found, notes)


if __name__ == "__main__":
    print(json.dumps(one(sys.argv[1], Path(sys.argv[2]))))
