"""What a newsvendor does with its training rows after `fit`; one that was read from a folder finds them there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from bilevelax.applications.newsvendor.prepare import Prepared
from bilevelax.sklearn._candidate import Candidate
from bilevelax.sklearn.conditional import make_conditional
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
            self._baseline = named[str(self.fallback_)].fit(*self._kept_rows())
        return self._baseline

    def _with_conditional(self) -> Prepared:
        """`prepared_` with the distribution of demand given contexts, which model folders do not hold."""
        if self.prepared_.conditional is None:
            made = make_conditional(self._candidate.conditional, OWNER)
            fitted = made.fit(*self._kept_rows(), random_state=self.seed_)
            self.prepared_ = self.prepared_._replace(conditional=fitted)
        return self.prepared_

    def _demand_given_contexts(self) -> Any:
        """The conditional for who asks how far demand may spread: a forest where the rule took rows as they are."""
        conditional = self._with_conditional().conditional
        if not getattr(conditional, "is_as_seen", False):
            return conditional
        return make_conditional("forest", OWNER).fit(conditional.X_, conditional.y_, random_state=self.seed_)
