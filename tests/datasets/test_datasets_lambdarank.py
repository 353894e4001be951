"""Queries and items, read from files like those of LightGBM's example."""

import gzip

import numpy as np
import pytest

from bilevelax.base.npz import digest_of_file
from bilevelax.datasets import lambdarank, load_lambdarank


@pytest.fixture
def files(tmp_path, monkeypatch):
    for part in ("train", "test"):
        with gzip.open(tmp_path / f"lambdarank_rank.{part}.gz", "wt") as file:
            file.write("0 1:0.5 300:0.25\n3 2:1\n1 1:0.1\n")
        (tmp_path / f"lambdarank_rank.{part}.query").write_text("1\n2\n")
    monkeypatch.setattr(lambdarank, "FILES", {name: digest_of_file(tmp_path / name) for name in lambdarank.FILES})
    monkeypatch.setenv("BILEVELAX_DATA", str(tmp_path))
    return tmp_path


def test_items_and_queries(files):
    assert lambdarank.is_there()
    found = load_lambdarank("test")
    assert found.X.shape == (3, 301) and found.X[0, 1] == 0.5 and found.X[0, 300] == 0.25 and found.X.sum() == 1.85
    assert found.y.tolist() == [0, 3, 1]
    np.testing.assert_array_equal(found.qid, [0, 1, 1])


def test_sentences(files, monkeypatch):
    with pytest.raises(ValueError, match=r"`part` of load_lambdarank must be 'train' or 'test'. Got 'dev'"):
        load_lambdarank("dev")
    (files / "lambdarank_rank.train.query").write_text("3\n")
    with pytest.raises(ValueError, match="is not the expected file"):
        load_lambdarank()
    (files / "lambdarank_rank.train.gz").unlink()
    assert not lambdarank.is_there()
    with pytest.raises(ValueError, match=r"lambdarank_rank.train.gz is not in .*: it is examples/lambdarank/rank"):
        load_lambdarank()
    monkeypatch.delenv("BILEVELAX_DATA")
    with pytest.raises(ValueError, match="needs the environment variable BILEVELAX_DATA"):
        load_lambdarank()
