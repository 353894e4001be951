"""Ctrl-C, SIGTERM and SIGHUP at a good moment: noted at once, obeyed where the run can be saved."""

from __future__ import annotations

import signal
import threading
from typing import Any

HANG_UP = getattr(signal, "SIGHUP", None)  # a terminal that closes; Windows has none
WATCHED = (signal.SIGINT, signal.SIGTERM, *([HANG_UP] if HANG_UP else []))


class Signals:
    """``caught`` is the number of the first signal; a second Ctrl-C stops at once. Idle outside the main thread."""

    def __enter__(self) -> Signals:
        self.caught: int | None = None
        self.before: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():
            heard = [n for n in WATCHED if n != HANG_UP or signal.getsignal(n) != signal.SIG_IGN]  # nohup ignores it
            self.before = {number: signal.signal(number, self._note) for number in heard}
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
        """KeyboardInterrupt for Ctrl-C, SystemExit for the others, with the message."""
        if number == signal.SIGINT:
            raise KeyboardInterrupt(message)
        raise Terminated(message, number)


class Terminated(SystemExit):
    """After SIGTERM the process ends with 143, after SIGHUP with 129, as shells expect."""

    def __init__(self, message: str, number: int) -> None:
        super().__init__(128 + number)
        self.message = message

    def __str__(self) -> str:
        return self.message
