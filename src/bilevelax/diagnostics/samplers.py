"""Do samplers draw what the problem says? The same for equal keys, others for others, and the laws that it tells of."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, random
from jax.flatten_util import ravel_pytree

from bilevelax.base.compiling import jit_once
from bilevelax.base.quantiles import chi_square_above
from bilevelax.base.text_table import number
from bilevelax.core.problem import Key, Problem, PyTree, X
from bilevelax.diagnostics.check_report import CheckRow

DRAWS = 512
SEVERAL = 16  # draws that are only compared with each other: an outcome may be large
LOOKS = 8  # at so many draws each, where they are compared with a list: of outcomes, in a context each
LISTED, NUMBERS = 16_384, 2**20  # contexts, and numbers in them, at most, whose law is compared with the draws
EXPECTED = 5.0  # draws of each cell, at least, in a chi-square test; rarer ones are counted with their neighbours
ALARM = 1e-5  # probability of a false alarm, in each of the two tests
CONTEXT, CONDITIONAL, INIT = "sample_context", "sample_conditional", "init_y"


@jit_once()
def _drawn_twice(key: Key, problem: Problem, x: X) -> dict[str, Any]:
    """What each sampler makes of the same keys when it is called again: what it keeps between calls shows here too.

    Whether f and g are numbers where a follower starts; and where the problem lists contexts or outcomes, those, and
    draws to compare them with.
    """
    xi = problem.context(key)
    found: dict[str, Any] = {INIT: (problem.start(x, xi), problem.start(x, xi))}
    if problem.source is not None:  # contexts that are fed have one key
        drawn = (problem.conditional(key, xi), problem.conditional(key, xi))
        return {**found, CONTEXT: (xi, problem.context(key)), CONDITIONAL: drawn}
    keys = jax.vmap(lambda i: random.fold_in(key, i))(jnp.arange(DRAWS, dtype=jnp.int32))
    numbered = _listed(problem, xi)
    some = lambda listed: keys if listed else keys[:SEVERAL]
    contexts = lambda: jax.vmap(problem.context)(some(numbered))
    conditionals = lambda: jax.vmap(lambda key: problem.conditional(key, xi))(some(problem.support is not None))
    found |= {CONTEXT: (contexts(), contexts()), CONDITIONAL: (conditionals(), conditionals())}
    found["numbers"] = lax.map(lambda key: _are_numbers(key, problem, x), keys)
    if numbered:
        found["contexts"] = jax.vmap(problem.nth_context)(jnp.arange(problem.n_contexts, dtype=jnp.int32))
    if problem.support is not None:
        found["outcomes"] = problem.outcomes(xi)
    return found


def _listed(problem: Problem, xi: PyTree) -> bool:
    """Are all contexts looked at? Not where they are many or large."""
    n = problem.n_contexts
    return n is not None and n <= LISTED and n * sum(leaf.size for leaf in jax.tree.leaves(xi)) <= NUMBERS


def _are_numbers(key: Key, problem: Problem, x: X) -> tuple[jax.Array, jax.Array]:
    """Of one context and outcome: is f, and is g, a number at the follower's start? g must be finite to go down.

    An empty set has no start: other rows tell of it.
    """
    xi = problem.context(key)
    eta, y = problem.conditional(random.fold_in(key, 1), xi), problem.start(x, xi)
    empty = problem.constraint is not None and ~jnp.all(jnp.isfinite(ravel_pytree(y)[0]))
    return ~jnp.isnan(problem.f(x, y, eta, xi)) | empty, jnp.isfinite(problem.g(x, y, eta, xi)) | empty


def sampler_rows(problem: Problem, x: X, key: Key) -> list[CheckRow]:
    """Rows of `check` on the samplers, and on f and g at what they draw."""
    found = _drawn_twice(key, problem, x)
    rows = [_deterministic(name, found[name]) for name in (CONTEXT, CONDITIONAL, INIT)]
    listed = found.keys() & {"contexts", "outcomes"}
    looks = [found, *(_drawn_twice(random.fold_in(key, i), problem, x) for i in range(1, LOOKS if listed else 1))]
    if "contexts" in found:
        drawn = jax.tree.map(lambda *a: np.concatenate([*map(_plain, a)]), *(look[CONTEXT][0] for look in looks))
        rows.append(_law(f"{CONTEXT} against context_at", drawn, found["contexts"], np.ones(problem.n_contexts)))
    if "outcomes" in found:
        rows += _worst(_weights(np.asarray(look["outcomes"][1], float)) for look in looks)
        law = lambda drawn, etas, weights: _law(
            f"{CONDITIONAL} against support", drawn, etas, np.asarray(weights, float)
        )
        rows += _worst(law(look[CONDITIONAL][0], *look["outcomes"]) for look in looks)
    if "numbers" in found:
        rows += [*_keys_count(problem, found), _numbers(*map(np.asarray, found["numbers"]))]
    return rows


def _worst(rows: Iterable[CheckRow]) -> list[CheckRow]:
    """The first that fails, else the first: of rows that ask the same in several contexts."""
    rows = list(rows)
    return [next((row for row in rows if row.ok is False), rows[0])]


def _deterministic(name: str, pair: tuple[PyTree, PyTree]) -> CheckRow:
    same = all(_equal(a, b) for a, b in zip(*map(jax.tree.leaves, pair), strict=True))
    advice = (
        "let init_y return the same for equal x and xi"
        if name == INIT
        else f"let {name} draw from its key only, with jax.random"
    )
    remedy = "" if same else advice
    wanted = "equal for equal x and xi" if name == INIT else "equal for equal keys"
    return CheckRow(f"{name} is deterministic", same, "equal" if same else "different", wanted, remedy)


def _keys_count(problem: Problem, found: dict[str, Any]) -> list[CheckRow]:
    """A row for a sampler of which every key draws the same, unless the problem lists that one, or it is zero."""
    listed = {CONTEXT: problem.n_contexts is not None, CONDITIONAL: problem.support is not None}
    advice = {CONTEXT: "n_contexts=1 and context_at", CONDITIONAL: "support"}
    return [
        CheckRow(
            f"{name} depends on its key",
            None,
            f"{SEVERAL} keys, one draw",
            "others for other keys",
            f"draw from the key with jax.random; if there is one only, tell it by {advice[name]}",
        )
        for name in (CONTEXT, CONDITIONAL)
        if not listed[name] and _all_one([_plain(leaf) for leaf in jax.tree.leaves(found[name][0])])
    ]


def _all_one(leaves: list[np.ndarray]) -> bool:
    """Are all rows the same, and not zeros or nothing at all, which stand for no draw?"""
    return all(_equal(leaf, np.broadcast_to(leaf[:1], leaf.shape)) for leaf in leaves) and any(map(np.any, leaves))


def _numbers(f: np.ndarray, g: np.ndarray) -> CheckRow:
    """f and g where the follower starts, in contexts more than are solved: rare ones may be no numbers."""
    name, wanted = "f and g are numbers", "at the start of y, in every context"
    if not g.all():
        remedy = "let g be finite in every context: look for log, sqrt or a division of what a context holds; or init_y"
        return CheckRow(name, False, f"g is not in {np.sum(~g)} of {len(g)}", wanted, remedy)
    remedy = "" if f.all() else "look for log, sqrt or a division of what a context holds; fine if f is a number at y*"
    told = f"in all of {len(f)}" if f.all() else f"f is not in {np.sum(~f)} of {len(f)}"
    return CheckRow(name, bool(f.all()) or None, told, wanted, remedy)


def _equal(a: Any, b: Any) -> bool:
    a, b = _plain(a), _plain(b)
    return np.array_equal(a, b, equal_nan=jnp.issubdtype(a.dtype, jnp.inexact))


def _plain(a: Any) -> np.ndarray:
    return np.asarray(random.key_data(a) if jnp.issubdtype(a.dtype, jax.dtypes.prng_key) else a)


def _weights(weights: np.ndarray) -> CheckRow:
    total, least = float(weights.sum()), float(weights.min())
    ok = bool(abs(total - 1) <= 1e-3 and least >= 0)
    remedy = "" if ok else "let support return probabilities: none negative, of sum one, zero for padding"
    return CheckRow("weights of support", ok, f"sum {number(total)}, least {number(least)}", "sum 1, none < 0", remedy)


def _law(name: str, drawn: PyTree, listed: PyTree, weights: np.ndarray) -> CheckRow:
    """Are draws among those listed, each as often as its weight says? A chi-square test, rare ones together."""
    rows, kinds = _numbered(drawn, listed)
    wanted = "draws of the law that is listed"
    strange = int(np.sum(rows < 0))
    if strange:
        remedy = "let both tell of one law: what is drawn must be among what is listed"
        return CheckRow(name, False, f"{strange} of {len(rows)} draws are not listed", wanted, remedy)
    share = np.bincount(kinds, weights, minlength=kinds.max() + 1)
    expected = share / max(share.sum(), np.finfo(float).tiny) * len(rows)
    seen = np.bincount(rows, minlength=len(expected)).astype(float)
    impossible = bool(np.any(seen[expected == 0] > 0))
    ok = (p := min(_as_often(seen, expected), _never(seen, expected))) >= ALARM and not impossible
    remedy = "" if ok else "let both tell of one law: the same weights, drawn from the key"
    return CheckRow(name, ok, f"as often by chance: {number(p)}", f"{wanted}: >= {ALARM:g}", remedy)


def _as_often(seen: np.ndarray, expected: np.ndarray) -> float:
    """By chi-square: common ones alone, rarer ones together with their neighbours in the list."""
    common = expected >= EXPECTED
    rare = np.floor(np.cumsum(np.where(common, 0.0, expected)) / EXPECTED)
    cell = np.where(common, rare.max() + 1 + np.arange(len(expected)), np.minimum(rare, max(rare.max() - 1, 0)))
    _, cell = np.unique(cell, return_inverse=True)
    cells = [np.bincount(cell, a) for a in (seen, expected)]
    square = np.sum((cells[0] - cells[1]) ** 2 / np.maximum(cells[1], 0.5))
    return chi_square_above(max(len(cells[0]) - 1, 1), square)


def _never(seen: np.ndarray, expected: np.ndarray) -> float:
    """How likely it is that any one of those that were never drawn was not, times how many there are."""
    n = seen.sum()
    missed = expected[(seen == 0) & (expected > 0)] / n
    return float(np.min(len(expected) * (1 - missed) ** n, initial=1.0))


def _numbered(drawn: PyTree, listed: PyTree) -> tuple[np.ndarray, np.ndarray]:
    """(which kind each draw is, -1 where it is none; which kind each listed row is): equal rows are one kind."""
    text = lambda tree: [
        b"".join(np.ascontiguousarray(_plain(leaf)[i]).tobytes() for leaf in jax.tree.leaves(tree))
        for i in range(len(jax.tree.leaves(tree)[0]))
    ]
    of_listed = text(listed)
    kinds = {row: i for i, row in enumerate(dict.fromkeys(of_listed))}
    return np.asarray([kinds.get(row, -1) for row in text(drawn)]), np.asarray([kinds[row] for row in of_listed])
