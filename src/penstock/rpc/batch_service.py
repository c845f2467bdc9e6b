"""``penstock.v1.Batches``: many starts as one. The operations are those of REST."""

from __future__ import annotations

from typing import Final

from grpclib.const import Handler

from penstock.engine.engine import Engine
from penstock.engine.instances.batches import BatchStart
from penstock.errors import BadRequest, PayloadTooLarge
from penstock.loop.offload import run_sized
from penstock.rpc.methods import unary
from penstock.rpc.reading import given, required
from penstock.rpc.worker_service import start_request
from penstock.wire import batches_v1 as w
from penstock.wire.batch import Batch
from penstock.wire.model import StartRequest
from penstock.wire.noun import text_bytes

LIST_DEFAULT: Final = 50
_PREFIX: Final = "/penstock.v1.Batches/"


class Batches:
    """Create, get, list, collect, cancel."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def __mapping__(self) -> dict[str, Handler]:
        methods = {
            "CreateBatch": unary(self.create, w.CreateBatchRequest, Batch),
            "GetBatch": unary(self.get, w.GetBatchRequest, Batch),
            "ListBatches": unary(self.list, w.ListBatchesRequest, w.ListBatchesResponse),
            "ListBatchResults": unary(self.results, w.ListBatchResultsRequest, w.ListBatchResultsResponse),
            "CancelBatch": unary(self.cancel, w.CancelBatchRequest, Batch),
        }
        return {_PREFIX + name: handler for name, handler in methods.items()}

    async def create(self, request: w.CreateBatchRequest, _call: object) -> Batch:
        """Begins in the background."""

        def read() -> list[StartRequest]:
            return [self._item(place, item) for place, item in enumerate(request.items)]

        items = await run_sized(sum(text_bytes(item.variables) for item in request.items), read)
        wanted = BatchStart(
            items, request.on_complete or None, request.note or None, given(request.idempotency_key, "idempotency_key")
        )
        return await self._engine.batches.create(wanted)

    def _item(self, place: int, item: StartRequest) -> StartRequest:
        try:
            return start_request(item, self._engine.limits)
        except (BadRequest, PayloadTooLarge) as error:
            raise type(error)(f"items[{place}].{error.reason}") from None

    async def get(self, request: w.GetBatchRequest, _call: object) -> Batch:
        """Now, or when it has ended."""
        return await self._engine.batches.get(required(request.id, "id"), request.wait_ms / 1000)

    async def list(self, request: w.ListBatchesRequest, _call: object) -> w.ListBatchesResponse:
        """Newest first."""
        cursor = given(request.cursor, "cursor")
        found = await self._engine.batches.list(cursor, request.limit or LIST_DEFAULT)
        return w.ListBatchesResponse(list(found.items), next=found.next or "")

    async def results(self, request: w.ListBatchResultsRequest, _call: object) -> w.ListBatchResultsResponse:
        """In their order."""
        found = await self._engine.batches.results(
            required(request.id, "id"),
            given(request.state, "state"),
            given(request.cursor, "cursor"),
            request.limit or LIST_DEFAULT,
        )
        return w.ListBatchResultsResponse(list(found.items), next=found.next or "")

    async def cancel(self, request: w.CancelBatchRequest, _call: object) -> Batch:
        """In the background."""
        return await self._engine.batches.cancel(required(request.id, "id"), request.reason or None)
