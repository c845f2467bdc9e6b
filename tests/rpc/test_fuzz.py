"""Bytes that nobody would send, to every method of both services on a real engine, over a socket.

Arbitrary ones, and valid requests that were cut, doubled and written into. Whatever they are: a status of the contract
comes back, INVALID_ARGUMENT when google.protobuf can't read them either, and the next call works.
"""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import pytest
import trio
import trio.from_thread
import trio.to_thread
from google.protobuf.message import DecodeError as TheirError
from grpclib.const import Status
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.rpc.rows import Rows
from penstock.rpc.service import WorkflowEngine
from penstock.rpc.worker_service import WorkerService
from penstock.testing.definitions import linear
from penstock.wire import batches_v1 as b
from penstock.wire import penstock_v1 as w
from penstock.wire import repair_v1 as r
from penstock.wire import runs_v1 as c
from penstock.wire import schedules_v1 as s
from penstock.wire import updates_v1 as u
from penstock.wire import workflow_v1 as m
from penstock.wire.codec import encode_message, package_at
from penstock.wire.model import Park, PublishRequest, StartRequest
from penstock.wire.schedule import ScheduleSpec
from penstock.wire.start import Throttle
from penstock.wire.update import UpdateCall
from tests.engine.conftest import MakeDriver, make_driver
from tests.rpc.conftest import Google
from tests.rpc.raw import framed
from tests.rpc.served import Served, served
from tests.rpc.stress_requests import METHODS, Requests
from tests.rpc.test_codec_property import mutated, mutations

__all__ = ["make_driver"]  # pytest finds the fixture here
pytestmark = pytest.mark.slow(reason="thousands of random messages")
ANSWERS = {Status.OK, Status.INVALID_ARGUMENT, Status.NOT_FOUND, Status.FAILED_PRECONDITION, Status.ABORTED}
EXAMPLES = 60

REPAIR = "/penstock.v1.Repair/"
REPAIRS = {
    "EditVariables": r.EditVariablesRequest("1f", b'{"a":1}', ["b"], note="n"),
    "RetryInstance": r.RetryInstanceRequest("1f", "task-1"),
    "SkipStep": r.SkipStepRequest("1f", "task-1", b"{}"),
    "SetPriority": r.SetPriorityRequest("1f", 3),
    "MoveToken": r.MoveTokenRequest("1f", "task-1", "end"),
    "MigrateInstance": r.MigrateInstanceRequest("1f", 1, {"a": "b"}),
    "CheckMigration": r.CheckMigrationRequest("1f", 1),
    "PreviewBulk": r.BulkRequest("retry", r.BulkFilter(4, "storm")),
    "StartBulk": r.BulkRequest("retry", ids=["1f"]),
    "GetBulk": r.GetBulkRequest("1"),
    "ListBulk": r.ListBulkRequest("9", 2),
    "StopBulk": r.StopBulkRequest("1"),
    "GetImpact": r.GetImpactRequest("storm", definition=b"{}"),
    "GetInstance": r.GetInstanceRequest("1f"),
    "GetTree": r.GetTreeRequest("1f"),
    "ActivateVersion": r.ActivateVersionRequest("storm", 1),
    "DeleteDefinition": r.DeleteDefinitionRequest("storm"),
    "ListAudit": r.ListAuditRequest("DEFINITION_UPLOADED", "ann"),
    "ListAttention": r.ListAttentionRequest(),
    "AcknowledgeAttention": r.AcknowledgeAttentionRequest("failures:1", 2, "n"),
    "WithdrawAcknowledgement": r.WithdrawAcknowledgementRequest("failures:1"),
}
BATCHES = {
    "/penstock.v1.Batches/" + name: request
    for name, request in {
        "CreateBatch": b.CreateBatchRequest([StartRequest(definition_id="storm")], idempotency_key="k"),
        "GetBatch": b.GetBatchRequest("1"),
        "ListBatches": b.ListBatchesRequest("9", 2),
        "ListBatchResults": b.ListBatchResultsRequest("1", "ACTIVE", "0", 2),
        "CancelBatch": b.CancelBatchRequest("1", "r"),
    }.items()
}
RUNS = "/penstock.v1.Runs/"
RUN_REQUESTS = {
    "Register": c.RegisterWorkflowsRequest("app", [c.CodeWorkflow("order", 1, "q")]),
    "Start": c.StartRunRequest("app", "order", 1, b'{"n":1}', "o-1", priority=1, throttle=Throttle("k", 1)),
    "Find": c.FindRunRequest("app", "o-1", ["order"], or_any=True),
    "List": c.ListRunsRequest("app", "order", "ACTIVE", 5),
    "Send": c.SendToRunRequest("1f", c.FindRunRequest("app", "o-1"), "go", b"1", "d"),
    "ResolveMessage": c.ResolveMessageRequest("1f", "2a", b"1", "note", force=True),
    "Cancel": c.CancelRunRequest("1f", "why"),
    "Retry": c.RetryRunRequest("1f", "/1", "note"),
    "Result": c.RunResultRequest("1f"),
    "Ended": c.EndedRunsRequest(["1f"]),
    "Tree": c.RunTreeRequest("1f"),
    "Journal": c.RunJournalRequest("1f", "2", 5),
    "Records": c.RunRecordsRequest("1f", "2a"),
    "Adopt": c.AdoptRunsRequest("order"),
    "Fork": c.ForkRunRequest("1f", "/1", "f-1", later_messages=True),
}
FLOW = "/penstock.v1.Flow/"
FLOW_REQUESTS = (
    w.PutQueueRequest("q", w.QueueSettings()), w.GetQueueRequest("q"), w.ListQueuesRequest(), w.DeleteQueueRequest("q"),
    w.PauseQueueRequest("q"), w.ResumeQueueRequest("q"),
)  # fmt: skip
SCHEDULES = "/penstock.v1.Schedules/"
SCHEDULE_REQUESTS = (
    s.GetScheduleRequest, s.ListSchedulesRequest, s.DeleteScheduleRequest, s.PauseScheduleRequest,
    s.ResumeScheduleRequest, s.TriggerScheduleRequest, s.BackfillScheduleRequest, s.ListDeclarationsRequest,
)  # fmt: skip


