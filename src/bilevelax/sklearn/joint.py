"""From pairs (xi, eta) to a conditional distribution, or to a forest's leaves as a basis; and whether to believe it."""

from __future__ import annotations

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import random

from bilevelax.base.errors import require_integer, require_share
from bilevelax.base.text_table import Table, as_text, number
from bilevelax.core.problem import Eta, Key, Problem, PyTree
from bilevelax.problems.bases import Basis
from bilevelax.problems.joint import in_memory, is_joint
from bilevelax.problems.on_disk import OnDisk, Rows, matrix
from bilevelax.problems.stored import Stored
from bilevelax.sklearn.conditional import make_conditional

COVERED = (0.5, 0.8, 0.9)  # central intervals whose coverage is told


class WeightedRows(NamedTuple):
    """The data leaves: each context's distribution is weights on a few rows."""

    contexts: PyTree
    outcomes: PyTree
    rows: jax.Array  # (n, k)
    weights: jax.Array  # (n, k), each line summing to one; padding has weight 0

    @property
    def many(self) -> int:
        return Rows(self.contexts, self.outcomes).many

    def at(self, i: Any) -> Rows:
        """What happened in row i."""
        return Rows(self.contexts, self.outcomes).at(i)


def with_conditional(problem: Problem, conditional: Any = "forest", atoms: int = 256, random_state: int = 0) -> Problem:
    """A problem of `from_joint` with an estimated conditional: eta given xi is row i's with probability w_i(xi).

    A row never votes for itself. The answer is no better than the estimate: ask `calibration` first.

    Args:
        problem: of `from_joint`.
        conditional: "forest", "neighbours", "kernel", "groups", or one of the classes behind these with its settings.
        atoms: heaviest rows that are kept for each context.
        random_state: seed of what the conditional draws.
    """
    _require_pairs("with_conditional", problem)
    require_integer("atoms", "with_conditional", atoms, 1)
    if isinstance(problem.data, OnDisk):
        raise ValueError(
            f"with_conditional keeps weights for each row in memory. Got {problem.n_contexts} rows on disk: give "
            "from_joint fewer of them, or stream=False; or take reduced(problem, basis) or the estimator amortised()."
        )
    Z, eta = _flat(problem)
    fitted = make_conditional(conditional, "with_conditional").fit(Z, eta, random_state)
    rows, weights = _heaviest(fitted, Z, atoms)
    contexts, outcomes = problem.data
    data = WeightedRows(contexts, outcomes, jnp.asarray(rows, jnp.int32), jnp.asarray(weights, float))

    def sample_conditional(key: Key, xi: Stored, data: WeightedRows) -> Eta:
        edges = jnp.cumsum(data.weights[xi.row])
        j = jnp.searchsorted(edges, random.uniform(key, dtype=float) * edges[-1], side="right")
        return jax.tree.map(lambda a: a[data.rows[xi.row, j]], data.outcomes)

    def support(xi: Stored, data: WeightedRows) -> tuple[Eta, jax.Array]:
        return jax.tree.map(lambda a: a[data.rows[xi.row]], data.outcomes), data.weights[xi.row]

    return problem.replace(data=data, sample_conditional=sample_conditional, support=support)


class Calibration(NamedTuple):
    """Of each central interval: the share of held-out outcomes that it covers, and the standard error of that."""

    levels: tuple[float, ...]
    covered: tuple[float, ...]
    stderr: tuple[float, ...]
    rows: int

    def __str__(self) -> str:
        lines = [
            [f"{level:.0%}", number(share), number(error)]
            for level, share, error in zip(self.levels, self.covered, self.stderr, strict=True)
        ]
        title = f"Held-out outcomes inside intervals of the conditional, {self.rows} rows"
        return as_text(Table(title, ("interval", "covered", "standard error"), lines))


def calibration(
    problem: Problem, conditional: Any = "forest", held_out: float = 0.25, random_state: int = 0
) -> Calibration:
    """Does an estimated conditional cover what happened? Fitted on some rows of `from_joint`, asked on the others.

    Intervals of a right conditional cover as often as they say. Many outcomes of a row count as one each.
    """
    _require_pairs("calibration", problem)
    require_share("held_out", "calibration", held_out)
    Z, eta = _flat(problem)
    order = np.random.default_rng(random_state).permutation(len(Z))
    asked = order[: max(1, int(held_out * len(Z)))]
    known = order[len(asked) :]
    if len(known) < 2:
        raise ValueError(f"`held_out` of calibration must leave at least 2 of {len(Z)} rows. Got {held_out!r}.")
    fitted = make_conditional(conditional, "calibration").fit(Z[known], eta[known], random_state)
    ends = np.array([[(1 - level) / 2, (1 + level) / 2] for level in COVERED])
    quantiles = fitted.quantiles(Z[asked], ends.ravel()).reshape(len(asked), len(COVERED), 2, -1)
    inside = (quantiles[:, :, 0] <= eta[asked][:, None]) & (eta[asked][:, None] <= quantiles[:, :, 1])
    share = inside.mean(axis=2)  # over the outcomes of a row, which depend on each other
    mean, error = share.mean(axis=0), share.std(axis=0) / np.sqrt(len(asked))
    return Calibration(COVERED, tuple(map(float, mean)), tuple(map(float, error)), len(asked))


