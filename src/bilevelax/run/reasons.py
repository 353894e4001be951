"""Why `solve` stopped, in a sentence that says what to do."""

from __future__ import annotations

import math

from bilevelax.diagnostics.tails import Tails
from bilevelax.run.looks import SHARE, Look
from bilevelax.run.quasi_newton import Curvature
from bilevelax.run.records.solved import Stage


def sentence(reason: str, look: Look, goal: float, stages: list[Stage], budget: float | None) -> str:
    high, m, sure = look.certificate.norm_high, stages[-1].m, f"{100 * look.certificate.level:g} %"
    reached = f"{name_of(look)} is at most {high:.3g}, where {goal:.3g} was asked for"
    if not goal:
        reached = f"{name_of(look)} is at most {high:.3g} and was never told from zero at x1: give atol"
    told = look.certificate.told[:1].lower() + look.certificate.told[1:]
    if math.isinf(high):
        reached = told
    texts = {
        "certified": f"Certified: {name_of(look)} is at most {high:.3g} with {sure} confidence; {goal:.3g} was asked "
        "for.",
        "budget": f"Out of time after {budget or 0:g} s: {reached}. Give more time or a larger tol.",
        "noise": f"Stalled by noise: {reached}; {m} contexts do not tell more. Give budget_seconds or a larger tol.",
        "heavy tails": f"Heavy tails: {told}."
        if told
        else f"Heavy tails: one context of {m} makes up {100 * SHARE:g} % or more of the squared gradients, "
        "so no interval holds. Clip or transform what the samplers return.",
        "not smooth": f"Not smooth: no step lowers F any more; {reached}. F has a kink there; smooth f or g.",
        "rounding": f"Stopped by rounding: {reached}. Use float64, jax.config.update('jax_enable_x64', True), or a "
        "larger tol.",
        "unbounded": f"Unbounded: x went a million times its size away while F fell; {reached}. "
        "Add a penalty on x or a constraint.",
        "slow": f"Slow: F is too flat along some direction; {reached}. Scale x, add a penalty, or give a larger tol.",
    }
    return texts[reason]


def rare(tails: Tails, m: int) -> str:
    """Why no interval is given."""
    return (
        f"Few of {m} contexts carry the noise, {tails.effective:.1f} effective ones, so no interval holds. Draw rare "
        "contexts more often and weight f, or clip what the samplers return"
    )


def name_of(look: Look) -> str:
    return look.certificate.of.removesuffix("^2")


def notes(reason: str, look: Look, goal: float, known: Curvature, n: int, finite: int | None) -> tuple[str, ...]:
    """What a reader should know besides."""
    found = []
    if known.bent and reason != "unbounded":
        found.append("F is not convex: this is a stationary point, perhaps not the lowest. Try `restarts`.")
    if finite is None and look.noise == 0:
        found.append(
            "F did not vary over the contexts drawn: right where nothing is random, and what a sampler that ignores "
            "its key looks like."
        )
    if look.bias > goal:
        found.append(
            f"{n} samples of a context bias the gradient by {look.bias:.3g} or more. Halving takes the part of "
            "order 1/n away, not that of 1/n^2: ask `certify`, which has none."
        )
    return tuple(found)
