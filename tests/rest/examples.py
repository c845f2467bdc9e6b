"""Record an example of each REST call, with its answer, for docs/rest.md.

`python -m tests.rest.examples` starts an engine, makes the calls, and writes `tools/rest_examples.json`; `make docs`
writes the page of it. `test_examples` makes the same calls and compares their forms.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import httpx

from penstock.durable import App, Queue, receive, set_view, update, workflow
from penstock.rest.operation import RestOperation
from penstock.rest.operations import OPERATIONS
from tests import postgres
from tests.runtime.engine_process import EngineProcess

FILE: Final = Path(__file__).resolve().parents[2] / "tools" / "rest_examples.json"
NOT_RECORDED: Final[Mapping[str, str]] = {
    "signIn": "needs authentication",
    "signOut": "needs authentication",
    "beginSignIn": "needs an issuer of tokens",
    "finishSignIn": "needs an issuer of tokens",
    "acknowledgeAttention": "needs a problem",
    "withdrawAcknowledgement": "needs a problem",
    "deleteDefinition": "needs a workflow that no program has served for 30 s",
    "retrySqlRequest": "needs a request of a SQL function that failed",
    "dropSqlRequest": "needs a request of a SQL function that failed",
    "openapi": "is the whole document",
    "docs": "is a page",
}
"""Calls without an example, and why."""
ITEMS_SHOWN = 1
BY_ID: Final = {row.id: row for row in OPERATIONS}
ORDER: Final = {
    "id": "order",
    "name": "Order",
    "steps": [
        {"id": "charge", "name": "Charge", "type": "SERVICE_TASK", "jobType": "card.charge", "nextStep": "approve"},
        {"id": "approve", "name": "Approve", "type": "USER_TASK", "jobType": "clerk", "nextStep": "parcel"},
        {"id": "parcel", "name": "Parcel", "type": "WAIT", "nextStep": "done"},
        {"id": "done", "name": "Done", "type": "END"},
    ],
}
PAYMENT: Final = {
    "id": "payment",
    "name": "Payment",
    "steps": [
        {
            "id": "paid", "name": "Paid", "type": "WAIT",
            "message": {"name": "payment", "correlationKey": "${orderId}"}, "nextStep": "done",
        },
        {"id": "done", "name": "Done", "type": "END"},
    ],
}  # fmt: skip
SCHEDULE: Final = {"definitionId": "order", "cron": ["0 2 * * *"], "timeZone": "Europe/Berlin"}


@workflow(queue=Queue("approvals", runs=100))
async def approval(what: str) -> str:
    @update
    def rename(name: str) -> str:
        nonlocal what
        what, before = name, what
        return before

    set_view("asked", key="stage")
    decision = await receive("decision", bool)
    return f"{what}: {decision}"


class Recorder:
    """Makes calls and keeps the first of each operation."""

    def __init__(self, http: httpx.Client) -> None:
        self._http = http
        self.examples: dict[str, dict[str, Any]] = {}

    def call(self, name: str, body: object = None, headers: dict[str, str] | None = None, /, **values: object) -> Any:
        """Call an operation; ``values`` are those of the path, then of the query. Returns the decoded answer."""
        row: RestOperation = BY_ID[name]
        path = row.path
        for field in [part[1:-1] for part in path.split("/") if part.startswith("{")]:
            path = path.replace("{" + field + "}", quote(str(values.pop(field)), safe=""))
        if values:
            path += "?" + "&".join(f"{field}={quote(str(value), safe='')}" for field, value in values.items())
        answer = self._http.request(row.method, path, json=body, headers=headers or {})
        if name != "ready":  # a warning, as there is no authentication
            assert answer.status_code == row.status or answer.status_code in dict(row.also), (name, answer.text)
        found = answer.json() if answer.content else None
        self.examples.setdefault(
            name,
            {"method": row.method, "path": path, "headers": headers, "body": body, "status": answer.status_code,
             "answer": shortened(found)},
        )  # fmt: skip
        return found


def shortened(value: Any) -> Any:
    """An answer with the first items of its lists."""
    if isinstance(value, dict):
        return {name: shortened(one) for name, one in value.items()}
    if isinstance(value, list):
        return [shortened(one) for one in value[:ITEMS_SHOWN]]
    return value


def record(port: int, grpc_port: int) -> dict[str, dict[str, Any]]:
    """Make all calls on an engine, and return an example of each by the name of its operation."""
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60, verify=False) as http:
        recorder = Recorder(http)
        _definitions(recorder)
        _instances(recorder)
        _jobs(recorder)
        _tasks(recorder)
        _schedules_and_batches(recorder)
        _engine(recorder)
        _runs(recorder, grpc_port)
    return {row.id: recorder.examples[row.id] for row in OPERATIONS if row.id in recorder.examples}


def _definitions(to: Recorder) -> None:
    to.call("uploadDefinition", ORDER)
    to.call("uploadDefinition", PAYMENT)
    to.call("listDefinitions", keyword="order", pageSize=1)
    to.call("getDefinition", id="order")
    to.call("getDefinitionVersion", id="order", number=1)
    to.call("activateVersion", id="order", number=1)
    to.call("validateDefinition", {"id": "order", "name": "Order", "steps": []})
    to.call("checkExpression", {"expression": "price * 2", "variables": {"price": 12.5}})
    to.call("getExpressionLanguage")
    to.call("simulate", {"definition": PAYMENT, "variables": {"orderId": "A-17"}})


def _instances(to: Recorder) -> None:
    started = to.call(
        "startInstance", {"definitionId": "order", "businessKey": "A-17", "variables": {"total": 25}},
        {"Idempotency-Key": "order-A-17"},
    )  # fmt: skip
    instance = started["id"]
    to.call("startInstances", {"items": [{"definitionId": "order", "businessKey": "A-18", "idempotencyKey": "A-18"}]})
    to.call("listInstances", definitionId="order", status="ACTIVE", pageSize=1)
    to.call("countInstances", definitionId="order")
    to.call("getInstance", id=instance)
    to.call("getHistory", id=instance)
    to.call("getState", id=instance)
    to.call("getAudit", id=instance, limit=1)
    to.call("setPriority", {"priority": 2}, id=instance)
    to.call("migrateInstance", {"version": 1, "dryRun": True}, id=instance)
    to.call("impact", id="order", version=1)
    to.call("listDefinitionActivity", keyword="order")
    to.call("listVersions", id="order")
    to.call("countVersions", id="order")
    to.call("listTokens", id="order")
    to.call("listVariables", id="order")
    other = to.call("startInstance", {"definitionId": "order"})["id"]
    to.call("skipStep", {"stepId": "charge", "variables": {"paid": True}}, id=other)
    to.call("moveToken", {"stepId": "approve", "toStepId": "parcel"}, id=other)
    to.call("editVariables", {"set": {"total": 30}}, id=other)
    to.call("signal", {"parcel": "P-1"}, id=other, stepId="parcel", signalId="s-1")
    executions = to.call("getHistory", id=other)["items"]
    to.call("getVariablesAfter", id=other, after=executions[0]["id"])
    last = to.call("startInstance", {"definitionId": "order", "instanceKey": "A-20"})["id"]
    to.call("signalByKey", {"parcel": "P-2"}, id="order", key="A-20", stepId="parcel", buffer="true")
    to.call("listSignals", id=last)
    to.call("cancelInstance", {"reason": "sold out"}, id=last)
    bulk = to.call("bulk", {"action": "cancel", "filter": {"definitionId": "order", "businessKey": "A-18"}})["id"]
    to.call("listBulk", limit=1)
    to.call("getBulk", id=bulk)
    to.call("stopBulk", id=bulk)


def _jobs(to: Recorder) -> None:
    for number in range(6):
        to.call("startInstance", {"definitionId": "order", "variables": {"number": number}})
    worker = "w-1"
    to.call("listJobs", status="WAITING", jobType="card.charge", limit=1)
    jobs = to.call("pollJobs", {"workerId": worker, "jobTypes": ["card.charge"], "maxJobs": 10, "waitSeconds": 20})
    first, second, third, fourth, fifth, sixth, *_ = jobs["jobs"]
    to.call("heartbeatJob", {"workerId": worker, "progress": {"done": 1}, "checkpoint": 1}, id=first["id"])
    to.call("listJobTypes")
    to.call("listWorkers")
    to.call("forgetCheckpoint", id=first["id"], note="begin anew")
    to.call("completeJob", {"workerId": worker, "variables": {"paid": True}}, id=first["id"])
    to.call("listAttempts", id=first["stepExecutionId"])
    to.call("failJob", {"workerId": worker, "retryable": False, "errorMessage": "declined"}, id=second["id"])
    to.call("listFailures")
    to.call("retryInstance", {"note": "the card works again"}, id=second["instanceId"])
    to.call("parkJob", {"workerId": worker, "attempt": third["attempt"], "signal": "answer"}, id=third["id"])
    to.call("unlockJob", {"note": "the worker is gone"}, id=fourth["id"])
    to.call("heartbeatJobs", {"workerId": worker, "jobs": [{"jobId": fifth["id"]}]})
    to.call("completeJobs", {"workerId": worker, "results": [{"jobId": fifth["id"], "variables": {"paid": True}}]})
    to.call("releaseJobs", {"workerId": worker, "jobs": [{"jobId": sixth["id"]}]})
    to.call("failJobs", {"workerId": worker, "results": [{"jobId": sixth["id"], "retryable": True}]})
    to.call("waitLostJobs", {"workerId": worker})
    policy = {"jobTypes": ["card.charge"], "concurrency": 10, "rate": {"limit": 100, "period": "PT1S"}}
    to.call("putQueue", policy, id="cards")
    to.call("listQueues")
    to.call("getQueue", id="cards")
    to.call("pauseQueue", id="cards")
    to.call("resumeQueue", id="cards")
    to.call("deleteQueue", id="cards")


def _tasks(to: Recorder) -> None:
    task = to.call("listTasks", jobType="clerk", limit=1)["items"][0]
    to.call("countTasks")
    where = {"id": task["instanceId"], "stepId": task["stepId"]}
    to.call("claimTask", {"by": "ann"}, **where)
    to.call("releaseTask", {"by": "ann"}, **where)
    to.call("completeUserTask", {"variables": {"approved": True}, "completedBy": "ann"}, **where)
    to.call("startInstance", {"definitionId": "payment", "variables": {"orderId": "A-17"}})
    to.call("publishMessage", {"name": "payment", "correlationKey": "A-17", "variables": {"paid": 25}})
    to.call("publishMessage", {"name": "payment", "correlationKey": "A-99"})
    to.call("listMessages", name="payment")


def _schedules_and_batches(to: Recorder) -> None:
    to.call("putSchedule", SCHEDULE, id="nightly")
    to.call("listSchedules", limit=1)
    to.call("getSchedule", id="nightly")
    to.call("previewSchedule", SCHEDULE, count=2)
    to.call("pauseSchedule", {"note": "the bank is closed"}, id="nightly")
    to.call("resumeSchedule", id="nightly")
    to.call("triggerSchedule", id="nightly")
    to.call("backfillSchedule", {"from": "2026-01-01T00:00:00Z", "to": "2026-01-03T00:00:00Z"}, id="nightly")
    to.call("deleteSchedule", id="nightly")
    items = [{"definitionId": "payment", "variables": {"orderId": "A-30"}}]
    batch = to.call("startBatch", {"items": items, "note": "January"})["id"]
    to.call("listBatches", limit=1)
    to.call("getBatch", id=batch)
    to.call("listBatchResults", id=batch)
    to.call("cancelBatch", {"reason": "wrong month"}, id=batch)


def _engine(to: Recorder) -> None:
    for name in ("live", "ready", "me", "signInWays", "listSettings", "listAttention", "overview", "listEngines"):
        to.call(name)
    to.call("listSqlRequests", limit=1)
    to.call("listAudit", limit=1)
    to.call("startInstance", {"definitionId": "order", "delay": "PT1H"})
    to.call("listTimers", limit=1)
    to.call("watch", overview="true", waitSeconds=0)


def _runs(to: Recorder, grpc_port: int) -> None:
    with App(approval, name="shop", at=f"grpc://127.0.0.1:{grpc_port}").in_thread() as app:
        to.call("listDeclarations", limit=1)
        to.call("applyDeclaration", kind="queue", id="approvals")
        run = app.start(approval, "a table")
        call = {"name": "rename", "arguments": ["a desk"], "id": "rename-1", "waitSeconds": 10}
        to.call("askRun", call, id=run.instance_id)
        to.call("getRunUpdate", id=run.instance_id, updateId="rename-1")
        to.call("getRunView", id=run.instance_id, key="stage", waitSeconds=10)
        to.call("sendMessage", {"name": "decision", "payload": "maybe", "force": True}, id=run.instance_id)
        while not (tree := to.call("getTree", id=run.instance_id)).get("rejected"):
            to.examples.pop("getTree")
        where = {"id": run.instance_id, "position": tree["rejected"][0]["position"]}
        to.call("resolveMessage", {"payload": True, "note": "ann said yes"}, **where)
        assert run.result() == "a desk: True"
        to.call("getJournal", id=run.instance_id)
        to.call("forkRun", {"path": "end", "forkId": "order-17-again"}, id=run.instance_id)


def main() -> None:
    """Start an engine, record, and write the file."""
    with postgres.run_server() as server, server.database(postgres.apply_schema) as dsn, EngineProcess(dsn) as engine:
        engine.wait_ready()
        found = record(engine.port, engine.grpc_port)
    FILE.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    print(f"{len(found)} examples in {FILE.name}", file=sys.stderr)


if __name__ == "__main__":
    main()
