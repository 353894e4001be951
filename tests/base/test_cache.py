"""The cache of compiled programs: loaded by the next process, right whatever happens to its files, off when told."""

import json
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from fresh_process import QUICK, clean, forked, in_a_fresh_process, python

import bilevelax as bx
from bilevelax.base import cache
from bilevelax.base.program_files import ENTRY, UNFINISHED

COUNTED = """
import collections, json, jax, jax.numpy as jnp, numpy as np
counted = collections.Counter()
jax.monitoring.register_event_listener(lambda event, **_: counted.update([event.rpartition("/")[2]]))
"""
WORK = f"""{COUNTED}
import bilevelax as bx
from bilevelax.applications import quadratic
found = bx.cache({{folder!r}})
app = quadratic.make()
grad = jax.jit(lambda key, x: bx.saa(2).estimate(key, app.problem, x, ())[0].grad)(jax.random.key(1), app.x1)
values = [float(jnp.sum(grad)), float(jax.jit(lambda x: jnp.sin(x) @ x)(jnp.arange(5.0)))]
told = {{{{"on": found.on, "why": found.why, "values": values, "now": bx.cache({{folder!r}})[3:]}}}}
print(json.dumps(told | {{{{"hits": counted["cache_hits"], "misses": counted["cache_misses"]}}}}))
"""


LITTLE = f"""{COUNTED}
import bilevelax as bx
found = bx.cache({{folder!r}})
value = float(jax.jit(lambda x: x @ x)(np.arange(10.0, dtype=np.float32)))
print(json.dumps([found.on, found.why, value, counted["cache_hits"]]))
"""


def in_a_fork(code, **environment):
    """JAX is imported already, and compiles quickly."""
    return in_a_fresh_process(code, start=forked, XLA_FLAGS=QUICK, **environment)


def work(folder):
    """What a process that keeps its programs there tells of them."""
    return in_a_fork(WORK.format(folder=str(folder)))


def files_of(folder):
    return sorted(Path(folder).glob(f"*/*{ENTRY}"))


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    """(a folder that one process has filled, what it told)."""
    folder = tmp_path_factory.mktemp("cache") / "programs"
    return folder, work(folder)


def test_the_second_process_compiles_nothing_and_finds_the_same_numbers(filled):
    folder, first = filled
    second = work(folder)
    assert first["on"] and first["misses"] > 3
    assert second["misses"] == 0 and second["hits"] == first["misses"] - 1  # the trial whether programs reload
    assert second["values"] == first["values"]
    assert (
        first["now"] == second["now"] == [len(files_of(folder)), sum(path.stat().st_size for path in files_of(folder))]
    )


def test_it_belongs_to_its_user_alone(filled):
    folder, _ = filled
    for path in (folder, *folder.rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) & 0o022 == 0
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o700 for path in (folder, *folder.iterdir()))


MUTATIONS = f"""{COUNTED}
import os, random, sys
from pathlib import Path
from bilevelax.base import cache
cache.switch_on(Path(sys.argv[1]))
files, rng, x = cache._held.files, random.Random(0), np.linspace(1, 2, 8, dtype=np.float32)
def loaded():
    return jax.jit(lambda x: jnp.cumsum(x) / x).lower(x).compile()
def other():
    return jax.jit(lambda x: jnp.cumsum(x) * x).lower(x).compile()
before = set(files.folder.iterdir()); loaded(); [place] = set(files.folder.iterdir()) - before
before = set(files.folder.iterdir()); other(); [stranger] = set(files.folder.iterdir()) - before
whole, alien = place.read_bytes(), stranger.read_bytes()
def flipped(a):
    at = rng.randrange(len(a))
    return a[:at] + bytes([a[at] ^ (1 << rng.randrange(8))]) + a[at + 1 :]
KINDS = [
    lambda: whole[: rng.randrange(len(whole))],
    lambda: rng.randbytes(len(whole)),
    lambda: flipped(whole),
    lambda: b"",
    lambda: whole + rng.randbytes(3),
    lambda: alien,
    lambda: whole[:32] + alien[32:],
    lambda: whole[:40] + bytes(len(whole) - 40),
]
wrong = missed = healed = 0
for n in range(100):
    place.write_bytes(KINDS[n % len(KINDS)]())
    written = files.written
    wrong += not np.allclose(loaded()(x), np.cumsum(x) / x, rtol=1e-6)
    missed += files.written == written + 1
    healed += loaded() is not None and files.written == written + 1
strange = []
for make in (lambda: place.mkdir(), lambda: place.symlink_to(stranger), lambda: os.mkfifo(place)):
    place.unlink(missing_ok=True)
    make()
    strange.append(bool(np.allclose(loaded()(x), np.cumsum(x) / x, rtol=1e-6)))
    place.rmdir() if place.is_dir() and not place.is_symlink() else None
print(json.dumps([wrong, missed, healed, strange]))
"""


