"""The folder of a saved run: NPZ, rows as JSONL and CSV, a manifest with digests as JSON. Nothing is pickled."""

from __future__ import annotations

import csv
import hashlib
import io
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bilevelax.base.declared import (
    SEAL,
    integer,
    is_sealed,
    list_of,
    map_of,
    number,
    one_of,
    read_json,
    reason_of,
    record,
    seal,
    text,
)
from bilevelax.base.npz import digest_of_file, read_arrays, save_arrays
from bilevelax.base.whole_files import appearing, told_if_not_written
from bilevelax.core.estimate import Cost
from bilevelax.core.problem import PyTree, X
from bilevelax.run.records.history import Row

MANIFEST, ARRAYS, HISTORY, TABLE = "manifest.json", "arrays.npz", "history.jsonl", "history.csv"
REMEDY = "copy the run again from where it is whole, or save it again"
DEEPEST = 100  # of a structure
INDEX = integer(0, 10**6)
OTHER = record({"other": text(), "leaves": list_of(INDEX)})
SHA256 = text("[0-9a-f]{64}", "a SHA256")
SUMMARY = record(
    {
        "cost": record({name: integer(0, 2**63) for name in Cost().asdict()}),
        "seconds": number(0),
        "compile_seconds": number(0),
    }
)
FILES = record({ARRAYS: record({"sha256": SHA256}), HISTORY: record({"bytes": integer(0, 2**50), "sha256": SHA256})})


def _any_float(value: Any, where: str) -> None:
    if type(value) is not float:  # a metric may be infinite
        number()(value, where)


ROW = map_of(text(), _any_float, least=1)


def _structures(value: Any, where: str) -> None:
    record({name: _check_structure for name in ("x", "x_hat", "x_mean")})(value, where)


DECLARED = record({"structure": _structures, "result": SUMMARY}, {"files": FILES, SEAL: SHA256}, others=True)


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
    leaves: list[np.ndarray] = []
    structure = {name: encode(tree, leaves) for name, tree in arrays.items()}
    written = "".join(json.dumps(row) + "\n" for row in rows).encode()
    with told_if_not_written(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with appearing(*(folder / name for name in (HISTORY, TABLE, ARRAYS, MANIFEST))) as (
        history,
        table,
        npz,
        description,
    ):
        history.write_bytes(written)
        table.write_text(as_csv(rows), encoding="utf-8", newline="")
        files = {
            ARRAYS: {"sha256": save_arrays(npz, {str(i): leaf for i, leaf in enumerate(leaves)})},
            HISTORY: {"bytes": len(written), "sha256": hashlib.sha256(written).hexdigest()},
        }
        document = json.loads(json.dumps({**manifest, "structure": structure, "files": files}))
        description.write_text(json.dumps(seal(document), indent=2), encoding="utf-8")


def as_csv(rows: list[Row]) -> str:
    """With the union of the rows' columns."""
    file = io.StringIO()
    writer = csv.DictWriter(file, list(dict.fromkeys(name for row in rows for name in row)))
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()


def load_run(folder: str | Path, like: X | None) -> tuple[dict[str, PyTree], list[Row], dict[str, Any]]:
    folder = Path(folder).expanduser()
    for name in (MANIFEST, ARRAYS, HISTORY):
        if not (folder / name).is_file():
            raise ValueError(
                f"`folder` of Result.load must hold a saved run. Got {str(folder)!r}, which has no {name}; "
                "Result.save writes it."
            )
    manifest = read_json(folder / MANIFEST, _check_manifest, REMEDY, constants=True)
    files = manifest.pop("files", {})
    manifest.pop(SEAL, None)
    rows = (folder / HISTORY).read_bytes()
    if files:
        rows = rows[: files[HISTORY]["bytes"]]  # a run that went on has written more
        _require_same(folder, HISTORY, hashlib.sha256(rows).hexdigest(), files)
        _require_same(folder, ARRAYS, digest_of_file(folder / ARRAYS), files)
    structure = manifest.pop("structure")
    names = sorted({str(i) for spec in structure.values() for i in _indices(spec)})
    arrays = read_arrays(folder / ARRAYS, names)
    if like is not None:
        _require_like(folder / ARRAYS, structure, arrays, like)
    return (
        {name: decode(spec, arrays, like) for name, spec in structure.items()},
        _rows(folder / HISTORY, rows),
        manifest,
    )


def _check_manifest(manifest: Any, where: str) -> None:
    DECLARED(manifest, where)
    if not manifest.keys().isdisjoint(("files", SEAL)) and not ("files" in manifest and is_sealed(manifest)):
        raise ValueError("it was changed after it was written")  # 0.1.0 wrote neither


def _check_structure(spec: Any, where: str, depth: int = 0) -> None:
    """What `encode` makes."""
    items: list[Any] = []
    if isinstance(spec, dict) and "other" in spec:
        OTHER(spec, where)
    elif isinstance(spec, dict) and len(spec) == 1 and depth < DEEPEST:
        ((kind, items),) = spec.items()
        one_of("dict", "list", "tuple")(kind, where)
        (map_of(text(), lambda *a: None) if kind == "dict" else list_of(lambda *a: None))(items, f"{where}.{kind}")
    elif spec is not None:
        INDEX(spec, where)
    for item in items.values() if isinstance(items, dict) else items:
        _check_structure(item, where, depth + 1)


def _require_same(folder: Path, name: str, found: str, files: dict[str, Any]) -> None:
    if found != files[name]["sha256"]:
        raise ValueError(
            f"{folder / name} is not the file that {folder / MANIFEST} was saved with: its SHA256 differs, so it is "
            f"damaged or belongs to another run; {REMEDY}."
        )


def _require_like(path: Path, structure: dict[str, Any], arrays: dict[str, np.ndarray], like: PyTree) -> None:
    wanted = len(jax.tree.leaves(like))
    for name, spec in structure.items():
        if len(_indices(spec)) != wanted:
            raise ValueError(
                f"`like` of Result.load must hold {len(_indices(spec))} arrays, as {name!r} in {path} does. "
                f"Got {wanted}; pass any x of that run."
            )


def _rows(path: Path, written: bytes) -> list[Row]:
    try:
        lines = written.decode("utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is damaged ({reason_of(error)}): {REMEDY}.") from None
    rows = []
    for place, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
            ROW(row, "")
        except (ValueError, RecursionError):
            raise ValueError(
                f"Line {place} of {path} must be a row of a history, names and numbers. Got {line[:60]!r}: {REMEDY}."
            ) from None
        rows.append(row)
    return rows
