"""What Figure 4 claims, on both kinds of steps."""

from __future__ import annotations

import itertools

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

PRINTED = [5e-3, 1e-2, 5e-2, 0.1, 0.2]
FLAT, NEARLY = 0.03, 0.1  # of a test loss near 1.9


def same_step(records: Records) -> str:
    """One-step MAML with the inner step of m-step MAML; the first one, where it was not run."""
    names = settings_of(records, "MAML")
    same = f"m = 1, gamma = {records.settings['gamma_m']:g}"
    return same if same in names else names[0]


def gamma_of(setting: str) -> float:
    return float(setting.rpartition("= ")[2])


def maml(setting: str) -> Row:
    return {"method": "MAML", "setting": setting}


def by_gamma(records: Records, column: str, steps: str) -> dict[str, float]:
    """Mean losses of one-step MAML."""
    return {s: losses(records, column, steps=steps, **maml(s)).mean() for s in settings_of(records, "MAML")}


def large_steps(records: Records) -> Claim:
    """The largest step of the paper against its smallest; beside it the largest of ours against the best."""
    names = settings_of(records, "MAML")
    inside = [name for name in names if gamma_of(name) <= PRINTED[-1]]
    worse = difference(records, "own", maml(inside[-1]), maml(inside[0]))
    own = {steps: by_gamma(records, "own", steps) for steps in KINDS}
    best = {steps: best_setting(records, "MAML", steps, names) for steps in KINDS}
    top = max(names, key=gamma_of)
    beyond = {
        steps: mean(
            losses(records, "own", steps=steps, **maml(top)) - losses(records, "own", steps=steps, **maml(best[steps]))
        )
        for steps in KINDS
    }
    whole = list(by_gamma(records, "whole", "paper").values())
    falls = "falls with gamma throughout" if all(a > b for a, b in itertools.pairwise(whole)) else "goes"
    listed = lambda values: ", ".join(f"{gamma_of(s):g}: {v:.3g}" for s, v in zip(names, values, strict=True))
    lead = ", ".join(f"{gamma_of(best[steps]):g} with {words}" for steps, words in KINDS.items())
    return Claim(
        "One-step MAML degrades at large inner steps",
        "at 0.2 against 0.005",
        f"gamma = {gamma_of(inside[-1]):g} minus {gamma_of(inside[0]):g}: {in_words(worse)}; "
        + "; ".join(f"test loss by gamma, {words}: {listed(own[steps].values())}" for steps, words in KINDS.items()),
        records.settings["seeds"],
        Claim.judge(
            all(gap.low > 0 for gap in worse.values()), any(g.low > 0 for g in [*worse.values(), *beyond.values()])
        ),
        f"The best gamma by validation: {lead}; {gamma_of(top):g} minus that one: {in_words(beyond)}. The useful size "
        f"of a step depends on the length of the features, which the paper does not give (ours: {meta.NORM:g}), and on "
        f"the images in it (ours: {meta.IMAGES}): with the step taken on all images of a task, {KINDS['paper']}, the "
        f"loss {falls}: {listed(whole)}.",
    )


def small_steps(records: Records) -> Claim:
    names = settings_of(records, "MAML")
    one, other = names[min(1, len(names) - 1)], names[0]
    flat = difference(records, "own", maml(one), maml(other))
    size = lambda gap: max(abs(gap.low), abs(gap.high))
    moved = difference(records, "whole", maml(one), maml(other))
    return Claim(
        "One-step MAML is flat at small inner steps",
        "0.005 and 0.01 alike",
        f"gamma = {gamma_of(one):g} minus {gamma_of(other):g}: {in_words(flat)}",
        records.settings["seeds"],
        Claim.judge(*(all(size(gap) < bound for gap in flat.values()) for bound in (FLAT, NEARLY))),
        f"Reproduced means: the whole interval within {FLAT} of 0 with both kinds of steps. On all images of a task: "
        f"{in_words(moved)}.",
    )


def more_steps(records: Records) -> Claim:
    one = maml(same_step(records))
    gaps = {
        name: difference(records, "own", {"method": "m-step MAML", "setting": name}, one)
        for name in settings_of(records, "m-step MAML")
    }
    held = [ok for gap in gaps.values() for ok in below(gap)]
    tight = {name: difference(records, "tight", {"method": "m-step MAML", "setting": name}, one) for name in gaps}
    return Claim(
        "More inner steps improve MAML",
        "a figure without numbers",
        f"minus {one['setting']}, own adaptation; "
        + "; ".join(f"{name}: {in_words(gap)}" for name, gap in gaps.items()),
        records.settings["seeds"],
        Claim.judge(all(held), any(held)),
        "The steps are also those of the test. All adapted until y*, "
        + "; ".join(f"{name}: {in_words(gap)}" for name, gap in tight.items())
        + ".",
    )


def beats_more_steps(records: Records) -> Claim:
    names = settings_of(records, "m-step MAML")
    best = {steps: best_setting(records, "m-step MAML", steps, names) for steps in KINDS}
    setting = settings_of(records, "RT-MLMC")[0]

    def gap(method: str, column: str) -> dict[str, Interval]:
        mine = lambda steps: losses(records, column, steps=steps, method=method, setting=setting)
        its = lambda steps: losses(records, column, steps=steps, method="m-step MAML", setting=best[steps])
        return {steps: mean(mine(steps) - its(steps)) for steps in KINDS}

    gaps = [gap("RT-MLMC", column) for column in ("own", "tight")]
    there = bool(records.where(kind="end", method=meta.QUIET))
    quiet = [gap(meta.QUIET, column) for column in ("own", "tight")] if there else []
    words = lambda pair: f"own adaptation: {in_words(pair[0])}; until y*: {in_words(pair[1])}"
    held, less = ([ok for one in pair for ok in below(one)] for pair in (gaps, quiet))
    which = [{"method": name, "setting": setting} for name in ("RT-MLMC", meta.QUIET)]
    which += [{"method": "m-step MAML", "setting": name} for name in dict.fromkeys(best.values())]
    return Claim(
        "RT-MLMC beats m-step MAML",
        "a figure without numbers",
        f"RT-MLMC ({setting}) minus m-step MAML, {words(gaps)}"
        + (f"; the same with less noise, {words(quiet)}" if quiet else ""),
        records.settings["seeds"],
        Claim.judge(all(held), any([*held, *less])),
        "At equal iterations, tasks and images per draw, and tuning; m by validation loss: "
        + ", ".join(f"{best[steps].split(',')[0]} with {words}" for steps, words in KINDS.items())
        + f". {noise.sentence(records, which)}",
    )


def claims(records: Records) -> list[Claim]:
    return [large_steps(records), small_steps(records), more_steps(records), beats_more_steps(records)]
