"""The client's calls about queues: policies that limit the jobs of some types."""

from __future__ import annotations

from penstock.api import queues as api
from penstock.client.call import RowCall
from penstock.client.caller import Caller
from penstock.wire import penstock_v1 as w
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
        return await self.call(RowCall(api.PUT_QUEUE, api.PutQueue(name, policy)))

    async def get_queue(self, name: str) -> Queue:
        """Return a queue and its state."""
        return await self.call(RowCall(api.GET_QUEUE, w.GetQueueRequest(name)))

    async def list_queues(self, *, cursor: str | None = None, limit: int = LIST_PART_ITEMS) -> Page[Queue]:
        """List queues in order of their names, with their policies."""
        return await self.call(RowCall(api.LIST_QUEUES, w.ListQueuesRequest(cursor, limit)))

    async def pause_queue(self, name: str) -> Queue:
        """Pause a queue: none of its jobs begins; running jobs go on."""
        return await self.call(RowCall(api.PAUSE_QUEUE, w.PauseQueueRequest(name)))

    async def resume_queue(self, name: str) -> Queue:
        """Resume a queue: its jobs begin again."""
        return await self.call(RowCall(api.RESUME_QUEUE, w.ResumeQueueRequest(name)))

    async def delete_queue(self, name: str) -> None:
        """Delete a queue; its jobs are free at once."""
        await self.call(RowCall(api.DELETE_QUEUE, w.DeleteQueueRequest(name)))
