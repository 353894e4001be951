"""Robust decisions with side information as scikit-learn estimators."""

from bilevelax.base.errors import require_package

require_package("sklearn", "bilevelax.sklearn", "sklearn")

from bilevelax.sklearn.baselines import (  # noqa: E402
    BoostedQuantile,
    LinearQuantile,
    SampleAverage,
    WeightedSampleAverage,
    baselines,
    erm,
    wdro,
)
from bilevelax.sklearn.compare import Comparison, compare, paired_interval  # noqa: E402
from bilevelax.sklearn.conditional import Forest, Kernel, Neighbours  # noqa: E402
from bilevelax.sklearn.joint import Calibration, calibration, forest_leaves, with_conditional  # noqa: E402
from bilevelax.sklearn.meta import Adapted, MetaClassifier, PersonalizedModel  # noqa: E402
from bilevelax.sklearn.newsvendor import RobustNewsvendor  # noqa: E402
from bilevelax.sklearn.shift import evaluate_shift, penalty_curve, plot_penalty_curve, shifted  # noqa: E402

__all__ = [
    "Adapted",
    "BoostedQuantile",
    "Calibration",
    "Comparison",
    "Forest",
    "Kernel",
    "LinearQuantile",
    "MetaClassifier",
    "Neighbours",
    "PersonalizedModel",
    "RobustNewsvendor",
    "SampleAverage",
    "WeightedSampleAverage",
    "baselines",
    "calibration",
    "compare",
    "erm",
    "evaluate_shift",
    "forest_leaves",
    "paired_interval",
    "penalty_curve",
    "plot_penalty_curve",
    "shifted",
    "wdro",
    "with_conditional",
]
