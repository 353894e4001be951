"""What a run is made of, as digests: a saved run goes on only where every one of them is the same.

Functions are compared by the programs they lower to, so two equal lambdas are equal and a changed
constant is a change; arrays by their bytes. No name of a file or module takes part: files may move.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import optax
from jax import random

from bilevelax.core.estimate import Estimator, innermost
from bilevelax.core.problem import Key, Problem, PyTree, X
from bilevelax.problems.validate import check_shapes, outcome
from bilevelax.run.records.history import versions

Identity = dict[str, Any]  # plain JSON
PLAIN = (bool, int, float, str, type(None))
GOES_ON = ("0.1.0",)  # versions of this library, before this one, whose runs go on
GENERATION = 2  # of our estimators' programs: raised where they are written otherwise but compute the same; 0.1.0 had 1


def digest(*parts: bytes) -> str:
    """SHA256 of the parts, each with its length."""
    found = hashlib.sha256()
    for part in parts:
        found.update(len(part).to_bytes(8, "little"))
        found.update(part)
    return found.hexdigest()


def plain(leaf: Any) -> Any:
    """A typed key as its numbers, anything else as it is."""
    is_key = isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return random.key_data(leaf) if is_key else leaf


def digest_of_arrays(tree: PyTree) -> str:
    """Of the leaves' dtypes, shapes and bytes."""
    arrays = [np.ascontiguousarray(plain(leaf)) for leaf in jax.tree.leaves(tree)]
    return digest(*(part for a in arrays for part in (f"{a.dtype}{a.shape}".encode(), a.tobytes())))


def _program(function: Callable[..., Any], *arguments: Any) -> str:
    return digest(jax.jit(function).lower(*arguments).as_text().encode())


def _problem(problem: Problem, x: X, key: Key) -> dict[str, str]:
    xi, eta, y = check_shapes(problem, x)
    programs: dict[str, tuple[Any, ...]] = {
        "f": (lambda p, x, y, eta, xi: p.f(x, y, eta, xi), x, y, eta, xi),
        "g": (lambda p, x, y, eta, xi: p.g(x, y, eta, xi), x, y, eta, xi),
        "sample_context": (lambda p, key: p.context(key), key),
        "sample_conditional": (lambda p, key, xi: outcome(key, xi, p), key, xi),
        "init_y": (lambda p, x, xi: p.start(x, xi), x, xi),
    }
    found = {name: _program(function, problem, *rest) for name, (function, *rest) in programs.items()}
    stored = problem.source.digest if problem.source else ""
    return {"data": digest_of_arrays(problem.data) + stored, **found}


def padded(problem: Problem) -> str | None:
    """The data of clients on disk as 0.1.0 laid them out: store, sampling, longest and resident are all in them.

    Padded to the longest client they may be large: asked for where a run of 0.1.0 is to go on, and only there.
    """
    source = problem.source
    return digest_of_arrays(source.padded()) + source.digest if source and source.padded else None


def _settings(settings: Any) -> dict[str, Any]:
    """What can be read of an estimator's settings."""
    named = settings._asdict() if hasattr(settings, "_asdict") else {}
    return {name: value for name, value in named.items() if isinstance(value, PLAIN)}


def identity(
    problem: Problem, estimator: Estimator, optimizer: optax.GradientTransformation, x1: X, key: Key, every: int
) -> Identity:
    """Everything that the numbers of a run depend on, but for T, the machine and the number of devices."""
    est_state = jax.eval_shape(estimator.init, problem, x1)
    opt_state = jax.eval_shape(optimizer.init, x1)
    extra = lambda x: optimizer.extra(problem, x) if hasattr(optimizer, "extra") else {}
    return {
        "generation": GENERATION,
        "versions": {**versions(), "x64": bool(jax.config.read("jax_enable_x64"))},
        "problem": _problem(problem, x1, key),
        "x1": digest_of_arrays(x1),
        "key": np.asarray(plain(key)).tolist(),
        "every": every,
        "settings": _settings(innermost(estimator).settings),
        "estimator": _program(lambda *a: estimator.estimate(*a)[0].grad, key, problem, x1, est_state),
        "optimizer": _program(lambda *a: optimizer.update(*a, **extra(a[2])), x1, opt_state, x1),
    }


def difference(now: Identity, before: Identity, older: Callable[[], str | None] = lambda: None) -> str | None:
    """The first thing in which two runs differ, in words; None if there is none. ``older``: see `padded`."""
    for name in ("versions", "settings"):
        changed = [
            f"{part} is {value}, was {before[name].get(part)}"
            for part, value in now[name].items()
            if value != before[name].get(part) and not (part == "bilevelax" and before[name].get(part) in GOES_ON)
        ]
        if changed:
            whose = "a setting of `solve`" if now.get("of") == "solve" else "the estimator"
            return f"{'a version' if name == 'versions' else whose} changed: {', '.join(changed)}"
    changed = [part for part, value in now["problem"].items() if value != before["problem"].get(part)]
    laid_out_otherwise = changed == ["data", "sample_context"] and _generation(before) == 1
    if changed and not (laid_out_otherwise and older() == before["problem"]["data"]):  # the same clients, if equal
        return f"`{'`, `'.join(changed)}` of the problem changed"
    if now["every"] != before["every"]:
        return f"`every` is {now['every']}, was {before['every']}"
    words = {"x1": "the first iterate `x1`", "key": "the `key`"}
    words["optimizer"] = "the optimizer (its kind, step or schedule)"
    if now.get("of") == "solve":  # whose only optimizer is the projection
        words["optimizer"] = "the `constraint`"
    if _generation(before) == now["generation"]:
        words["estimator"] = "the estimator"
    return next((f"{text} changed" for name, text in words.items() if now[name] != before[name]), None)


def doubt(now: Identity, before: Identity) -> str | None:
    """What to tell of a run that goes on though an older version began it; None where there is nothing."""
    old, new = (each["versions"]["bilevelax"] for each in (before, now))
    rewritten = _generation(before) != now["generation"] and before["estimator"] != now["estimator"]
    if old == new and not rewritten:
        return None
    known = ", whose estimators are written otherwise: only settings tell that it is the same one" if rewritten else ""
    return f"was begun by bilevelax {old} and goes on with {new}{known}."


def _generation(identity: Identity) -> int:
    return identity.get("generation", 1)
