"""What a client does in a process that was forked: the sockets, locks and threads that it had are the parent's.

They are left alone there, not even closed: an event loop shares its selector with the parent's, and TLS says good-bye
when it closes.
"""

from __future__ import annotations

import os

_LEFT: list[object] = []


class MadeHere:
    """Remembers the process that something was made in."""

    def __init__(self) -> None:
        self._pid = os.getpid()

    def __bool__(self) -> bool:
        """Return whether this is still that process."""
        return self._pid == os.getpid()


def leave_to_parent(*things: object) -> None:
    """Keep what belongs to the parent from being collected, which would close it."""
    _LEFT.extend(things)
