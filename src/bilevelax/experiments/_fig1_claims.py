"""What Figure 1 claims, on both kinds of steps, both adaptations and the K of the paper."""

from __future__ import annotations

from bilevelax.experiments import _meta as meta
from bilevelax.experiments import _meta_noise as noise
from bilevelax.experiments._items import Claim, Records, Row
from bilevelax.experiments._meta_views import (
    KINDS,
    below,
    best_setting,
    difference,
    in_words,
    losses,
    settings_of,
)
from bilevelax.experiments._statistics import Interval, mean

PRINTED = (6, 8, 10, 12)  # the K of the paper's table on this problem
NEAR = 0.05  # of a test loss near 1.7: two methods alike


def whole_runs(records: Records, method: str) -> list[str]:
    """The settings whose curves go to T."""
    T = records.settings["T"]
    return [
        name for name in settings_of(records, method) if records.where(kind="end", method=method, setting=name, t=T)
    ]


def printed(names: list[str]) -> list[str]:
    """Those of the paper; all, where there are none (scale smoke)."""
    return [name for name in names if int(name.removeprefix("K = ")) in PRINTED] or names


def stop_of(records: Records, method: str, setting: str) -> int:
    return records.values("t", kind="end", method=method, setting=setting)[0]


def by_K(records: Records, method: str, column: str, names: list[str]) -> str:
    """Mean losses of all K, with each kind of steps."""
    value = lambda name, steps: losses(records, column, method=method, setting=name, steps=steps).mean()
    return "; ".join(
        f"{words}: " + ", ".join(f"{name}: {value(name, steps):.3f}" for name in names)
        for steps, words in KINDS.items()
    )


def in_x(gaps: dict[str, Interval]) -> str:
    """What the same exact adaptation says of x itself."""
    found = {
        words: "better" if gaps[steps].high < 0 else "worse" if gaps[steps].low > 0 else "not told apart"
        for steps, words in KINDS.items()
    }
    return "Adapted until y*, the x of the larger K is " + ", ".join(f"{v} with {k}" for k, v in found.items())


def larger_K(records: Records, method: str) -> Claim:
    """The largest K of the paper against its smallest: at T, and where it stopped earlier, also there."""
    T, whole = records.settings["T"], whole_runs(records, method)
    names = printed(whole)
    one, other = ({"method": method, "setting": names[i]} for i in (-1, 0))
    own, tight = (difference(records, column, one, other) for column in ("own", "tight"))
    at_start = difference(records, "own", one, other, t=0)["paper"]
    measured = [
        f"{names[-1]} minus {names[0]} after {T} iterations, own adaptation: {in_words(own)}",
        f"until y*: {in_words(tight)}",
    ]
    held = [*below(own), *below(tight)]
    for name in printed(settings_of(records, method)):
        if name not in whole:  # it stopped before T
            t = stop_of(records, method, name)
            early = difference(records, "own", {"method": method, "setting": name}, other, t=t)
            measured.append(f"{name} minus {names[0]} after {t} iterations, own adaptation: {in_words(early)}")
            held += below(early)
    return Claim(
        f"{method}: larger K generalises better",
        "a figure without numbers",
        "; ".join(measured),
        records.settings["seeds"],
        Claim.judge(all(held), any(held)),
        "Reproduced means: in every line. K decides how well a task is solved at the test, too: before any training, "
        f"after own adaptation, the first difference is {at_start}. {in_x(tight)}. Own adaptation, "
        f"{by_K(records, method, 'own', whole)}. Until y*, {by_K(records, method, 'tight', whole)}.",
    )


