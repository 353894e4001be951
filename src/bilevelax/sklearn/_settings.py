"""What the settings of `RobustNewsvendor` come to: candidates that may be tried, and how one is trained."""

from __future__ import annotations

import numbers
from functools import lru_cache
from typing import Any

import numpy as np
import optax

from bilevelax.applications.newsvendor import entropic
from bilevelax.applications.newsvendor import rows as wasserstein
from bilevelax.applications.newsvendor.policies import make_policy, members_of, started_small
from bilevelax.base.errors import require_choice, require_integer, require_positive
from bilevelax.core.estimate import Estimator
from bilevelax.core.minibatch import minibatch
from bilevelax.estimators.dl_sgd import dl_sgd
from bilevelax.estimators.envelope import envelope
from bilevelax.estimators.rt_mlmc import rt_mlmc
from bilevelax.estimators.saa import saa
from bilevelax.sklearn import _candidate
from bilevelax.sklearn._candidate import Candidate
from bilevelax.sklearn._training import OWNER, Training
from bilevelax.sklearn.conditional import is_as_seen

ESTIMATORS = ("auto", "rt_mlmc", "dl_sgd", "saa")
AMBIGUITIES = ("auto", "wasserstein", "entropic", None)
PATH = (np.inf, 1.0, 0.3, 0.1, 0.03)  # penalties that "cv" tries
FEW_PENALTIES = (np.inf, 0.3, 0.03)  # that "auto" tries
DRAWS = 8  # of an entropic adversary's noise, for each context of a batch
STEPS = ((1_000, 800), (4_000, 1_200), (20_000, 1_600))  # rows up to which, steps
MOST_STEPS = 2_400
RATES = {"linear": (1e-2, 0.0)}  # learning rate and decay of "auto": a line needs no decay, which would flatten it
RATES_OF_NETWORKS = (3e-3, 1.0)


def steps_for(max_iter: int | None, rows: int) -> int:
    """As told, else more of them for more rows, in few different numbers, since each is a program of its own."""
    return max_iter or next((steps for most, steps in STEPS if rows <= most), MOST_STEPS)


def check_settings(model: Any) -> None:
    for name in ("n_atoms", "members", "batch_size", "patience"):
        require_integer(name, OWNER, getattr(model, name), 1)
    if model.max_iter is not None:
        require_integer("max_iter", OWNER, model.max_iter, 1)
    require_integer("ascent_steps", OWNER, model.ascent_steps, 0)
    for name in ("smoothing", "noise"):
        require_positive(name, OWNER, getattr(model, name))
    require_rate("learning_rate", model.learning_rate, zero=False)
    require_rate("weight_decay", model.weight_decay, zero=True)
    if not (isinstance(model.penalty, str) and model.penalty in ("cv", "auto")):
        require_positive("penalty", OWNER, model.penalty, infinite=True)
    require_choice("ambiguity", OWNER, model.ambiguity, AMBIGUITIES)


def require_rate(name: str, value: Any, zero: bool) -> None:
    """A positive number, 0 where that has a meaning, or "auto"."""
    if isinstance(value, str) and value == "auto":
        return
    if not isinstance(value, numbers.Real) or not 0 <= float(value) < np.inf or not (zero or float(value)):
        rule = ">= 0" if zero else "> 0"
        raise ValueError(f"`{name}` of {OWNER} must be 'auto' or a finite number {rule}. Got {value!r}.")


def adversaries(model: Any) -> list[tuple[float, float | None]]:
    """(penalty, noise) of those that the settings allow, the least robust first."""
    given, noise = not isinstance(model.penalty, str), float(model.noise)
    few = FEW_PENALTIES if model.penalty == "auto" else PATH
    penalties: tuple[float, ...] = (float(model.penalty),) if given else few
    if model.ambiguity is None or not model.move_scales_.any():
        return [(np.inf, None)]
    if model.ambiguity == "entropic":
        return [(penalty, noise) for penalty in penalties]
    return [(penalty, None) for penalty in penalties]


@lru_cache(maxsize=64)
def make_estimator(choice: Any, batch: int, steps: int, is_entropic: bool = False) -> Estimator:
    """The named estimator on ``batch`` contexts; the same object for equal settings."""
    if isinstance(choice, Estimator):
        return choice
    require_choice("estimator", OWNER, choice, ESTIMATORS)
    if choice == "auto":
        return envelope(batch, 1, n=DRAWS) if is_entropic else envelope(batch, wasserstein.ascent_of(steps), n="all")
    made = {"rt_mlmc": lambda: rt_mlmc(4), "dl_sgd": lambda: dl_sgd(4)}
    made["saa"] = lambda: saa(n=DRAWS if is_entropic else "all")
    return minibatch(made[choice](), batch)


@lru_cache(maxsize=64)
def make_optimizer(learning_rate: float, decay: float, max_iter: int) -> optax.GradientTransformation:
    """AdamW whose step falls to a tenth along a cosine."""
    return optax.adamw(optax.cosine_decay_schedule(learning_rate, max_iter, alpha=0.1), weight_decay=decay)


def rates_of(model: Any, policy: Any) -> tuple[float, float]:
    """Learning rate and weight decay, as told or as this policy needs them."""
    auto = RATES.get(policy, RATES_OF_NETWORKS) if isinstance(policy, str) else RATES_OF_NETWORKS
    told = (model.learning_rate, model.weight_decay)
    rate, decay = (mine if isinstance(given, str) else given for given, mine in zip(told, auto, strict=True))
    return float(rate), float(decay)


def training_of(model: Any, candidate: Candidate, steps: int) -> Training:
    """How a newsvendor whose columns and outputs are known trains this candidate."""
    factory = make_policy(candidate.policy, OWNER)
    x1, static = members_of(factory, model.n_features_in_, model.n_outputs_, model.members, model.seed_)
    if candidate.policy == "mlp" and is_as_seen(candidate.conditional):  # nothing but the rule is smooth
        x1 = started_small(x1)
    is_entropic = candidate.noise is not None
    return Training(
        policy=candidate.policy,
        x1=x1,
        static=static,
        losses=(entropic if is_entropic else wasserstein).losses_of(static, float(model.smoothing)),
        scales=model.move_scales_,
        conditional=candidate.conditional,
        n_atoms=model.n_atoms,
        together=model.estimator == "auto" or is_entropic,
        contexts=_candidate.MOST_ROWS,
        estimator=make_estimator(model.estimator, model.batch_size, model.ascent_steps, is_entropic),
        optimizer=make_optimizer(*rates_of(model, candidate.policy), steps),
        max_iter=steps,
        progress=bool(model.verbose),
        seed=model.seed_,
        noise=candidate.noise,
    )
