"""What is named on a command line or in a file, built: estimators, optimizers, meshes. Imports JAX; commands wait."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import optax
from jax.sharding import Mesh

from bilevelax import applications, estimators
from bilevelax.applications import Application
from bilevelax.cli.settings import call, parse
from bilevelax.core.estimate import Estimator
from bilevelax.core.inverse import neumann
from bilevelax.core.minibatch import minibatch
from bilevelax.run.devices import local_mesh
from bilevelax.run.schedules import sqrt_then_linear

OPTIMIZERS = {"adam": optax.adam, "sgd": optax.sgd}


def build_application(name: str, settings: dict[str, Any]) -> Application:
    made: Application = call("application", name, applications.catalogue.load(name), settings)
    return made


def build_estimator(
    name: str, K: int | None, N: int | None, contexts: int, settings: dict[str, Any], spread: bool = False
) -> Estimator:
    """The named estimator, averaged over a minibatch of contexts where more than one is asked for."""
    if K is not None:
        settings = {**settings, "K": K}
    if N is not None:
        settings = {**settings, "inverse": neumann(N)}
    estimator = call("estimator", name, estimators.catalogue.load(name), settings)
    how = "spread" if spread else "independent"
    return estimator if contexts == 1 else minibatch(estimator, contexts, contexts=how)


def estimator_or_auto(
    name: str, K: int | None, N: int | None, contexts: int, settings: list[str], spread: bool
) -> Estimator | str:
    """The named estimator, or ``"auto"`` for `minimize`, which takes no settings of one."""
    if name != "auto":
        return build_estimator(name, K, N, contexts, parse(settings), spread)
    given = {"--K": K is not None, "--N": N is not None, "--contexts": contexts != 1, "--est": settings}
    wrong = [name for name, is_given in {**given, "--spread": spread}.items() if is_given]
    if wrong:
        raise ValueError(f"`--estimator auto` chooses its own settings. Leave out {', '.join(wrong)}.")
    return "auto"


def build_optimizer(name: str, step: float, t0: int | None) -> optax.GradientTransformation:
    if name not in OPTIMIZERS:
        raise ValueError(f"`--optimizer` must be one of {', '.join(OPTIMIZERS)}. Got {name!r}.")
    return OPTIMIZERS[name](step if t0 is None else sqrt_then_linear(t0, step))


def mesh_of(devices: int, distributed: bool) -> Mesh | None:
    """The devices that share a step's contexts; None for one."""
    if distributed:
        jax.distributed.initialize()  # SLURM, Kubernetes, Open MPI and TPU pods tell JAX where its peers are
        return Mesh(np.asarray(jax.devices()), ("contexts",))
    return local_mesh(devices) if devices > 1 else None
