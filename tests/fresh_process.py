"""Python as users start it: a process of its own, without any flag of the tests."""

import json
import os
import subprocess
import sys
from importlib.metadata import version

QUICK = "--xla_backend_optimization_level=0"
if version("jaxlib").startswith("0.10."):  # XLA ends a process on a flag that it does not know
    QUICK += " --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"  # half the seconds
OURS = ("XLA", "JAX", "BILEVELAX")  # variables that change how programs are compiled or where data lie


def clean(**environment):
    """The environment without variables of ours, but for those given and the place of compiled programs."""
    ours = {name for name in os.environ if name.startswith(OURS) and name != "BILEVELAX_CACHE"}
    return {name: value for name, value in os.environ.items() if name not in ours} | environment


def python(*words, folder=None, timeout=600, **environment):
    return subprocess.run(
        [sys.executable, *map(str, words)],
        cwd=folder,
        env=clean(**environment),
        capture_output=True,
        text=True,
        timeout=timeout,
    )


def in_a_fresh_process(code, folder=None, **environment):
    """What the code prints last, as JSON; its warnings are errors."""
    done = python("-W", "error", "-c", code, folder=folder, **environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])
