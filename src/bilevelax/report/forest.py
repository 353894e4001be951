"""A forest plot as a table for a page: an effect with its interval in every row, verdicts by colour and word."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Any, NamedTuple

from bilevelax.base.statistics import Interval

WIDTH, HEIGHT, MARGIN = 120, 14, 6  # of a row's drawing


class Line(NamedTuple):
    """One row."""

    text: str
    link: str
    effect: Any  # an interval or a number; nothing is drawn of words
    holds: Sequence[float] | None  # where it speaks for the text, from and to; one end may be infinite
    shown: str  # the effect in words
    verdict: str


def forest(lines: Sequence[Line], heads: Sequence[str]) -> str:
    """The table in HTML. Every row has its own scale: the shaded part is where an effect speaks for the text."""
    head = "".join(f"<th>{escape(name)}</th>" for name in heads)
    rows = "\n".join(map(row, lines))
    return f'<table class="forest">\n<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody>\n</table>\n'


def row(line: Line) -> str:
    drawn = glyph(Interval.of(line.effect), line.holds) if line.holds else ""
    link = f'<a href="{escape(line.link)}">{escape(line.text)}</a>'
    verdict = f'<span class="verdict {escape(line.verdict)}">{escape(line.verdict)}</span>'
    return f"<tr><td>{link}</td><td>{drawn}</td><td>{escape(line.shown)}</td><td>{verdict}</td></tr>"


def glyph(effect: Interval, holds: Sequence[float]) -> str:
    """The interval, its value, and the part of the line that speaks for the claim; that part is at the right."""
    ends = [end for end in holds if math.isfinite(end)]
    centre = sum(ends) / len(ends)
    reach = max(*(abs(part - centre) for part in effect), *(1.5 * abs(end - centre) for end in ends)) or 1.0
    towards = -1 if len(ends) == 1 and math.isinf(holds[0]) else 1

    def at(value: float) -> float:
        share = towards * (value - centre) / reach if math.isfinite(value) else towards * math.copysign(1, value)
        return round(WIDTH / 2 + share * (WIDTH / 2 - MARGIN), 1)

    left, right = sorted(map(at, holds))
    low, high = sorted((at(effect.low), at(effect.high)))
    middle = HEIGHT / 2
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" role="img" aria-label="{effect}">'
        f'<rect class="for" x="{left}" y="0" width="{round(right - left, 1)}" height="{HEIGHT}"/>'
        f'<line class="interval" x1="{low}" y1="{middle}" x2="{high}" y2="{middle}"/>'
        f'<circle class="value" cx="{at(effect.value)}" cy="{middle}" r="3"/></svg>'
    )
