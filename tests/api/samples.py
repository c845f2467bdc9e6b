"""Calls of the client on both wires, and what an engine could answer to them: for `test_recorded`."""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from typing import Any

import httpx
import msgspec

from penstock.api import audit, batches, bulk, definitions, queues, schedules
from penstock.client import BulkFilter, BulkRequest, StartRequest
from penstock.client.call import RowCall
from penstock.client.errors import ClientError
from penstock.client.grpc import GrpcTransport
from penstock.client.operation import Operation
from penstock.client.rest import RestTransport
from penstock.rest.openapi import openapi_document
from penstock.rest.operations import OPERATIONS
from penstock.wire import batches_v1 as b
from penstock.wire import penstock_v1 as w
from penstock.wire import repair_v1 as r
from penstock.wire import schedules_v1 as s
from penstock.wire.codec import decode_message, encode_message, package_at
from penstock.wire.queue import QueuePolicy, Rate
from penstock.wire.schedule import SchedulePreview, ScheduleSpec
from tests.sdk.test_contract import CALLS

NOON = datetime(2026, 1, 2, 12, 0, tzinfo=UTC)
VARIABLES = msgspec.Raw(b'{"a":[1,{"b":null}]}')
WHOLE_SPEC = ScheduleSpec(
    "d", 2, VARIABLES, "b", ["0 2 * * *", "@daily"], "Europe/Berlin", None, "2026-01-01T00:00:00Z", "PT1M",
    "2026-01-01T00:00:00Z", "2027-01-01T00:00:00Z", "SKIP", "ALL", "P1D", True, False, "n", 3, "f",
)  # fmt: skip
POLICY = QueuePolicy(["t", "u"], True, 3, 4, Rate(2, "PT1M", 1), Rate(5, burst=6), False, {"gold": 2}, 7)
BULK_FILTER = BulkFilter("FAILED", "d", "b", "c", 2, "s", "p", NOON, NOON, "e")
BULK = BulkRequest(
    action="migrate", step_id="s", variables=VARIABLES, remove=["r"], from_step_id="f", to_step_id="t", version=3,
    steps={"a": "b"}, timers="FROM_NOW", filter=BULK_FILTER, besides=BulkFilter(step_id="x"), ids=["1"],
    per_second=2.5, note="n",
)  # fmt: skip
SINCE, UNTIL = "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"
MORE: tuple[Operation[Any], ...] = (
    RowCall(schedules.PUT_SCHEDULE, s.PutScheduleRequest("a/b ü", WHOLE_SPEC)),
    RowCall(schedules.PUT_SCHEDULE, s.PutScheduleRequest("s", ScheduleSpec("d", 2**40, every="PT1H"))),
    RowCall(schedules.LIST_SCHEDULES, s.ListSchedulesRequest("c&d", 7)),
    RowCall(schedules.LIST_SCHEDULES, s.ListSchedulesRequest(limit=2**40)),
    RowCall(schedules.PAUSE_SCHEDULE, s.PauseScheduleRequest("s")),
    RowCall(schedules.TRIGGER_SCHEDULE, s.TriggerScheduleRequest("s")),
    RowCall(schedules.BACKFILL_SCHEDULE, s.BackfillScheduleRequest("s", SINCE, UNTIL, "BUFFER_ALL")),
    RowCall(schedules.PREVIEW_SCHEDULE, s.PreviewScheduleRequest("", WHOLE_SPEC, 100)),
    RowCall(queues.PUT_QUEUE, queues.PutQueue("eu/mail", POLICY)),
    RowCall(queues.PUT_QUEUE, queues.PutQueue("q", QueuePolicy(["t"], concurrency=0))),
    RowCall(queues.LIST_QUEUES, w.ListQueuesRequest("c", 7)),
    RowCall(
        batches.START_BATCH,
        b.CreateBatchRequest([StartRequest("d", variables=VARIABLES, business_key="b")], "e", "n", "k"),
    ),
    RowCall(batches.GET_BATCH, batches.GetBatch("b", 30)),
    RowCall(batches.LIST_BATCHES, b.ListBatchesRequest("c", 7)),
    RowCall(batches.LIST_BATCH_RESULTS, b.ListBatchResultsRequest("b", "FAILED", "c", 7)),
    RowCall(batches.CANCEL_BATCH, b.CancelBatchRequest("b", "r")),
    RowCall(audit.LIST_AUDIT, r.ListAuditRequest("k", "a", "c", NOON, NOON, "c", 7)),
    RowCall(audit.ACKNOWLEDGE_ATTENTION, r.AcknowledgeAttentionRequest("a/b", 3, "n")),
    RowCall(definitions.ACTIVATE_VERSION, r.ActivateVersionRequest("a/b ü", 2**40)),
    RowCall(definitions.GET_IMPACT, r.GetImpactRequest("d", definition=b'{"id":"d"}')),
    RowCall(bulk.PREVIEW_BULK, BULK),
    RowCall(bulk.START_BULK, BULK),
    RowCall(bulk.START_BULK, BulkRequest(action="retry", per_second=0.0001)),
    RowCall(bulk.START_BULK, BulkRequest(action="retry", filter=BulkFilter(status="NONE"))),
    RowCall(bulk.LIST_BULK, r.ListBulkRequest("c", 7)),
)
SAMPLES: Sequence[Operation[Any]] = (*CALLS, *MORE)


