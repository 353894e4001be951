"""Sentences with values in them: one format for all, and sentences that stay away where they have nothing to say."""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from typing import Any

from bilevelax.base.statistics import Interval
from bilevelax.base.text_table import three_digits


def text(value: Any) -> str:
    """The one format of values: three digits, intervals in brackets, commas. True is said by the sentence itself."""
    match value:
        case True:
            return ""
        case float():
            return three_digits(value)
        case Mapping():
            return ", ".join(f"{text(name)}: {text(part)}" for name, part in value.items())
        case list() | tuple() if not isinstance(value, Interval):
            return ", ".join(map(text, value))
    return str(value)


class Writer(string.Formatter):
    """Fills templates with values in the one format, or in the template's where it names one."""

    def format_field(self, value: Any, format_spec: str) -> str:
        return format(value, format_spec) if format_spec else text(value)


def counted(n: int, one: str, more: str | None = None) -> str:
    """3 rows, 1 row: the number, and the word that goes with it (by default with an s for more than one)."""
    return f"{n} {one if n == 1 else more or one + 's'}"


def written(sentences: Sequence[str], words: Mapping[str, Any]) -> str:
    """The sentences, filled. One that names a word that is not there, false or empty is left out."""
    there = lambda name: words.get(name) is not False and words.get(name) not in (None, "", [], {})
    named = lambda sentence: [name for _, name, _, _ in Writer().parse(sentence) if name]
    return " ".join(Writer().vformat(one, (), words) for one in sentences if all(map(there, named(one))))
