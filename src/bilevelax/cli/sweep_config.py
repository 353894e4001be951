"""A sweep's TOML file: what is fixed, what is varied, and which cells share a program."""

from __future__ import annotations

import itertools
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

from bilevelax.run.sweep import Setting

DEFAULTS = {
    "estimator": "rt_mlmc",
    "optimizer": "adam",
    "step": 1e-2,
    "T": 2000,
    "every": 100,
    "contexts": 1,
    "seed": 0,
}
REQUIRED = ("application", "metric")
KIND_NAMES = {str: "a string", int: "a whole number", float: "a number"}
TABLES = ("app", "est", "grid")
TOGETHER = ("step", "seed")  # what cells of one program may differ in
EXAMPLE = 'application = "quadratic", metric = "F_gap", and a table [grid] with step = [0.01, 0.03], seed = [0, 1, 2]'


class SweepGroup(NamedTuple):
    """Cells that share a program, and the settings they share."""

    name: str
    settings: dict[str, Any]  # flat; those of the application and the estimator as app.NAME and est.NAME
    cells: list[Setting]


def read(path: Path) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """(fixed settings, varied ones), checked."""
    if not path.is_file():
        raise ValueError(f"There is no file {path}. A sweep needs {EXAMPLE}.")
    try:
        given = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path} is not TOML: {error}. A sweep needs {EXAMPLE}.") from error
    tables = {name: given.pop(name, {}) for name in TABLES}
    if wrong := [name for name, table in tables.items() if not isinstance(table, dict)]:
        raise ValueError(f"`{wrong[0]}` of {path} must be a table: a line [{wrong[0]}] and settings below it.")
    grid = {name: value if isinstance(value, list) else [value] for name, value in _flat(tables["grid"]).items()}
    fixed = {**DEFAULTS, **given, **{f"{t}.{name}": v for t in ("app", "est") for name, v in tables[t].items()}}
    known = (*DEFAULTS, *REQUIRED)
    for name in (*fixed, *grid):
        if name not in known and not name.startswith(("app.", "est.")):
            raise ValueError(f"{path} has no use for {name!r}. It may set {', '.join(known)}, app.NAME and est.NAME.")
    if missing := [name for name in REQUIRED if name not in fixed]:
        raise ValueError(f"{path} must set {' and '.join(missing)}. A sweep needs {EXAMPLE}.")
    if empty := [name for name, values in grid.items() if not values]:
        raise ValueError(f"`{empty[0]}` in [grid] of {path} must list at least one value. Got none.")
    for name, values in [*((name, [value]) for name, value in fixed.items()), *grid.items()]:
        for value in values:
            require_kind(path, name, value)
    return fixed, grid


def require_kind(path: Path, name: str, value: Any) -> None:
    """Settings of the sweep itself; those of applications and estimators are checked where they are used."""
    kind: Any = str if name in REQUIRED else type(DEFAULTS[name]) if name in DEFAULTS else None
    if kind is None:
        return
    if isinstance(value, bool) or not isinstance(value, (int, float) if kind is float else kind):
        raise ValueError(f"`{name}` of {path} must be {KIND_NAMES[kind]}. Got {value!r}.")
    if name in ("T", "every", "contexts") and value < 1:
        raise ValueError(f"`{name}` of {path} must be at least 1. Got {value!r}.")


def _flat(table: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """``"est.K" = [1, 2]`` and ``est.K = [1, 2]`` alike."""
    found: dict[str, Any] = {}
    for name, value in table.items():
        found |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return found


def groups(fixed: dict[str, Any], grid: dict[str, list[Any]]) -> list[SweepGroup]:
    """One group for each choice of what shapes or programs depend on."""
    apart = {name: values for name, values in grid.items() if name not in TOGETHER}
    together = [grid.get(name, [fixed[name]]) for name in TOGETHER]
    cells = [Setting(float(step), int(seed)) for step, seed in itertools.product(*together)]
    found = []
    for choice in itertools.product(*apart.values()):
        picked = dict(zip(apart, choice, strict=True))
        name = ",".join(f"{key}={value}" for key, value in picked.items()).replace("/", "_") or "all"
        found.append(SweepGroup(name, {**fixed, **picked}, cells))
    return found
