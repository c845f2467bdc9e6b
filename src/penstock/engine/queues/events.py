"""What happens in an engine, or reaches it from others: one object, given to all who tell or listen as they are made.

Listeners are called where the event happens, after the commit, on the loop: they note it and return. Each is a hint;
nothing depends on its being heard.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Generic, ParamSpec

from penstock.engine.queues.journal_items import MailboxNotice
from penstock.engine.queues.losses import Loss

P = ParamSpec("P")


class Broadcast(Generic[P]):
    """Something that happens: call it to tell all who listen."""

    def __init__(self) -> None:
        self._listeners: list[Callable[P, object]] = []

    def listen(self, listener: Callable[P, object]) -> None:
        """Let ``listener`` hear of it from now on, after those before."""
        self._listeners.append(listener)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> None:
        for listener in self._listeners:
            listener(*args, **kwargs)


class Events:
    """Of one engine."""

    def __init__(self) -> None:
        self.queued: Broadcast[[str]] = Broadcast()
        """A job of that type came to the queue, or to the outbox."""
        self.key_opened: Broadcast[[str, str]] = Broadcast()
        """Jobs of that type and flow key may begin, and looks may not come to them soon."""
        self.armed: Broadcast[[float]] = Broadcast()
        """A timer was armed that is due before all others, in so many seconds."""
        self.lost: Broadcast[[Loss]] = Broadcast()
        """A job was taken from its worker."""
        self.mailed: Broadcast[[MailboxNotice]] = Broadcast()
        """A run that somebody holds has mail."""
        self.run_changed: Broadcast[[int]] = Broadcast()
        """A run shows something else, which somebody waits for at another engine."""
        self.uploaded: Broadcast[[Collection[str]]] = Broadcast()
        """A definition version with these job types was created."""
        self.migrated: Broadcast[[]] = Broadcast()
        """Jobs that another dispatch mode left came to where this one looks."""
        self.queued_elsewhere: Broadcast[[Sequence[str]]] = Broadcast()
        """Another engine says that it queued jobs of these types; with none: of any."""
        self.engine_lost: Broadcast[[]] = Broadcast()
        """Another engine is gone, or can't be seen: its leases have to be looked for."""
        self.engines_dead: Broadcast[[Sequence[str]]] = Broadcast()
        """Engines are dead, by the tags in the names of their executors."""
        self.tokens_changed: Broadcast[[]] = Broadcast()
        """Somebody made or revoked API tokens, or ended sessions."""
