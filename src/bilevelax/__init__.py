"""Contextual stochastic bilevel optimization in JAX.

The public names are imported when one of them is first used, so that ``bilevelax --help`` and
``import bilevelax.cli`` do not wait for JAX.
"""

# ruff: noqa: F403, F405
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from bilevelax._version import __version__

if TYPE_CHECKING:
    from bilevelax._public import *

__all__ = [
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
    "Tuned",
    "__version__",
    "antithetic_mlmc",
    "append_to",
    "averaged_step",
    "bsvrb",
    "certified",
    "certify",
    "check",
    "conditional_stochastic",
    "conjugate_gradient",
    "constants",
    "correction_rate",
    "curvature",
    "dense",
    "dl_sgd",
    "epoch_sgd",
    "evaluate",
    "from_arrays",
    "from_clients",
    "frozen",
    "hypergradient",
    "imaml",
    "maml",
    "minibatch",
    "minimize",
    "neumann",
    "none",
    "optax_steps",
    "projected",
    "respond",
    "rt_mlmc",
    "saa",
    "sgd",
    "single_loop",
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


class _Package(ModuleType):
    """This package: public names are looked up here until they have been imported."""

    def __getattr__(self, name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from bilevelax import _public

        vars(self).update({each: getattr(_public, each) for each in __all__ if each != "__version__"})
        return vars(self)[name]

    def __setattr__(self, name: str, value: Any) -> None:
        # Importing bilevelax/minibatch.py would put the file's module in the place of the function
        if not (name in __all__ and isinstance(value, ModuleType)):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*vars(self), *__all__})


sys.modules[__name__].__class__ = _Package
