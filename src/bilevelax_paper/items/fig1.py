"""Figure 1: meta-learning, test loss of DL-SGD, RT-MLMC and MAML against upper iterations.

A method's x may be adapted to a task as the method itself does, which curves show, or until y*, the same for all.
Claims are judged on both, with the paper's steps and with the best constant or Adam.
"""

from collections.abc import Iterator
from typing import Any

from bilevelax_paper import meta
from bilevelax_paper import meta_runs as runs
from bilevelax_paper.claims import Found, Lines, below, claims_of
from bilevelax_paper.item import Cell, Config, Drawn, Records, Row
from bilevelax_paper.meta_runs import ADAPTED, KINDS, by_steps, difference, losses, settings_of

CONFIG = Config.read(__file__)
GAMMA = 1 / meta.LAM  # the paper defines MAML's step as 1/lambda
PRINTED = (6, 8, 10, 12)  # the K of the paper's table on this problem
NEAR = 0.05  # of a test loss near 1.7: two methods alike


def run(settings: dict[str, Any], seeds: int) -> Iterator[Cell]:
    Ks, tuned, maml = settings["K"], settings["K_tuned"], meta.steps(1, GAMMA)
    quiet = [] if settings["small"] else [meta.quiet(tuned)]  # nothing new to test at scale smoke
    others = [*map(meta.rt, Ks), *quiet, maml]
    borrowed: Any = {meta.dl(K): meta.dl(min(K, tuned)) for K in Ks}
    stops: Any = {meta.dl(int(K)): T for K, T in settings["T_of_K"].items()}
    measured = [*others, meta.dl(tuned)]
    return runs.cells(settings, seeds, [*map(meta.dl, Ks), *others], maml, measured, borrowed, stops)


def whole_runs(records: Records, method: str) -> list[str]:
    """The settings whose curves go to T."""
    return records.distinct("setting", kind="end", method=method, t=records.settings["T"])


def printed(names: list[str]) -> list[str]:
    """Those of the paper; all, where there are none (scale smoke)."""
    return [name for name in names if int(name.removeprefix("K = ")) in PRINTED] or names


def maml_of(records: Records) -> Row:
    return {"method": "MAML", "setting": settings_of(records, "MAML")[0]}


def larger_K(records: Records, method: str) -> Found:
    """The largest K of the paper against its smallest: at T, and where it stopped earlier, also there."""
    T, whole = records.settings["T"], whole_runs(records, method)
    names = printed(whole)
    of = lambda name: {"method": method, "setting": name}
    gap = lambda column, name, t=None: difference(records, column, of(name), of(names[0]), t)
    what = lambda name, t: f"{name} minus {names[0]} after {t} iterations"
    lines = {f"{what(names[-1], T)}, {words}": gap(column, names[-1]) for column, words in ADAPTED.items()}
    for name in (name for name in printed(settings_of(records, method)) if name not in whole):  # stopped before T
        t = records.values("t", kind="end", **of(name))[0]
        lines[f"{what(name, t)}, own adaptation"] = gap("own", name, t)
    return Found(lines, {f"{what(names[-1], 0)}, own adaptation": gap("own", names[-1], 0)})


def beats_maml(records: Records, method: str) -> Found:
    maml, chosen = maml_of(records), runs.best(records, method, printed(whole_runs(records, method)))
    own, same, whole = (
        difference(records, mine, chosen, maml, its=its)
        for mine, its in (("own", "own"), ("tight", "tight"), ("tight", "whole"))
    )
    what = f"{method} minus MAML ({maml['setting']})"
    lines = {f"{what}, own adaptation": own, f"{what}, both until y*": same}
    lines[f"{what}, until y* against MAML's step on all images"] = whole
    beside: Lines = {f"K of {method} by validation": by_steps(lambda steps: chosen(steps)["setting"])}
    quiet = less_noise(records, maml, "MAML") if method == "RT-MLMC" else {}
    only_own = all(gap.high < 0 for gap in own.values()) and not any(gap.high < 0 for gap in same.values())
    return Found(lines, {**beside, **quiet}, {"only_own": only_own, "images": meta.IMAGES})


def less_noise(records: Records, other: Row, name: str) -> Lines:
    """The same comparison for RT-MLMC with less noise, where it was run."""
    quiet = {"method": meta.QUIET, "setting": f"K = {records.settings['K_tuned']}"}
    there = ADAPTED if records.where(kind="end", **quiet) else {}
    what = f"RT-MLMC with less noise ({quiet['setting']}) minus {name}"
    return {f"{what}, {words}": difference(records, column, quiet, other) for column, words in there.items()}


def rt_matches_dl(records: Records) -> Found:
    names = printed([name for name in settings_of(records, "DL-SGD") if name in settings_of(records, "RT-MLMC")])
    of = lambda method, name: {"method": method, "setting": name}
    stops = {name: records.values("t", kind="end", **of("DL-SGD", name))[0] for name in names}
    gap = lambda name: difference(records, "own", of("RT-MLMC", name), of("DL-SGD", name), t=stops[name])
    spread = lambda *one: losses(records, "own", stops[one[1]], steps="paper", **of(*one)).std(ddof=1)
    ratio = lambda name: {KINDS["paper"]: float(spread("RT-MLMC", name) / spread("DL-SGD", name))}
    tuned = f"K = {records.settings['K_tuned']}"
    lines = {f"RT-MLMC minus DL-SGD, {name}, after {stops[name]} iterations": gap(name) for name in names}
    wider = {f"standard deviation over seeds, times that of DL-SGD, {name}": ratio(name) for name in names}
    quiet = less_noise(records, of("DL-SGD", tuned), f"DL-SGD ({tuned})")
    return Found(lines, {**wider, **quiet}, {"near": NEAR})


CLAIMS = claims_of(CONFIG, {larger_K: below(), beats_maml: below(), rt_matches_dl: below(NEAR)})


def render(records: Records) -> Drawn:
    s, tuned = records.settings, records.settings["K_tuned"]
    shown: dict[str, dict[str, Any]] = {"DL-SGD": {"DL-SGD": None}, "RT-MLMC": {"RT-MLMC": None, meta.QUIET: None}}
    also = "".join(f"; DL-SGD with K = {K} stops at {T}" for K, T in s["T_of_K"].items())
    also += f"; DL-SGD with K > {tuned} takes the steps of K = {tuned}" if max(s["K"]) > tuned else ""
    where = "the last x of MAML (first seed, the paper's steps)"
    columns = {title: {**methods, "MAML": None} for title, methods in shown.items()}
    return runs.drawn(records, columns, where, also=also or True)
