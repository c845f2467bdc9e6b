"""The ids that runs were started with in this process: for messages that name them."""

from __future__ import annotations

from typing import Final

NAMES_MAX: Final = 10_000


class RunNames:
    """By instance, the latest ones."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    def note(self, instance_id: str, id: str | None) -> None:
        """A run was started; with ``id``, or without one."""
        if id is not None:
            if len(self._names) >= NAMES_MAX:
                del self._names[next(iter(self._names))]
            self._names[instance_id] = id

    def of(self, instance_id: str) -> str:
        """Its id; empty when it is not known."""
        return self._names.get(instance_id, "")
