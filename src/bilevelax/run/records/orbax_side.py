"""How orbax keeps checkpoints here, without what it says beside the exceptions that it raises."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def orbax() -> Any:
    """Its module, imported where a run is saved."""
    try:
        import orbax.checkpoint as module
    except ImportError:
        raise ValueError("`checkpoint` of minimize needs orbax: pip install orbax-checkpoint.") from None
    return module


def open_manager(folder: Path, keep: int) -> Any:
    """Of complete checkpoints only: what a kill left half-written is removed."""
    options = orbax().CheckpointManagerOptions(max_to_keep=keep, create=True, enable_async_checkpointing=False)
    return orbax().CheckpointManager(folder, options=options, item_names=("carry", "meta"))


@contextlib.contextmanager
def quiet_orbax() -> Iterator[None]:
    """Its threads log what they then raise: the exception is enough."""
    logger = logging.getLogger("absl")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)


@contextlib.contextmanager
def without_late_answers() -> Iterator[None]:
    """Where one array of a checkpoint is damaged, the others are read for nobody, and each would show a traceback."""
    before = sys.unraisablehook

    def told(unraisable: Any) -> None:
        loop_is_gone = str(unraisable.exc_value) == "Event loop is closed"
        coroutine = getattr(unraisable.object, "cr_code", None)
        if not loop_is_gone and not (coroutine and "orbax" in coroutine.co_filename):
            before(unraisable)

    sys.unraisablehook = told
    try:
        yield
    finally:
        sys.unraisablehook = before
