"""Runs that survive a kill: what is saved of a run, when, and how it is found again. On orbax; nothing is pickled."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import json
import math
import time
import warnings
from pathlib import Path
from typing import Any, Protocol

import jax
import numpy as np
from jax import random
from jax.experimental import multihost_utils

from bilevelax.base.declared import reason_of
from bilevelax.base.errors import RunStopped, require_choice, require_integer
from bilevelax.base.whole_files import require_room, told_if_not_written
from bilevelax.core.problem import PyTree
from bilevelax.run.records.described import described, described_optimizer
from bilevelax.run.records.fingerprint import Identity, difference, digest, digest_of_arrays, doubt, padded, plain
from bilevelax.run.records.journal import Journal
from bilevelax.run.records.orbax_side import open_manager, orbax, quiet_orbax, without_late_answers
from bilevelax.run.records.result import Snapshot
from bilevelax.run.records.run_folder import RunFolder, set_aside
from bilevelax.run.records.signals import Signals

RESUME = ("auto", "restart")
ROOM = 2**14  # bytes that orbax writes beside each array, at most
SECONDS = 60.0  # between two checkpoints where `every` is not given


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """Where and how often `minimize` saves its run.

    The folder holds ``checkpoints/``, ``history.jsonl`` (a row is there as soon as it is made) and
    ``status.json``. A run that finds its own checkpoints there goes on from the last good one and
    gives the same bits as a run that was never stopped.

    Args:
        folder: of this run alone.
        every: steps between two checkpoints, at least one chunk; by default once a minute. The end
            of a run, Ctrl-C and SIGTERM save too.
        keep: how many checkpoints stay on the disk, the newest; 2 or more, so that a damaged one
            has a predecessor.
    """

    folder: str | Path
    every: int | None = None
    keep: int = 3

    def __post_init__(self) -> None:
        if self.every is not None:
            require_integer("every", "Checkpoint", self.every, 1)
        require_integer("keep", "Checkpoint", self.keep, 2)

    def keeper(self, T: int, resume: str, owner: str = "minimize") -> Keeper:
        """Who saves a run of T steps here."""
        return Keeper(self, T, resume, owner)


class Saves(Protocol):
    """What the keeper asks of a run."""

    carry: Any

    @property
    def t(self) -> int: ...
    def identity(self) -> Identity: ...
    def snapshot(self) -> Snapshot: ...
    def result(self) -> Any: ...


class Keeper:
    """``with Keeper(...) as keeper``: ``restore`` once, then ``keep(run)`` after every chunk."""

    def __init__(self, checkpoint: Checkpoint, T: int, resume: str, owner: str) -> None:
        require_choice("resume", owner, resume, RESUME)
        self.folder = Path(checkpoint.folder).expanduser().absolute()
        self.every, self.copies = checkpoint.every or math.inf, checkpoint.keep
        self.seconds = math.inf if checkpoint.every else SECONDS
        self.T, self.resume = T, resume
        self.leads = jax.process_index() == 0
        self.journal = Journal(self.folder / "history.jsonl")

    def __enter__(self) -> Keeper:
        if self.leads and self.resume == "restart":
            set_aside(self.folder)
        with contextlib.ExitStack() as entered:
            self.run = entered.enter_context(RunFolder(self.folder, self.T)) if self.leads else None
            entered.enter_context(without_late_answers())
            with told_if_not_written(self.folder):
                self.manager = open_manager(self.folder / "checkpoints", self.copies)
            entered.callback(self.manager.close)
            self.signals = entered.enter_context(Signals())
            self.entered = entered.pop_all()
        self.saved, self.when = -1, time.monotonic()
        self.damaged: dict[int, str] = {}  # {step: why it cannot be read}
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self.entered.__exit__(kind, error, trace)

    def restore(self, run: Saves) -> Snapshot | None:
        """The run as the last good checkpoint holds it, in the structure of its carry; None where there is none."""
        self.identity = run.identity()
        if self.run and hasattr(run, "made_of"):
            _, estimator, optimizer, *_, every = run.made_of
            about = {"estimator": described(estimator), "optimizer": described_optimizer(optimizer)}
            self.run.about = {**about, "every": every}
        try:
            return self._restored(run)
        finally:
            if self.damaged:
                gc.collect()  # what is left of failed reads speaks up when it is collected: now, while nobody hears

    def _restored(self, run: Saves) -> Snapshot | None:
        damaged = self.damaged
        older = lambda: padded(run.made_of[0]) if hasattr(run, "made_of") else None
        rowless: tuple[int, Snapshot] | None = None  # the newest of which only the history is damaged
        for step in sorted(self.manager.all_steps(), reverse=True):
            try:
                meta = self._meta(step)
                found = difference(self.identity, meta["identity"], older)
                if found is None:
                    snapshot = self._snapshot(step, meta, run.carry)
            except Exception as error:  # damage shows itself in a hundred ways, in orbax, tensorstore and JSON
                damaged[step] = reason_of(error)
                continue
            if found:
                raise ValueError(
                    f"{self.folder} holds another run: {found}. Set that back, give this run another folder, or start "
                    'over with resume="restart" (`--restart` on the command line), which puts the old run aside.'
                )
            if said := doubt(self.identity, meta["identity"]):
                warnings.warn(f"The run in {self.folder} {said}", RuntimeWarning, stacklevel=4)
            try:
                snapshot = snapshot._replace(history=self.journal.read(meta["history"]))
            except (OSError, ValueError, RecursionError) as error:
                rowless = rowless or (step, snapshot)
                damaged[step] = reason_of(error)
                continue
            self._move_damaged(damaged, step)
            self.saved = step
            self._begin(meta["history"])
            return snapshot
        if rowless:
            return self._without_history(rowless, damaged)
        if damaged:
            told = "; ".join(f"t = {step}: {reason}" for step, reason in damaged.items())
            raise ValueError(
                f"No checkpoint in {self.folder} can be read ({told}). Copy the folder again from where it is whole, "
                'or start over with resume="restart".'
            )
        self._begin(None)
        return None

    def _without_history(self, rowless: tuple[int, Snapshot], damaged: dict[int, str]) -> Snapshot:
        """Go on from a whole checkpoint though no checkpoint's rows are whole: the file of rows is put aside."""
        self.saved, snapshot = rowless
        warnings.warn(
            f"The history.jsonl in {self.folder} is damaged ({damaged[self.saved]}): the run goes on from "
            f"t = {self.saved} without the rows before; what is left of them is in history.jsonl.1.",
            RuntimeWarning,
            stacklevel=5,
        )
        self._move_damaged({step: reason for step, reason in damaged.items() if step > self.saved}, self.saved)
        if self.leads:
            set_aside(self.journal.path)
        self._begin(None)
        return snapshot

    def _begin(self, mark: dict[str, Any] | None) -> None:
        if self.run:
            with told_if_not_written(self.folder):
                self.journal.rewind(mark)
                self.run.begin()

    def keep(self, run: Saves, last: bool = False) -> None:
        """Write the new rows; save if it is time, if the run ends or was told to stop; then stop if so."""
        snapshot, t = run.snapshot(), run.t
        try:
            if self.leads:
                self.journal.append(snapshot.history)
            told = self.signals.caught
            due = last or t - self.saved >= self.every or time.monotonic() - self.when >= self.seconds
            told, due = _agreed(told, due or bool(told))
            if due and t != self.saved:
                self._save(t, snapshot)
        except Exception as error:
            reason = reason_of(error)
            good = f"the last good one is t = {self.saved}" if self.saved >= 0 else "there is none yet"
            raise RunStopped(
                f"The checkpoint at t = {t} could not be saved in {self.folder} ({reason}); {good}. Make room or give "
                "another folder.",
                run.result(),
            ) from error
        if told:
            self.signals.stop(told, f"Stopped at t = {t}, saved in {self.folder}: the same call goes on from there.")

    def tuning(self) -> dict[str, Any] | None:
        """What `tune` chose when this run began, if it did."""
        for step in sorted(self.manager.all_steps(), reverse=True):
            try:
                return self._meta(step)["totals"]["manifest"].get("tuning")
            except Exception:  # damaged: `restore` tells
                continue
        return None

    def _save(self, t: int, snapshot: Snapshot) -> None:
        leaves = [plain(leaf) for leaf in jax.tree.leaves(snapshot.carry)]
        meta = {
            "identity": self.identity,
            "totals": snapshot.totals,
            "history": self.journal.mark() if self.leads else None,
            "leaves": digest_of_arrays(leaves),
        }
        text = json.dumps(meta)
        args = orbax().args
        if self.leads:
            require_room(self.folder, len(text) + sum(leaf.nbytes for leaf in leaves) + ROOM * (1 + len(leaves)))
        with quiet_orbax():
            self.manager.save(
                t,
                args=args.Composite(
                    carry=args.StandardSave(_named(leaves)),
                    meta=args.JsonSave({"text": text, "sha256": digest(text.encode())}),
                ),
            )
            self.manager.wait_until_finished()
        self.saved, self.when = t, time.monotonic()

    def _meta(self, step: int) -> dict[str, Any]:
        args = orbax().args
        stored = self.manager.restore(step, args=args.Composite(meta=args.JsonRestore()))["meta"]
        if digest(stored["text"].encode()) != stored["sha256"]:
            raise ValueError("its description was changed")
        return json.loads(stored["text"])

    def _snapshot(self, step: int, meta: dict[str, Any], like: PyTree) -> Snapshot:
        shapes = [
            jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding)
            for leaf in map(plain, jax.tree.leaves(like))
        ]
        args = orbax().args
        named = self.manager.restore(step, args=args.Composite(carry=args.StandardRestore(_named(shapes))))["carry"]
        leaves = [named[name] for name in sorted(named)]
        if digest_of_arrays(leaves) != meta["leaves"]:
            raise ValueError("its arrays were changed")
        typed = [_typed(leaf, old) for leaf, old in zip(leaves, jax.tree.leaves(like), strict=True)]
        carry = jax.tree.unflatten(jax.tree.structure(like), typed)
        return Snapshot(carry, [], meta["totals"])

    def _move_damaged(self, damaged: dict[int, str], good: int) -> None:
        for step, reason in damaged.items():
            warnings.warn(
                f"The checkpoint t = {step} in {self.folder} is damaged ({reason}): it was put aside, and the run goes "
                f"on from the previous good one, t = {good}.",
                RuntimeWarning,
                stacklevel=6,
            )
            if self.leads:
                set_aside(self.folder / "checkpoints" / str(step), self.folder / f"damaged-{step}")
        if damaged:
            _agreed(None, True)  # nobody goes on before they are gone
            self.manager.reload()


def _named(leaves: list[Any]) -> dict[str, Any]:
    return {f"{i:04d}": leaf for i, leaf in enumerate(leaves)}


def _typed(leaf: jax.Array, old: jax.Array) -> jax.Array:
    """As the run had it: a key, and bound to devices only where that was, else its program is compiled once more."""
    if not plain(old).committed:
        leaf = jax.numpy.asarray(np.asarray(leaf))
    is_key = jax.dtypes.issubdtype(old.dtype, jax.dtypes.prng_key)
    return random.wrap_key_data(leaf, impl=random.key_impl(old)) if is_key else leaf


def _agreed(told: int | None, due: bool) -> tuple[int | None, bool]:
    """The same answer in all processes: what any of them was told, and what the first one holds due."""
    if jax.process_count() == 1:
        return told, due
    each = np.asarray(multihost_utils.process_allgather(np.asarray([told or 0, due], np.int32)))
    return int(each[:, 0].max()) or None, bool(each[0, 1] or each[:, 0].any())
