"""Where the platform has no `fcntl`, runs are saved all the same; only nobody is kept out of their folders."""

from fresh_process import QUICK, forked

CODE = """
import sys
sys.modules["fcntl"] = None
import bilevelax as bx
import bilevelax.cli
import jax, jax.numpy as jnp, optax
bx.cache()
from pathlib import Path
from bilevelax.run.records.run_folder import runs_in, set_aside, status_of
problem = bx.stochastic(lambda x, xi: jnp.sum((x - xi) ** 2), lambda key, data: jax.random.normal(key, (2,)))
folder = Path(sys.argv[1])
settings = {"key": jax.random.key(0), "every": 2, "checkpoint": bx.Checkpoint(folder)}
run = lambda T: bx.minimize(problem, bx.rt_mlmc(1), optax.sgd(0.1), jnp.ones(2), T=T, **settings)
run(2)
assert run(4).manifest["resumed_at"] == [2]
(found,) = runs_in(folder.parent)
assert found.state == "finished" and found.t == 4
text = (folder / "status.json").read_text()
(folder / "status.json").write_text(text.replace("finished", "running"))
assert status_of(folder).state == "running"  # no lock could tell that it was killed
assert set_aside(folder) == folder.with_name("run.1")
"""


def test_runs_are_saved_where_nothing_can_be_locked(tmp_path):
    done = forked("-c", CODE, tmp_path / "run", timeout=300, XLA_FLAGS=QUICK)
    assert done.returncode == 0, done.stderr[-2000:]
