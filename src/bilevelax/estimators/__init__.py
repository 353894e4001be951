"""Gradient estimators, one file each. A new file with a factory of its own name is found by itself."""

from __future__ import annotations

from bilevelax.discovery import Catalogue

catalogue = Catalogue(__name__, "estimator")
