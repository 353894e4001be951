"""Forest plots: what is for a claim is at the right, whatever its direction; names are escaped."""

import math
import re

from bilevelax.base.statistics import Interval
from bilevelax.report.forest import WIDTH, Line, forest, glyph


def parts(effect, holds):
    """(left, right) of the shaded part, and where the value is."""
    text = glyph(effect, holds)
    x, width = (float(v) for v in re.search(r'class="for" x="([\d.]+)" y="0" width="([\d.]+)"', text).groups())
    return x, x + width, float(re.search(r'cx="([\d.]+)"', text)[1])


def test_what_is_for_the_claim_is_at_the_right():
    for effect, holds in [(Interval(-2, -3, -1), (-math.inf, 0)), (Interval(2, 1, 3), (0, math.inf))]:
        left, right, value = parts(effect, holds)
        assert left == WIDTH / 2 and left < value < right
        assert parts(Interval(*[-v for v in effect]), holds)[2] < left, "against it"


def test_a_part_with_two_ends_is_in_the_middle():
    left, right, value = parts(Interval(0.0, -0.1, 0.1), (-1, 1))
    assert left + right == WIDTH and value == WIDTH / 2


def test_names_are_escaped_and_words_are_not_drawn():
    text = forest([Line("<b>", "a.html", "2046", None, "2046", "not")], ("claim", "", "", ""))
    assert "&lt;b&gt;" in text and "<svg" not in text and '<span class="verdict not">not</span>' in text
