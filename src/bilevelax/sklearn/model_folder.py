"""A fitted model as a folder: model.json, sealed, and arrays.npz with its digest. Nothing is pickled."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bilevelax._version import __version__
from bilevelax.base.declared import Check, Undeclared, is_sealed, one_of, read_json, record, seal, text
from bilevelax.base.npz import digest_of_file, save_arrays
from bilevelax.base.whole_files import appearing, told_if_not_written

FORMAT = 1
WITHOUT_DIGEST = ("0.1.0",)  # versions that wrote none
REMEDY = "copy the model again from where it is whole, or train it again"
SHA256 = text("[0-9a-f]{64}", "a SHA256")
DIGESTS = {"kind": text(), "arrays": record({"sha256": SHA256}), "sha256": SHA256}


def write_folder(folder: str | Path, kind: str, body: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Path:
    """The arrays, and a description that holds their digest: a full disk leaves the model that was there before."""
    folder = Path(folder).expanduser()
    head = {"format": FORMAT, "version": __version__, "kind": kind}
    with told_if_not_written(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with appearing(folder / "arrays.npz", folder / "model.json") as (npz, description):
        sha256 = save_arrays(npz, arrays)
        document = json.loads(json.dumps({**head, **body, "arrays": {"sha256": sha256}}, allow_nan=False))
        description.write_text(json.dumps(seal(document), indent=2) + "\n", encoding="utf-8")
    return folder


def read_folder(
    folder: str | Path, kind: str, fields: Mapping[str, Check], optional: Mapping[str, Check]
) -> tuple[Path, dict[str, Any]]:
    """(folder, the description), its values as declared and both files as they were written."""
    folder = Path(folder).expanduser()
    path, arrays = folder / "model.json", folder / "arrays.npz"
    if not path.is_file():
        raise ValueError(f"{folder} is no saved model: it has no model.json; name the folder that holds one.")

    def check(document: Any, where: str) -> None:
        record({}, others=True)(document, where)
        if document.get("format") != FORMAT:
            return  # told below, with the version that wrote it
        known = {"format": one_of(FORMAT), "version": text(), **fields}
        old = document.get("version") in WITHOUT_DIGEST and document.keys().isdisjoint(DIGESTS)
        if not old and "kind" in document:  # first: of another kind nothing else fits either
            one_of(kind)(document["kind"], "kind")
        record({**known, **({} if old else DIGESTS)}, optional)(document, where)
        if not old and not is_sealed(document):
            raise ValueError("it was changed after it was written")

    document = read_json(path, check, REMEDY)
    if document.get("format") != FORMAT:
        raise ValueError(
            f"{folder} has format {document.get('format')!r}, written by bilevelax {document.get('version')}; "
            f"this is bilevelax {__version__}, which reads format {FORMAT}."
        )
    if not arrays.is_file():
        raise ValueError(f"{folder} is no whole model: it has no arrays.npz; {REMEDY}.")
    if "arrays" in document and digest_of_file(arrays) != document["arrays"]["sha256"]:
        raise ValueError(
            f"{arrays} is not the file that {path} was saved with: its SHA256 differs, so it is damaged or belongs to "
            f"another model; {REMEDY}."
        )
    return folder, document


def require(good: bool, path: Path, where: str, rule: str, value: Any) -> None:
    """What no part alone can tell: that parts fit together."""
    if not good:
        raise ValueError(f"{path} is damaged or from another program ({Undeclared(where, rule, value)}): {REMEDY}.")
