"""Queries with labelled items for learning to rank: the example task of LightGBM. Needs scikit-learn."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bilevelax.base.errors import require_package
from bilevelax.datasets.files import VARIABLE, locate

FILES = {
    "lambdarank_rank.train.gz": "fb86079ed73ce9c88dfe63782edaceebaa6445fc0f0f123b06578e74db436736",
    "lambdarank_rank.train.query": "40cb5fef637229311cd30fab13cb7fb633b023e86a87ff04ec55db420143d6af",
    "lambdarank_rank.test.gz": "2debc1b573146a838d05664d21a4b1cbbda8953500d3088cdc3e11c015854841",
    "lambdarank_rank.test.query": "36dca82ba3bf99201bac3987b00a8fbf6fe5f563e9fa6d0da90e783710a32df4",
}
OBTAIN = (
    "it is examples/lambdarank/rank.* of the repository microsoft/LightGBM (MIT), with lambdarank_ before its name, "
    "the tables compressed with gzip -n"
)
COLUMNS = 301


class Ranked(NamedTuple):
    """Items in the order of their queries."""

    X: np.ndarray  # (items, 301) features; those that a line does not name are 0
    y: np.ndarray  # (items,) labels 0 to 4, larger is more relevant
    qid: np.ndarray  # (items,) the number of the query of each


def is_there() -> bool:
    """Whether the environment says where the files are."""
    folder = os.environ.get(VARIABLE)
    return bool(folder) and all((Path(str(folder)).expanduser() / name).is_file() for name in FILES)


def load_lambdarank(part: str = "train") -> Ranked:
    """3,005 items of 201 queries, or with ``part="test"`` 768 items of 50; checksums are verified.

    The files lie in the folder that BILEVELAX_DATA names.
    """
    if part not in ("train", "test"):
        raise ValueError(f"`part` of load_lambdarank must be 'train' or 'test'. Got {part!r}.")
    datasets = require_package("sklearn.datasets", "load_lambdarank", "sklearn")
    table, lengths = (f"lambdarank_rank.{part}.{end}" for end in ("gz", "query"))
    X, y = datasets.load_svmlight_file(str(locate(table, FILES[table], OBTAIN)), n_features=COLUMNS, zero_based=True)
    counts = np.loadtxt(locate(lengths, FILES[lengths], OBTAIN), dtype=int, ndmin=1)
    return Ranked(X.toarray(), y, np.repeat(np.arange(len(counts)), counts))
