"""JSON that others may have written: declared, then checked whole before anything of it is used.

A check is a function (value, where it stands) that raises `Undeclared`. Checks of parts make checks
of wholes: ``record({"rows": integer(1, 10), "names": list_of(text())})``.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

Check = Callable[[Any, str], None]

LARGEST_FILE = 2**26  # bytes of a JSON document
LARGEST = 1e300  # of a number: its square root times a few others is still one
MANY = 10**6  # entries of a list or names of a map
SEAL = "sha256"  # where a document keeps the digest of its other entries


class Undeclared(ValueError):
    """A value that is not what was declared."""

    def __init__(self, where: str, rule: str, value: Any) -> None:
        shown = repr(value)
        shown = shown if len(shown) <= 60 else f"{shown[:57]}..."
        super().__init__(f"{f'`{where}`' if where else 'the whole'} must be {rule}. Got {shown}")


def integer(least: int, most: int) -> Check:
    def check(value: Any, where: str) -> None:
        if type(value) is not int or not least <= value <= most:
            raise Undeclared(where, f"an integer in [{least}, {most}]", value)

    return check


def number(least: float = -LARGEST, most: float = LARGEST) -> Check:
    """A finite number."""

    def check(value: Any, where: str) -> None:
        # an integer of a thousand digits is no float
        if type(value) not in (int, float) or not least <= value <= most or not math.isfinite(value):
            rule = "a finite number" if (least, most) == (-LARGEST, LARGEST) else f"a number in [{least:g}, {most:g}]"
            raise Undeclared(where, rule, value)

    return check


def text(pattern: str = r"[\s\S]*", rule: str = "a text") -> Check:
    def check(value: Any, where: str) -> None:
        if not isinstance(value, str) or re.fullmatch(pattern, value) is None:
            raise Undeclared(where, rule, value)

    return check


def one_of(*choices: Any) -> Check:
    """Equal to one of these, in kind too: True is not 1."""

    def check(value: Any, where: str) -> None:
        if not any(type(value) is type(each) and value == each for each in choices):
            raise Undeclared(where, f"one of {', '.join(map(repr, choices))}", value)

    return check


def either(*checks: Check) -> Check:
    """One of the checks passes; else the first one's complaint."""

    def check(value: Any, where: str) -> None:
        complaints = []
        for each in checks:
            try:
                return each(value, where)
            except Undeclared as complaint:
                complaints.append(complaint)
        raise complaints[0]

    return check


def list_of(entry: Check, least: int = 0, most: int = MANY) -> Check:
    def check(value: Any, where: str) -> None:
        if not isinstance(value, list) or not least <= len(value) <= most:
            raise Undeclared(where, f"a list of {least} to {most} entries", value)
        for i, each in enumerate(value):
            entry(each, f"{where}[{i}]")

    return check


def map_of(name: Check, entry: Check, least: int = 0, most: int = MANY) -> Check:
    def check(value: Any, where: str) -> None:
        if not isinstance(value, dict) or not least <= len(value) <= most:
            raise Undeclared(where, f"a map of {least} to {most} names", value)
        for key, each in value.items():
            name(key, f"a name in {where}")
            entry(each, f"{where}.{key}")

    return check


def record(fields: Mapping[str, Check], optional: Mapping[str, Check] | None = None, *, others: bool = False) -> Check:
    """A map with these names; ``others`` allows more, which are not looked at."""
    optional = optional or {}

    def check(value: Any, where: str) -> None:
        if not isinstance(value, dict):
            raise Undeclared(where, "a map of names to values", value)
        for name in fields:
            if name not in value:
                raise Undeclared(where, f"a map that has {name!r}", sorted(value))
        for name, each in value.items():
            known = fields.get(name) or optional.get(name)
            if known is None and not others:
                raise Undeclared(where, f"a map without {name!r}", sorted(value))
            if known is not None:
                known(each, f"{where}.{name}" if where else name)

    return check


def read_json(path: Path, check: Check, remedy: str, *, constants: bool = False) -> Any:
    """The document in a file, checked; ``remedy`` ends the sentence about one that is not as declared.

    ``constants`` allows NaN and infinities, which are no JSON.
    """
    try:
        if not path.is_file():  # a device may have no end
            raise ValueError("it is no file")
        size = path.stat().st_size
        if size > LARGEST_FILE:
            raise ValueError(f"it has {size} bytes, more than {LARGEST_FILE}")
        refuse = None if constants else _no_constant
        value = json.loads(path.read_bytes().decode("utf-8"), parse_constant=refuse, object_pairs_hook=_once)
        check(value, "")
    except (ValueError, RecursionError, OSError) as error:
        raise ValueError(f"{path} is damaged or from another program ({reason_of(error)}): {remedy}.") from None
    return value


def reason_of(error: BaseException) -> str:
    """The first line of what an error says, without its last full stop."""
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    said = str(getattr(error, "strerror", None) or error).strip()
    return said.splitlines()[0].rstrip(".") if said else type(error).__name__


def _no_constant(word: str) -> Any:
    raise ValueError(f"it holds {word}, which is not JSON")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("it has one name twice")
    return found


def seal(document: Mapping[str, Any]) -> dict[str, Any]:
    """The document with the digest of all its entries."""
    return {**document, SEAL: _digest(document)}


def is_sealed(document: Mapping[str, Any]) -> bool:
    """Whether nothing was changed since `seal`."""
    return document.get(SEAL) == _digest(document)


def _digest(document: Mapping[str, Any]) -> str:
    rest = {name: value for name, value in document.items() if name != SEAL}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()
