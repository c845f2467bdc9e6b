"""The route that lists instances: in pieces, as they may be larger than the memory for answers."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import cast

import msgspec
from quart import Response, request

from penstock.api.instances import LIST_INSTANCES, VIEW_FULL, VIEW_SUMMARY
from penstock.engine.engine import Engine
from penstock.engine.instances.instance_filter import filter_of
from penstock.engine.requests.bound import slice_of
from penstock.errors import BadRequest
from penstock.loop.offload import INLINE_MAX_BYTES, run_sized, take_turn
from penstock.rest.exchange import ANSWER_LOST, JSON, Reply, Scope
from penstock.rest.hiding import Mask, mask_of
from penstock.rest.reading import respond
from penstock.rest.rows import asked_in_query
from penstock.wire.model import Instance
from penstock.wire.noun import text_bytes
from penstock.wire.page import Page

_encode = msgspec.json.Encoder().encode


class InstanceRoutes:
    """One route."""

    def __init__(self, engine: Engine) -> None:
        self._instances = engine.instances
        self._hiding = engine.hiding

    async def list(self) -> Response:
        """``GET /v1/instances``, with ``view=summary`` without variables"""
        ask = asked_in_query(LIST_INSTANCES, self._hiding)
        view = ask.view or VIEW_FULL
        if view not in (VIEW_FULL, VIEW_SUMMARY):
            raise BadRequest(f"view: must be {VIEW_FULL} or {VIEW_SUMMARY}")
        if (window := slice_of(ask)) is not None:
            found = await self._instances.find_slice(filter_of(ask), *window)
        else:
            found = await self._instances.find(filter_of(ask), ask.page or 0, ask.page_size or 0)
        if view == VIEW_SUMMARY:
            items = await self._instances.summaries(found.items)
            return respond(Reply(200, b'{"items":%b%b' % (_encode(items), _end_of_list(found))))
        pieces = self._instances.read(found.items)
        first: list[Instance] = await anext(pieces, list[Instance]())
        if len(first) == len(found.items):
            await pieces.aclose()
            if _are_large(first):
                await take_turn()
            return respond(Reply(200, b'{"items":%b%b' % (_encode(first), _end_of_list(found))))
        scope = cast("Scope", request.scope)
        lost = cast("Callable[[], bool]", scope.get("extensions", {}).get(ANSWER_LOST, _no))
        return Response(_stream(first, pieces, found, lost, mask_of(scope)), content_type=JSON.decode())


async def _stream(
    first: list[Instance],
    rest: AsyncGenerator[list[Instance]],
    found: Page[int],
    lost: Callable[[], bool],
    mask: Mask | None,
) -> AsyncGenerator[bytes]:
    """A list too large for one piece of memory: each piece has left before the next is read."""
    async with aclosing(rest):
        before = b'{"items":['
        if first:
            yield await _items(first, before, mask)
            before = b","
        while not lost() and (piece := await anext(rest, None)):
            yield await _items(piece, before, mask)
            before = b","
    yield (b"]" if before == b"," else b'{"items":[]') + _end_of_list(found)


def _no() -> bool:
    return False


def _are_large(views: Sequence[Instance]) -> bool:
    return sum(text_bytes(view.variables) for view in views) > INLINE_MAX_BYTES


async def _items(piece: list[Instance], before: bytes, mask: Mask | None) -> bytes:
    """Their JSON without the brackets, after ``before``. The list is emptied: what is encoded is not to stay here as
    well."""
    await take_turn()
    encoded = [_encode(view) for view in piece]
    piece.clear()
    if mask is not None:
        encoded = await run_sized(sum(map(len, encoded)), lambda: [mask(data, Instance) for data in encoded])
    return before + b",".join(encoded)


def _end_of_list(found: Page[int]) -> bytes:
    """What a page says beside its items."""
    return _encode(found.holding([])).removeprefix(b'{"items":[]')
