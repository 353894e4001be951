"""Daily demand of restaurants and bakeries."""

import pytest

from bilevelax.datasets import load_bakery, load_yaz


def test_yaz():
    """The weekday of the file is wrong on one row; dates decide."""
    data = load_yaz()
    assert data.X.shape == (760, 29) and next(iter(data.y)) == "calamari" and len(load_yaz(closed=True).y) == 765
    dates = data.table["date"]
    assert dates.is_monotonic_increasing
    assert (data.X["weekday_MON"] == (dates.dt.day_of_week == 0)).all()
    assert data.X.to_numpy().dtype == float and not data.X.isna().any().any()


def test_bakery_sentences(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match=r"bakery_data.csv.gz is not in"):
        load_bakery(tmp_path)
    (tmp_path / "bakery_data.csv.gz").write_bytes(b"")
    with pytest.raises(ValueError, match="is not the expected file"):
        load_bakery(tmp_path)