class Target:
    """A served engine, called from Hypothesis' thread."""

    def __init__(self, run: Served, google: Google) -> None:
        self.run = run
        requests = Requests()
        requests.instances, requests.tasks = ["1f"], ["1f"]
        rng = random.Random(1)
        drawn = [requests.draw(name, rng) for name in METHODS]
        self.samples = {path: encode_message(request, package_at(path)) for path, request, _ in drawn}
        first = w.WorkRequest("w", 30, [w.Credit("work", 1)], [w.Completion("1-2-3", 1, b"{}")], [w.Failure("1-2-4")])
        self.samples["/penstock.v1.Worker/Work"] = encode_message(first)
        park = w.ParkJobsRequest("w", [Park("1-2-3", 1, signal="s")])  # the storm would wait for what it parked
        self.samples["/penstock.v1.Worker/ParkJobs"] = encode_message(park)
        messages = w.PublishMessagesRequest([PublishRequest("paid", "7", b"{}")])
        self.samples["/penstock.v1.Worker/PublishMessages"] = encode_message(messages)
        spec = ScheduleSpec("storm", every="P1D")
        for kind in (s.PutScheduleRequest, s.PreviewScheduleRequest):
            name = kind.__name__.removesuffix("Request")
            self.samples[SCHEDULES + name] = encode_message(kind("nightly", spec))
        for kind in SCHEDULE_REQUESTS:
            self.samples[SCHEDULES + kind.__name__.removesuffix("Request")] = encode_message(kind("nightly"))
        applied = s.ApplyDeclarationRequest("schedule", "nightly")
        self.samples[SCHEDULES + "ApplyDeclaration"] = encode_message(applied)
        call = UpdateCall("set_limit", b"[1]", "u")
        self.samples["/penstock.v1.Updates/AskRun"] = encode_message(u.AskRunRequest("1f", call))
        self.samples["/penstock.v1.Updates/GetRunUpdate"] = encode_message(u.GetRunUpdateRequest("1f", "u"))
        self.samples["/penstock.v1.Updates/GetRunView"] = encode_message(u.GetRunViewRequest("1f", "order_id"))
        for request in FLOW_REQUESTS:
            self.samples[FLOW + type(request).__name__.removesuffix("Request")] = encode_message(request)
        for name, request in REPAIRS.items():
            self.samples[REPAIR + name] = encode_message(request)
        self.samples |= {path: encode_message(request) for path, request in BATCHES.items()}
        for name, request in RUN_REQUESTS.items():
            self.samples[RUNS + name] = encode_message(request)
        modules = {
            "WorkflowEngine": google.workflow, "Worker": google.penstock, "Flow": google.penstock,
            "Schedules": google.schedules, "Updates": google.updates,
            "Repair": google.repair, "Batches": google.batches, "Runs": google.runs,
        }  # fmt: skip
        self.theirs: dict[str, Any] = {}
        for path in self.samples:
            _, service, method = path.split("/")
            name = service.rpartition(".")[2]
            described = modules[name].DESCRIPTOR.services_by_name[name].methods_by_name[method]
            self.theirs[path] = getattr(modules[name], described.input_type.name)

    async def _call(self, path: str, body: bytes) -> Status:
        client = self.run.client
        if not path.endswith("/Work"):
            return Status((await client.call(path, body)).status)
        stream_id = await client.open(path)
        await client.send(stream_id, framed(body), end=True)
        return Status((await client.finished(stream_id)).status)

    def check(self, path: str, body: bytes) -> None:
        """In Hypothesis' thread."""
        status = trio.from_thread.run(self._call, path, body)
        assert status in ANSWERS, status
        try:
            self.theirs[path].FromString(body)
        except TheirError:
            assert status is Status.INVALID_ARGUMENT


async def test_any_bytes_to_any_method_are_answered_and_harm_nothing(
    make_driver: MakeDriver, google: Google, caplog: pytest.LogCaptureFixture
) -> None:
    driver = make_driver()
    await driver.upload(linear(1, definition_id="storm"))
    async with served(driver.engine) as run:
        target = Target(run, google)
        engine = driver.engine
        services = (
            WorkflowEngine(engine),
            WorkerService(engine),
            Rows(engine),
        )
        assert set(target.samples) == {path for service in services for path in service.__mapping__()}

        def attack() -> None:
            for path in sorted(target.samples):
                bodies = st.binary(max_size=60) | mutations.map(partial(mutated, target.samples[path]))

                @settings(max_examples=EXAMPLES, deadline=None)
                @given(st.just(path), bodies)
                def check(path: str, body: bytes) -> None:
                    target.check(path, body)

                check()

        with trio.fail_after(100):
            await trio.to_thread.run_sync(attack)
        assert run.server.statistics().counts.broken == 0
        jobs = await run.poll("work", n=1_000)
        started = driver.rows("SELECT count(*) FROM instance")[0][0]
        assert len(jobs) <= started
        request = StartRequest("storm")
        assert (await run.call("StartInstance", request, m.StartInstanceResponse)).instance is not None
    assert [record for record in caplog.records if record.levelname in ("ERROR", "WARNING")] == []
