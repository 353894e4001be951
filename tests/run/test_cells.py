"""An experiment in cells: interruption, cells that came or changed since, and files that do not belong together."""

import gzip

import pytest

from bilevelax.run.records import cells as store
from bilevelax.run.records.cells import Cell


def three_cells(log, stop_at=None):
    for i in range(3):

        def work(i=i):
            if i == stop_at:
                raise KeyboardInterrupt
            log.append(i)
            return [{"i": i, "value": i * 10 + j} for j in range(2)]

        yield Cell(f"cell {i}", work)


def test_an_interrupted_run_goes_on_where_it_stopped(tmp_path):
    settings, log = {"seeds": 1}, []
    with pytest.raises(KeyboardInterrupt):
        store.collect("toy", tmp_path / "a", "smoke", settings, three_cells(log, stop_at=1))
    with pytest.raises(ValueError, match=r"The records of toy in .* are not complete \(1 cells are\)"):
        store.read("toy", tmp_path / "a")
    with open(tmp_path / "a" / "records.jsonl", "a") as file:
        file.write('{"cell": "cell 1", "i": 1, "value": 99}\n{"cell": "ce')  # torn by a power cut
    found = store.collect("toy", tmp_path / "a", "smoke", settings, three_cells(log))
    assert log == [0, 1, 2]
    whole = store.collect("toy", tmp_path / "b", "smoke", settings, three_cells([]))
    assert found.rows == whole.rows and len(whole.rows) == 6
    store.collect("toy", tmp_path / "a", "smoke", settings, three_cells(log))
    assert log == [0, 1, 2], "finished cells ran again"
    assert found.values("value", i=2) == [20, 21] and found.distinct("i") == [0, 1, 2]


def test_cells_that_an_item_got_since_are_run(tmp_path):
    settings, log = {"seeds": 1}, []
    store.collect("toy", tmp_path, "smoke", settings, list(three_cells(log))[:2])
    found = store.collect("toy", tmp_path, "smoke", settings, three_cells(log))
    assert log == [0, 1, 2] and len(found.rows) == 6 and store.is_complete(tmp_path)


def test_a_finished_cell_can_be_run_again(tmp_path):
    settings, log = {"seeds": 1}, []
    run = lambda **kw: store.collect("toy", tmp_path, "smoke", settings, three_cells(log), **kw)
    before = run()
    after = run(again="cell 1")
    assert log == [0, 1, 2, 1]
    assert sorted(after.rows, key=str) == sorted(before.rows, key=str)
    with pytest.raises(
        ValueError, match=r"No finished cell of toy has 'cell 9' in its name\. They are: cell 0; cell 2"
    ):
        run(again="cell 9")
    assert store.is_complete(tmp_path)


def test_cells_that_say_what_they_depend_on_survive_a_change_of_the_rest(tmp_path):
    """Another constant of one cell, or one cell less: the others are kept, with the days on which they ran."""
    log = []

    def cells(constants):
        for name, value in constants.items():
            yield Cell(name, lambda name=name: log.append(name) or [{"name": name}], {"constant": value})

    run = lambda settings, constants: store.collect("toy", tmp_path, "full", settings, cells(constants))
    run({"seeds": 2, "grid": [1, 2]}, {"a": 1, "b": 1})
    path = tmp_path / "records.jsonl.gz"
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes()).replace(b'"date": "20', b'"date": "19')))
    after = run({"seeds": 2, "grid": [1]}, {"a": 1, "b": 2})
    assert log == ["a", "b", "b"] and after.settings["grid"] == [1]
    assert [cell["date"][:2] for cell in after.manifest["cells"].values()] == ["19", "20"]
    assert "19" in store.where_and_when(after.manifest)[:2] and " to 20" in store.where_and_when(after.manifest)
    assert run({"seeds": 2, "grid": [1]}, {"b": 2}).distinct("name") == ["b"] and len(log) == 3
    with pytest.raises(ValueError, match=r"holds records of toy with other settings \(scale full, 2 seeds\)"):
        run({"seeds": 3, "grid": [1]}, {"b": 2})
    assert store.is_complete(tmp_path)


def test_records_of_other_settings_are_refused(tmp_path):
    store.collect("toy", tmp_path, "smoke", {"seeds": 1}, three_cells([]))
    with pytest.raises(ValueError, match=r"holds records of toy with other settings \(scale smoke, 1 seeds\)"):
        store.collect("toy", tmp_path, "quick", {"seeds": 2}, three_cells([]))
    with pytest.raises(ValueError, match=r"There are no records of toy in .* Run `bilevelax paper toy` first"):
        store.read("toy", tmp_path / "nothing")


def test_not_a_number_is_no_record(tmp_path):
    with pytest.raises(ValueError, match="not JSON compliant"):
        store.append(tmp_path / "rows.jsonl", [{"value": float("nan")}])
