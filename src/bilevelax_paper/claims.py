"""A claim of the paper as a value, and the one writer of what is said about it.

The statistic finds lines: a quantity in words with its effect, or with one for each of some columns.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

from bilevelax.base.sentences import text, written
from bilevelax.base.statistics import Interval
from bilevelax_paper.item import Config, Records, Table

VERDICTS = ("reproduced", "partly", "not", "inconclusive")
Effect = Interval | float | str
Lines = Mapping[str, Effect | Mapping[str, Effect]]  # in words: an effect, or one for each column of the table
NO_NUMBERS = "a figure without numbers"
NOTHING: Mapping[str, Any] = MappingProxyType({})
MEASURED = "Measured, with 95 % intervals; bold where a single line speaks for the claim"
OURS = "ours"  # the column of a line that is one effect


class Found(NamedTuple):
    """What a statistic finds."""

    lines: Lines  # what the rule sees
    beside: Lines = NOTHING  # shown below them, without influence
    words: Mapping[str, Any] = NOTHING  # further values, by the names that texts give them
    seeds: int | None = None  # where not all of the run's were used

    @property
    def effects(self) -> list[Any]:
        """Those of all lines, one after another."""
        return [effect for line in self.lines.values() for effect in by_column(line).values()]


def by_column(line: Effect | Mapping[str, Effect]) -> Mapping[str, Effect]:
    return line if isinstance(line, Mapping) else {OURS: line}


class Rule(NamedTuple):
    """When all readings of a claim are for it; where it ``holds`` for a single effect, the table marks it."""

    reproduced: Callable[[Found], bool]
    holds: Callable[[Any], bool] = lambda effect: False


def where(holds: Callable[[Any], bool], first: int | None = None) -> Rule:
    """Where the first effects hold, by default all."""
    return Rule(lambda found: all(map(holds, found.effects[:first])), holds)


def below(bound: float = 0.0, first: int | None = None) -> Rule:
    """`where` whole intervals lie below the bound."""
    return where(lambda effect: effect.high < bound, first)


ALONE = Rule(lambda found: True)  # there is no other reading than the first


def rule(reproduced: Callable[..., bool]) -> Rule:
    """A rule whose test takes the effects one by one."""
    return Rule(lambda found: reproduced(*found.effects))


class Claim(NamedTuple):
    """One claim. Texts are templates that name words of what was found, or settings; see `written`.

    The primary reading is the first effect that the statistic finds. It decides: all of its interval where the claim
    ``holds`` is for it, all of it elsewhere against, anything else inconclusive. The rule says whether the other
    readings go with it. Without ``holds`` (counts, identities) the rule alone decides.
    """

    text: str
    paper: str  # its number, where it gives one
    statistic: Callable[[Records], Found | None]  # None where the records hold nothing of it
    rule: Rule
    reading: Sequence[str]  # sentences
    holds: Sequence[float] | None = None  # from, to

    def verdict(self, found: Found) -> str:
        all_hold = self.rule.reproduced(found)
        if self.holds is None:
            return "reproduced" if all_hold else "not"
        (low, high), first = self.holds, Interval.of(found.effects[0])
        if first.low > high or first.high < low:
            return "not"
        inside = low <= first.low and first.high <= high
        return ("reproduced" if all_hold else "partly") if inside else "inconclusive"


def claims_of(config: Config, rules: Mapping[Any, Rule]) -> list[Claim]:
    """Claims from statistics with their rules, in the order of the item's file, where each has its statistic's name.

    A parameter of the statistic with several values there stands for as many claims.
    """
    whole: Callable[[Any], Any] = lambda statistic: getattr(statistic, "func", statistic)  # of a partial its function
    by_name = {whole(statistic).__name__: (statistic, rule) for statistic, rule in rules.items()}
    made = []
    for name, told in config.texts["claims"].items():
        statistic, judged_by = by_name.pop(name)
        paper, reading, holds = told.get("paper", NO_NUMBERS), told["reading"], told.get("holds")
        parameters = {key: v for key, v in told.items() if key not in ("text", "paper", "reading", "holds")}
        for values in itertools.product(*parameters.values()):
            given = dict(zip(parameters, values, strict=True))
            said = told["text"]
            for key, value in given.items():
                said = said.replace(f"{{{key}}}", value)
            made.append(Claim(said, paper, partial(statistic, **given), judged_by, reading, holds))
    assert not by_name, f"{config.title}: no text for {', '.join(by_name)}"
    return made


class Judged(NamedTuple):
    """A claim against what was measured, as it is shown."""

    claim: str
    paper: str
    lines: Mapping[str, Mapping[str, str]]  # effects by column, bold where the claim holds
    seeds: int
    verdict: str  # one of VERDICTS
    reading: str
    primary: Any = None  # the first effect
    holds: Sequence[float] | None = None  # where it speaks for the claim, if it decides

    @property
    def measured(self) -> str:
        """All lines as one text."""
        effects = lambda line: ", ".join(v if name == OURS else f"{v} with {name}" for name, v in line.items())
        return "; ".join(f"{what}: {effects(line)}" for what, line in self.lines.items()).replace("**", "")


def judged(claims: Sequence[Claim], records: Records) -> list[Judged]:
    """The claims of which the records hold something, with their verdicts."""
    return [judge(claim, found, records) for claim in claims if (found := claim.statistic(records))]


def judge(claim: Claim, found: Found, records: Records) -> Judged:
    words, seeds = {**records.settings, **found.words}, found.seeds or records.settings["seeds"]
    marked = lambda effect: f"**{text(effect)}**" if claim.rule.holds(effect) else text(effect)
    lines = {what: {name: marked(v) for name, v in by_column(line).items()} for what, line in found.lines.items()}
    lines |= {what: {name: text(v) for name, v in by_column(line).items()} for what, line in found.beside.items()}
    verdict, (said, paper) = claim.verdict(found), (written([part], words) for part in claim[:2])
    return Judged(said, paper, lines, seeds, verdict, written(claim.reading, words), found.effects[0], claim.holds)


def claim_table(claims: Sequence[Judged]) -> Table:
    """One row per claim, with the number that it has in the other parts."""
    open_ = lambda c: c.verdict in VERDICTS[2:] and isinstance(c.primary, Interval)
    power = lambda c: f"; {text(c.primary.seen)} would be seen" if open_(c) else ""
    verdict = lambda c: f"**{c.verdict}**\n{c.seeds} seed{'s' * (c.seeds != 1)}{power(c)}"
    first = lambda c: f"{next(iter(c.lines))}: {text(c.primary)}"
    rows = [(str(i), c.claim, c.paper, first(c), verdict(c)) for i, c in enumerate(claims, 1)]
    return Table("", ("", "claim", "paper", "ours", "verdict"), rows)


def measured_tables(claims: Sequence[Judged]) -> list[Table]:
    """A row for every line; neighbouring claims share a table where their lines have the same columns."""
    of = lambda claim: tuple(dict.fromkeys(name for line in claim[1].lines.values() for name in line))
    tables: list[Table] = []
    for names, group in itertools.groupby(enumerate(claims, 1), key=of):
        lines = [(str(i), what, line) for i, claim in group for what, line in claim.lines.items()]
        rows = [(i, what, *(line.get(name, "") for name in names)) for i, what, line in lines]
        tables.append(Table("" if tables else MEASURED, ("", "what", *names), rows))
    return tables


def readings(claims: Sequence[Judged]) -> str:
    """What the lines mean, in a numbered list."""
    return "\n".join(f"{i}. {c.reading}" for i, c in enumerate(claims, 1)) + "\n"
