"""What the paper says about WDRO-SI against Figure 3's records. Reasons are said only where they were measured."""

from __future__ import annotations

import numpy as np

from bilevelax.experiments._formulation_views import (
    PAPER,
    SOLVED,
    WIDER,
    Group,
    at_adversary,
    both_dimensions,
    curves,
    gap,
    grids,
    run_by_run,
    share_flat,
)
from bilevelax.experiments._items import Claim, Records
from bilevelax.experiments._newsvendors import DEVIATION
from bilevelax.experiments._statistics import Interval, mean, number

NO_NUMBERS = "a figure without numbers"
VISIBLE = 1e-3  # of a test cost: less than a figure shows


def better(found: Interval) -> bool:
    return found.high < 0


def where(found: dict[str, Interval]) -> str:
    """In words: for which of these differences the interval lies below 0."""
    won = [label for label, interval in found.items() if better(interval)]
    return f"It holds {' and '.join(won)}." if won else ""


def sentences(*parts: str) -> str:
    return " ".join(part for part in parts if part)


def larger_K(records: Records, method: str) -> Claim:
    s = records.settings
    Ks, small = s["K"], s["lam_small"]
    label = {"paper": "the paper's steps", "other": records.values("rule", kind="curve", steps="other")[0]}

    def gain(lam: float, steps: str) -> Interval:
        last = [curves(records, method=method, K=K, steps=steps, lam=lam)[1][:, -1] for K in (Ks[-1], Ks[0])]
        return mean(last[0] - last[1])

    found = {f"at lambda = {lam:g} with {label[steps]}": gain(lam, steps) for lam in (1.0, small) for steps in label}
    first = next(iter(found.values()))
    cost = float(curves(records, method=method, K=Ks[-1], steps="paper", lam=1.0)[1][:, -1].mean())
    return Claim(
        f"WDRO-SI, {method}: larger K gives lower test cost",
        NO_NUMBERS,
        f"K = {Ks[-1]} minus K = {Ks[0]} " + "; ".join(f"{words}: {interval}" for words, interval in found.items()),
        min(s["seeds"], s["curve_seeds"]),
        Claim.judge(better(first) and -first.value > VISIBLE * cost, any(map(better, found.values()))),
        sentences(where(found), too_small(found, cost), moved_by_K(records, method)),
    )


def too_small(found: dict[str, Interval], cost: float) -> str:
    """Gains that are certain, as runs share start and draws, but too small for a figure."""
    small = [words for words, gain in found.items() if better(gain) and -gain.value <= VISIBLE * cost]
    return (
        f"A gain of at most {VISIBLE:.1%} of the cost is not to be seen in a figure: {', '.join(small)}."
        if small
        else ""
    )


def moved_by_K(records: Records, method: str) -> str:
    """What K has to solve at the rules that the curves end at, and what that is worth."""
    Ks, small = records.settings["K"], records.settings["lam_small"]
    look = lambda column, **equal: records.values(column, kind="curve", method=method, steps="paper", **equal)
    far = {lam: mean(look("distance", K=Ks[-1], lam=lam)).value for lam in (1.0, small)}
    ends = [np.array(look("test", K=K, lam=1.0))[:, -1] for K in Ks]
    apart = max(float(np.abs(a - b).max()) for a in ends for b in ends)
    norm = DEVIATION * both_dimensions(records)[0] ** 0.5  # of a context, in the root mean square
    return (
        f"At the last x of K = {Ks[-1]} the adversary's best answer moves a context, of norm {norm:.2g}, by "
        f"{number(far[1.0])} at lambda = 1 and by {number(far[small])} at {small:g}: that is what K can solve for. At "
        f"lambda = 1 no two K end more than {number(apart)} apart on any seed."
    )


def trained(records: Records, d: int, methods: tuple[str, ...]) -> str:
    """How far these methods' rules were trained, and how many are constants."""
    grid = grids(records)[PAPER]
    parts = []
    for name in methods:
        group = Group(records, d, name)
        parts.append(
            f"{name} {group.chosen_fit(grid).value:.0%} where stopped, {group.end_fit(grid).value:.0%} at the end"
        )
    flat = max(share_flat(records, d, name) for name in methods)
    return (
        f"R^{d}: of the way from the best constant order to the least possible training cost the rules go: "
        f"{'; '.join(parts)}; {f'at most {flat:.0%} of a method' if flat else 'none'} end as a constant."
    )


def same_minimiser(records: Records, d: int) -> str:
    """Why ERM and WDRO-SI agree: where rules fit and E g is convex they have the same minimisers."""
    lams = records.settings["lam"]
    fits = [Group(records, d, name).end_fit(lams).value for name in ("ERM", "WDRO-SI")]
    convex = [lam for lam in lams if at_adversary(records, d, "ERM", lam, "least").min() > 0]
    far = {lam: float(at_adversary(records, d, "ERM", lam, "distance").mean()) for lam in lams}
    which = "every lambda" if convex == lams else ", ".join(f"lambda = {lam:g}" for lam in convex) or "no lambda"
    said = (
        f"At the last rules of ERM in R^{d} the adversary of WDRO-SI moves a context by {number(far[min(lams)])} at "
        f"lambda = {min(lams):g} and by {number(far[max(lams)])} at {max(lams):g}, and E g is convex there for {which} "
        "of the paper's."
    )
    if min(fits) >= SOLVED and convex == lams:
        said += (
            " A rule that orders best in every stored context leaves that adversary no slope, so where E g is convex "
            "it solves WDRO-SI and ERM alike: trained to the end, the two formulations have the same solutions here."
        )
    return said


