"""The rows of a run and what they were made on."""

from __future__ import annotations

import functools
import json
import os
import platform
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
import numpy as np

from bilevelax.core.problem import X

Row = dict[str, float]  # flat: t, seconds, the counts of Cost, then metrics


@functools.cache
def versions() -> dict[str, str]:
    """Of the packages that results depend on; looked up once, on disk."""
    return {name: metadata.version(name) for name in ("bilevelax", "jax", "jaxlib", "numpy", "optax", "equinox")}


def environment() -> dict[str, Any]:
    """Versions, device and date: what a record needs to be read later."""
    return {
        "versions": dict(versions()),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "devices": [str(device.device_kind) for device in jax.devices()],
        "x64": bool(jax.config.read("jax_enable_x64")),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def machine() -> dict[str, Any]:
    """`environment`, the processor and how busy it is: what a timing needs to be read later."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    return {**environment(), "cpu": (names or [platform.processor()])[0], "cores": os.cpu_count(), "load": load}


def is_level_count(column: str) -> bool:
    return column.startswith("level_") and column[6:].isdecimal()


def level_counts(aux: dict[str, Any]) -> Row:
    """How many estimates each level got, from logs of ``level`` (one a step) or ``levels`` (a batch a step)."""
    drawn = aux.get("levels", aux.get("level"))
    if drawn is None or not np.issubdtype(drawn.dtype, np.integer):
        return {}
    return {f"level_{k}": int(n) for k, n in zip(*np.unique(drawn, return_counts=True), strict=True)}


def cost_columns(aux: dict[str, Any]) -> Row:
    """F over the steps of a chunk: the mean of their estimates and its standard error, which the moves of x widen."""
    found = np.asarray(aux.get("F", ()), np.float64)
    if not len(found) or not np.isfinite(found).all():
        return {}
    error = {"F_error": float(found.std(ddof=1) / len(found) ** 0.5)} if len(found) > 1 else {}
    return {"F": float(found.mean()), **error}


def append_to(path: str | Path) -> Any:
    """A callback for `minimize` that appends each row to a JSONL file as the run goes."""

    def callback(row: Row, x: X) -> None:
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    return callback
