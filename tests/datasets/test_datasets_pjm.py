"""Days of electricity load, read from files like those of PJM."""

import gzip

import numpy as np
import pandas as pd
import pytest

from bilevelax.base.npz import digest_of_file
from bilevelax.datasets import load_pjm, pjm


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Four days each, the second with 23 hours and the third of the second file with 25; load counts hours."""
    digests = {}
    for name, first in zip(pjm.FILES, ("2014-03-08", "2014-11-01"), strict=True):
        hours = pd.date_range(first, periods=95, freq="h", tz="America/New_York")
        if first.startswith("2014-11"):
            hours = pd.date_range(first, periods=97, freq="h", tz="America/New_York")
        lines = [f" {t.timestamp():.8e} {i:.8e} {t.hour:.8e}" for i, t in enumerate(hours)]
        with gzip.open(tmp_path / name, "wt") as file:
            file.write("\n".join(lines) + "\n")
        digests[name] = digest_of_file(tmp_path / name)
    monkeypatch.setattr(pjm, "FILES", digests)
    monkeypatch.setenv("BILEVELAX_DATA", str(tmp_path))
    return tmp_path


def test_days_and_features(files):
    assert pjm.is_there()
    days = load_pjm()
    assert days.X.shape == (6, 149) and days.y.shape == (6, 24)
    assert [str(d)[:10] for d in days.date[[0, 2, 3, 5]]] == ["2014-03-09", "2014-03-11", "2014-11-02", "2014-11-04"]
    np.testing.assert_array_equal(days.X[1, :24], days.y[0])  # the load of the day before
    hour = np.arange(24.0)
    np.testing.assert_array_equal(days.X[1, 72:144], np.concatenate([hour, hour**2, hour**3]))
    assert days.X[0, 144:147].tolist() == [1, 0, 0] and days.X[1, 144:147].tolist() == [0, 0, 1]  # Sunday; summer time
    np.testing.assert_allclose(np.hypot(*days.X[:, 147:].T), 1)


def test_hours_that_clocks_skip_or_repeat(files):
    spring, autumn = load_pjm().y[[0, 3]]
    assert spring[:5].tolist() == [24, 25, 26, 26, 27]  # no second hour: that of the third
    assert autumn[:4].tolist() == [24, 25, 27, 28]  # of two first hours, the first


def test_a_holiday():
    dates = pd.DatetimeIndex(["2014-07-03", "2014-07-04"])
    assert pjm.calendar(dates)[:, 1].tolist() == [0, 1]


def test_sentences(files, monkeypatch):
    (files / "pjm_load_2012-16.txt.gz").unlink()
    assert not pjm.is_there()
    with pytest.raises(ValueError, match=r"pjm_load_2012-16.txt.gz is not in .*: it is power_sched/"):
        load_pjm()
    (files / "pjm_load_2012-16.txt.gz").write_bytes(b"")
    with pytest.raises(ValueError, match="is not the expected file"):
        load_pjm()
    monkeypatch.delenv("BILEVELAX_DATA")
    with pytest.raises(ValueError, match="needs the environment variable BILEVELAX_DATA"):
        load_pjm()