def test_damaged_entries_are_compiled_again(tmp_path):
    """100 mutations of an entry: cut, overwritten, one bit, empty, longer, another program's; then no file at all."""
    done = forked("-W", "error", "-c", MUTATIONS, tmp_path / "programs", XLA_FLAGS=QUICK)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [0, 100, 100, [True, True, True]]


def test_processes_that_share_it_do_not_disturb_each_other(tmp_path, filled):
    folder = tmp_path / "programs"
    words = [sys.executable, "-W", "error", "-c", WORK.format(folder=str(folder))]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    several = [subprocess.Popen(words, env=clean(XLA_FLAGS=QUICK), **streams) for _ in range(2)]
    for process in several:
        out, err = process.communicate(timeout=600)
        assert process.returncode == 0, err
        assert json.loads(out.splitlines()[-1])["values"] == filled[1]["values"]
    assert not list(folder.rglob(f"*{UNFINISHED}"))
    assert len(files_of(folder)) == len(files_of(filled[0]))


def test_the_switch_is_respected(tmp_path):
    told = in_a_fork(LITTLE.format(folder=str(tmp_path / "programs")), BILEVELAX_CACHE="0")
    assert told == [False, "BILEVELAX_CACHE=0", 285.0, 0]
    assert not (tmp_path / "programs").exists()


def test_a_cache_of_jax_s_own_is_left_alone(tmp_path, monkeypatch):
    own = {"JAX_COMPILATION_CACHE_DIR": str(tmp_path / "own"), "BILEVELAX_CACHE": str(tmp_path / "ours")}
    code = "import json, bilevelax as bx; print(json.dumps(list(map(str, bx.cache()))))"
    on, why, *_ = in_a_fresh_process(code, **own)
    assert on == "False" and str(tmp_path / "own") in why and not (tmp_path / "ours").exists()


def test_an_import_switches_nothing_on(tmp_path):
    code = """
import json, bilevelax as bx, jax
bx.minimize, jax.numpy.ones(3).sum()
from jax._src import compilation_cache
print(json.dumps([compilation_cache._cache is None, jax.config.jax_compilation_cache_dir]))
"""
    assert in_a_fresh_process(code, BILEVELAX_CACHE=str(tmp_path / "programs")) == [True, None]
    assert not (tmp_path / "programs").exists()


REJECTING = f"""{COUNTED}
import sys, warnings
from jax._src import compilation_cache
from bilevelax.base import cache
usual = compilation_cache.get_executable_and_time
def rejecting(*args):
    if usual(*args)[0] is not None:
        raise RuntimeError("Target machine feature +prefer-no-gather is not supported on the host machine.")
    return None, None
compilation_cache.get_executable_and_time = rejecting
def tell():
    try:
        cache.switch_on()
    except cache.Refused as refused:
        return [str(refused), refused.news]
told = [tell(), tell(), cache.state()[:2], compilation_cache._cache is None]
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    told.append(cache.cache().on)
print(json.dumps([*told, [str(each.message) for each in caught]]))
"""


def test_a_cpu_that_rejects_its_own_programs_is_told_once_and_left_alone(tmp_path):
    """jax-ml/jax issue 38445, imitated: JAX reads an entry and cannot load it."""
    first, second, state, untouched, on, warned = in_a_fork(REJECTING, BILEVELAX_CACHE=str(tmp_path / "programs"))
    assert "cannot load its own programs" in first[0] and first[1] is True
    assert second == [first[0], False] and state == [False, first[0]] and untouched and not on
    assert warned == [f"Compiled programs are not kept: {first[0]}"]


