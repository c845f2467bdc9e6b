"""Routes that list instances and count them: by more filters than a row has words for, and in pieces."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import Final, cast

import msgspec
from quart import Response, request

from penstock.core.graph.definition import BUSINESS_KEY_MAX_CHARS
from penstock.core.parsing.turns import FLOW_KEY_MAX_CHARS
from penstock.engine.engine import Engine
from penstock.engine.instances.instance_filter import ORDERS, InstanceFilter
from penstock.engine.requests.paging import CAUSE_MAX_CHARS, NAME_MAX_CHARS
from penstock.errors import BadRequest
from penstock.loop.offload import INLINE_MAX_BYTES, run_sized, take_turn
from penstock.rest.exchange import ANSWER_LOST, JSON, Reply, Scope
from penstock.rest.hiding import Mask, hides, mask_of
from penstock.rest.operation import BOOLEAN, INTEGER, TIME, Parameter
from penstock.rest.reading import (
    query_family,
    query_flag,
    query_number,
    query_slice,
    query_text,
    query_time,
    respond,
)
from penstock.wire.model import Instance
from penstock.wire.noun import text_bytes
from penstock.wire.page import Page

FILTER: Final = (
    Parameter("definitionId", "query", "Of any version."),
    Parameter(
        "status", "query", "One status.",
        {"type": "string", "enum": ["ACTIVE", "WAITING", "COMPLETED", "FAILED", "CANCELLED"]},
    ),
    Parameter("delayed", "query", "Those that have not begun (addition).", BOOLEAN),
    Parameter("blocked", "query", "Durable runs that no code could go on with so far (addition).", BOOLEAN),
    Parameter("businessKey", "query", "The whole key."),
    Parameter("businessKeyPrefix", "query", "How the key begins (addition)."),
    Parameter("parentInstanceId", "query", "Which called them, or chained into them (addition)."),
    Parameter("flowKey", "query", "Whose turn their jobs come in (addition)."),
    Parameter("instanceKey", "query", "Of the definition id: the instance that has it (addition)."),
    Parameter("definitionVersion", "query", "Of the definition id (addition).", INTEGER),
    Parameter("cause", "query", "Failures of this cause: `text` of `/v1/failures` (addition)."),
    Parameter("stepId", "query", "Failures at this step of the definition id (addition)."),
    Parameter("errorContains", "query", "Failures with this in their error code or reason, in any case (addition)."),
    Parameter("currentStepId", "query", "Open ones that stand on this step of the definition id (addition)."),
    Parameter(
        "bulkId", "query",
        "To which this bulk operation was done, as far as that is kept (addition).",
    ),
    Parameter("open", "query", "Of the bulk operation: those that have not ended (addition).", BOOLEAN),
    Parameter("startedAfter", "query", "Not before this time (addition).", TIME),
    Parameter("startedBefore", "query", "Before this time (addition).", TIME),
    Parameter(
        "attr.*", "query",
        "With this value of a search attribute, as `attr.customer=4711`; of numbers and times also `attr.amount.from` "
        "(at least) and `attr.amount.to` (below). Up to five attributes (addition).",
    ),
)  # fmt: skip
"""Which instances a list or a count has."""
ORDER: Final = Parameter(
    "order", "query",
    "By the start (the default is `newest` first), the business key, the end, or the last change. All but `newest` "
    "need a `limit` (addition).",
    {"type": "string", "enum": [*ORDERS]},
)  # fmt: skip
VIEW_FULL: Final = "full"
VIEW_SUMMARY: Final = "summary"

_encode = msgspec.json.Encoder().encode


class InstanceRoutes:
    """List and count."""

    def __init__(self, engine: Engine) -> None:
        self._instances = engine.instances
        self._hiding = engine.hiding

    async def list(self) -> Response:
        """``GET /v1/instances``, with ``view=summary`` without variables"""
        view = query_text(request, "view") or VIEW_FULL
        if view not in (VIEW_FULL, VIEW_SUMMARY):
            raise BadRequest(f"view: must be {VIEW_FULL} or {VIEW_SUMMARY}")
        wanted = msgspec.structs.replace(self._filter(), order=query_text(request, "order"))
        if (part := query_slice(request)) is not None:
            found = await self._instances.find_slice(wanted, *part)
        else:
            page = query_number(request, "page"), query_number(request, "pageSize")
            found = await self._instances.find(wanted, *page)
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

    async def count(self) -> Response:
        """``GET /v1/instances/count``"""
        return respond(Reply(200, _encode(await self._instances.count(self._filter()))))

    def _filter(self) -> InstanceFilter:
        """Raises BadRequest, also for a filter by what the caller is not shown: it would tell the value."""
        attributes = query_family(request, "attr.*")
        headers = cast("Scope", request.scope)["headers"]
        for name in attributes:
            if any(hides(self._hiding, one, headers) for one in (name, name.rpartition(".")[0])):
                raise BadRequest(f"attr.{name[:NAME_MAX_CHARS]}: is hidden from the console")
        return InstanceFilter(
            definition_id=query_text(request, "definitionId"),
            status=query_text(request, "status"),
            delayed=query_flag(request, "delayed"),
            blocked=query_flag(request, "blocked"),
            business_key=query_text(request, "businessKey", BUSINESS_KEY_MAX_CHARS),
            instance_key=query_text(request, "instanceKey"),
            definition_version=_version(),
            cause=query_text(request, "cause", CAUSE_MAX_CHARS),
            step_id=query_text(request, "stepId"),
            current_step_id=query_text(request, "currentStepId"),
            bulk_id=query_text(request, "bulkId"),
            open=query_flag(request, "open"),
            error_contains=query_text(request, "errorContains", CAUSE_MAX_CHARS),
            started_after=query_time(request, "startedAfter"),
            started_before=query_time(request, "startedBefore"),
            business_key_prefix=query_text(request, "businessKeyPrefix", BUSINESS_KEY_MAX_CHARS),
            parent_instance_id=query_text(request, "parentInstanceId"),
            flow_key=query_text(request, "flowKey", FLOW_KEY_MAX_CHARS),
            attributes=attributes,
        )


def _version() -> int | None:
    version = query_number(request, "definitionVersion")
    if not 0 <= version < 2**31:
        raise BadRequest("definitionVersion: must be a version")
    return version or None


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
