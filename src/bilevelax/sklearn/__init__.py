"""Robust decisions with side information as scikit-learn estimators."""

from typing import TYPE_CHECKING

from bilevelax.base.errors import require_package
from bilevelax.base.lazy import at_first_use

require_package("sklearn", "bilevelax.sklearn", "sklearn")

from bilevelax.sklearn._scored import CostColumn  # noqa: E402
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
from bilevelax.sklearn.newsvendor import RobustNewsvendor  # noqa: E402

if TYPE_CHECKING:
    from bilevelax.sklearn.instruments import IVRegressor
    from bilevelax.sklearn.joint import Calibration, calibration, forest_leaves, with_conditional
    from bilevelax.sklearn.meta import Adapted, MetaClassifier, PersonalizedModel
    from bilevelax.sklearn.ranking import NDCGRanker
    from bilevelax.sklearn.robust import RobustClassifier, RobustRegressor
    from bilevelax.sklearn.shift import evaluate_shift, penalty_curve, plot_penalty_curve, shifted

__all__ = [
    "Adapted",
    "BoostedQuantile",
    "Calibration",
    "Comparison",
    "CostColumn",
    "Forest",
    "IVRegressor",
    "Kernel",
    "LinearQuantile",
    "MetaClassifier",
    "NDCGRanker",
    "Neighbours",
    "PersonalizedModel",
    "RobustClassifier",
    "RobustNewsvendor",
    "RobustRegressor",
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

__getattr__ = at_first_use(  # what needs JAX or draws: orders from a stored model wait for neither
    __name__,
    {
        **dict.fromkeys(("Calibration", "calibration", "forest_leaves", "with_conditional"), "joint"),
        "IVRegressor": "instruments",
        **dict.fromkeys(("Adapted", "MetaClassifier", "PersonalizedModel"), "meta"),
        "NDCGRanker": "ranking",
        **dict.fromkeys(("RobustClassifier", "RobustRegressor"), "robust"),
        **dict.fromkeys(("evaluate_shift", "penalty_curve", "plot_penalty_curve", "shifted"), "shift"),
    },
)
