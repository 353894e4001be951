"""A short run of the fuzzer; `make fuzz` goes on for minutes."""

import signal
import sys

import jax
import pytest

sys.path.insert(0, str(__import__("pathlib").Path(__file__).parent))
import fuzz
import subjects

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
SEED = 20261118
INPUTS = {
    "store": 300,
    "saved": 200,
    "listed": 200,
    "csv": 100,
    "model": 60,
    "older": 60,
    "meta": 60,
    "checkpoints": 20,
    "problems": 60,
}


@pytest.fixture(scope="module")
def fuzzer(tmp_path_factory):
    before = fuzz.watch()
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield fuzz.Fuzzer(tmp_path_factory.mktemp("fuzz"), SEED)
    for clock, answer in before.items():
        signal.signal(clock, answer)


@pytest.mark.parametrize("name", INPUTS)
def test_damaged_files_are_refused_or_read_rightly(name, fuzzer):
    for number in range(INPUTS[name]):
        fuzzer.one(name, number)
    assert not [each for each in fuzzer.wrong if each["subject"] == name]
    assert fuzzer.refused[name] > 0 or name == "checkpoints"  # which mostly go on


def test_the_fuzzer_sees_what_is_wrong(tmp_path, monkeypatch):
    """Without the comparison of digests, other numbers are believed, and the fuzzer says so."""
    broken = fuzz.Fuzzer(tmp_path, SEED)
    monkeypatch.setattr("bilevelax.run.records.saved._require_same", lambda *a: None)
    monkeypatch.setattr("bilevelax.run.records.saved.is_sealed", lambda document: True)
    for number in range(300):
        broken.one("saved", number)
    assert any("another than was saved" in each["told"] for each in broken.wrong)


def test_every_subject_is_fuzzed():
    assert set(INPUTS) | {"commands"} == set(subjects.SUBJECTS)
