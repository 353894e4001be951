"""Which programs are compiled: JAX tells whoever listens."""

import contextlib

import jax
from jax import monitoring

COMPILED = "/jax/core/compile/backend_compile_duration"


@contextlib.contextmanager
def programs():
    """The names of the programs compiled inside, as they come."""
    names = []

    def listen(event, seconds, **about):
        if event == COMPILED:
            names.append(about.get("fun_name", "?").removeprefix("jit(").removesuffix(")"))

    monitoring.register_event_duration_secs_listener(listen)
    try:
        yield names
    finally:
        monitoring.unregister_event_duration_listener(listen)


def nothing_compiled():
    """As in a new process."""
    jax.clear_caches()
