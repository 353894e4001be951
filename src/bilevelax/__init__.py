"""Contextual stochastic bilevel optimization in JAX.

The public names are imported when one of them is first used, so that ``bilevelax --help`` and
``import bilevelax.cli`` do not wait for JAX.
"""

# ruff: noqa: F403, F405
from typing import TYPE_CHECKING, Any

from bilevelax._version import __version__
from bilevelax._xla import switch_off_fusion

if TYPE_CHECKING:
    from bilevelax._public import *

__all__ = [
    "Basis",
    "Certificate",
    "Checkpoint",
    "Client",
    "Constants",
    "Cost",
    "Curvature",
    "Estimate",
    "Estimator",
    "Evaluation",
    "Iterates",
    "LowerSolver",
    "Problem",
    "Report",
    "Result",
    "RunStopped",
    "Solved",
    "Stage",
    "Tuned",
    "__version__",
    "affine",
    "amortised",
    "answers",
    "antithetic_mlmc",
    "append_to",
    "averaged_step",
    "ball",
    "box",
    "bsvrb",
    "cache",
    "certified",
    "certify",
    "chebyshev",
    "check",
    "conditional_stochastic",
    "conjugate_gradient",
    "constants",
    "correction_rate",
    "curvature",
    "dense",
    "dl_sgd",
    "envelope",
    "epoch_sgd",
    "evaluate",
    "fourier",
    "from_arrays",
    "from_clients",
    "from_joint",
    "from_splits",
    "frozen",
    "hypergradient",
    "imaml",
    "maml",
    "minibatch",
    "minimize",
    "neumann",
    "newton_solver",
    "none",
    "nonnegative",
    "optax_steps",
    "polyhedron",
    "product",
    "projected",
    "random_features",
    "reduced",
    "respond",
    "rt_mlmc",
    "saa",
    "sgd",
    "simplex",
    "single_loop",
    "smooth_products",
    "solve",
    "splines",
    "sqrt_then_linear",
    "stateless",
    "stochastic",
    "stochastic_bilevel",
    "summed_neumann",
    "tune",
    "warm_regression",
    "warm_started",
    "warm_table",
]


def __getattr__(name: str) -> Any:
    """A public name, where it is first used: all of them are imported then."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from bilevelax import _public

    globals().update({each: getattr(_public, each) for each in __all__ if each != "__version__"})
    return globals()[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


switch_off_fusion()  # before JAX starts its backend
