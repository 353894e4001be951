"""Records of a run: rows as JSONL and CSV, arrays as NPZ, a manifest as JSON. Nothing is pickled."""

from __future__ import annotations

import csv
import functools
import io
import json
import os
import platform
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bilevelax.problem import PyTree, X

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


def replace_text(path: str | Path, text: str) -> None:
    """Write a file in one step: whoever looks, or kills, finds the old text or the new."""
    path = Path(path)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with open(partial, "w", newline="", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def machine() -> dict[str, Any]:
    """`environment`, the processor and how busy it is: what a timing needs to be read later."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    return {**environment(), "cpu": (names or [platform.processor()])[0], "cores": os.cpu_count(), "load": load}


def write_rows(folder: str | Path, rows: list[Row]) -> None:
    """history.jsonl, and history.csv with the union of the columns."""
    folder = Path(folder)
    replace_text(folder / "history.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    file = io.StringIO()
    writer = csv.DictWriter(file, list(dict.fromkeys(name for row in rows for name in row)))
    writer.writeheader()
    writer.writerows(rows)
    replace_text(folder / "history.csv", file.getvalue())


def is_level_count(column: str) -> bool:
    return column.startswith("level_") and column[6:].isdecimal()


def level_counts(aux: dict[str, Any]) -> Row:
    """How many estimates each level got, from logs of ``level`` (one a step) or ``levels`` (a batch a step)."""
    drawn = aux.get("levels", aux.get("level"))
    if drawn is None or not np.issubdtype(drawn.dtype, np.integer):
        return {}
    return {f"level_{k}": int(n) for k, n in zip(*np.unique(drawn, return_counts=True), strict=True)}


def append_to(path: str | Path) -> Any:
    """A callback for `minimize` that appends each row to a JSONL file as the run goes."""

    def callback(row: Row, x: X) -> None:
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    return callback


def encode(tree: PyTree, leaves: list[np.ndarray]) -> Any:
    """A JSON description of dicts, lists and tuples; arrays are appended to ``leaves``."""
    if isinstance(tree, dict) and all(isinstance(name, str) for name in tree):
        return {"dict": {name: encode(tree[name], leaves) for name in sorted(tree)}}
    if type(tree) in (list, tuple):
        return {type(tree).__name__: [encode(item, leaves) for item in tree]}
    if tree is None:
        return None
    found = jax.tree.leaves(tree)
    leaves.extend(np.asarray(leaf) for leaf in found)
    if len(found) == 1 and found[0] is tree:
        return len(leaves) - 1
    return {"other": type(tree).__name__, "leaves": list(range(len(leaves) - len(found), len(leaves)))}


def decode(spec: Any, arrays: Any, like: PyTree | None) -> PyTree:
    """The inverse of `encode`; ``like`` is asked for what is not dicts, lists and tuples."""
    if like is not None:
        found = [jnp.asarray(arrays[str(i)]) for i in _indices(spec)]
        return jax.tree.unflatten(jax.tree.structure(like), found)
    if spec is None:
        return None
    if isinstance(spec, int):
        return jnp.asarray(arrays[str(spec)])
    if "other" in spec:
        raise ValueError(
            f"`like` of Result.load must be given: x holds a {spec['other']}. Pass any x of that structure."
        )
    ((kind, items),) = spec.items()
    if kind == "dict":
        return {name: decode(item, arrays, None) for name, item in items.items()}
    return {"list": list, "tuple": tuple}[kind](decode(item, arrays, None) for item in items)


def _indices(spec: Any) -> list[int]:
    if spec is None:
        return []
    if isinstance(spec, int):
        return [spec]
    if "other" in spec:
        return list(spec["leaves"])
    items = spec["dict"].values() if "dict" in spec else next(iter(spec.values()))
    return [i for item in items for i in _indices(item)]


def save_run(folder: str | Path, arrays: dict[str, PyTree], rows: list[Row], manifest: dict[str, Any]) -> None:
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    leaves: list[np.ndarray] = []
    structure = {name: encode(tree, leaves) for name, tree in arrays.items()}
    np.savez(folder / "arrays.npz", allow_pickle=False, **{str(i): leaf for i, leaf in enumerate(leaves)})
    write_rows(folder, rows)
    text = json.dumps({**manifest, "structure": structure}, indent=2)
    replace_text(folder / "manifest.json", text)


def load_run(folder: str | Path, like: X | None) -> tuple[dict[str, PyTree], list[Row], dict[str, Any]]:
    folder = Path(folder)
    for name in ("manifest.json", "arrays.npz", "history.jsonl"):
        if not (folder / name).is_file():
            raise ValueError(
                f"`folder` of Result.load must hold a saved run. Got {str(folder)!r}, which has no {name}; "
                "Result.save writes it."
            )
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    rows = [json.loads(line) for line in (folder / "history.jsonl").read_text(encoding="utf-8").splitlines()]
    with np.load(folder / "arrays.npz", allow_pickle=False) as arrays:
        trees = {name: decode(spec, arrays, like) for name, spec in manifest.pop("structure").items()}
    return trees, rows, manifest
