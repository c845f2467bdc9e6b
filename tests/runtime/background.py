"""Calls in threads, for requests that are meant to wait."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Self

JOIN_TIMEOUT_S = 120.0


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


class Threads:
    """Threads that run for the block, until ``stop``."""

    def __init__(self) -> None:
        self.stop = threading.Event()
        self._threads: list[threading.Thread] = []

    def add(self, function: Callable[..., Any], *args: Any) -> None:
        self._threads.append(threading.Thread(target=function, args=args))

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        for thread in self._threads:
            thread.join(120)
