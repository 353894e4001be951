"""Figure 4: one-step MAML by the size of its inner step, and m-step MAML against RT-MLMC."""

import itertools
from collections.abc import Iterator
from functools import partial
from typing import Any

from bilevelax_paper import meta
from bilevelax_paper import meta_runs as runs
from bilevelax_paper.claims import Found, below, claims_of, where
from bilevelax_paper.item import Cell, Config, Drawn, Records, Row
from bilevelax_paper.meta_runs import ADAPTED, KINDS, by_steps, difference, losses, settings_of

CONFIG = Config.read(__file__)
PRINTED = 0.2  # the paper's largest step
FLAT = 0.03  # of a test loss near 1.9


def run(settings: dict[str, Any], seeds: int) -> Iterator[Cell]:
    one_step = [meta.steps(1, gamma) for gamma in settings["gamma"]]
    more = [meta.steps(m, settings["gamma_m"]) for m in settings["m"]]
    quiet = [] if settings["small"] else [meta.quiet(settings["K"])]  # nothing new to test at scale smoke
    methods = [*one_step, *more, meta.rt(settings["K"]), *quiet]
    return runs.cells(settings, seeds, methods, more[-1], methods, {}, {})


def maml(setting: str) -> Row:
    return {"method": "MAML", "setting": setting}


def gamma_of(setting: str) -> float:
    return float(setting.rpartition("= ")[2])


def same_step(records: Records) -> str:
    """One-step MAML with the inner step of m-step MAML; the first one, where it was not run."""
    names = settings_of(records, "MAML")
    same = f"m = 1, gamma = {records.settings['gamma_m']:g}"
    return same if same in names else names[0]


def large_steps(records: Records) -> Found:
    """The largest step of the paper against its smallest; beside it the largest of ours against the best."""
    names = settings_of(records, "MAML")
    inside = [name for name in names if gamma_of(name) <= PRINTED]
    top, best = max(names, key=gamma_of), runs.best(records, "MAML", names)
    gap = partial(difference, records, "own")
    whole = [losses(records, "whole", steps="paper", **maml(name)).mean() for name in names]
    lines = {
        f"gamma = {gamma_of(inside[-1]):g} minus {gamma_of(inside[0]):g}": gap(maml(inside[-1]), maml(inside[0])),
        f"gamma = {gamma_of(top):g} minus the best by validation": gap(maml(top), best),
    }
    chosen = {"the best gamma by validation": by_steps(lambda steps: gamma_of(best(steps)["setting"]))}
    falls = all(a > b for a, b in itertools.pairwise(whole))
    return Found(lines, chosen, {"falls": falls, "norm": meta.NORM, "images": meta.IMAGES})


def small_steps(records: Records) -> Found:
    names = settings_of(records, "MAML")
    one, other = names[min(1, len(names) - 1)], names[0]
    what = f"gamma = {gamma_of(one):g} minus {gamma_of(other):g}"
    own, whole = (difference(records, column, maml(one), maml(other)) for column in ("own", "whole"))
    return Found({what: own}, {f"{what}, on all images of a task": whole}, {"flat": FLAT})


def more_steps(records: Records) -> Found:
    one = maml(same_step(records))
    names = settings_of(records, "m-step MAML")
    gap = lambda column, name: difference(records, column, {"method": "m-step MAML", "setting": name}, one)
    what = f"minus {one['setting']}"
    own, tight = ({f"{n} {what}, {words}": gap(column, n) for n in names} for column, words in ADAPTED.items())
    return Found(own, tight)


def beats_more_steps(records: Records) -> Found:
    best = runs.best(records, "m-step MAML", settings_of(records, "m-step MAML"))
    setting, lines = settings_of(records, "RT-MLMC")[0], {}
    for method in filter(partial(settings_of, records), ("RT-MLMC", meta.QUIET)):
        for column, words in ADAPTED.items():
            gap = difference(records, column, {"method": method, "setting": setting}, best)
            lines[f"{method} ({setting}) minus m-step MAML, {words}"] = gap
    return Found(lines, {"m-step MAML by validation": by_steps(lambda steps: best(steps)["setting"])})


RISES = where(lambda effect: effect.low > 0, first=len(KINDS))
ALL_FLAT = where(lambda effect: max(abs(effect.low), abs(effect.high)) < FLAT)
ALL_RT = below(first=len(KINDS) * len(ADAPTED))
RULES = {large_steps: RISES, small_steps: ALL_FLAT, more_steps: below(), beats_more_steps: ALL_RT}
CLAIMS = claims_of(CONFIG, RULES)


def render(records: Records) -> Drawn:
    s = records.settings
    rivals = {"m-step MAML": None, "MAML": same_step(records), "RT-MLMC": None, meta.QUIET: None}
    columns: dict[str, Any] = {"one-step MAML": {"MAML": None}, f"gamma = {s['gamma_m']:g}": rivals}
    return runs.drawn(records, columns, f"the last x of {max(s['m'])}-step MAML (first seed)")
