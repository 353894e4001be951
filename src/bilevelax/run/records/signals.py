"""Ctrl-C and SIGTERM at a good moment: noted at once, obeyed where the run can be saved."""

from __future__ import annotations

import signal
import threading
from typing import Any

WATCHED = (signal.SIGINT, signal.SIGTERM)


class Signals:
    """``caught`` is the number of the first signal; a second Ctrl-C stops at once. Idle outside the main thread."""

    def __enter__(self) -> Signals:
        self.caught: int | None = None
        self.before: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():
            self.before = {number: signal.signal(number, self._note) for number in WATCHED}
        return self

    def __exit__(self, *error: Any) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)
        self.before = {}

    def _note(self, number: int, frame: Any) -> None:
        if self.caught == number == signal.SIGINT:
            raise KeyboardInterrupt
        self.caught = self.caught or number

    @staticmethod
    def stop(number: int, message: str) -> None:
        """KeyboardInterrupt for Ctrl-C, SystemExit for SIGTERM, with the message."""
        if number == signal.SIGINT:
            raise KeyboardInterrupt(message)
        raise Terminated(message)


class Terminated(SystemExit):
    """After SIGTERM: the process ends with 143, as shells expect."""

    def __init__(self, message: str) -> None:
        super().__init__(128 + signal.SIGTERM)
        self.message = message

    def __str__(self) -> str:
        return self.message
