"""What a worker under test sends and is sent, as messages of one form for both wires, and the faults that meet them."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

Message = dict[str, Any]
"""``kind``, ``at`` (seconds), and what the message holds: ``jobId``, ``attempt``, ``variables``, …"""


class Fault:
    """What happens at the n-th exchange of a kind. ``do``: see README.md of this folder."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        self.on: str = given["on"]
        nth = given.get("nth", 1)
        self.nth: list[int] = nth if isinstance(nth, list) else [nth]
        self.do: str = given.get("do", "forward")
        self.seconds: float = given.get("seconds", 0.0)
        self.status: int = given.get("status", 503)
        self.headers: dict[str, str] = given.get("headers", {})
        self.body: object = given.get("body")
        self.steps: list[dict[str, Any]] = given.get("steps", [])


class Recorder:
    """Keeps all messages of one scenario, counts exchanges by kind, and finds the fault of each."""

    def __init__(self, faults: Iterable[Mapping[str, Any]]) -> None:
        self._faults = [Fault(given) for given in faults]
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()
        self.messages: list[Message] = []
        self.down = False
        """Whether the engine seems to be away: no connection is taken."""
        self.run_steps: Callable[[list[dict[str, Any]]], None] = lambda steps: None
        self.cut: list[Callable[[], None]] = []
        """Called to break the connections that are open."""

    def record(self, messages: Iterable[Message]) -> Fault | None:
        """Keep the messages of one exchange. Return its fault; the fault's steps have been run then."""
        found: Fault | None = None
        with self._lock:
            now = time.monotonic()
            kinds: list[str] = []
            for message in messages:
                self.messages.append(message | {"at": now})
                if message["kind"] not in kinds:
                    kinds.append(message["kind"])
            for kind in kinds:
                self._counts[kind] += 1
                for fault in self._faults:
                    if fault.on == kind and self._counts[kind] in fault.nth:
                        found = fault
        if found is not None and found.steps:
            self.run_steps(found.steps)
        return found

    def of(self, kind: str) -> list[Message]:
        """The messages of a kind so far."""
        with self._lock:
            return [message for message in self.messages if message["kind"] == kind]

    def cut_all(self) -> None:
        """Break all open connections."""
        with self._lock:
            cuts, self.cut = self.cut, []
        for cut in cuts:
            cut()
