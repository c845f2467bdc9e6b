"""The client's calls about queues: policies that limit the jobs of some types."""

from __future__ import annotations

from penstock.client.caller import Caller
from penstock.client.operation import ListWindow
from penstock.client.queue_operation import DeleteQueue, GetQueue, ListQueues, PauseQueue, PutQueue
from penstock.wire.page import Page
from penstock.wire.queue import Queue, QueuePolicy

LIST_PART_ITEMS = 50


class QueueCalls(Caller):
    """Set limits, look how a queue stands, pause it."""

    async def put_queue(self, name: str, policy: QueuePolicy) -> Queue:
        """Make a queue, or give it another policy, which counts from the next claim on in all engines. A pause stays,
        unless the policy says ``paused=False``.

        Raises:
            Conflict: a job type is in another queue, or an engine is too old.
        """
        return await self.call(PutQueue(name=name, policy=policy))

    async def get_queue(self, name: str) -> Queue:
        """A queue, and how it stands."""
        return await self.call(GetQueue(name=name))

    async def list_queues(self, *, cursor: str | None = None, limit: int = LIST_PART_ITEMS) -> Page[Queue]:
        """Queues in order of their names, with their policies."""
        return await self.call(ListQueues(window=ListWindow(cursor=cursor, limit=limit)))

    async def pause_queue(self, name: str) -> Queue:
        """Let none of its jobs begin; what runs goes on."""
        return await self.call(PauseQueue(name=name, paused=True))

    async def resume_queue(self, name: str) -> Queue:
        """Let its jobs begin again."""
        return await self.call(PauseQueue(name=name, paused=False))

    async def delete_queue(self, name: str) -> None:
        """Forget a queue; its jobs are free at once."""
        await self.call(DeleteQueue(name=name))
