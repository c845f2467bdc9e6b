"""The client's calls about batches: many starts that are asked for and followed together."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from uuid import uuid4

import anyio
import msgspec

from penstock.api import batches as api
from penstock.client.call import RowCall
from penstock.client.caller import Caller, every_item
from penstock.client.encoding import optional_object
from penstock.client.errors import TimedOut
from penstock.wire import batches_v1 as w
from penstock.wire.batch import Batch, BatchResult
from penstock.wire.model import StartRequest
from penstock.wire.page import Page

LIST_PART_ITEMS = 50
WAIT_S = 30
"""One call waits so long at most."""


class BatchCalls(Caller):
    """Start up to 10,000 as one, follow them, collect what they gave.

    A batch is stored: the engines start its items whatever becomes of the caller, and of them.
    """

    async def start_batch(
        self,
        items: Sequence[StartRequest],
        *,
        on_complete: str | None = None,
        note: str | None = None,
        idempotency_key: str | None = None,
    ) -> Batch:
        """Start all of them in the background, in their order; returns as soon as they are stored. When all have ended
        the definition ``on_complete`` is started, with ``batch``: its id and counts. The same ``idempotency_key`` is
        the same batch; without one the client makes one for this call.

        Raises:
            BadRequest: names the item, the field and the reason; nothing was started.
            IdempotencyConflict: the key was used for another batch.
            TooManyRequests: 1,000 batches have not ended.
        """
        encoded = [msgspec.structs.replace(item, variables=optional_object(item.variables)) for item in items]
        key = idempotency_key or str(uuid4())
        return await self.call(RowCall(api.START_BATCH, w.CreateBatchRequest(encoded, on_complete, note, key)))

    async def get_batch(self, batch_id: str, *, wait_s: int = 0) -> Batch:
        """Return a batch as it is now, its items by state; with ``wait_s`` (0 to 60) when it has ended, or after so
        long. Raises ``NotFound``."""
        return await self.call(RowCall(api.GET_BATCH, api.GetBatch(batch_id, wait_s or None)))

    async def wait_for_batch(self, batch_id: str, *, timeout_s: float | None = None) -> Batch:
        """Wait until a batch has ended.

        Raises:
            NotFound: no such batch.
            TimedOut: it had not ended within ``timeout_s`` seconds.
        """
        deadline = None if timeout_s is None else anyio.current_time() + timeout_s
        while True:
            left_s = WAIT_S if deadline is None else max(0, min(WAIT_S, int(deadline - anyio.current_time() + 0.999)))
            found = await self.get_batch(batch_id, wait_s=left_s)
            if found.ended_at is not None:
                return found
            if deadline is not None and anyio.current_time() >= deadline:
                raise TimedOut(f"batch '{batch_id}' has not ended within {timeout_s} s")

    async def list_batches(self, *, cursor: str | None = None, limit: int = LIST_PART_ITEMS) -> Page[Batch]:
        """List batches, newest first, without counts; go on with ``cursor=page.next`` until that is None."""
        return await self.call(RowCall(api.LIST_BATCHES, w.ListBatchesRequest(cursor, limit)))

    def iterate_batches(self) -> AsyncIterator[Batch]:
        """Read all batches that are kept, newest first, as you go."""
        return every_item(lambda cursor: self.list_batches(cursor=cursor))

    async def list_batch_results(
        self, batch_id: str, *, state: str | None = None, cursor: str | None = None, limit: int = LIST_PART_ITEMS
    ) -> Page[BatchResult]:
        """List the results of a batch, in the order of its items, each with its instance; ``state``: only those in it.
        Go on with ``cursor=page.next`` until that is None. Raises ``NotFound``."""
        asked = w.ListBatchResultsRequest(batch_id, state, cursor, limit)
        return await self.call(RowCall(api.LIST_BATCH_RESULTS, asked))

    def iterate_batch_results(self, batch_id: str, *, state: str | None = None) -> AsyncIterator[BatchResult]:
        """Read the results of all items of a batch, in their order, as you go."""
        return every_item(lambda cursor: self.list_batch_results(batch_id, state=state, cursor=cursor))

    async def cancel_batch(self, batch_id: str, reason: str | None = None) -> Batch:
        """Start nothing more of it, and cancel what it started and has not ended; goes on in the background.

        Raises:
            NotFound: no such batch.
            Conflict: it has ended.
        """
        return await self.call(RowCall(api.CANCEL_BATCH, w.CancelBatchRequest(batch_id, reason)))