def test_a_run_goes_on_where_there_can_be_no_cache(tmp_path):
    (tmp_path / "file").write_text("")
    done = forked("-c", LITTLE.format(folder=str(tmp_path / "file" / "programs")))
    on, why, value, hits = json.loads(done.stdout.splitlines()[-1])
    assert not on and "cannot be made" in why and (value, hits) == (285.0, 0)
    assert done.stderr.count("Compiled programs are not kept") == 1


@pytest.mark.parametrize(
    ("system", "environment", "expected"),
    [
        ("linux", {}, "HOME/.cache/bilevelax"),
        ("linux", {"XDG_CACHE_HOME": "/var/own"}, "/var/own/bilevelax"),
        ("linux", {"XDG_CACHE_HOME": "relative"}, "HOME/.cache/bilevelax"),
        ("darwin", {"XDG_CACHE_HOME": "/var/own"}, "HOME/Library/Caches/bilevelax"),
        ("win32", {"LOCALAPPDATA": "/local"}, "/local/bilevelax"),
        ("linux", {"BILEVELAX_CACHE": "/elsewhere"}, "/elsewhere"),
        ("linux", {"BILEVELAX_CACHE": "1"}, "HOME/.cache/bilevelax"),
    ],
)
def test_it_lies_in_the_user_s_cache_folder(system, environment, expected, monkeypatch, tmp_path):
    for name in ("XDG_CACHE_HOME", "LOCALAPPDATA", "BILEVELAX_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(cache.sys, "platform", system)
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert cache.default_folder() == Path(expected.replace("HOME", str(tmp_path)))


def test_another_build_or_cpu_has_its_own_folder(monkeypatch):
    here = cache.build()
    assert here == cache.build() and here.startswith("jax-")
    monkeypatch.setattr(cache, "_native_library", lambda: ["_jax.so 1"])
    other_build = cache.build()
    monkeypatch.setattr(cache.platform, "machine", lambda: "another")
    assert len({here, other_build, cache.build()}) == 3


@pytest.mark.parametrize("megabytes", [0, -1, float("nan"), "much"])
def test_a_bad_bound_is_refused(megabytes):
    with pytest.raises(ValueError, match="`megabytes` of cache must be a positive number"):
        cache.cache(megabytes=megabytes)


COMMAND = f"""{COUNTED}
import sys
sys.argv = ["bilevelax", *sys.argv[1:]]
from bilevelax.__main__ import run
try:
    run()
except SystemExit as stop:
    assert not stop.code
print(json.dumps([counted["cache_hits"], counted["cache_misses"]]))
"""


def test_commands_keep_their_programs(tmp_path):
    """A short run: a few programs, compiled by the first call only."""
    words = ["run", "quadratic", "--T", "2", "--every", "2", "--K", "2", "-a", "d_x=2", "--contexts", "2"]
    counts, ends = [], []
    for name in ("first", "second"):
        kept = {"BILEVELAX_CACHE": str(tmp_path / "programs"), "XLA_FLAGS": QUICK}
        done = forked("-c", COMMAND, *words, "--out", tmp_path / name, **kept)
        assert done.returncode == 0, done.stderr
        counts.append(json.loads(done.stdout.splitlines()[-1]))
        ends.append(bx.Result.load(tmp_path / name).x.tolist())
    (_, compiled), (loaded, compiled_again) = counts
    assert compiled > 0 and compiled_again == 0 and loaded >= compiled - 1
    assert ends[0] == ends[1]


def test_the_version_tells_of_it(tmp_path):
    words = ["-m", "bilevelax", "--version", "--verbose"]
    told = python(*words, BILEVELAX_CACHE=str(tmp_path / "programs")).stdout
    assert f"Cache of compiled programs: on; {tmp_path / 'programs'}; 0 programs, 0.0 MB" in told
    assert "jaxlib" in told and not (tmp_path / "programs").exists()
    assert "Cache of compiled programs: off; BILEVELAX_CACHE=0" in python(*words, BILEVELAX_CACHE="0").stdout
