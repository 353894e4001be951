"""How programs are compiled: without the fusion of XLA that computes wrongly."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
from jax.core import Tracer

from bilevelax._xla import FUSION, is_switched_off

LEVEL = "xla_backend_optimization_level"
SMALL = {"xla_cpu_use_fusion_emitters": False}
AT_ONCE = {LEVEL: 0, **SMALL, "xla_cpu_parallel_codegen_split_count": 1}
WAYS: dict[str, dict[str, Any]] = {
    "optimised": {},
    "small": SMALL,  # for small arrays: two thirds of the time to compile, and no more to run; large ones take twice
    "at once": AT_ONCE,  # for a few hundred short calls: a quarter of the time to compile, 3 to 7 times the call's
}


def program(how: str = "optimised", **settings: Any) -> Callable[..., Any]:
    """`jax.jit` for the programs of this library, which are right even where JAX was at work before the import.

    JAX takes options of the compiler for outermost programs only; inside another one, that one's hold.
    """
    return partial(_compiled, options=unless_set(WAYS[how]), settings=settings)


def jit_once(soon: Callable[..., bool] | None = None, **settings: Any) -> Callable[..., Any]:
    """`program` for what runs a few times: with XLA's first level of optimisation it compiles faster.

    Where ``soon`` of the positional arguments tells that there is little to do, at once.
    """
    return partial(_compiled, options=unless_set({LEVEL: 1}), settings=settings, soon=soon)


def unless_set(options: dict[str, Any]) -> dict[str, Any]:
    """Flags in XLA_FLAGS are respected."""
    return {name: value for name, value in options.items() if name not in os.environ.get("XLA_FLAGS", "")}


def jit_solves(soon: Callable[..., bool] | None = None, **settings: Any) -> Callable[..., Any]:
    """`jit_once` for what draws little and solves much: JAX's own loops behind keys, the same bits, compile faster."""
    return partial(jit_once(soon, **settings), straight=False)


def _compiled(
    function: Callable[..., Any],
    options: dict[str, Any],
    settings: dict[str, Any],
    straight: bool = True,
    soon: Callable[..., bool] | None = None,
) -> Callable[..., Any]:
    inner: Any = jax.jit(function, **settings)
    drawing = with_straight_keys(function) if straight else function
    compiled: Any = lambda options: jax.jit(drawing, compiler_options={**options, **fusion_off()} or None, **settings)
    outermost, quick = compiled(options), unless_set(AT_ONCE)
    # programs of equal options would share their cache, and be counted twice
    little = outermost if soon is None or options == quick else compiled(quick)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if _inside_a_trace(args, kwargs):
            return inner(*args, **kwargs)
        return (little if soon is not None and soon(*args) else outermost)(*args, **kwargs)

    programs = [inner, outermost] + [little] * (little is not outermost)
    call._cache_size = lambda: sum(each._cache_size() for each in programs)  # type: ignore[attr-defined]  # as of jax.jit
    return call


def with_straight_keys(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, inside which keys draw without loops on CPU; elsewhere JAX's own way is kept."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if jax.default_backend() != "cpu":
            return function(*args, **kwargs)
        from bilevelax.base.keys import straight, usual

        args, kwargs = straight((args, kwargs))
        return usual(function(*args, **kwargs))

    return call


def traced_once(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, written into its caller: asked for shapes before a loop calls it, it is not traced again there."""
    return jax.jit(function, inline=True)


def _inside_a_trace(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves((args, kwargs)))


def fusion_off() -> dict[str, Any]:
    return {FUSION: ""} if is_switched_off() else {}
