"""The client's calls about many instances at once: counted first, then done in the background."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import anyio
import msgspec

from penstock.api import bulk as api
from penstock.client.call import RowCall
from penstock.client.caller import Caller, every_item
from penstock.client.encoding import optional_object
from penstock.client.errors import TimedOut
from penstock.wire import repair_v1 as w
from penstock.wire.bulk import BulkRequest
from penstock.wire.page import Page
from penstock.wire.repair import BulkPreview, BulkStarted, BulkView

LIST_PART_ITEMS = 50
POLL_INTERVAL_S = 0.5


class BulkCalls(Caller):
    """Retry, cancel, signal, skip, move, migrate or edit all instances that match. ``note`` goes into each audit trail.

    An operation is a row of the database: the engines finish it whatever becomes of the caller, and of them.
    """

    async def preview_bulk(self, request: BulkRequest) -> BulkPreview:
        """Count what the operation would meet now: how many instances, where they stand, and why they failed; of a
        migration also which can't, with every reason. Nothing is changed.

        Raises:
            BadRequest: names the field and the reason.
        """
        return await self.call(RowCall(api.PREVIEW_BULK, _encoded(request)))

    async def start_bulk(self, request: BulkRequest) -> BulkStarted:
        """Begin the operation, and return its id as soon as it is stored. Not repeated on a lost answer.

        Raises:
            BadRequest: names the field and the reason.
            Conflict: nothing matches.
        """
        return await self.call(RowCall(api.START_BULK, _encoded(request)))

    async def get_bulk(self, bulk_id: str) -> BulkView:
        """Return an operation as it stands. Raises ``NotFound``."""
        return await self.call(RowCall(api.GET_BULK, w.GetBulkRequest(bulk_id)))

    async def list_bulk(self, *, cursor: str | None = None, limit: int = LIST_PART_ITEMS) -> Page[BulkView]:
        """List operations, newest first; go on with ``cursor=page.next`` until that is None."""
        return await self.call(RowCall(api.LIST_BULK, w.ListBulkRequest(cursor, limit)))

    def iterate_bulk(self) -> AsyncIterator[BulkView]:
        """Read all operations that are kept, newest first, as you go."""
        return every_item(lambda cursor: self.list_bulk(cursor=cursor))

    async def stop_bulk(self, bulk_id: str) -> BulkView:
        """Begin no more of it; what is done stays done. Raises ``NotFound``."""
        return await self.call(RowCall(api.STOP_BULK, w.StopBulkRequest(bulk_id)))

    async def wait_for_bulk(
        self, bulk_id: str, *, timeout_s: float | None = None, on_look: Callable[[BulkView], None] | None = None
    ) -> BulkView:
        """Wait until an operation has ended; ``on_look`` is given what each look found.

        Raises:
            NotFound: no such operation.
            TimedOut: it had not ended within ``timeout_s`` seconds.
        """
        deadline = None if timeout_s is None else anyio.current_time() + timeout_s
        while True:
            found = await self.get_bulk(bulk_id)
            if on_look is not None:
                on_look(found)
            if found.state != "RUNNING":
                return found
            if deadline is not None and anyio.current_time() + POLL_INTERVAL_S > deadline:
                raise TimedOut(f"bulk operation '{bulk_id}' has not ended within {timeout_s} s")
            await anyio.sleep(POLL_INTERVAL_S)


def _encoded(request: BulkRequest) -> BulkRequest:
    return msgspec.structs.replace(request, variables=optional_object(request.variables))
