"""Variables that are hidden from the console, or secret by their definition, in every answer that carries variables."""

from __future__ import annotations

import json
from typing import Any, cast

import httpx
import msgspec
import pytest

from penstock.engine.queues.journal_items import NewRecord, RecordKind
from penstock.engine.requests.hiding import Hiding
from penstock.engine.runs.code import CodeWorkflow
from penstock.engine.schedules.declared import InCode
from penstock.rest.app import make_app
from penstock.rest.hiding import Hider, fields_of
from penstock.rest.operations import KINDS_BY_NAME, OPERATIONS
from penstock.rpc.rows import Rows
from penstock.rpc.service import WorkflowEngine
from penstock.rpc.worker_service import WorkerService
from penstock.testing.definitions import definition, end
from penstock.wire.model import StartRequest
from penstock.wire.schedule import ScheduleSpec
from penstock.wire.shown import with_value
from tests.engine.conftest import MakeDriver, make_driver
from tests.engine.driver import Driver
from tests.engine.runs import append, begin, continue_as_new
from tests.engine.runs import done as a_step
from tests.shapes import task, user, wait

__all__ = ["make_driver"]

SECRET = "hunter2"
GIVEN = {"password": SECRET, "amount": 5}
NESTED = {"arguments": GIVEN, "continuation": 1}
CONSOLE = ({"X-Penstock-Console": "1"}, {"Cookie": "a=b; penstock=pss_x"}, {"Cookie": "__Host-penstock=pss_x"})
SHAPE = definition(
    task("pay", "review"), user("review", "later"), wait("later"), end(), id="hidden", recordAttempts=True
)
NO_KINDS = {"Definition", "ItemOutcome", "BeatOutcome"}
"""Schemas without a class: what was uploaded, and what became of jobs."""
HOLDS_NONE = {"getState", "getTree", "listJobs", "listSqlRequests", "listDeclarations", "applyDeclaration"}
"""Routes whose answers have free JSON, but here no variables. `getTree` has none of an instance of a definition."""
HIDER = Hider(Hiding(["password"]), KINDS_BY_NAME)
CARRYING = {row.id: row for row in OPERATIONS if HIDER.shape_of(row) is not None}


