"""Operations on queues; see `operation`."""

from __future__ import annotations

from penstock.client.operation import Deletion, ListWindow, Operation
from penstock.wire.page import Page
from penstock.wire.queue import Queue, QueuePolicy


class PutQueue(Operation[Queue], frozen=True):
    """Make a queue, or give it another policy."""

    name: str
    policy: QueuePolicy


class GetQueue(Operation[Queue], frozen=True):
    """A queue, and how it stands."""

    name: str


class ListQueues(Operation[Page[Queue]], frozen=True):
    """Queues in order of their names."""

    window: ListWindow = ListWindow(limit=50)


class PauseQueue(Operation[Queue], frozen=True):
    """Let no job of a queue begin, or let them begin again."""

    name: str
    paused: bool


class DeleteQueue(Deletion, frozen=True):
    """Forget a queue."""

    name: str
