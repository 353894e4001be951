"""One thread for products of small matrices: several would wait for each other longer than they compute."""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import lru_cache
from typing import Any


@lru_cache(maxsize=1)
def _libraries() -> Any:
    """Of linear algebra, as loaded at the first use."""
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


def one_thread() -> AbstractContextManager[Any]:
    """Inside it, NumPy's products use one thread."""
    found: AbstractContextManager[Any] = _libraries().limit(limits=1, user_api="blas")
    return found
