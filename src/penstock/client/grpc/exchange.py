"""The wire contract's gRPC calls: for each operation its method, its request, and how to read the answer.

Pure: builds and reads, sends nothing. ``penstock.v1`` is used for what it has (variables are JSON text there: exact),
``workflow.v1`` for the rest, whose ``Struct`` rounds whole numbers beyond 2^53: what would be rounded is refused on the
way out, and comes rounded on the way in. What neither service has, is a ``NotOverGrpc``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.api import definitions as api
from penstock.client.call import RowCall
from penstock.client.errors import NotOverGrpc, Unavailable
from penstock.client.grpc import jobs
from penstock.client.grpc.call_exchange import check_numbers, exchange_of
from penstock.client.grpc.definitions import document_of, message_of
from penstock.client.grpc.unary import ENGINE, WORKER, UnaryExchange
from penstock.client.grpc.values import int32, only, start_message, there
from penstock.client.model import StartResult
from penstock.client.operation import (
    CheckReady,
    CompleteJob,
    CompleteJobs,
    FailJob,
    FailJobs,
    HeartbeatJob,
    HeartbeatJobs,
    Operation,
    ParkJob,
    PollJobs,
    ReleaseJobs,
    StartInstance,
    StartInstances,
    WaitLostJobs,
)
from penstock.wire import penstock_v1 as w
from penstock.wire import workflow_v1 as m
from penstock.wire.alike import alike
from penstock.wire.grpc_health import HealthCheckRequest, HealthCheckResponse, ServingStatus
from penstock.wire.model import (
    DefinitionSummary,
    Instance,
)
from penstock.wire.page import Page


def exchange_for(operation: Operation[Any]) -> UnaryExchange:
    """Return the gRPC exchange of an operation.

    Raises:
        NotOverGrpc: it has none.
        BadRequest: a value does not fit its message.
    """
    make = _EXCHANGES.get(type(operation))
    if make is None:
        raise NotOverGrpc(f"{operation.label} has no form in gRPC: use a client over REST for it")
    return make(operation)


# ---------------------------------------------------------------------------------------------- definitions


def _check_ready(_operation: CheckReady) -> UnaryExchange:
    return UnaryExchange("/grpc.health.v1.Health/Check", HealthCheckRequest(), HealthCheckResponse, _read_ready)


def _read_ready(answer: HealthCheckResponse) -> None:
    if answer.status != ServingStatus.SERVING:
        raise Unavailable("the engine is not ready", maybe_applied=False)


def _upload_definition(ask: api.UploadDefinition) -> UnaryExchange:
    message = message_of(ask.document)

    def read(answer: m.UploadDefinitionResponse) -> DefinitionSummary:
        return DefinitionSummary(
            id=answer.id,
            version=answer.version,
            name=message.name,
            description=message.description or None,
            uploaded_at=answer.uploaded_at,
            active=answer.active,
        )

    request = m.UploadDefinitionRequest(message)
    return UnaryExchange(f"{ENGINE}UploadDefinition", request, m.UploadDefinitionResponse, read)


def _get_definition(ask: api.GetDefinition | api.GetDefinitionVersion) -> UnaryExchange:
    version = ask.version if isinstance(ask, api.GetDefinitionVersion) else 0
    request = m.GetDefinitionRequest(ask.id, int32(version, "version"))
    return UnaryExchange(f"{ENGINE}GetDefinition", request, m.GetDefinitionResponse, _read_definition)


def _read_definition(answer: m.GetDefinitionResponse) -> dict[str, Any]:
    return document_of(there(answer.definition))


def _list_definitions(ask: api.ListDefinitions) -> UnaryExchange:
    request = alike(ask, m.ListDefinitionsRequest)
    check_numbers(request, "workflow.v1")
    return UnaryExchange(f"{ENGINE}ListDefinitions", request, m.ListDefinitionsResponse, _read_definitions)


def _read_definitions(answer: m.ListDefinitionsResponse) -> Page[DefinitionSummary]:
    items = [
        DefinitionSummary(id=item.id, version=item.version, name=item.name, description=item.description or None)
        for item in answer.definitions
    ]
    return Page(items=items, total=answer.total, next=answer.next or None)


ADAPTED: dict[str, Callable[[Any], UnaryExchange]] = {
    api.UPLOAD_DEFINITION.name: _upload_definition,
    api.GET_DEFINITION.name: _get_definition,
    api.GET_DEFINITION_VERSION.name: _get_definition,
    api.LIST_DEFINITIONS.name: _list_definitions,
}
"""Rows whose messages in `workflow.v1` are not made of the row."""


def _of_row(call: RowCall[Any, Any]) -> UnaryExchange:
    adapted = ADAPTED.get(call.row.name)
    return exchange_of(call) if adapted is None else adapted(call.request)


# ---------------------------------------------------------------------------------------------- instances


def _start_instance(operation: StartInstance) -> UnaryExchange:
    def read(answer: w.StartInstancesResponse) -> Instance:
        result: StartResult = only(_read_started(answer))
        return result.unwrap()

    request = w.StartInstancesRequest([start_message(operation.request)])
    return UnaryExchange(f"{WORKER}StartInstances", request, w.StartInstancesResponse, read)


def _start_instances(operation: StartInstances) -> UnaryExchange:
    request = w.StartInstancesRequest([start_message(item) for item in operation.items])
    return UnaryExchange(f"{WORKER}StartInstances", request, w.StartInstancesResponse, _read_started)


def _read_started(answer: w.StartInstancesResponse) -> list[StartResult]:
    return [
        StartResult(error=result.error or "internal-error", reason=result.reason or "")
        if result.instance is None
        else StartResult(instance=result.instance)
        for result in answer.results
    ]


_EXCHANGES: dict[type[Operation[Any]], Callable[[Any], UnaryExchange]] = {
    CheckReady: _check_ready,
    StartInstance: _start_instance,
    StartInstances: _start_instances,
    PollJobs: jobs.poll_jobs,
    CompleteJob: jobs.complete_job,
    FailJob: jobs.fail_job,
    HeartbeatJob: jobs.heartbeat_job,
    HeartbeatJobs: jobs.heartbeat_jobs,
    CompleteJobs: jobs.complete_jobs,
    FailJobs: jobs.fail_jobs,
    ParkJob: jobs.park_job,
    ReleaseJobs: jobs.release_jobs,
    RowCall: _of_row,
}
# Not in the contract's gRPC: kept as names so that a test can hold that every operation is in one list or the other.
WITHOUT_FORM: tuple[type[Operation[Any]], ...] = (
    WaitLostJobs,
)  # fmt: skip
