"""What `solve` returns: an answer, how good it is, and how it was found."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, NamedTuple

from bilevelax.base.text_table import Table, as_text, number
from bilevelax.run.records.result import Result

if TYPE_CHECKING:
    from bilevelax.diagnostics.certify import Certificate
    from bilevelax.exact.evaluate import Evaluation


ERRORS = ("statistical", "optimisation", "bias")


class Stage(NamedTuple):
    """A sample of m contexts with n samples each, and what was done on it. Norms of gradients throughout."""

    m: int
    n: int
    kind: str  # exact, sampled, or debiased: which F its descent lowers
    iterations: int
    evaluations: int
    seconds: float
    grad: float  # |grad F| where it began, unbiased and on fresh draws
    low: float
    high: float
    optimisation: float  # |grad| of the sample where it ended
    statistical: float  # how far that is from |grad F|
    bias: float  # of the follower's samples, as halving them shows it


@dataclasses.dataclass(frozen=True)
class Solved(Result):
    """What `solve` returns; also a `Result`, which `save` writes and `Result.load` reads."""

    certificate: Certificate  # of |grad F(x)|^2, on draws that did not help to find x
    F: Evaluation  # F(x), likewise
    goal: float  # the |grad F| that was asked for
    stages: list[Stage]
    reason: str  # one word
    why: str  # a sentence
    notes: tuple[str, ...] = ()

    @property
    def certified(self) -> bool:
        return self.reason == "certified"

    def __str__(self) -> str:
        columns = ("m", "n", "kind", "iterations", "seconds", "|grad F|", "at most", *ERRORS)
        rows = [
            [
                str(s.m),
                str(s.n),
                s.kind,
                str(s.iterations),
                *(number(v, 3) for v in (s.seconds, s.grad, s.high, *(getattr(s, name) for name in ERRORS))),
            ]
            for s in self.stages
        ]
        told = [self.why, *self.notes, f"F = {self.F.mean:.6g} in [{self.F.low:.6g}, {self.F.high:.6g}]."]
        return "\n".join([*told, as_text(Table("", columns, rows))])
