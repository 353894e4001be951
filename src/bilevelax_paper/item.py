"""What an item of the paper consists of; see the package's description."""

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from bilevelax.base.errors import require_choice, require_integer
from bilevelax.base.text_table import Table as Table
from bilevelax.run.records.cells import Cell as Cell
from bilevelax.run.records.cells import Records as Records
from bilevelax.run.records.cells import Row as Row

SCALES = ("smoke", "quick", "full")


class Config(NamedTuple):
    """What is fixed about an item before it runs."""

    title: str
    place: str  # in the paper
    duration: str  # of scale full, on 2 cores
    scales: Mapping[str, Mapping[str, Any]]  # scale -> settings; ``seeds`` is one of them
    texts: Mapping[str, Any] = MappingProxyType({})  # ``caption``, ``claims`` and what else the paper prints

    @classmethod
    def read(cls, module: str) -> "Config":
        """From the file beside a module, of the same name: ``title``, ``place``, ``duration``, settings and texts.

        Settings in ``scales.all`` are those of every scale, in ``scales.real`` of quick and full.
        """
        found = declared(Path(module).with_suffix(".toml"))
        of, every = found["scales"], {name: found["scales"].get(name, {}) for name in ("all", "real")}
        shared = lambda scale: every["all"] if scale == "smoke" else every["all"] | every["real"]
        scales = {scale: shared(scale) | of.get(scale, {}) for scale in SCALES}
        return cls(found["title"], found["place"], found["duration"], scales, found)

    def settings(self, scale: str, seeds: int | None, given: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The settings of a scale, with the number of seeds and the other settings that were asked for."""
        require_choice("--scale", "bilevelax paper", scale, SCALES)
        chosen = dict(self.scales[scale])
        for name, value in (given or {}).items():
            if name not in chosen:
                raise ValueError(f"This item has no setting {name!r}. It has: {', '.join(chosen)}.")
            chosen[name] = value
        if seeds is not None:
            require_integer("--seeds", "bilevelax paper", seeds, 1)
            chosen["seeds"] = seeds
        return chosen


def declared(path: Path) -> dict[str, Any]:
    """What a file declares, on top of the one that it is ``like``, table by table."""
    found = tomllib.loads(path.read_text(encoding="utf-8"))
    return over(declared(path.with_stem(found["like"])), found) if "like" in found else found


def over(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    deeper = {name: over(below[name], part) for name, part in above.items() if isinstance(below.get(name), dict)}
    return below | above | deeper


class Drawn(NamedTuple):
    """What an item shows: its figure, tables, and words of the figure's caption beside the settings."""

    figure: Any
    tables: Sequence[Table]
    words: Mapping[str, Any] = MappingProxyType({})
