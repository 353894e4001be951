"""The table of cases that mislead, row by row, and that it can fail."""

import pytest

from bilevelax.testing.__main__ import main
from bilevelax.testing.adversarial import CASES, Case


@pytest.mark.parametrize(
    "case", [pytest.param(case, id=case.name, marks=[pytest.mark.slow] * case.slow) for case in CASES]
)
def test_what_is_said(case):
    assert not case.failed()


def test_the_table_is_large_and_its_names_differ():
    assert len(CASES) >= 60 and len({case.name for case in CASES}) == len(CASES)


@pytest.mark.parametrize(("says", "never"), [("something else", "Traceback"), ("silent", "silent")])
def test_a_case_can_fail(says, never):
    assert Case("", lambda: "silent", says, never).failed() == "silent"


def test_the_command_runs_it(capsys):
    assert main(["adversarial", "--only", "no samples"]) == 0
    assert "1 of 1 cases say what they must." in capsys.readouterr().out
