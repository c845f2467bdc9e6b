"""Each operation has one row, each row is bound in the engine and made into a route and a method; and what is left."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import pytest
from quart_trio import QuartTrio

from penstock.access import table
from penstock.api import ROUTED, ROWS, definitions, instances
from penstock.api.operation import Body, DeclaredOperation, Rest, Where
from penstock.api.permission import Permission
from penstock.client.call import RowCall
from penstock.client.errors import NotOverGrpc
from penstock.client.exchange import exchange_for
from penstock.client.grpc import exchange as grpc_exchange
from penstock.engine.operations.table import bound_operations
from penstock.errors import NotFound
from penstock.rest.operations import OPERATIONS
from penstock.rest.reading import ROUTE
from penstock.rest.rows import body_kind, number_of, others_of, route_of, view_of
from penstock.rpc.rows import ITEMS_INLINE_MAX, Rows, is_long, without_empty
from penstock.wire import batches_v1 as b
from penstock.wire import schedules_v1 as w
from penstock.wire.codec import fields_of, package_at
from penstock.wire.model import StartRequest
from tests.rest.scripted import ScriptedEngine

ROUTES_LEFT = 23
METHODS_LEFT = {
    "workflow.v1.WorkflowEngine": 7, "penstock.v1.Worker": 1,
    "grpc.health.v1.Health": 2, "grpc.reflection.v1.ServerReflection": 1, "grpc.reflection.v1alpha.ServerReflection": 1,
}  # fmt: skip
"""Those that no row has yet, by service. Only ever fewer, but for Runs, which is gRPC's alone: a new operation begins
with its row."""


NEEDED: Mapping[str, object] = {
    "action": "retry",
    "items": [],
    "stepId": "a",
    "toStepId": "b",
    "priority": 1,
    "definitionId": "d",
    "jobTypes": ["t"],
    "expression": "1",
    "definition": {},
}
"""The fields that a body has to have."""
BYTES: tuple[object, ...] = (bytes, msgspec.Raw)
"""Of a body that is taken as it comes."""


def test_each_row_is_bound_and_each_binding_has_a_row() -> None:
    bound = bound_operations(ScriptedEngine())  # type: ignore[arg-type]  # scripted
    assert sorted(bound) == sorted(row.name for row in ROWS)


def test_a_route_has_a_row_or_is_left() -> None:
    made = {row.rest.id or row.name for row in ROUTED if not (row.rest.when or row.rest.by_hand)}
    assert {served.id for served in OPERATIONS if served.handler is None} == made
    assert sum(served.id not in made for served in OPERATIONS) == ROUTES_LEFT


def test_a_route_with_a_handler_of_its_own_says_why_in_its_row() -> None:
    by_hand = {row.name: row for row in ROUTED if row.rest.by_hand}
    assert sorted(by_hand) == [
        "completeJobs", "failJobs", "heartbeatJobs", "listInstances", "releaseJobs", "startInstances",
    ]  # fmt: skip
    for served in OPERATIONS:
        if (row := by_hand.get(served.id)) is not None:
            assert served.handler is not None
            assert (served.method, served.path, served.needs) == (row.rest.method, row.rest.path, row.needs)


def test_a_filter_that_a_message_has_no_place_for_is_refused_over_grpc() -> None:
    assert instances.LIST_INSTANCES.grpc is not None
    assert {"cause", "bulk_id", "attributes", "open"} <= {*instances.LIST_INSTANCES.grpc.lacks}
    known = {
        "definition_id",
        "status",
        "business_key",
        "instance_key",
        "delayed",
        "blocked",
        "current_step_id",
        "order",
    }
    assert known.isdisjoint(instances.LIST_INSTANCES.grpc.lacks)
    with pytest.raises(NotOverGrpc, match="ListInstances has no `cause` in gRPC"):
        grpc_exchange.exchange_for(RowCall(instances.LIST_INSTANCES, instances.ListInstances(cause="c")))


def test_a_method_has_a_row_or_is_left() -> None:
    made = {grpc.method for row in ROWS for grpc in row.methods}
    assert set(Rows(ScriptedEngine()).__mapping__()) == made  # type: ignore[arg-type]  # scripted
    left = [path.split("/")[1] for path in table.RPC if path not in made]
    assert {service: left.count(service) for service in left} == METHODS_LEFT


def test_rows_with_one_route_are_served_alike_but_for_a_flag() -> None:
    shared = [(other, row) for row in ROUTED for other in others_of(row) if not row.rest.when]
    assert [other.name for other, _ in shared] == ["previewBulk", "checkMigration", "listExecutions"]
    for other, row in shared:
        assert (other.needs, other.rest.body) == (row.needs, row.rest.body)


@pytest.mark.parametrize("row", ROUTED, ids=lambda row: row.name)
def test_each_field_of_a_request_goes_over_both_wires(row: DeclaredOperation[msgspec.Struct, object]) -> None:
    assert {f"{{{place.name}}}" for place in row.places() if f"{{{place.name}}}" in row.rest.path} == {
        part for part in row.rest.path.split("/") if part.startswith("{")
    }
    assert set(row.rest.query) <= {place.name for place in row.places()}
    if row.grpc is not None and row.grpc.message is None:
        sent = {name for name, _, _ in fields_of(row.request, package_at(row.grpc.method))}
        assert sent | set(row.grpc.headers) == set(row.request.__struct_fields__)


@pytest.mark.parametrize("row", [row for row in ROUTED if not row.rest.by_hand], ids=lambda row: row.name)
async def test_what_rest_leaves_out_has_the_default_that_grpc_gives_it(
    row: DeclaredOperation[msgspec.Struct, object],
) -> None:
    asked: list[msgspec.Struct] = []

    async def serve(request: msgspec.Struct) -> None:
        asked.append(request)

    ids = {place.name: "1" for place in row.places() if place.where is Where.PATH}
    body: dict[str, object] = {}
    if row.rest.body is not None and (kind := body_kind(row, row.rest.body)) not in BYTES:
        body = {
            field.encode_name: NEEDED[field.encode_name] for field in msgspec.structs.fields(kind) if field.required
        }
    async with QuartTrio("test").test_request_context(
        "/", method=row.rest.method, json=body, scope_base={ROUTE: route_of(row)}
    ):
        await view_of(row, {row.name: serve}, ScriptedEngine().limits)(**ids)
    none = {name for name, value in msgspec.structs.asdict(asked[0]).items() if value is None}
    assert none <= {field.name for field in msgspec.structs.fields(row.request) if field.default is None} - ids.keys()


def row_of(rest: Rest) -> DeclaredOperation[w.PauseScheduleRequest, None]:
    return DeclaredOperation(
        name="tryIt", summary="Try it", tag="t", request=w.PauseScheduleRequest, answer=type(None),
        needs=Permission.VIEW, rest=rest,
    )  # fmt: skip


def test_a_field_without_a_place_is_noticed() -> None:
    with pytest.raises(TypeError, match="tryIt: note has no place over REST"):
        row_of(Rest("POST", "/v1/{id}")).places()
    assert [place.name for place in row_of(Rest("POST", "/v1/{id}", body=Body(name="TryBody"))).places()] == [
        "id",
        "note",
    ]


def test_a_value_is_a_part_of_a_path_whatever_it_holds() -> None:
    call = RowCall(
        row_of(Rest("POST", "/v1/{note}/{id}", {}, Body(name="TryBody"))), w.PauseScheduleRequest("a/{id}", "{id}?")
    )
    assert exchange_for(call).path == "/v1/%7Bid%7D%3F/a%2F%7Bid%7D"


def test_what_is_empty_in_an_item_of_a_list_is_not_given_either() -> None:
    item = StartRequest("d", business_key="", delay="", instance_key="i")
    (read,) = without_empty(b.CreateBatchRequest([item], note=""), "penstock.v1", numbers=True).items
    assert (read.business_key, read.delay, read.instance_key) == (None, None, "i")
    assert not is_long(b.CreateBatchRequest([item]))
    assert is_long(b.CreateBatchRequest([item] * (ITEMS_INLINE_MAX + 1)))


def test_a_number_in_a_path_that_is_none_is_found_nowhere() -> None:
    place = next(place for place in definitions.ACTIVATE_VERSION.places() if place.field == "version")
    assert (place.name, number_of(place, "12")) == ("number", 12)
    for text in ("0", "-1", "x", "1" * 11, "\N{SUPERSCRIPT TWO}"):
        with pytest.raises(NotFound, match=r"version '.*' is unknown"):
            number_of(place, text)
