"""Calls in threads, for requests that are meant to wait."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

JOIN_TIMEOUT_S = 30.0


class Background:
    """One call under way."""

    def __init__(self, function: Callable[..., Any], *args: Any) -> None:
        self._answer: Any = None
        self.took_s = 0.0
        self._thread = threading.Thread(target=self._run, args=(function, *args))
        self._thread.start()

    def _run(self, function: Callable[..., Any], *args: Any) -> None:
        started = time.monotonic()
        try:
            self._answer = function(*args)
        except OSError as error:  # also of http.client, when the connection was cut
            self._answer = error
        self.took_s = time.monotonic() - started

    @property
    def waits(self) -> bool:
        return self._thread.is_alive()

    def answer(self) -> Any:
        """What the call gave, or the OSError that it ended with."""
        self._thread.join(JOIN_TIMEOUT_S)
        assert not self._thread.is_alive(), f"no answer within {JOIN_TIMEOUT_S} s"
        return self._answer
