"""Python as users start it: a process of its own, without any flag of the tests."""

import atexit
import functools
import json
import os
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

QUICK = "--xla_backend_optimization_level=0"
if version("jaxlib").startswith("0.10."):  # XLA ends a process on a flag that it does not know
    QUICK += " --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"  # half the seconds
OURS = ("XLA", "JAX", "BILEVELAX")  # variables that change how programs are compiled or where data lie


def clean(**environment):
    """The environment without variables of ours, but for those given and the place of compiled programs."""
    ours = {name for name in os.environ if name.startswith(OURS) and name != "BILEVELAX_CACHE"}
    return {name: value for name, value in os.environ.items() if name not in ours} | environment


def python(*words, folder=None, timeout=850, **environment):
    return subprocess.run(
        [sys.executable, *map(str, words)],
        cwd=folder,
        env=clean(**environment),
        capture_output=True,
        text=True,
        timeout=timeout,
    )


@functools.cache
def server():
    """Of this process, until it ends: fork_server.py."""
    words = [sys.executable, Path(__file__).with_name("fork_server.py")]
    started = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=clean())
    atexit.register(started.communicate)
    return started


def forked(*words, folder=None, timeout=850, **environment):
    """`python` without the seconds of importing JAX and others: a fork of a process that has, and did no more."""
    if sys.platform != "linux":
        return python(*words, folder=folder, timeout=timeout, **environment)
    assert not any(name.startswith("JAX") for name in environment), "JAX reads its variables when it is imported"
    with tempfile.TemporaryDirectory() as held:
        out, err = Path(held, "out"), Path(held, "err")
        asked = {"words": [*map(str, words)], "folder": str(folder or Path.cwd()), "timeout": timeout}
        asked |= {"environment": clean(**environment), "out": str(out), "err": str(err)}
        print(json.dumps(asked), file=server().stdin, flush=True)
        code = int(server().stdout.readline())
        return subprocess.CompletedProcess(words, code, out.read_text(), err.read_text())


def in_a_fresh_process(code, folder=None, start=python, **environment):
    """What the code prints last, as JSON; its warnings are errors."""
    done = start("-W", "error", "-c", code, folder=folder, **environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])