def beats_maml(records: Records, method: str) -> Claim:
    maml: Row = {"method": "MAML", "setting": settings_of(records, "MAML")[0]}
    names = printed(whole_runs(records, method))
    best = {steps: best_setting(records, method, steps, names) for steps in KINDS}
    ways = {"own adaptation": ("own", "own"), "both until y*": ("tight", "tight")}
    ways["until y* against MAML's step on all images"] = ("tight", "whole")
    last = lambda steps, mine, its: mean(
        losses(records, mine, method=method, setting=best[steps], steps=steps)
        - losses(records, its, steps=steps, **maml)
    )
    gaps = {words: {steps: last(steps, *columns) for steps in KINDS} for words, columns in ways.items()}
    held = [ok for gap in gaps.values() for ok in below(gap)]
    chosen = ", ".join(f"{best[steps]} with {words}" for steps, words in KINDS.items())
    measured = dict.fromkeys([f"K = {records.settings['K_tuned']}", *best.values()])
    which = [{"method": method, "setting": name} for name in measured]
    return Claim(
        f"{method} beats MAML",
        "a figure without numbers",
        f"{method} minus MAML ({maml['setting']}): " + "; ".join(f"{k}: {in_words(v)}" for k, v in gaps.items()),
        records.settings["seeds"],
        Claim.judge(all(held), any(held)),
        f"K by validation loss among those of the paper: {chosen}. {one_step(gaps)}"
        + (less_noise(records, maml, "MAML") if method == "RT-MLMC" else "")
        + noise.sentence(records, [*which, maml]),
    )


def one_step(gaps: dict[str, dict[str, Interval]]) -> str:
    """Whether the lead is one of MAML's adaptation or of its x."""
    own, same, _ = gaps.values()
    if all(below(own)) and not any(below(same)):
        return (
            f"It holds where MAML adapts as in training, by one step on {meta.IMAGES} images; adapted until y*, MAML's "
            "x is as good or better. "
        )
    return ""


def less_noise(records: Records, other: Row, words: str) -> str:
    """The same comparison for RT-MLMC with less noise, where it was run."""
    quiet = {"method": meta.QUIET, "setting": f"K = {records.settings['K_tuned']}"}
    if not records.where(kind="end", **quiet):
        return ""
    own, tight = (in_words(difference(records, column, quiet, other)) for column in ("own", "tight"))
    return (
        f"RT-MLMC with less noise (the whole Neumann series, levels spread evenly over tasks), {quiet['setting']} "
        f"minus {words}: own adaptation {own}, until y* {tight}. "
    )


def rt_matches_dl(records: Records) -> Claim:
    names = printed([name for name in settings_of(records, "DL-SGD") if name in settings_of(records, "RT-MLMC")])
    stops = {name: stop_of(records, "DL-SGD", name) for name in names}
    pair = lambda name: ({"method": "RT-MLMC", "setting": name}, {"method": "DL-SGD", "setting": name})
    gaps = {name: difference(records, "own", *pair(name), t=stops[name]) for name in names}
    close = [ok for gap in gaps.values() for ok in below(gap, NEAR)]
    tuned = f"K = {records.settings['K_tuned']}"
    spread = lambda method, name: losses(records, "own", stops[name], method=method, setting=name, steps="paper").std(
        ddof=1
    )
    wider = ", ".join(f"{name}: {spread('RT-MLMC', name) / spread('DL-SGD', name):.2g}" for name in names)
    return Claim(
        "RT-MLMC matches DL-SGD at equal iterations",
        "two figures alike",
        "RT-MLMC minus DL-SGD, own adaptation; "
        + "; ".join(f"{name}, after {stops[name]}: {in_words(gap)}" for name, gap in gaps.items()),
        records.settings["seeds"],
        Claim.judge(all(close), any(close)),
        f"Reproduced means: the whole interval below {NEAR} at every K of the paper, with both kinds of steps. "
        f"Standard deviation of the loss over seeds, times that of DL-SGD, with {KINDS['paper']}: {wider}. "
        f"{less_noise(records, {'method': 'DL-SGD', 'setting': tuned}, f'DL-SGD, {tuned}')}"
        + noise.sentence(records, [one for name in names for one in pair(name)[::-1]]),
    )


def claims(records: Records) -> list[Claim]:
    return [
        larger_K(records, "DL-SGD"),
        larger_K(records, "RT-MLMC"),
        beats_maml(records, "DL-SGD"),
        beats_maml(records, "RT-MLMC"),
        rt_matches_dl(records),
    ]
