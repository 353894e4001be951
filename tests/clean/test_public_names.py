"""Every public name is called once where nothing of ours is set: fresh process, single precision.

The fast suite compiles quickly, the slow one without any flag.
"""

import json
from pathlib import Path

from fresh_process import forked, python

import bilevelax as bx

SCRIPT = Path(__file__).with_name("every_public_name.py")


def test_every_public_name_works_for_a_user(flags):
    done = (forked if flags else python)("-W", "error", SCRIPT, **flags)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert not told["x64"] and not told["failed"], "\n".join(told["failed"].values())
    assert told["called"] == [name for name in bx.__all__ if name != "__version__"], "give a new public name a call"
