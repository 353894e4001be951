"""Hourly electricity load and temperature of PJM, 2008 to 2016, as days with features. Needs pandas."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bilevelax.base.errors import require_package
from bilevelax.datasets.files import VARIABLE, locate

FILES = {
    "pjm_load_2008-11.txt.gz": "65d1bc5a8ba6c79d829ad45814c8df831b66fd0538e6acf3701d790c0a52ff39",
    "pjm_load_2012-16.txt.gz": "24b801e7a3841819a5ed1f2e0f461a08aeceeaa2078041db6e2773324383a57b",
}
OBTAIN = "it is power_sched/pjm_load_data_*.txt of the repository locuslab/e2e-model-learning, compressed with gzip -n"
ZONE = "America/New_York"


class Load(NamedTuple):
    """Days in the order of time."""

    X: np.ndarray  # (days, 149) what is known the day before, not scaled
    y: np.ndarray  # (days, 24) the load of each hour
    date: np.ndarray  # (days,) numpy dates


def is_there() -> bool:
    """Whether the environment says where the files are."""
    folder = os.environ.get(VARIABLE)
    return bool(folder) and all((Path(str(folder)).expanduser() / name).is_file() for name in FILES)


def load_pjm() -> Load:
    """3,192 days with the features of Donti, Amos and Kolter (2017), from two files whose checksums are verified.

    A row of X holds the 24 loads, temperatures and squared temperatures of the day before; the temperatures of the day,
    their squares and cubes; and whether it is a weekend, a federal holiday, in daylight saving time, with cosine and
    sine of its place in the year. Hours that clocks skip take the value of the next; of hours that they repeat, the
    first is kept. The files lie in the folder that BILEVELAX_DATA names.
    """
    parts = [_days(name, digest) for name, digest in FILES.items()]
    return Load(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))


def _days(name: str, digest: str) -> Load:
    pandas = require_package("pandas", "load_pjm", "sklearn")
    columns = ["time", "load", "temperature"]
    path = locate(name, digest, OBTAIN)
    table = pandas.read_csv(path, sep=r"\s+", header=None, names=columns, compression="gzip")
    clock = pandas.to_datetime(table["time"], unit="s", utc=True).dt.tz_convert(ZONE)
    table = table.assign(date=clock.dt.tz_localize(None).dt.normalize(), hour=clock.dt.hour)
    table = table.drop_duplicates(["date", "hour"])
    load, temperature = (
        table.pivot(index="date", columns="hour", values=column).bfill(axis=1).ffill(axis=1) for column in columns[1:]
    )
    before, after = temperature.to_numpy()[:-1], temperature.to_numpy()[1:]
    past = load.to_numpy()[:-1]
    blocks = [past, before, before**2, after, after**2, after**3, calendar(load.index[1:])]
    return Load(np.hstack(blocks), load.to_numpy()[1:], load.index[1:].to_numpy())


def calendar(dates: Any) -> np.ndarray:
    """Of each day: weekend, federal holiday, daylight saving time at its first hour, cosine and sine of the year."""
    require_package("pandas", "load_pjm", "sklearn")
    from pandas.tseries.holiday import USFederalHolidayCalendar

    holidays = USFederalHolidayCalendar().holidays(dates[0], dates[-1])
    saving = [stamp.dst().total_seconds() > 0 for stamp in dates.tz_localize(ZONE)]
    angle = 2 * np.pi * dates.day_of_year.to_numpy() / 365
    weekend = dates.day_of_week.to_numpy() >= 5
    return np.column_stack([weekend, dates.isin(holidays), saving, np.cos(angle), np.sin(angle)]).astype(float)
