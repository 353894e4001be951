"""Figure 4: one-step MAML by the size of its inner step, and m-step MAML against RT-MLMC."""

import itertools
from collections.abc import Iterator
from typing import Any

from bilevelax_paper import meta
from bilevelax_paper import meta_runs as runs
from bilevelax_paper.claims import Found, Lines, below, claims_of, where
from bilevelax_paper.item import Cell, Config, Drawn, Records, Row
from bilevelax_paper.meta_runs import ADAPTED, by_steps, difference, losses, settings_of

CONFIG = Config.read(__file__)
PRINTED = 0.2  # the paper's largest step
FLAT = 0.03  # of a test loss near 1.9


def run(settings: dict[str, Any], seeds: int) -> Iterator[Cell]:
    one_step, some = ([meta.steps(1, gamma) for gamma in settings[name]] for name in ("gamma", "length_gamma"))
    more = [meta.steps(m, settings["gamma_m"]) for m in settings["m"][::-1]]
    methods = [*more, *one_step, meta.rt(settings["K"])]
    yield from runs.cells(settings, runs.plans({**settings, "seeds": seeds}, methods, some, lambda method: method))


def gamma_of(setting: str) -> float:
    return float(setting.rpartition("= ")[2])


def maml(setting: str) -> Row:
    return {"method": "MAML", "setting": setting}


def same_step(records: Records) -> str:
    """One-step MAML with the inner step of m-step MAML; the first one, where it was not run."""
    same = f"m = 1, gamma = {records.settings['gamma_m']:g}"
    return next((name for name in settings_of(records, "MAML") if name == same), settings_of(records, "MAML")[0])


def gap(records: Records, one: str, other: str, column: str = "own") -> Lines:
    what = f"gamma = {gamma_of(one):g} minus {gamma_of(other):g}"
    return {what: difference(records, column, maml(one), maml(other))}


def large_steps(records: Records) -> Found:
    """The paper's largest step against its smallest; beside it the largest of ours against the best."""

    def at_both_ends(part: Records) -> Lines:
        inside = [name for name in settings_of(part, "MAML") if gamma_of(name) <= PRINTED]
        return gap(part, inside[-1], inside[0])

    here = runs.at(records)
    names = settings_of(here, "MAML")
    best = runs.best(here, "MAML", names)
    whole = [losses(here, "whole", steps="paper", **maml(name)).mean() for name in names]
    chosen: Lines = {
        f"gamma = {gamma_of(names[-1]):g} minus the best by validation": difference(here, "own", maml(names[-1]), best),
        "the best gamma by validation": by_steps(lambda steps: gamma_of(best(steps)["setting"])),
    }
    words = {"falls": all(a > b for a, b in itertools.pairwise(whole)), "images": meta.IMAGES}
    return Found({**at_both_ends(here), **runs.elsewhere(records, at_both_ends)}, chosen, words)


def small_steps(records: Records) -> Found:
    def gaps(part: Records, column: str = "own") -> Lines:
        first, second = (settings_of(part, "MAML") * 2)[:2]
        return gap(part, second, first, column)

    here = runs.at(records)
    on_all = {f"{what}, on all images of a task": line for what, line in gaps(here, "whole").items()}
    return Found({**gaps(here), **runs.elsewhere(records, gaps)}, on_all, {"flat": FLAT})


def more_steps(records: Records) -> Found:
    """The most steps first: they decide."""
    here = runs.at(records)
    one, names = maml(same_step(here)), settings_of(here, "m-step MAML")[::-1]
    versus = lambda column, name: difference(here, column, {"method": "m-step MAML", "setting": name}, one)
    what = f"minus {one['setting']}"
    own, tight = ({f"{n} {what}, {words}": versus(column, n) for n in names} for column, words in ADAPTED.items())
    return Found(own, tight)


def beats_more_steps(records: Records) -> Found:
    here = runs.at(records)
    best = runs.best(here, "m-step MAML", settings_of(here, "m-step MAML"))
    rt = {"method": "RT-MLMC", "setting": settings_of(here, "RT-MLMC")[0]}
    what = f"RT-MLMC ({rt['setting']}) minus m-step MAML"
    lines = {f"{what}, {words}": difference(here, column, rt, best) for column, words in ADAPTED.items()}
    return Found(lines, {"m-step MAML by validation": by_steps(lambda steps: best(steps)["setting"])})


RISES = where(lambda effect: effect.low > 0)
ALL_FLAT = where(lambda effect: max(abs(effect.low), abs(effect.high)) < FLAT)
RULES = {large_steps: RISES, small_steps: ALL_FLAT, more_steps: below(), beats_more_steps: below()}
CLAIMS = claims_of(CONFIG, RULES)


def render(records: Records) -> Drawn:
    s = records.settings
    rivals = {"m-step MAML": None, "MAML": same_step(runs.at(records)), "RT-MLMC": None}
    columns: dict[str, Any] = {"one-step MAML": {"MAML": None}, f"gamma = {s['gamma_m']:g}": rivals}
    return runs.drawn(records, columns, f"the last x of {max(s['m'])}-step MAML (first seed)")
