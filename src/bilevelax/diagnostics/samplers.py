"""Do samplers draw what the problem says? The same for equal keys, and the laws that it tells of."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.special
from jax import random

from bilevelax.base.compiling import jit_once
from bilevelax.base.text_table import number
from bilevelax.core.problem import Key, Problem, PyTree
from bilevelax.diagnostics.check_report import CheckRow

DRAWS = 512
LISTED = 512  # contexts or outcomes, at most, whose law is compared with the draws
EXPECTED = 5.0  # draws of each cell, at least, in a chi-square test; rarer ones are counted together
ALARM = 1e-5  # probability of a false alarm, in each of the two tests


@jit_once()
def _drawn_twice(key: Key, problem: Problem) -> dict[str, Any]:
    """What each sampler makes of the same key when it is called again: what it keeps between calls shows here too.

    And where the problem lists contexts or outcomes, those, and draws to compare them with.
    """
    xi = problem.context(key)
    keys = jax.vmap(lambda i: random.fold_in(key, i))(jnp.arange(DRAWS, dtype=jnp.int32))
    found: dict[str, Any] = {
        "sample_context": (xi, problem.context(key)),
        "sample_conditional": (problem.conditional(key, xi), problem.conditional(key, xi)),
    }
    if problem.n_contexts is not None and problem.source is None and problem.n_contexts <= LISTED:
        listed = jax.vmap(problem.nth_context)(jnp.arange(problem.n_contexts, dtype=jnp.int32))
        found["contexts"] = jax.vmap(problem.context)(keys), listed
    if problem.support is not None:
        found["outcomes"] = jax.vmap(lambda key: problem.conditional(key, xi))(keys), problem.outcomes(xi)
    return found


def sampler_rows(problem: Problem, key: Key) -> list[CheckRow]:
    """Rows of `check` on the samplers."""
    found = _drawn_twice(key, problem)
    rows = [_deterministic(name, found[name]) for name in ("sample_context", "sample_conditional")]
    if "contexts" in found:
        drawn, listed = found["contexts"]
        rows.append(_law("sample_context against context_at", drawn, listed, np.full(problem.n_contexts, 1.0)))
    if "outcomes" in found:
        drawn, (listed, weights) = found["outcomes"]
        rows += [_weights(np.asarray(weights, float)), _law(OUTCOMES, drawn, listed, np.asarray(weights, float))]
    return rows


OUTCOMES = "sample_conditional against support"


def _deterministic(name: str, pair: tuple[PyTree, PyTree]) -> CheckRow:
    same = all(_equal(a, b) for a, b in zip(*map(jax.tree.leaves, pair), strict=True))
    remedy = "" if same else f"let {name} draw from its key only, with jax.random"
    return CheckRow(f"{name} is deterministic", same, "equal" if same else "different", "equal for equal keys", remedy)


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
    common = expected >= EXPECTED
    cells = [np.append(a[common], a[~common].sum()) for a in (seen, expected)]
    impossible = bool(np.any(seen[expected == 0] > 0))
    square = np.sum((cells[0] - cells[1]) ** 2 / np.maximum(cells[1], 0.5))
    p = float(scipy.special.chdtrc(max(int(common.sum()), 1), square))
    ok = p >= ALARM and not impossible
    remedy = "" if ok else "let both tell of one law: the same weights, drawn from the key"
    return CheckRow(name, ok, f"as often by chance: {number(p)}", f"{wanted}: >= {ALARM:g}", remedy)


def _numbered(drawn: PyTree, listed: PyTree) -> tuple[np.ndarray, np.ndarray]:
    """(which kind each draw is, -1 where it is none; which kind each listed row is): equal rows are one kind."""
    text = lambda tree: [
        b"".join(np.ascontiguousarray(_plain(leaf)[i]).tobytes() for leaf in jax.tree.leaves(tree))
        for i in range(len(jax.tree.leaves(tree)[0]))
    ]
    of_listed = text(listed)
    kinds = {row: i for i, row in enumerate(dict.fromkeys(of_listed))}
    return np.asarray([kinds.get(row, -1) for row in text(drawn)]), np.asarray([kinds[row] for row in of_listed])
