"""Client stores from strangers: nothing outside the folder is read or written, and nothing wrong is believed."""

import hashlib
import json
import os
import shutil

import numpy as np
import pytest

from bilevelax.datasets import ClientStore, ClientWriter, from_csv

SIZES = (3, 1, 5)


def make_clients():
    for i, n in enumerate(SIZES):
        yield {"a": np.arange(2.0 * n).reshape(n, 2) + i, "b": np.arange(n)}


@pytest.fixture
def folder(tmp_path):
    return ClientStore.write(tmp_path / "store", make_clients()).folder


def forge(folder, change):
    """A manifest with a right digest, as whoever changes it on purpose would write it."""
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    change(manifest)
    del manifest["sha256"]
    sha256 = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
    path.write_text(json.dumps({**manifest, "sha256": sha256}))


def column(**parts):
    return lambda manifest: manifest["columns"]["a"].update(parts)


FORGED = {
    "object pointers": (
        column(dtype="|O"),
        r"`columns.a.dtype` must be the dtype of a number, such as '<f8'",
    ),
    "a record of objects": (column(dtype="f8,O"), "`columns.a.dtype` must be the dtype of a number"),
    "dates": (column(dtype="<M8[s]"), "`columns.a.dtype` must be the dtype of a number"),
    "an absolute path": (column(file="/etc/passwd"), "`columns.a.file` must be one of 'a.bin'. Got '/etc/passwd'"),
    "a path upwards": (column(file="../a.bin"), "`columns.a.file` must be one of 'a.bin'. Got '../a.bin'"),
    "a name that is a path": (
        lambda manifest: manifest["columns"].update({"../a": manifest["columns"].pop("a")}),
        "a name in columns` must be a plain identifier. Got '../a'",
    ),
    "a name with an end of line": (
        lambda manifest: manifest["columns"].update({"a\n": manifest["columns"].pop("a")}),
        "must be a plain identifier",
    ),
    "a shape of nothing": (column(shape=[0]), r"`columns.a.shape\[0\]` must be an integer in \[1, "),
    "a shape without end": (column(shape=[10**30]), r"`columns.a.shape\[0\]` must be an integer"),
    "a negative number of clients": (lambda manifest: manifest.update(clients=-1), "`clients` must be an integer"),
    "a number that is a text": (lambda manifest: manifest.update(rows="9"), "`rows` must be an integer"),
    "no columns": (lambda manifest: manifest.update(columns={}), "`columns` must be a map of 1 to"),
    "a list": (lambda manifest: manifest.update(columns=[]), "`columns` must be a map"),
    "longer than it is": (lambda manifest: manifest.update(longest=10**9), "offsets.bin .*longest"),
}


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_manifest_is_refused(name, folder):
    change, message = FORGED[name]
    forge(folder, change)
    with pytest.raises(ValueError, match=message):
        ClientStore(folder)


@pytest.mark.parametrize(
    "text", ["[]", "3", '"store"', "null", "{", "[" * 100_000, "\xff\xfe", '{"format": NaN}', '{"a": 1, "a": 2}']
)
def test_a_manifest_that_is_none(text, folder):
    (folder / "manifest.json").write_text(text, encoding="latin-1")
    with pytest.raises(ValueError, match=r"manifest.json is damaged or from another program \(.+\): write it again"):
        ClientStore(folder)


@pytest.mark.parametrize(
    "offsets", [[0, 3, 4, 8], [0, 4, 3, 9], [1, 3, 4, 9], [0, 3, 3, 9], [0, -1, 4, 9], [0, 2, 4, 9]]
)
def test_offsets_that_are_not_those_of_the_clients(offsets, folder):
    data = np.asarray(offsets, "<i8").tobytes()
    (folder / "offsets.bin").write_bytes(data)
    with pytest.raises(ValueError, match=r"offsets.bin is not the expected file"):
        ClientStore(folder)
    if offsets != [0, 2, 4, 9]:  # which might be the offsets of clients
        sha256 = hashlib.sha256(data).hexdigest()
        forge(folder, lambda manifest: manifest["offsets"].update(sha256=sha256))
        with pytest.raises(ValueError, match=r"offsets.bin must grow from 0 to 9"):
            ClientStore(folder)


