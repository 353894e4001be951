"""Robust decisions with side information as scikit-learn estimators."""

from bilevelax.sklearn._optional import need

need("sklearn", "bilevelax.sklearn")

from bilevelax.sklearn.newsvendor import RobustNewsvendor  # noqa: E402

__all__ = ["RobustNewsvendor"]