class Leaves(eqx.Module):
    """1 for every leaf that a context falls into, 0 for the others."""

    feature: jax.Array  # (trees, nodes); a leaf asks nothing
    threshold: jax.Array
    children: jax.Array  # (trees, nodes, 2); a leaf is its own child
    leaf: jax.Array  # (trees, nodes), its number among all leaves
    depth: int = eqx.field(static=True)
    many: int = eqx.field(static=True)

    def __call__(self, z: jax.Array) -> jax.Array:
        trees = jnp.arange(len(self.feature), dtype=jnp.int32)

        def down(_: Any, node: jax.Array) -> jax.Array:
            right = z[self.feature[trees, node]] > self.threshold[trees, node]
            return self.children[trees, node, right.astype(jnp.int32)]

        node = jax.lax.fori_loop(0, self.depth, down, jnp.zeros(len(self.feature), jnp.int32))
        return jnp.zeros(self.many).at[self.leaf[trees, node]].set(1.0)


def forest_leaves(problem: Problem, trees: int = 10, leaves: int = 8, random_state: int = 0) -> Basis:
    """The leaves of a forest that predicts the outcomes of a problem of `from_joint`: a basis for `reduced`.

    Honest only where leaves are large: the same rows shape the leaves and fit W.
    """
    _require_pairs("forest_leaves", problem)
    require_integer("trees", "forest_leaves", trees, 1)
    require_integer("leaves", "forest_leaves", leaves, 2)
    from sklearn.ensemble import RandomForestRegressor

    Z, eta = _flat(problem)
    forest = RandomForestRegressor(trees, max_leaf_nodes=leaves, max_features=1 / 3, random_state=random_state)
    forest.fit(Z, eta[:, 0] if eta.shape[1] == 1 else eta)
    features = _leaves([one.tree_ for one in forest.estimators_])
    again = lambda: forest_leaves(problem, trees, 2 * leaves, random_state)
    return Basis(f"forest_leaves({trees}, {leaves})", lambda Z: features, again, redundant=True)


def _leaves(trees: list[Any]) -> Leaves:
    """Trees of scikit-learn as arrays of one shape."""
    most = max(tree.node_count for tree in trees)
    feature = np.zeros((len(trees), most), np.int32)
    threshold = np.full((len(trees), most), np.inf)
    children = np.tile(np.arange(most, dtype=np.int32)[None, :, None], (len(trees), 1, 2))
    leaf = np.zeros((len(trees), most), np.int32)
    many = 0
    for t, tree in enumerate(trees):
        inner = np.flatnonzero(tree.children_left >= 0)
        feature[t, inner], threshold[t, inner] = tree.feature[inner], tree.threshold[inner]
        children[t, inner, 0], children[t, inner, 1] = tree.children_left[inner], tree.children_right[inner]
        ends = np.flatnonzero(tree.children_left < 0)
        leaf[t, ends] = many + np.arange(len(ends))
        many += len(ends)
    depth = max(tree.max_depth for tree in trees)
    feature_, threshold_, children_, leaf_ = (jnp.asarray(a) for a in (feature, threshold, children, leaf))
    return Leaves(feature_, threshold_, children_, leaf_, depth, many)


def _require_pairs(owner: str, problem: Problem) -> None:
    if not is_joint(problem):
        raise ValueError(f"`problem` of {owner} must come from from_joint. Got one that draws eta given xi itself.")


def _flat(problem: Problem) -> tuple[np.ndarray, np.ndarray]:
    """Contexts (n, d) and outcomes (n, o) as matrices; an outcome may be the number of a class."""
    rows: Rows = in_memory(problem).data
    Z = matrix(rows.contexts)
    leaves = [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(rows.outcomes)]
    return Z, np.concatenate([leaf.reshape(len(leaf), -1) for leaf in leaves], axis=1)


def _heaviest(conditional: Any, Z: np.ndarray, atoms: int) -> tuple[np.ndarray, np.ndarray]:
    """Of each context the rows with the largest weights, and these weights, normalised."""
    W = conditional.weights(Z, own=np.arange(len(Z)))
    k = min(atoms, int(np.diff(W.indptr).max()))
    rows, weights = np.zeros((len(Z), k), np.int64), np.zeros((len(Z), k))
    for i in range(len(Z)):
        line = slice(W.indptr[i], W.indptr[i + 1])
        best = np.argsort(-W.data[line], kind="stable")[:k]
        rows[i, : len(best)] = conditional.rows_[W.indices[line][best]]
        weights[i, : len(best)] = W.data[line][best]
    return rows, weights / weights.sum(axis=1, keepdims=True)
