"""One sentence about a follower whose problem has no minimum, for all who solve it."""

from __future__ import annotations

import warnings

from bilevelax.base.text_table import percent

MANY = 0.1  # share of solves without a minimum from which on no number is given
SOME = 0.01  # from which on it is told


def sentence(share: float, of: str) -> str:
    return (
        f"The follower's problem has no minimum that was found in {percent(share)} of {of}: g is concave, flat or "
        "unbounded in y there, or has too few samples. See `check` for its curvature; add a term like "
        "0.01 * jnp.sum(y**2) to g, bound y by `constraint`, or take more samples."
    )


def require_followers(owner: str, share: float, of: str) -> None:
    """A follower that can be solved nearly everywhere; a warning where there are exceptions."""
    if share > MANY:
        raise ValueError(f"{owner} needs a follower with an answer. {sentence(share, of)}")
    tell(owner, share, of, stacklevel=4)


def tell(owner: str, share: float, of: str, stacklevel: int = 3) -> None:
    """A warning where a number is given all the same: one context without an answer may make up most of a mean."""
    if share > 0:
        worth = "means nothing" if share > MANY else "may be far off"
        warnings.warn(f"{owner} gives a number that {worth}. {sentence(share, of)}", RuntimeWarning, stacklevel)
