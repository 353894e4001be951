"""Programs as if each had a process of its own, without the second or two in which it imports what others wrote.

This process imports JAX and others, starts nothing, and forks at every request: a line of JSON on standard input with
the words after ``python``, the folder, the environment and files for what is written. It answers with a return code.
Bilevelax is never imported before the fork, so a program meets it as it comes.
"""

import contextlib
import gc
import importlib
import json
import os
import runpy
import signal
import sys
import types
import warnings

from lowering import leave_out_lines, reuse_contexts

OTHERS = (
    *("numpy", "scipy.special", "scipy.stats", "scipy.optimize", "jax", "jax.numpy", "optax", "equinox"),
    *("matplotlib.pyplot", "pandas", "sklearn.ensemble", "sklearn.linear_model", "sklearn.model_selection"),
    *("orbax.checkpoint", "typer", "rich.console"),
)


def serve():
    """Answers until the input ends; returns only in a fork, with what it shall run."""
    for line in sys.stdin:
        asked = json.loads(line)
        child = os.fork()
        if not child:
            return asked
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)
    return None


def become(asked):
    """The surroundings of a new process."""
    for descriptor, name in enumerate(("/dev/null", asked["out"], asked["err"])):
        opened = os.open(name, os.O_RDWR | os.O_CREAT)
        os.dup2(opened, descriptor)
        os.close(opened)
    os.environ.clear()
    os.environ.update(asked["environment"])
    os.chdir(asked["folder"])
    signal.alarm(asked["timeout"])


def run(words):
    """``python *words``, where words are [-W error] and -c code, -m module or a script."""
    if words[:2] == ["-W", "error"]:
        warnings.simplefilter("error")
        words = words[2:]
    kind, what = (words[0], words[1]) if words[0] in ("-c", "-m") else ("", words[0])
    sys.argv = [kind or what, *words[2 if kind else 1 :]]
    sys.path[0] = "" if kind else os.path.dirname(what)
    if kind == "-m":
        runpy.run_module(what, run_name="__main__", alter_sys=True)
        return
    code = what
    if not kind:
        with open(what, encoding="utf-8") as script:
            code = script.read()
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    main.__file__ = what
    exec(compile(code, what if not kind else "<string>", "exec"), main.__dict__)


if __name__ == "__main__":
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name in OTHERS:
            with contextlib.suppress(ImportError):  # an extra that is not installed
                importlib.import_module(name)
    reuse_contexts()
    leave_out_lines()
    gc.collect()
    gc.freeze()
    if asked := serve():
        become(asked)
        run(asked["words"])
