"""Figure 1: meta-learning, test loss of DL-SGD, RT-MLMC and MAML against upper iterations.

A method's x may be adapted to a task as the method itself does, which curves show, or until y*, the same for all.
Claims are judged on both, with the paper's steps and with the best constant or Adam.
"""

from collections.abc import Iterator
from typing import Any

from bilevelax.base.statistics import Interval
from bilevelax_paper import meta
from bilevelax_paper import meta_runs as runs
from bilevelax_paper.claims import Found, Lines, below, claims_of
from bilevelax_paper.item import Cell, Config, Drawn, Records
from bilevelax_paper.meta_runs import ADAPTED, KINDS, by_steps, difference, losses, settings_of

CONFIG = Config.read(__file__)
GAMMA = 1 / meta.LAM  # the paper defines MAML's step as 1/lambda
NEAR = 0.05  # of a test loss near 1.7: two methods alike


def run(settings: dict[str, Any], seeds: int) -> Iterator[Cell]:
    maml, makes = meta.steps(1, GAMMA), {"RT-MLMC": meta.rt, "DL-SGD": meta.dl}
    of = {maml.name: maml, **{name: makes[name](Ks[0]) for name, Ks in settings["K"].items()}}
    among = lambda part: [maml, *(makes[name](K) for name, Ks in settings[part].items() for K in Ks)]
    main, other = (among(part) for part in ("K", "length_K"))
    planned = runs.plans({**settings, "seeds": seeds}, main, other, lambda method: of[method.name])
    yield from runs.cells(settings, planned, [meta.steps(1, gamma) for gamma in settings["gamma"]])


def larger_K(records: Records, method: str) -> Found | None:
    """The largest K against the smallest, after own adaptation and until y*."""

    def gaps(part: Records, t: int | None = None) -> Lines:
        first, *_, last = [{"method": method, "setting": name} for name in settings_of(part, method) * 2]
        after = max(part.values("t", kind="end")) if t is None else t
        what = f"{last['setting']} minus {first['setting']} after {after} iterations"
        columns = ADAPTED if t is None else ["own"]
        there = first != last
        return {f"{what}, {ADAPTED[name]}": difference(part, name, last, first, t) for name in columns if there}

    here = runs.at(records)
    found = {**gaps(here), **runs.elsewhere(records, gaps)}
    return Found(found, gaps(here, 0)) if found else None


def beats_maml(records: Records, method: str) -> Found:
    """With the K of least validation loss, after own adaptation and where both adapt until y*."""
    ways = {"own adaptation": ("own", "own"), "both until y*": ("tight", "tight")}
    ways["until y* against MAML's step on all images"] = "tight", "whole"

    def lines(part: Records, rival: str = "MAML") -> dict[str, dict[str, Interval]]:
        mine = runs.best(part, method, settings_of(part, method))
        maml = {"method": rival, "setting": settings_of(part, rival)[0]}
        gap = lambda one, other: difference(part, one, mine, maml, its=other)
        return {f"{method} minus {rival} ({maml['setting']}), {words}": gap(*way) for words, way in ways.items()}

    here = runs.at(records)
    found, chosen = lines(here), runs.best(here, method, settings_of(here, method))
    longer = lines(here, runs.LONGER) if here.where(kind="end", method=runs.LONGER) else {}
    beside: Lines = {f"K of {method} by validation": by_steps(lambda steps: chosen(steps)["setting"])}
    own, same, _ = (line.values() for line in found.values())
    only_own = all(gap.high < 0 for gap in own) and not any(gap.high < 0 for gap in same)
    words = {"only_own": only_own, "images": meta.IMAGES}
    return Found({**found, **longer, **runs.elsewhere(records, lines)}, beside, words)


def rt_matches_dl(records: Records) -> Found:
    """For every K that both ran."""
    of = lambda method, name: {"method": method, "setting": name}
    both = lambda part: [name for name in settings_of(part, "RT-MLMC") if name in settings_of(part, "DL-SGD")]
    last = lambda part: max(part.values("t", kind="end"))
    what = lambda name, part: f"RT-MLMC minus DL-SGD, {name}, after {last(part)} iterations"
    gap = lambda name, part: difference(part, "own", of("RT-MLMC", name), of("DL-SGD", name))
    gaps = lambda part: {what(name, part): gap(name, part) for name in both(part)}
    here, wider = runs.at(records), {}
    for name in both(here):
        rt, dl = (losses(here, "own", steps="paper", **of(m, name)).std(ddof=1) for m in ("RT-MLMC", "DL-SGD"))
        wider[f"standard deviation over seeds, times that of DL-SGD, {name}"] = {KINDS["paper"]: float(rt / dl)}
    return Found({**gaps(here), **runs.elsewhere(records, gaps)}, wider, {"near": NEAR})


CLAIMS = claims_of(CONFIG, {larger_K: below(), beats_maml: below(), rt_matches_dl: below(NEAR)})


def render(records: Records) -> Drawn:
    columns: dict[str, dict[str, Any]] = {name: {name: None, "MAML": None} for name in ("DL-SGD", "RT-MLMC")}
    return runs.drawn(records, columns, "the last x of MAML (first seed, the paper's steps)")