def dear_robustness(records: Records, d: int) -> str:
    """Said where robustness at small lambda costs more than it gains."""
    lost = run_by_run(Group(records, d, "WDRO-SI"), Group(records, d, "ERM"), grids(records)[WIDER])
    return f"In that mean over the wider grid in R^{d} WDRO-SI costs {lost} more than ERM." if lost.low > 0 else ""


def against(records: Records, other: str) -> Claim:
    s = records.settings
    big, easy = both_dimensions(records)
    pairs = {d: (Group(records, d, "WDRO-SI"), Group(records, d, other)) for d in (big, easy)}
    printed = gap(*pairs[big], grids(records)[PAPER])
    elsewhere = {
        f"in R^{big} with the wider grid": gap(*pairs[big], grids(records)[WIDER]),
        f"in R^{easy} with the paper's lambdas": gap(*pairs[easy], grids(records)[PAPER]),
        f"in R^{easy} with the wider grid": gap(*pairs[easy], grids(records)[WIDER]),
        f"in R^{easy} in the mean over the wider grid, none chosen": run_by_run(*pairs[easy], grids(records)[WIDER]),
    }
    plain = {d: run_by_run(*pair, s["lam"]) for d, pair in pairs.items()}
    listed = "; ".join(f"{label}: {interval}" for label, interval in elsewhere.items())
    ends = ", ".join(f"R^{d}: {interval}" for d, interval in plain.items())
    reason = same_minimiser(records, big) if other == "ERM" else dear_robustness(records, easy)
    return Claim(
        f"WDRO-SI beats {other}",
        NO_NUMBERS,
        f"WDRO-SI minus {other} at m = {max(s['m'])}, chosen on validation: {printed} in R^{big} with the paper's "
        f"lambdas; {listed}; at the end of training, run by run, the mean over the paper's lambdas: {ends}",
        s["seeds"],
        Claim.judge(better(printed), any(map(better, elsewhere.values()))),
        sentences(where(elsewhere), reason, *(trained(records, d, ("WDRO-SI", other)) for d in (big, easy))),
    )


def more_demands(records: Records) -> Claim:
    s = records.settings
    few, many = min(s["m"]), max(s["m"])
    big, easy = both_dimensions(records)
    pairs = {
        (d, name): (Group(records, d, name, m=many), Group(records, d, name, m=few))
        for d in (big, easy)
        for name in ("WDRO-SI", "ERM")
    }
    ours = gap(*pairs[big, "WDRO-SI"], s["lam"])
    ends = "at the end of training, in the mean over all runs"
    elsewhere = {
        f"in R^{big} {ends}": run_by_run(*pairs[big, "WDRO-SI"], s["lam"]),
        f"in R^{easy}": gap(*pairs[easy, "WDRO-SI"], s["lam"]),
        f"in R^{easy} {ends}": run_by_run(*pairs[easy, "WDRO-SI"], s["lam"]),
    }
    listed = "; ".join(f"{label}: {interval}" for label, interval in elsewhere.items())
    erm = ", ".join(f"{gap(*pairs[d, 'ERM'], s['lam'])} in R^{d}" for d in (big, easy))
    return Claim(
        "More demands per context help WDRO-SI",
        "m = 100 below m = 10",
        f"m = {many} minus m = {few}: {ours} in R^{big}, run and stopping time chosen on validation; {listed}; ERM, "
        f"chosen on validation: {erm}",
        s["seeds"],
        Claim.judge(better(ours), any(map(better, elsewhere.values()))),
        sentences(where(elsewhere), left_over(records, big), left_over(records, easy)),
    )


def left_over(records: Records, d: int) -> str:
    """What WDRO-SI gains on the best constant order, with few and with many demands."""
    s = records.settings
    parts = []
    for m in (min(s["m"]), max(s["m"])):
        group = Group(records, d, "WDRO-SI", m=m)
        parts.append(f"{mean(group.chosen(s['lam']) - group.bound('constant'))} at m = {m}")
    return f"Against the best constant order in R^{d}: {', '.join(parts)}."


def networks(records: Records) -> Claim:
    s = records.settings
    big, easy = both_dimensions(records)
    pairs = {
        (d, name): (Group(records, d, name), Group(records, d, name, "affine"))
        for d in (big, easy)
        for name in ("WDRO-SI", "ERM")
    }
    found = {f"{name} in R^{d}": gap(*pair, s["lam"]) for (d, name), pair in pairs.items()}
    fits = "; ".join(
        f"R^{d} {pair[1].end_fit(s['lam']).value:.0%}" for (d, name), pair in pairs.items() if name == "WDRO-SI"
    )
    constant = {
        d: mean(affine.chosen(s["lam"]) - affine.bound("constant"))
        for (d, name), (_, affine) in pairs.items()
        if name == "WDRO-SI"
    }
    against_constant = ", ".join(f"{interval} in R^{d}" for d, interval in constant.items())
    return Claim(
        "Network rules beat affine ones",
        "allowed by the method, not measured",
        f"network minus affine at m = {max(s['m'])}, chosen on validation: "
        + "; ".join(f"{label}: {interval}" for label, interval in found.items()),
        s["seeds"],
        Claim.judge(better(found[f"WDRO-SI in R^{big}"]), better(found[f"WDRO-SI in R^{easy}"])),
        sentences(
            where({f"in R^{d}": found[f"WDRO-SI in R^{d}"] for d in (big, easy)}),
            f"Both classes are trained alike, with steps tuned for each. Affine rules of WDRO-SI end at this share of "
            f"the way to their own least training cost: {fits}. As chosen, their test cost minus that of the best "
            f"constant order, which is affine too: {against_constant}.",
        ),
    )


def claims(records: Records) -> list[Claim]:
    return [
        larger_K(records, "DL-SGD"),
        larger_K(records, "RT-MLMC"),
        against(records, "ERM"),
        against(records, "WDRO"),
        more_demands(records),
        networks(records),
    ]
