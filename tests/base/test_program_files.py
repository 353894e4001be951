"""Compiled programs as files: found by their whole key, bounded, and never in a folder that others can write."""

import os
import stat
import time

import pytest

from bilevelax.base import program_files
from bilevelax.base.program_files import ENTRY, UNFINISHED, ProgramFiles, Refused, private_folder


def test_a_full_disk_stops_nothing(tmp_path, monkeypatch):
    files = ProgramFiles(tmp_path, 1000)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(program_files.os, "replace", full)
    files.put("key", b"value")
    assert files.get("key") is None and files.trouble == "No space left on device"
    assert not list(tmp_path.iterdir())


def test_entries_are_found_by_their_whole_key(tmp_path):
    files = ProgramFiles(tmp_path, 1000)
    files.put("jit_../../f-1", b"one")
    files.put("jit_../../f-2", b"two")
    assert [files.get(f"jit_../../f-{n}") for n in (1, 2, 3)] == [b"one", b"two", None]
    assert len(list(tmp_path.iterdir())) == 2 and (files.read, files.written) == (2, 2)
    files.put("large", bytes(1001))
    assert files.get("large") is None


def aged(path, seconds):
    os.utime(path, (time.time() - seconds,) * 2)


def test_the_size_is_bounded_and_what_was_used_last_stays(tmp_path):
    """40 entries of 10 kB under a bound of 100 kB; the first one is used all the time."""
    here, elsewhere = tmp_path / "jax-1-1-a", tmp_path / "jax-0-0-b"
    here.mkdir(), elsewhere.mkdir()
    for name in ("notes.txt", f"left{UNFINISHED}", f"fresh{UNFINISHED}", f"old{ENTRY}"):
        (elsewhere / name).write_bytes(bytes(100))
    aged(elsewhere / f"left{UNFINISHED}", 2 * program_files.STALE)
    aged(elsewhere / f"old{ENTRY}", 100 * 24 * 3600)
    files = ProgramFiles(here, 100_000)
    largest = 0
    for n in range(40):
        files.put(str(n), bytes([n]) * 10_000)
        aged(files.path(str(n)), 1000 - n)
        assert files.get("0") == bytes(10_000)
        largest = max(largest, sum(entry.size for entry in program_files.entries(tmp_path)))
    assert 80_000 < largest <= 100_000 * (1 + program_files.RESCAN) + 10_032
    kept = [n for n in range(40) if files.get(str(n))]
    assert kept[0] == 0 and kept[1:] == list(range(kept[1], 40)) and 5 < len(kept) <= 10
    assert sorted(path.name for path in elsewhere.iterdir()) == [f"fresh{UNFINISHED}", "notes.txt"]


def test_folders_that_others_can_write_are_refused(tmp_path, monkeypatch):
    good = private_folder(tmp_path / "a" / "b")
    assert stat.S_IMODE(good.stat().st_mode) == stat.S_IMODE(good.parent.stat().st_mode) == 0o700
    assert private_folder(good) == good
    link = tmp_path / "link"
    link.symlink_to(good)
    (tmp_path / "file").write_text("")
    shared, open_parent = tmp_path / "shared", tmp_path / "open"
    for folder, mode in ((shared, 0o770), (open_parent, 0o777)):
        folder.mkdir()
        folder.chmod(mode)
    wrong = {"symbolic link": link, "not a folder": tmp_path / "file", "written by others": shared}
    for words, folder in {**wrong, "written by everyone": open_parent / "inside"}.items():
        with pytest.raises(Refused, match=words):
            private_folder(folder)
    open_parent.chmod(0o1777)  # like /tmp: nobody can replace what is another's
    assert private_folder(open_parent / "inside").is_dir()
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    with pytest.raises(Refused, match="belongs to another user"):
        private_folder(good)
