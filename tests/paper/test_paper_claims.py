"""Claims as values: rules, the one format of numbers, and sentences that are only said where they can be."""

import pytest

from bilevelax.base.sentences import text, written
from bilevelax.base.statistics import Interval
from bilevelax.base.text_table import as_markdown
from bilevelax_paper.claims import (
    ALONE,
    NO_NUMBERS,
    VERDICTS,
    Claim,
    Found,
    below,
    claim_table,
    claims_of,
    judged,
    measured_tables,
    readings,
    rule,
    where,
)
from bilevelax_paper.item import Config, Records

RECORDS = Records([], {"settings": {"seeds": 3, "K": 8}})
LOW, HIGH = Interval(-1.0, -2.0, -0.5), Interval(-1.0, -2.0, 0.5)


@pytest.mark.parametrize(
    ("lines", "first", "verdict"),
    [
        ({"a": LOW, "b": {"x": LOW, "y": LOW}}, None, "reproduced"),
        ({"a": LOW, "b": {"x": LOW, "y": HIGH}}, None, "partly"),
        ({"a": LOW, "b": HIGH}, 1, "reproduced"),
        ({"a": HIGH, "b": LOW}, 1, "inconclusive"),
        ({"a": Interval(0.5, 0.1, 0.9), "b": LOW}, None, "not"),
        ({"a": -0.5}, None, "reproduced"),
        ({"a": 0.5}, None, "not"),
    ],
)
def test_the_first_reading_decides_and_the_others_go_with_it(lines, first, verdict):
    high = lambda effect: Interval.of(effect).high < 0
    claim = Claim("", "", lambda records: None, where(high, first), (), (float("-inf"), 0.0))
    assert claim.verdict(Found(lines)) == verdict
    assert verdict in VERDICTS
    wide = claim._replace(holds=(-3.0, 3.0), rule=ALONE)
    assert wide.verdict(Found(lines)) == "reproduced"


def test_without_a_primary_reading_the_rule_decides():
    above = Claim("", "", lambda records: None, rule(lambda a, b: a > 0 and b > 0), ())
    assert [above.verdict(Found({"a": 1.0, "b": b})) for b in (1.0, -1.0)] == ["reproduced", "not"]


def test_what_could_have_been_seen_is_told_where_a_claim_does_not_hold():
    """2.8 standard errors: 1.96 for the interval and 0.84 for a probability of 80 %."""
    claim = Claim("C", "", lambda records: Found({"a": Interval(0.0, -0.98, 0.98)}), below(), (), (float("-inf"), 0.0))
    (found,) = judged([claim], RECORDS)
    assert claim_table([found]).rows[0][-1] == "**inconclusive**\n3 seeds; 1.4 would be seen"


def test_a_claim_is_written_once_with_marks_where_it_holds():
    statistic = lambda records: Found({"here": LOW, "there": {"x": HIGH, "y": LOW}}, {"apart": 1290.0}, {"n": 0.25})
    said = ("At {n}.", "Never {nothing}.", "{n:.1f} | rounded.")
    claim = Claim("Larger K = {K}", "{n}", statistic, below(), said, (float("-inf"), 0.0))
    nothing = claim._replace(statistic=lambda records: None)
    (found,) = judged([claim, nothing], RECORDS)
    assert found[:2] == ("Larger K = 8", "0.25") and (found.seeds, found.verdict) == (3, "partly")
    assert found.measured == f"here: {LOW}; there: {HIGH} with x, {LOW} with y; apart: 1,290"
    assert found.reading == "At 0.25. 0.2 | rounded."
    assert claim_table([found]).rows == [("1", "Larger K = 8", "0.25", f"here: {LOW}", "**partly**\n3 seeds")]
    (table,) = measured_tables([found])
    assert table.columns == ("", "what", "ours", "x", "y")
    assert table.rows[0] == ("1", "here", f"**{LOW}**", "", "")
    assert table.rows[1] == ("1", "there", "", str(HIGH), f"**{LOW}**")
    assert [len(table.rows) for table in measured_tables([found, found, found._replace(lines={"a": {"b": "c"}})])] == [
        6,
        1,
    ]
    assert readings([found]) == "1. At 0.25. 0.2 | rounded.\n"
    assert "**partly**<br>3 seeds" in as_markdown(claim_table([found]))


def test_values_have_one_format():
    assert text([0.12345, 3, "a"]) == "0.123, 3, a"
    assert text({"K = 6": 1e7, "K = 8": LOW}) == f"K = 6: 1e7, K = 8: {LOW}"
    assert (
        written(["{ok}It holds.", "{no}It does not.", "v^{{k+1}}."], {"ok": True, "no": False}) == "It holds. v^{k+1}."
    )


TEXTS = """
title = "A toy"
place = "nowhere"
duration = "no time"

[scales.all]
seeds = 1

[scales.real]
T = 5

[scales.full]
seeds = 3
sizes = { few = 1 }

[claims.rises]
method = ["A", "B"]
text = "{method} rises"
reading = ["By {by}."]
"""


def toy(tmp_path, name="toy", text=TEXTS):
    (tmp_path / f"{name}.toml").write_text(text)
    return Config.read(str(tmp_path / f"{name}.py"))


def test_an_item_is_declared_in_a_file(tmp_path):
    config = toy(tmp_path)
    assert (config.title, config.place, config.duration) == ("A toy", "nowhere", "no time")
    full = {"seeds": 3, "T": 5, "sizes": {"few": 1}}
    assert config.scales == {"smoke": {"seeds": 1}, "quick": {"seeds": 1, "T": 5}, "full": full}
    other = toy(tmp_path, "other", 'like = "toy"\ntitle = "Another"\n[scales.full]\nT = 9\nsizes = { many = 2 }\n')
    assert other.scales["full"] == {**full, "T": 9, "sizes": {"few": 1, "many": 2}}
    assert other.title == "Another" and other.texts["claims"] == config.texts["claims"]


def test_a_parameter_stands_for_as_many_claims_and_none_is_forgotten(tmp_path):
    def rises(records, method):
        return Found({"by": LOW}, words={"by": method})

    first, second = claims_of(toy(tmp_path), {rises: below()})
    assert (first.text, first.paper, second.text) == ("A rises", NO_NUMBERS, "B rises")
    assert [claim.reading for claim in judged([first, second], RECORDS)] == ["By A.", "By B."]
    with pytest.raises(KeyError, match="rises"):
        claims_of(toy(tmp_path), {})
    with pytest.raises(AssertionError, match="A toy: no text for <lambda>"):
        claims_of(toy(tmp_path), {rises: below(), (lambda records: None): below()})
