"""Less work around each of the thousands of small programs that tests compile; what is compiled is the same."""

import threading

import jax

FEW = 400  # programs after which a context is dropped: it holds every type and name that it has met


def reuse_contexts():
    """A thread's programs share an MLIR context: JAX makes one for each, a quarter of what a small program costs."""
    from jax._src.interpreters import mlir

    held, make = threading.local(), mlir.make_ir_context

    def shared():
        if getattr(held, "left", 0) == 0:
            held.context, held.left = make(), FEW
        held.left -= 1
        return held.context

    mlir.make_ir_context = shared


def leave_out_lines():
    """No program text carries the lines that it came from; messages of errors do, as before."""
    jax.config.update("jax_traceback_in_locations_limit", 0)
