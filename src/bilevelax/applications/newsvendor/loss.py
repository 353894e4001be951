"""What a wrong order costs: the newsvendor's loss, its smoothing, its best expected value."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from bilevelax.base.errors import require_positive

if TYPE_CHECKING:
    import jax  # where it is used: costs of orders do not wait for it

SMOOTHING = 5.0  # the paper's beta


def loss(w: Any, eta: Any, h: Any, b: Any) -> Any:
    """l(w, eta) = h (w - eta)^+ + b (eta - w)^+, of arrays of JAX or NumPy."""
    over = w - eta
    return h * over.clip(0) + b * (-over).clip(0)


def smooth_loss(w: Any, eta: Any, h: Any, b: Any, beta: float) -> jax.Array:
    """l_beta, with softplus(beta .)/beta for (.)^+; its second derivative is at most (h + b) beta / 4.

    Written with one softplus: softplus(z) = z + softplus(-z).
    """
    import jax

    over = w - eta
    return h * over + (h + b) * jax.nn.softplus(-beta * over) / beta


def oracle_cost(h: float, b: float, sigma: float = 1.0) -> float:
    """Cost of the best order for normal demand with known mean: (h + b) sigma phi(Phi^-1(b / (h + b)))."""
    from jax.scipy.stats import norm

    return float((h + b) * sigma * norm.pdf(norm.ppf(b / (h + b))))


def expected_loss(w: Any, mean: Any, h: float, b: float) -> jax.Array:
    """E l(w, eta) for eta ~ N(mean, 1): (h + b) (z Phi(z) + phi(z)) - b z with z = w - mean."""
    from jax.scipy.stats import norm

    z = w - mean
    return (h + b) * (z * norm.cdf(z) + norm.pdf(z)) - b * z


def require_costs(owner: str, h: float, b: float, beta: float) -> None:
    for name, value in (("h", h), ("b", b), ("beta", beta)):
        require_positive(name, owner, value)


def cost_array(value: Any, name: str, owner: str, rows: int, outputs: int) -> np.ndarray:
    """A cost per row and output from a scalar, one value per output, per row, or both."""
    try:
        array = np.asarray(value, dtype=float)
    except (TypeError, ValueError):
        raise ValueError(f"`{name}` of {owner} must be numbers. Got {value!r}.") from None
    if not np.all(np.isfinite(array)) or np.any(array <= 0):
        raise ValueError(f"`{name}` of {owner} must be positive. Got {value!r}.")
    if array.shape == (rows,) and (rows != outputs or outputs == 1):
        array = array[:, None]
    try:
        return np.broadcast_to(array, (rows, outputs))
    except ValueError:
        raise ValueError(
            f"`{name}` of {owner} must be one number, one for each of the {outputs} outputs, or one for each of the "
            f"{rows} rows. Got shape {array.shape}."
        ) from None


def newsvendor_cost(orders: np.ndarray, demand: np.ndarray, holding: Any, backlog: Any) -> np.ndarray:
    """The loss of orders at the demand that came, entry by entry, in NumPy's double precision."""
    if np.shape(orders) != np.shape(demand):  # a column minus a row would be a table of all pairs
        raise ValueError(f"`orders` and `demand` must have one shape. Got {np.shape(orders)} and {np.shape(demand)}.")
    return loss(np.asarray(orders, float), np.asarray(demand, float), holding, backlog)


def affine_floor(contexts: np.ndarray, demands: np.ndarray, h: float, b: float) -> float:
    """The least mean loss of affine orders: quantile regression as a linear program."""
    from scipy import optimize, sparse

    (M, m), n = demands.shape, demands.size
    design = np.repeat(np.concatenate([np.ones((M, 1)), contexts], axis=1), m, axis=0)
    equal = sparse.hstack([sparse.csr_array(design), sparse.eye_array(n), -sparse.eye_array(n)], format="csr")
    price = np.concatenate([np.zeros(design.shape[1]), np.full(n, b / n), np.full(n, h / n)])
    sides = [(None, None)] * design.shape[1] + [(0, None)] * (2 * n)
    return float(optimize.linprog(price, A_eq=equal, b_eq=demands.ravel(), bounds=sides, method="highs").fun)
