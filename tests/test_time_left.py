"""On a slow machine tests end in time: those that there is no time for are counted, and said not to have run."""

from pathlib import Path

from fresh_process import python


def test_no_test_begins_when_time_is_over():
    here = Path(__file__)
    words = ("-m", "pytest", "-n", "0", "-p", "no:cacheprovider", here.with_name("base") / "test_text_table.py")
    done = python(*words, folder=here.parents[1], BILEVELAX_TESTS_UNTIL="1")
    assert done.returncode == 0, done.stdout
    assert "tests were not run: no time left" in done.stdout and "passed" not in done.stdout
