"""Seconds of calls, for diagnostics, benchmarks and the study: whole calls, by turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import jax


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds until all that a call returns is there, and what it returns."""
    started = time.perf_counter()
    found = jax.block_until_ready(call())
    return time.perf_counter() - started, found


def both_clocks(call: Callable[[], Any]) -> tuple[float, float, Any]:
    """Seconds of the clock on the wall and of the processor, and what the call returns."""
    worked = time.process_time()
    seconds, found = timed(call)
    return seconds, time.process_time() - worked, found


def in_own_process(work: Callable[..., Any], *given: Any) -> Any:
    """What a function of a module returns in a new process: times of one differ from those of another."""
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor

    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(work, *given).result()


def interleaved(calls: Mapping[Any, Callable[[int], Any]], rounds: int, warm_up: int = 1) -> dict[Any, list[float]]:
    """Seconds of each call in each round; the calls take turns, so a busy machine slows all of them alike."""
    seconds: dict[Any, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        for i in range(warm_up):
            jax.block_until_ready(call(i))
    for i in range(rounds):
        for name, call in calls.items():
            seconds[name].append(timed(lambda: call(warm_up + i))[0])  # noqa: B023 (called at once)
    return seconds
