"""Many devices: who computes what, and that nothing else changes. JAX counts its devices once, hence processes."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import optax
import pytest
from fresh_process import QUICK, forked

import bilevelax as bx
from bilevelax.core.levels import plan_of
from bilevelax.run.devices import axis_of, deal, expected_levels, local_mesh

SCRIPT = Path(__file__).parents[1] / "devices_worker.py"
WORKER = [sys.executable, str(SCRIPT)]
LIMIT = 800  # seconds


@pytest.mark.parametrize(("K", "m", "devices"), [(3, 32, 8), (3, 32, 1), (6, 64, 16), (8, 1024, 64), (2, 6, 6)])
def test_every_lane_once_and_deepest_first(K, m, devices):
    levels = expected_levels(plan_of(bx.rt_mlmc(K).levels, m))
    lanes = deal(levels, devices)
    assert lanes.shape == (devices, m // devices)
    np.testing.assert_array_equal(np.sort(lanes.ravel()), np.arange(m))
    for mine in lanes:
        assert list(levels[mine]) == sorted(levels[mine], reverse=True)  # neighbours climb together


def test_loads_are_even():
    """K = 6, 64 lanes a device, 64 devices: a lane of level k costs 2^k."""
    plan = plan_of(bx.rt_mlmc(6).levels, 64 * 64)
    levels = expected_levels(plan)
    loads = (2.0**levels)[deal(levels, 64)].sum(1)
    assert loads.max() / loads.mean() < 1.1
    rng = np.random.default_rng(0)
    at_random = (2.0 ** rng.permutation(levels)).reshape(64, 64).sum(1)
    assert at_random.max() / at_random.mean() > 1.3


def test_eight_devices_in_one_process(tmp_path):
    done = forked(SCRIPT, "eight", tmp_path, timeout=LIMIT, XLA_FLAGS=QUICK)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found.pop("devices") == 8
    held = found.pop("rows")  # every device meets the long client; padded it would hold 20 * 2 * 2000 rows
    assert len(held["each"]) == 8 and all(2000 < n <= held["of"] for n in held["each"])
    require_the_run_of_one(found)
    assert found["rt_mlmc"]["same bits"]


def require_the_run_of_one(found):
    for name, each in found.items():
        assert 0 <= each["error"] < 1e-12 * each["size"] < 1, name  # sums in another order
        assert all(each["cost"])
        np.testing.assert_allclose(each["rows"], each["rows of one"], rtol=1e-6)  # levels are averaged in float32


def test_rows_on_disk_are_read_by_every_device():
    done = forked(SCRIPT, "disk", timeout=LIMIT, XLA_FLAGS=QUICK)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert set(found) == {"amortised", "reduced"}
    require_the_run_of_one(found)


def test_the_work_of_amortised_is_split():
    """A device has an eighth of the pairs, and all of both optimizers: measured 0.15. Not split, it is 1."""
    done = forked(SCRIPT, "share", timeout=LIMIT, XLA_FLAGS=QUICK)
    assert done.returncode == 0, done.stderr[-3000:]
    share = json.loads(done.stdout.splitlines()[-1])
    assert 0.1 < share < 0.25


def test_devices_on_the_command_line(tmp_path):
    words = "run quadratic --estimator maml --contexts 4 --devices 2 --T 4 --every 2 --optimizer sgd"
    command = ["-m", "bilevelax", *words.split(), "--out", tmp_path / "run"]
    done = forked(*command, timeout=LIMIT, XLA_FLAGS=QUICK)
    assert done.returncode == 0, done.stderr[-2000:]
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert manifest["config"]["devices"] == 2 and len(manifest["devices"]) == 2


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def job(folder, T, die_at=-1):
    """Two processes with two devices each; what they print, or None of one that failed."""
    port, env = str(free_port()), {**os.environ, "DIE_AT": str(die_at), "JAX_PLATFORMS": "cpu"}
    words = [[*WORKER, "host", str(i), "2", port, str(folder), str(T)] for i in range(2)]
    hosts = [subprocess.Popen(w, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env) for w in words]
    try:
        if die_at >= 0:
            hosts[1].wait(LIMIT)
            hosts[0].kill()  # what a scheduler does when one of a job's processes is gone
        found = [host.communicate(timeout=LIMIT) for host in hosts]
    finally:
        for host in hosts:
            host.kill()
    return [(host.returncode, out, err) for host, (out, err) in zip(hosts, found, strict=True)]


@pytest.mark.slow  # six processes
def test_two_hosts_one_is_killed_and_the_job_goes_on(tmp_path):
    """Killed after 20 of 30 steps: the job that goes on gives the bits of one that was never killed."""
    whole = job(tmp_path / "whole", 30)
    assert [code for code, *_ in whole] == [0, 0], whole[0][2][-3000:] + whole[1][2][-3000:]
    assert job(tmp_path / "killed", 30, die_at=20)[1][0] == -9
    again = job(tmp_path / "killed", 30)
    assert [code for code, *_ in again] == [0, 0], again[0][2][-3000:] + again[1][2][-3000:]
    expected = json.loads(whole[0][1].splitlines()[-1])
    for _, out, _ in again:
        found = json.loads(out.splitlines()[-1])
        assert found["resumed"][-1] in (10, 20)
        assert found["x"] == expected["x"] and found["rows"] == expected["rows"]
    rows = [json.loads(line)["t"] for line in (tmp_path / "killed" / "history.jsonl").read_text().splitlines()]
    assert rows == [0, 10, 20, 30]


def test_what_a_mesh_needs(quadratic, x, key):
    mesh = jax.sharding.Mesh(np.asarray(jax.devices()[:1]), ("contexts",))
    with pytest.raises(ValueError, match="`estimator` of minimize must be a minibatch where `mesh` is given"):
        bx.minimize(quadratic, bx.rt_mlmc(1), optax.sgd(0.1), x, key=key, T=1, mesh=mesh)
    with pytest.raises(ValueError, match=r"`mesh` of minimize must have one axis.*Got \('a', 'b'\)"):
        axis_of(jax.sharding.Mesh(np.asarray(jax.devices()[:1]).reshape(1, 1), ("a", "b")))
    with pytest.raises(ValueError, match=r"`devices` of local_mesh must not exceed the \d+ devices there are. Got 99."):
        local_mesh(99)
