"""How a program is compiled that runs only a few times."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import jax

LEVEL = "xla_backend_optimization_level"


def jit_once(**settings: Any) -> Callable[..., Any]:
    """`jax.jit` for diagnostics: with XLA's first level of optimisation they compile faster and run about as fast.

    A level in XLA_FLAGS is respected.
    """
    options = None if LEVEL in os.environ.get("XLA_FLAGS", "") else {LEVEL: 1}
    return partial(jax.jit, compiler_options=options, **settings)
