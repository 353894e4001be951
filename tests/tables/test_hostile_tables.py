"""Tables from strangers: every one is answered at once, in one sentence, and nothing runs in a spreadsheet unseen."""

import zipfile

import numpy as np
import pytest

from bilevelax.datasets.csv_layout import layout_of
from bilevelax.tables.csv_files import read_table, write_with
from bilevelax.tables.dates import dates_of, reads_day_first
from bilevelax.tables.demands import targets_of


def table_of(tmp_path, text, name="t.csv"):
    (tmp_path / name).write_text(text)
    return tmp_path / name


@pytest.mark.timeout(60)  # quadratic work on these would take many minutes
def test_many_columns(tmp_path):
    names = [f"c{i}" for i in range(200_000)]
    assert layout_of(table_of(tmp_path, ",".join(names) + "\n")).names == names
    with pytest.raises(ValueError, match="two columns named 'c7'"):
        layout_of(table_of(tmp_path, ",".join([*names, "c7"]) + "\n"))


@pytest.mark.timeout(60)
@pytest.mark.parametrize("date", ["1" * 10**6, "2024-01-" + "0" * 10**6 + "1", "1." * 10**5, "12/" + "3" * 10**6])
def test_a_date_without_end(tmp_path, date):
    table = read_table(table_of(tmp_path, f"date,v\n2024-01-01,1\n{date},2\n"))
    day_first = reads_day_first(table["date"])
    with pytest.raises(ValueError, match=r"must hold dates such as 2024-12-31.* in row 2") as told:
        dates_of(table, "date", "t.csv", day_first)
    assert len(str(told.value)) < 300


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_a_cell_without_end(tmp_path, separator):
    path = table_of(tmp_path, f"a{separator}demand\n1{separator}{'x' * 200_000}\n2{separator}3\n")
    with pytest.raises(ValueError) as told:
        targets_of(read_table(path), ["demand"], path)
    assert len(str(told.value).splitlines()) == 1 and len(str(told.value)) < 300


@pytest.mark.parametrize("ending", ["zip", "gz", "xz", "bz2"])
def test_what_a_file_is_called_does_not_matter(tmp_path, ending):
    path = table_of(tmp_path, "a,b\n1,2\n", f"t.{ending}")
    assert read_table(path)["b"].tolist() == [2]
    write_with(path, {"order": np.ones(1)}, tmp_path / f"out.{ending}")
    assert (tmp_path / f"out.{ending}").read_text().splitlines() == ["a,b,order", "1,2,1.0"]
    (tmp_path / f"real.{ending}").write_bytes(b"PK\x03\x04\xff\xfe\x00")
    with pytest.raises(ValueError, match="is not UTF-8 text"):
        read_table(tmp_path / f"real.{ending}")


def test_an_archive_of_a_version_that_nobody_wrote(tmp_path):
    """zipfile refuses it while the file is asked what it is: it is no spreadsheet, so it is read as text."""
    path = tmp_path / "t.csv"
    with zipfile.ZipFile(path, "w") as parts:
        parts.writestr("xl/workbook.xml", b"\xff\xfe")
    data = bytearray(path.read_bytes())
    data[data.index(b"PK\x01\x02") + 6] = 78
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"t\.csv is not UTF-8 text"):
        read_table(path)


def test_formulas_are_told_of(tmp_path):
    text = 'a,b,c\n-1,=1+1,x\n+2.5,"@SUM(A1)",y\n-3e2,-2+3+cmd,z\n'
    path = table_of(tmp_path, text)
    notes = write_with(path, {"order": np.ones(3)}, tmp_path / "out.csv")
    assert notes == ["3 cells of column b begin like a formula (=1+1): import the file as text into a spreadsheet"]
    assert (tmp_path / "out.csv").read_text().splitlines()[1] == "-1,=1+1,x,1.0"  # cells stay as they were
    harmless = table_of(tmp_path, "a;b\n-1,5;-\n+2;+\n-3;x\n", "harmless.csv")
    assert write_with(harmless, {"order": np.ones(3)}, tmp_path / "out.csv") == []
    again = table_of(tmp_path, "a,order\n1,2\n", "again.csv")
    assert write_with(again, {"order": np.ones(1)}, tmp_path / "out.csv") == [f"column order of {again} was replaced"]