def label_of(operation: Operation[Any]) -> str:
    """Its name, as traces have it."""
    return operation.label


async def over_rest(operation: Operation[Any]) -> dict[str, Any]:
    """What goes out over REST, and what is made of the answer."""
    seen: dict[str, Any] = {}

    def answer(request: httpx.Request) -> httpx.Response:
        own = {"host", "accept", "accept-encoding", "connection", "user-agent", "content-length"}
        seen["request"] = f"{request.method} {request.url.raw_path.decode()}"
        seen["headers"] = {name: value for name, value in request.headers.items() if name not in own}
        seen["body"] = request.content.decode()
        return httpx.Response(200, content=_answer_of(request))

    http = httpx.AsyncClient(transport=httpx.MockTransport(answer), base_url="http://engine")
    return seen | {"answer": await _outcome(RestTransport(http=http), operation)}


async def over_grpc(operation: Operation[Any]) -> dict[str, Any]:
    """What goes out over gRPC, and what is made of the answer."""
    seen: dict[str, Any] = {}

    async def unary(path: str, request: Any, answer_type: Any, *, timeout_s: float, metadata: Any) -> Any:
        assert 0 < timeout_s <= 1
        seen["path"], package = path, package_at(path)
        seen["request"] = encode_message(request, package).hex()
        seen["metadata"] = {name.decode(): value.decode() for name, value in metadata}
        filled = encode_message(_filled(answer_type), package)
        return decode_message(filled, answer_type, package, as_values=True)

    transport = GrpcTransport("grpc://engine:1")
    channel: Any = transport.channel
    channel.unary = unary
    return seen | {"answer": await _outcome(transport, operation)}


async def _outcome(transport: RestTransport | GrpcTransport, operation: Operation[Any]) -> str:
    try:
        answer = await transport.call(operation, timeout_s=1)
        return repr(answer.times if isinstance(answer, SchedulePreview) else answer)  # as the client's method has it
    except ClientError as error:
        return f"{type(error).__name__}: {error}"
    finally:
        await transport.aclose()


def _answer_of(request: httpx.Request) -> bytes:
    """As OpenAPI describes it."""
    asked = request.url.raw_path.decode().partition("?")[0].split("/")
    for row in OPERATIONS:
        parts = row.path.split("/")
        fits = row.method == request.method and len(parts) == len(asked)
        if fits and all(part == there or part[:1] == "{" for part, there in zip(parts, asked, strict=True)):
            return b"" if row.answer is None else msgspec.json.encode(_json_of(row.answer))
    return b""


@cache
def _schemas() -> Mapping[str, Any]:
    schemas: dict[str, Any] = openapi_document()["components"]["schemas"]
    return schemas


def _json_of(schema: Mapping[str, Any], deep: int = 6) -> Any:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return _json_of(_schemas()[name], deep - 1)
    if "anyOf" in schema:
        return _json_of(schema["anyOf"][0], deep)
    if "enum" in schema:
        return schema["enum"][0]
    match schema.get("type"):
        case "object":
            fields = schema.get("properties", {}) if deep else {}
            made = {name: _json_of(each, deep) for name, each in fields.items()}
            return made or {"k": "t" if schema.get("additionalProperties") == {"type": "string"} else 1}
        case "array":
            return [_json_of(schema["items"], deep)] if deep else []
        case "integer":
            return 3
        case "number":
            return 1.5
        case "boolean":
            return True
        case "string":
            return "2026-01-02T12:00:00Z"  # also where a time is no more than a text
    return 1


def _filled(kind: Any, deep: int = 4) -> Any:
    """A message of that class with something in each field."""
    hints = typing.get_type_hints(kind, include_extras=True)
    there = {name: hint for name, hint in hints.items() if typing.get_origin(hint) is typing.Annotated}
    return kind(**{name: _value_of(hint, deep) for name, hint in there.items()})


def _value_of(hint: Any, deep: int) -> Any:
    origin, given = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        words = next((proto.words for proto in given[1:] if getattr(proto, "words", ())), ())
        kinds = {proto.kind for proto in given[1:]}
        if words:
            return words[1]
        return {"k": 1} if kinds & {"json", "struct"} and given[0] is not bytes else _value_of(given[0], deep)
    if origin in (types.UnionType, typing.Union):
        return _value_of(given[0], deep)
    if origin is list:
        return [value for value in (_value_of(given[0], deep - 1),) if value is not None]
    if origin is dict:
        return {"k": _value_of(given[1], deep - 1)}
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return _filled(hint, deep - 1) if deep > 0 else None
    plain: dict[Any, Any] = {str: "t", int: 3, bool: True, float: 1.5, bytes: b'{"k":1}', datetime: NOON}
    return plain.get(hint, 1)
