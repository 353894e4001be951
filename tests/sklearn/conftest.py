"""Estimators run as their users run them."""

import jax
import pytest


@pytest.fixture(scope="module", autouse=True)
def standard_promotion():
    """optax's Adam raises a float to an integer power, which strict promotion forbids."""
    with jax.numpy_dtype_promotion("standard"):
        yield
