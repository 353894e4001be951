"""Calls that are timed take turns, and each is waited for."""

import os
import time

import jax.numpy as jnp

from bilevelax.base.timing import both_clocks, in_own_process, interleaved, timed


def test_a_timed_call_gives_what_it_returns():
    seconds, found = timed(lambda: {"a": jnp.arange(3)})
    assert seconds > 0 and found["a"].tolist() == [0, 1, 2]


def test_calls_take_turns_after_each_was_warmed_up():
    log = []
    calls = {name: lambda i, name=name: log.append((name, i)) for name in ("a", "b")}
    seconds = interleaved(calls, rounds=2, warm_up=2)
    assert log == [("a", 0), ("a", 1), ("b", 0), ("b", 1), ("a", 2), ("b", 2), ("a", 3), ("b", 3)]
    assert {name: len(each) for name, each in seconds.items()} == {"a": 2, "b": 2}


def test_both_clocks_tell_waiting_from_working():
    seconds, worked, found = both_clocks(lambda: time.sleep(0.2) or 3)
    assert found == 3 and seconds > 0.19 and worked < 0.1


def test_a_process_of_its_own_is_another_one():
    assert in_own_process(os.getpid) != os.getpid()
    assert in_own_process(pow, 2, 5) == 32