def test_links_are_not_followed(folder, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    shutil.move(folder / "a.bin", elsewhere)
    (folder / "a.bin").symlink_to(elsewhere)
    with pytest.raises(ValueError, match=r"a.bin must be a file of its own. Got a link"):
        ClientStore(folder)
    (folder / "a.bin").unlink()
    os.mkfifo(folder / "a.bin")  # whoever opened it would wait for ever
    with pytest.raises(ValueError, match=r"a.bin must have \d+ bytes. Got no file"):
        ClientStore(folder)


@pytest.mark.parametrize("name", ["../victim/a", "/tmp/a", "a/b", "a.b", "", "a\n", "a b", "offsets"])
def test_columns_have_plain_names(name, tmp_path):
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim" / "a.bin").write_text("mine")
    with pytest.raises(ValueError, match="A column must have a plain name"):
        ClientStore.write(tmp_path / "store", [{name: np.ones(2)}])
    assert (tmp_path / "victim" / "a.bin").read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["victim"]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([1.0, np.nan], "Column 'a' must hold finite numbers. Got nan for client 1"),
        ([1.0, -np.inf], "Column 'a' must hold finite numbers. Got -inf for client 1"),
        ([1, 2**31], "Column 'a' must hold integers that JAX can hold, in .*. Got 2147483648 for client 1"),
        ([1, -(2**31) - 1], "Got -2147483649 for client 1"),
        (np.asarray([1, 2**32], np.uint64), "Got 4294967296 for client 1"),
    ],
)
def test_what_jax_would_change_is_not_written(values, message, tmp_path):
    good = np.asarray([1, 2], np.asarray(values).dtype)
    with pytest.raises(ValueError, match=message):
        ClientStore.write(tmp_path / "store", [{"a": good}, {"a": np.asarray(values)}])
    with pytest.raises(ValueError, match=message), ClientWriter(tmp_path / "store") as writer:  # both at once
        writer.add({"a": np.concatenate([good, values]).astype(good.dtype)}, [2, 2])
    assert not list(tmp_path.iterdir())


def test_values_at_the_edge_are_written(tmp_path):
    edge = {"a": np.asarray([2**31 - 1, -(2**31)]), "b": np.asarray([2**32 - 1, 0], np.uint32), "c": np.ones(2, bool)}
    store = ClientStore.write(tmp_path / "store", [edge])
    for name, values in edge.items():
        np.testing.assert_array_equal(store.get([0]).rows[name][0], values)


def csv_of(tmp_path, text, encoding="utf-8"):
    (tmp_path / "t.csv").write_text(text, encoding=encoding, newline="")
    numbers = from_csv(tmp_path / "store", tmp_path / "t.csv", "who")
    store = ClientStore(tmp_path / "store")
    return {name: store.get([i]).rows["v"][0][store.get([i]).mask[0]].tolist() for name, i in numbers.items()}


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        ("who,v\nu,1.5\nw,2\n", "utf-8-sig"),
        ("who;v\nu;1,5\nw;2\n", "utf-8"),
        ("who\tv\nu\t1.5\nw\t2\n", "utf-8"),
        ('who, v\n"u", 1.5\nw, 2\n\n', "utf-8"),
        ("who,v,\r\nu,1.5,\r\nw,2,\r\n", "utf-8"),
    ],
    ids=["byte order mark", "semicolons and decimal commas", "tabs", "spaces and quotes", "separators at the end"],
)
def test_tables_are_read_as_the_newsvendor_reads_them(text, encoding, tmp_path):
    assert csv_of(tmp_path, text, encoding) == {"u": [1.5], "w": [2.0]}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("who,v\nu,1,7\n", r"Row 1 of .*t.csv has 3 cells, but its first line names 2 columns"),
        ("who,v\nu\n", r"Row 1 of .*t.csv has 1 cells, but its first line names 2 columns"),
        ("who,v,v\nu,1,2\n", r"t.csv has two columns named 'v'"),
        ("who,../victim/v\nu,1\n", r"A column must have a plain name.*'../victim/v'"),
        ("who,v\nu,nan\n", r"must hold finite numbers"),
        ("who,v\nu,1e999\n", r"must hold finite numbers"),
        ("who,v\n", r"t.csv has no rows below its header"),
        ("who\nu\n", r"t.csv has no column beside 'who'"),
        ("", r"t.csv is empty"),
        (f"who,v\nu,{'1' * 200_000}\n", r"t.csv is not a table: a cell has more than 131072 characters"),
    ],
)
def test_wrong_tables(text, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        csv_of(tmp_path, text)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["t.csv"]
