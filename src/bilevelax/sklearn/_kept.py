"""What a newsvendor does with its training rows after `fit`; one that was read from a folder finds them there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from bilevelax.applications.newsvendor.prepare import Prepared
from bilevelax.sklearn._candidate import BLEND, LINEAR, SEARCHED, SLOW, Candidate
from bilevelax.sklearn.conditional import Forest, make_conditional
from bilevelax.tables.columns import OWNER


class KeepsRows:
    """The distribution of demand, and a baseline, fitted on training rows when they are first asked for."""

    holding_cost: Any
    backlog_cost: Any
    seed_: int
    n_features_in_: int
    n_outputs_: int
    prepared_: Prepared
    fallback_: str | None
    _candidate: Candidate
    _kept: tuple[np.ndarray, np.ndarray] | None
    _baseline: Any
    _folder: Path
    _forest: Any = None
    _spread: tuple[Any, Any] | None = None  # a conditional, and the forest on its rows

    def _kept_rows(self) -> tuple[np.ndarray, np.ndarray]:
        """Training rows, where `fit` kept them or the model's folder does."""
        if self._kept is not None:
            return self._kept
        from bilevelax.sklearn.persist import kept_rows  # that part stands on this one

        try:
            return kept_rows(self._folder, self)
        except (OSError, ValueError) as error:
            raise ValueError(
                f"This {OWNER} was read from {self._folder}, which keeps no training rows, so what demand could "
                f"have been is not known ({error}). Use the model that was fitted, or `bilevelax newsvendor fit`."
            ) from error

    def _instead(self) -> Any:
        """The baseline that orders."""
        if self._baseline is None:
            from bilevelax.sklearn.baselines import baselines  # that part stands on this one

            named = baselines(self.holding_cost, self.backlog_cost, random_state=self.seed_)
            name = "forest" if self.fallback_ == BLEND else str(self.fallback_)
            made, forest = named[name], self._stored_forest() if name == "forest" else None
            stored = self._stored_answers(name) if name in SLOW else None
            if forest is not None:
                self._baseline = made.with_conditional(forest)
            else:
                rows = self._kept_rows()
                if name in SLOW and len(rows[0]) > SEARCHED:  # as many as it was judged on
                    some = np.linspace(0, len(rows[0]) - 1, SEARCHED).astype(int)
                    rows = rows[0][some], rows[1][some]
                self._baseline = made.fit(*rows) if stored is None else made.with_stored(stored, *rows)
        return self._baseline

    def _stored_answers(self, name: str) -> Any:
        """The linear quantiles or boosted trees that the model's folder keeps, None where it keeps none."""
        from bilevelax.sklearn.persist import kept_boosts, kept_lines

        kept = kept_lines if name == LINEAR else kept_boosts
        return None if self._kept is not None else kept(self._folder, self)

    def _stored_forest(self) -> Any:
        """The forest that the model's folder keeps, None where it keeps none."""
        if self.prepared_.conditional is not None:
            return None
        if self._forest is None:
            from bilevelax.sklearn.persist import kept_trees

            trees = kept_trees(self._folder, self)
            self._forest = None if trees is None else Forest.of_trees(trees, *self._kept_rows())
        return self._forest

    def _with_conditional(self) -> Prepared:
        """`prepared_` with the distribution of demand given contexts, which model folders do not hold."""
        if self.prepared_.conditional is None:
            made = make_conditional(self._candidate.conditional, OWNER)
            fitted = made.fit(*self._kept_rows(), random_state=self.seed_)
            self.prepared_ = self.prepared_._replace(conditional=fitted)
        return self.prepared_

    def _demand_given_contexts(self) -> Any:
        """The conditional for who asks how far demand may spread: a forest where the rule took rows as they are.

        Of a model that was read it knows contexts that are none of the training rows.
        """
        stored = self._stored_forest()
        if stored is not None:
            return stored
        conditional = self._with_conditional().conditional
        if not getattr(conditional, "is_as_seen", False):
            return conditional
        if self._spread is None or self._spread[0] is not conditional:
            forest = make_conditional("forest", OWNER).fit(conditional.X_, conditional.y_, random_state=self.seed_)
            self._spread = conditional, forest
        return self._spread[1]
