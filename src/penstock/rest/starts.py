"""Starting instances, one and many. Hot like `jobs`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from penstock.engine.engine import Engine
from penstock.engine.requests.answers import MemoryReservation
from penstock.engine.requests.payload import check_variables
from penstock.engine.starts.start_item import StartItem
from penstock.errors import BadRequest, PayloadTooLarge
from penstock.loop.offload import run_sized
from penstock.rest.batch import BadItem, BatchReader, StartItems
from penstock.rest.codec import decoder, required
from penstock.rest.exchange import Reply, RestRequest, text_header
from penstock.wire.model import Instance, StartRequest, StartResult

IDEMPOTENCY_KEY: Final = b"idempotency-key"

_read_start = decoder(StartRequest)
_starts = BatchReader(StartItems[StartRequest], StartRequest, "items", has_worker=False)
_encode = msgspec.json.Encoder().encode

STARTED: Final = 201


def shown(started: Instance) -> bytes:
    """Return the body of the answer to a start."""
    return _encode(started)


class StartRoutes:
    """Handlers of the routes that start instances."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def start(self, call: RestRequest) -> Reply:
        """``POST /v1/instances``"""
        key = text_header(call.headers, IDEMPOTENCY_KEY)
        request = await run_sized(len(call.body), lambda: self._request(_read_start(call.body), key))
        return Reply(STARTED, shown(await self._engine.instances.start(request)))

    def begin(self, body: bytes, reservation: MemoryReservation, by: str | None, now: float) -> StartItem:
        """As `start`, of what is small and does not wait for an end: the item, whose answer `shown` makes of it. See
        `Instances.begin`."""
        return self._engine.instances.begin(self._request(_read_start(body), None), reservation, by, now)

    async def start_batch(self, call: RestRequest) -> Reply:
        """``POST /v1/instances/batch``"""
        requests, refused = await run_sized(len(call.body), lambda: self._read_batch(call.body))
        results: Sequence[StartResult] = await self._engine.instances.start_batch(requests)
        if refused:
            rest = iter(results)
            count = len(requests) + len(refused)
            results = [found if (found := refused.get(at)) is not None else next(rest) for at in range(count)]
        return Reply(200, b'{"results":%b}' % _encode(results))

    def _read_batch(self, body: bytes) -> tuple[list[StartRequest], dict[int, StartResult]]:
        """The requests, and the answers to items that can't be read by their place."""
        requests: list[StartRequest] = []
        refused: dict[int, StartResult] = {}
        for index, item in enumerate(_starts.read(body).items):
            if isinstance(item, BadItem):
                refused[index] = StartResult(error=BadRequest.code, reason=item.reason)
                continue
            try:
                requests.append(self._request(item, item.idempotency_key or None))
            except (BadRequest, PayloadTooLarge) as error:
                refused[index] = StartResult(error=error.code, reason=error.reason)
        return requests, refused

    def _request(self, body: StartRequest, idempotency_key: str | None) -> StartRequest:
        return msgspec.structs.replace(
            body,
            definition_id=required(body.definition_id, "definitionId"),
            definition_version=body.definition_version or 0,
            variables=check_variables(None if body.variables is None else bytes(body.variables), self._engine.limits),
            instance_key=body.instance_key or None,
            keep_instance_key=bool(body.keep_instance_key),
            idempotency_key=idempotency_key,
        )
