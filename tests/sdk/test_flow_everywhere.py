"""Queues, schedules, batches and starts: what REST has, gRPC, the client over both, and the command line have, too."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple
from urllib.parse import unquote

import msgspec
import pytest
import trio
import typer.main

from penstock.access.table import RPC
from penstock.cli.app import app
from penstock.client import Client, SyncClient
from penstock.client import exchange as over_rest
from penstock.client.grpc import exchange as over_grpc
from penstock.client.operation import Operation
from penstock.rest.operations import OPERATIONS
from penstock.wire import batch, schedule, start
from penstock.wire.codec import fields_of
from penstock.wire.model import StartRequest
from penstock.wire.queue import QueuePolicy, Rate
from penstock.wire.queue_settings import policy_of, settings_of
from penstock.wire.schedule import ScheduleSpec

ID = "{id}"
AT = datetime(2026, 1, 1, tzinfo=UTC)
SPEC = ScheduleSpec("d", every="PT1H")
SERVICES = ("Flow", "Schedules", "Batches")
"""Of which each RPC is one of these."""
OTHER_RPCS = {"Worker/StartInstances", "Repair/SetPriority"}


class Form(NamedTuple):
    """Of an operation of REST: its RPC, a call of the client, and the command."""

    rpc: str
    method: str
    given: Sequence[Any]
    command: str


FORMS = {
    "putQueue": Form("Flow/PutQueue", "put_queue", [ID, QueuePolicy(["t"])], "queue set"),
    "getQueue": Form("Flow/GetQueue", "get_queue", [ID], "queue show"),
    "listQueues": Form("Flow/ListQueues", "list_queues", [], "queue list"),
    "deleteQueue": Form("Flow/DeleteQueue", "delete_queue", [ID], "queue delete"),
    "pauseQueue": Form("Flow/PauseQueue", "pause_queue", [ID], "queue pause"),
    "resumeQueue": Form("Flow/ResumeQueue", "resume_queue", [ID], "queue resume"),
    "putSchedule": Form("Schedules/PutSchedule", "put_schedule", [ID, SPEC], "schedule set"),
    "getSchedule": Form("Schedules/GetSchedule", "get_schedule", [ID], "schedule show"),
    "listSchedules": Form("Schedules/ListSchedules", "list_schedules", [], "schedule list"),
    "deleteSchedule": Form("Schedules/DeleteSchedule", "delete_schedule", [ID], "schedule delete"),
    "pauseSchedule": Form("Schedules/PauseSchedule", "pause_schedule", [ID], "schedule pause"),
    "resumeSchedule": Form("Schedules/ResumeSchedule", "resume_schedule", [ID], "schedule resume"),
    "triggerSchedule": Form("Schedules/TriggerSchedule", "trigger_schedule", [ID], "schedule trigger"),
    "backfillSchedule": Form("Schedules/BackfillSchedule", "backfill_schedule", [ID, AT, AT], "schedule backfill"),
    "previewSchedule": Form("Schedules/PreviewSchedule", "preview_schedule", [SPEC], "schedule preview"),
    "listDeclarations": Form("Schedules/ListDeclarations", "list_declarations", [], "declaration list"),
    "applyDeclaration": Form("Schedules/ApplyDeclaration", "apply_declaration", ["{kind}", ID], "declaration apply"),
    "startBatch": Form("Batches/CreateBatch", "start_batch", [[StartRequest("d")]], "batch start"),
    "getBatch": Form("Batches/GetBatch", "get_batch", [ID], "batch show"),
    "listBatches": Form("Batches/ListBatches", "list_batches", [], "batch list"),
    "listBatchResults": Form("Batches/ListBatchResults", "list_batch_results", [ID], "batch results"),
    "cancelBatch": Form("Batches/CancelBatch", "cancel_batch", [ID], "batch cancel"),
    "startInstance": Form("Worker/StartInstances", "start_instance", ["d"], "instance start"),
    # The command line starts many as a batch, which tells what became of each.
    "startInstances": Form("Worker/StartInstances", "start_instances", [[StartRequest("d")]], "batch start"),
    "setPriority": Form("Repair/SetPriority", "set_priority", [ID, 2], "instance priority"),
}
ROUTES = ("/v1/queues", "/v1/schedules", "/v1/batches", "/v1/declarations")
OTHER_ROUTES = {
    ("POST", "/v1/instances"), ("POST", "/v1/instances/batch"), ("POST", "/v1/instances/{id}/priority"),
}  # fmt: skip


class _Asked(Exception):
    def __init__(self, operation: Operation[Any]) -> None:
        self.operation = operation


class _Asking(Client):
    async def call(self, operation: Operation[Any], **_options: Any) -> Any:
        raise _Asked(operation)


def _operation(form: Form) -> Operation[Any]:
    """What the client's method asks its transport for."""
    method: Callable[..., Awaitable[Any]] = getattr(_Asking("http://127.0.0.1:1"), form.method)
    with pytest.raises(_Asked) as asked:
        trio.run(lambda: method(*form.given))
    return asked.value.operation


def test_each_route_has_a_form_everywhere() -> None:
    served = {
        each.id for each in OPERATIONS if each.path.startswith(ROUTES) or (each.method, each.path) in OTHER_ROUTES
    }
    assert set(FORMS) == served


def test_each_rpc_is_one_that_rest_has() -> None:
    there = {path.removeprefix("/penstock.v1.") for path in RPC}
    asked = {form.rpc for form in FORMS.values()}
    assert {rpc for rpc in there if rpc.partition("/")[0] in SERVICES} | OTHER_RPCS == asked
    assert asked <= there


@pytest.mark.parametrize("id", sorted(FORMS))
def test_the_client_says_the_same_over_both(id: str) -> None:
    form = FORMS[id]
    operation = _operation(form)
    [route] = [each for each in OPERATIONS if each.id == id]
    rest = over_rest.exchange_for(operation)
    assert (rest.method, unquote(rest.path)) == (route.method, route.path)
    assert over_grpc.exchange_for(operation).path == f"/penstock.v1.{form.rpc}"
    assert callable(getattr(SyncClient, form.method))


@pytest.mark.parametrize("id", sorted(FORMS))
def test_the_command_line_has_it(id: str) -> None:
    group, name = FORMS[id].command.split()
    commands: Any = typer.main.get_command(app)
    assert name in commands.commands[group].commands


NOUNS = (
    StartRequest, start.Dedupe, start.Throttle, start.Debounce, ScheduleSpec, schedule.Schedule, schedule.ScheduleRun,
    schedule.ScheduleTime, batch.Batch, batch.BatchResult,
)  # fmt: skip


@pytest.mark.parametrize("noun", NOUNS, ids=lambda noun: noun.__name__)
def test_each_field_of_a_noun_goes_over_grpc(noun: type[msgspec.Struct]) -> None:
    sent = {name for name, _, _ in fields_of(noun, "penstock.v1")}
    assert set(noun.__struct_fields__) - sent == set()


def test_each_field_of_a_policy_goes_over_grpc() -> None:
    rate = Rate(2, "PT1M", 1)
    policy = QueuePolicy(["t"], True, 3, 4, rate, Rate(5, burst=6), False, {"gold": 2}, 7)
    free = QueuePolicy(["t"])
    changed = [name for name in QueuePolicy.__struct_fields__ if getattr(policy, name) != getattr(free, name)]
    assert changed == [*QueuePolicy.__struct_fields__[1:]]
    assert policy_of(settings_of(policy)) == policy
    assert policy_of(settings_of(free)) == free