def read(variables: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(bytes(variables))
    return found


class Asked:
    """Each route that was asked, as a program and as the console; in whose answers the secret must not be."""

    def __init__(self, driver: Driver) -> None:
        transport = httpx.ASGITransport(cast(Any, make_app(driver.engine)))
        self._client = httpx.AsyncClient(transport=transport, base_url="http://localhost")
        self.routes: set[str] = set()

    async def ask(
        self, route: str, body: object = None, /, *, query: str = "", shows: bool = False, **parts: str
    ) -> Any:
        """What a program is answered; asked once where asking changes something, and that as the console. ``shows``: it
        has the secret, though others of the route do not."""
        row = CARRYING[route]
        path = row.path.format(**parts) + query
        answers = []
        for headers in ({}, *CONSOLE) if row.method == "GET" else CONSOLE[:1]:
            found = await self._client.request(row.method, path, json=body, headers=headers)
            assert found.status_code < 300, (route, found.text)
            answers.append(found.text)
        shown = answers if row.for_people or row.method != "GET" else answers[1:]
        for text in shown:
            assert SECRET not in text, f"{route} shows what is hidden: {text}"
            assert '"password":"***"' in text or (route in HOLDS_NONE and not shows), (route, text)
        if row.method == "GET" and not row.for_people:
            assert SECRET in answers[0] or (route in HOLDS_NONE and not shows), f"{route}: a program gets all"
        self.routes.add(route)
        return json.loads(answers[0])

    async def post(self, path: str, body: object) -> Any:
        """What a program is answered."""
        found = await self._client.post(path, json=body)
        assert found.status_code < 300, found.text
        return found.json() if found.content else None

    async def close(self) -> None:
        await self._client.aclose()


async def test_no_answer_to_the_console_holds_what_is_hidden(make_driver: MakeDriver) -> None:
    driver = make_driver(console_hide_variables=("password",))
    await driver.upload(SHAPE)
    asked = Asked(driver)
    ask = asked.ask
    start = {"definitionId": "hidden", "variables": GIVEN}
    instance = (await ask("startInstance", start | {"instanceKey": "k"}))["id"]
    await ask("startInstance", {"definitionId": "hidden", "instanceKey": "k"})
    await ask("startInstances", {"items": [start]})
    await ask("listInstances", query="?definitionId=hidden")
    await ask("getInstance", id=instance)
    await ask("setPriority", {"priority": 3}, id=instance)
    await ask("getState", id=instance)
    await ask("listJobs", query="?status=LOCKED")
    await ask("getTree", id=instance)
    found = await ask("pollJobs", {"workerId": "w", "jobTypes": ["pay"], "maxJobs": 2, "waitSeconds": 20})
    job, other = sorted(found["jobs"], key=lambda one: one["instanceId"] != instance)
    body = {"workerId": "w", "variables": GIVEN}
    await asked.post(f"/v1/jobs/{job['id']}/complete", body)
    await ask("editVariables", {"set": {"password": SECRET}}, id=instance)
    await ask("listAttempts", id=job["stepExecutionId"])
    await ask("getHistory", id=instance, query="?order=newest&output=true")
    await ask("getVariablesAfter", id=instance, query=f"?after={job['stepExecutionId']}")
    await asked.post(f"/v1/instances/{instance}/signals/later?buffer=true", GIVEN)
    await ask("listSignals", id=instance)
    await driver.upload({**SHAPE, "name": "another version"})
    await ask("migrateInstance", {"version": 2}, id=instance)
    await ask("moveToken", {"stepId": "review", "toStepId": "pay"}, id=instance)
    await ask("skipStep", {"stepId": "pay", "variables": {}}, id=instance)
    await asked.post(f"/v1/jobs/{other['id']}/fail", {"workerId": "w", "retryable": False})
    failed = other["instanceId"]
    await ask("retryInstance", id=failed)
    await ask("cancelInstance", id=failed)
    schedule = {"definitionId": "hidden", "every": "P1D", "variables": GIVEN}
    await ask("putSchedule", schedule, id="nightly")
    await ask("getSchedule", id="nightly")
    await ask("listSchedules")
    await ask("pauseSchedule", id="nightly")
    await ask("resumeSchedule", id="nightly")
    past = {"from": "2026-01-01T00:00:00Z", "to": "2026-01-03T00:00:00Z"}
    await ask("backfillSchedule", past, id="nightly")
    batch = (await asked.post("/v1/batches", {"items": [start]}))["id"]
    await driver.engine.batches.step()
    await ask("listBatchResults", id=batch)
    run = await begin(driver)
    assert await append(driver, run.run_lease, a_step("/0", json.dumps(GIVEN)))
    assert await continue_as_new(driver, run.run_lease, json.dumps(NESTED), mail=0)
    await ask("getJournal", id=run.instance_id)
    await ask_runs(driver, asked)
    await ask_requests(driver, asked)
    await ask_declarations(driver, asked)
    await asked.close()
    assert asked.routes == CARRYING.keys(), "a new route whose answers carry variables is asked here, too"


async def ask_runs(driver: Driver, asked: Asked) -> None:
    """A run shows the secret with and without a key, and gives it as the answer of an update."""
    ask = asked.ask
    run = await begin(driver, arguments=GIVEN)
    view = with_value(with_value(None, json.dumps(GIVEN), None), json.dumps(GIVEN), "card")
    view = with_value(view, json.dumps(SECRET), "password")
    await driver.engine.journal.extend(run.run_lease, view=view.encode())
    await ask("getRunView", id=run.instance_id)
    await ask("getRunView", id=run.instance_id, query="?key=card")
    await ask("getTree", id=run.instance_id, shows=True)
    answer = json.dumps({"value": GIVEN})
    for arguments in ([GIVEN], GIVEN):  # both are in the journal, by position and by name
        id = f"call with a {type(arguments).__name__}"
        call = {"name": "pay", "id": id, "arguments": arguments}
        await asked.post(f"/v1/instances/{run.instance_id}/updates", call)
        record = NewRecord(RecordKind.ANSWERED, id, name="pay", payload=answer)
        mail = (await driver.engine.journal.read(run.run_lease.instance, 0)).mail
        assert mail is not None
        assert await append(driver, run.run_lease, record, after=0, mail=mail)
        await ask("askRun", call, id=run.instance_id)
        await ask("getRunUpdate", id=run.instance_id, updateId=id)
    await ask("getJournal", id=run.instance_id)
    shown = {**NESTED, "view": view}
    assert await continue_as_new(driver, run.run_lease, json.dumps(shown), mail=2)
    await ask("getJournal", id=run.instance_id)
    await ask("forkRun", {"path": "end", "forkId": "again"}, id=run.instance_id)


async def ask_requests(driver: Driver, asked: Asked) -> None:
    """A list of requests has no variables at all."""
    given = json.dumps(GIVEN)
    [(instance,)] = driver.rows(f"SELECT penstock_start('hidden', '{given}')")
    driver.rows(f"SELECT penstock_signal('{instance}', 'later', '{given}')")
    found = await asked.ask("listSqlRequests", query="?state=WAITING")
    assert [each["operation"] for each in found["items"]] == ["start", "signal"]


async def ask_declarations(driver: Driver, asked: Asked) -> None:
    """What is declared is shown without the arguments of its runs: the schedule shows them."""
    workflow = CodeWorkflow("report")
    await driver.engine.code.register(workflow, anew=True)
    spec = ScheduleSpec(cron=["0 2 * * *"], variables=msgspec.Raw(json.dumps(GIVEN).encode()))
    await driver.engine.declarations.register(workflow, InCode(msgspec.json.encode(spec), "", b""))
    [declared] = (await asked.ask("listDeclarations"))["items"]
    assert declared["body"]["cron"] == ["0 2 * * *"]
    assert "variables" not in declared["body"]
    await asked.ask("applyDeclaration", kind="schedule", id=declared["id"])


async def test_the_console_asks_for_no_hidden_value_by_its_name(make_driver: MakeDriver) -> None:
    driver = make_driver(console_hide_variables=("pass*",))
    run = await begin(driver)
    await driver.engine.journal.extend(run.run_lease, view=with_value(None, json.dumps(SECRET), "password").encode())
    transport = httpx.ASGITransport(cast(Any, make_app(driver.engine)))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        path = f"/v1/instances/{run.instance_id}/view"
        for query in ("?key=password", "?waitSeconds=0&key=pass%77ord"):
            found = await client.get(path + query, headers=CONSOLE[0])
            assert (found.status_code, found.json()["reason"]) == (400, "key: 'password' is hidden from the console")
            assert (await client.get(path + query)).json()["value"] == SECRET
        assert (await client.get(path + "?key=other", headers=CONSOLE[0])).json() == {"shown": False, "ended": False}


@pytest.mark.parametrize(
    ("payload", "masked"),
    [
        ([[GIVEN]], [[{"password": "***", "amount": 5}]]),
        ({"a": {"b": {"c": GIVEN}}}, {"a": {"b": {"c": {"password": "***", "amount": 5}}}}),
        ({"view": json.dumps({"password": 1})}, {"view": '{"password":"***"}'}),
        ('{"password": is not JSON', '{"password": is not JSON'),
        ([1.5, "x", None], [1.5, "x", None]),
    ],
)
def test_records_are_masked_within(payload: object, masked: object) -> None:
    row = CARRYING["getJournal"]
    answer = json.dumps({"items": [{"pos": "1", "payload": payload}]}).encode()
    assert json.loads(HIDER.mask(answer, HIDER.shape_of(row))) == {"items": [{"pos": "1", "payload": masked}]}


def test_a_stack_trace_is_hidden_by_the_name_of_its_field() -> None:
    attempts = next(operation for operation in OPERATIONS if operation.id == "listAttempts")
    body = b'{"items":[{"attempt":1,"status":"FAILED","stackTrace":"at pay"},{"attempt":2,"status":"COMPLETED"}]}'
    hider = Hider(Hiding(["stackTrace"]), KINDS_BY_NAME)
    assert hider.mask(body, hider.shape_of(attempts)) == body.replace(b"at pay", b"***")
    other = Hider(Hiding(["card*"]), KINDS_BY_NAME)
    assert other.mask(body, other.shape_of(attempts)) == body


def test_the_classes_of_all_answers_are_known() -> None:
    """Else nobody would look for variables in them."""
    text = json.dumps([[row.answer, list(row.also)] for row in OPERATIONS])
    named = {part.partition('"')[0] for part in text.split("#/components/schemas/")[1:]}
    assert named - KINDS_BY_NAME.keys() == NO_KINDS


async def test_the_console_finds_no_values_by_filters(make_driver: MakeDriver) -> None:
    driver = make_driver(console_hide_variables=("password",))
    transport = httpx.ASGITransport(cast(Any, make_app(driver.engine)))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        for path in ("/v1/instances", "/v1/instances/count"):
            for name in ("attr.password", "attr.password.from", "attr.password.to"):
                found = await client.get(f"{path}?definitionId=x&{name}=1", headers=CONSOLE[0])
                assert (found.status_code, "is hidden from the console" in found.text) == (400, True)
                found = await client.get(f"{path}?definitionId=x&{name}=1")
                assert "is hidden" not in found.text


@pytest.mark.parametrize("hidden", [{"result": GIVEN}, {"variables": GIVEN}])
def test_what_is_not_hidden_keeps_its_spelling(hidden: dict[str, Any]) -> None:
    row = CARRYING["listInstances"]
    other = b'{"items":[{"variables":{"a":1.50},"result":null}],"total":1}'
    assert HIDER.mask(other, HIDER.shape_of(row)) == other
    masked = HIDER.mask(json.dumps({"items": [hidden, {"id": "1"}]}).encode(), HIDER.shape_of(row))
    assert json.loads(masked)["items"] == [{next(iter(hidden)): {"password": "***", "amount": 5}}, {"id": "1"}]


async def test_secret_variables_are_in_no_list_schedule_or_answer_to_a_later_start(
    make_driver: MakeDriver,
) -> None:
    driver = make_driver()
    engine = driver.engine
    secret = definition(task("pay"), end(), id="secret", metadata={"secretVariables": ["password"]})
    await driver.upload(secret)
    text = json.dumps(GIVEN).encode()
    first = await engine.instances.start(StartRequest("secret", variables=text, instance_key="k"))
    assert read(first.variables) == GIVEN, "who starts one gets its own variables back"
    for wait_s in (None, 0.001):
        later = await engine.instances.start(StartRequest("secret", instance_key="k", wait_seconds=wait_s))
        assert (later.id, read(later.variables)) == (first.id, {"amount": 5})
    put = await engine.schedules.put("nightly", ScheduleSpec(definition_id="secret", every="P1D", variables=text))
    for schedule in (put, await engine.schedules.get("nightly"), *(await engine.schedules.list(None, 5)).items):
        assert read(schedule.variables) == {"amount": 5}
    for view in [one async for piece in engine.instances.read([int(first.id, 16)]) for one in piece]:
        assert read(view.variables) == {"amount": 5}
    views, _ = await engine.instances.read_some([int(first.id, 16)])
    assert read(views[0].variables) == {"amount": 5}, "results of a batch"
    assert read((await engine.instances.get(first.id)).variables) == GIVEN, "reading it shows them"
    run = await engine.schedules.trigger("nightly", None)
    assert run.instance_id is not None
    assert read((await engine.instances.get(run.instance_id)).variables)["password"] == SECRET


READING_ONE = {
    "WorkflowEngine/GetInstance", "WorkflowEngine/CancelInstance", "WorkflowEngine/PollJobs", "Worker/Work",
    "Repair/EditVariables", "Repair/RetryInstance", "Repair/SkipStep", "Repair/SetPriority", "Repair/MoveToken",
    "Repair/MigrateInstance", "Repair/GetInstance", "Repair/GetTree", "Runs/Result", "Runs/Tree", "Runs/List",
    "Updates/AskRun", "Updates/GetRunUpdate", "Updates/GetRunView",
}  # fmt: skip
"""They show one instance to a program: the console, and who is signed in at it, call REST only. Calls of updates and
views show what the workflow function gave. Only definitions name variables as secret, and a run is of none."""
LEAVING_OUT = {
    "WorkflowEngine/StartInstance", "WorkflowEngine/ListInstances", "Worker/StartInstances", "Schedules/PutSchedule",
    "Schedules/GetSchedule", "Schedules/ListSchedules", "Schedules/PauseSchedule", "Schedules/ResumeSchedule",
    "Schedules/BackfillSchedule", "Batches/ListBatchResults", "Runs/Fork",
}  # fmt: skip
"""By the operations that REST calls, too. A fork is a start."""


async def test_each_rpc_whose_answer_carries_variables_is_known(
    make_driver: MakeDriver,
) -> None:
    engine = make_driver().engine
    services = [kind(engine) for kind in (WorkflowEngine, WorkerService, Rows)]
    methods = [method for each in services for method in each.__mapping__().items()]
    carrying = {path.rpartition(".")[2] for path, handler in methods if fields_of(cast(Any, handler)[3])}
    assert carrying == READING_ONE | LEAVING_OUT
