"""What tokens of executors and workers reach: their own Apps and job types, and no queue that an operator filled."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from typing import Any, cast

import msgspec
import pytest
import trio
from grpclib.const import Status

from penstock.access.identity import Identity, set_identity
from penstock.access.roles import grant_of, merged, read_grant
from penstock.access.sessions import Sessions
from penstock.access.tokens import KnownToken, TokenBook, make_token
from penstock.api.permission import Permission
from penstock.engine.queues import queues as queues_of_engine
from penstock.engine.runs import code
from penstock.engine.runs.code import CodeWorkflow
from penstock.engine.runs.origins import ORIGINS_MAX
from penstock.errors import BadRequest, Conflict, Forbidden, NotFound
from penstock.rpc.problems import status_of
from penstock.rpc.rows import Rows
from penstock.rpc.server import GrpcServer
from penstock.rpc.worker_service import WorkerService
from penstock.testing.definitions import linear
from penstock.wire import penstock_v1 as w
from penstock.wire import runs_v1 as r
from penstock.wire import updates_v1 as u
from penstock.wire.codec import encode_message
from penstock.wire.queue import QueuePolicy
from penstock.wire.update import UpdateCall
from tests.access.people import bearer, make_gate
from tests.access.test_rpc_gate import call, connected, opened
from tests.engine.conftest import MakeDriver, make_driver
from tests.engine.driver import Driver
from tests.engine.runs import begin
from tests.rest.scripted import Rest
from tests.rpc.raw import RawClient, framed

__all__ = ["make_driver"]

RUNS, UPDATES = "/penstock.v1.Runs/", "/penstock.v1.Updates/"
GRANTS = {
    "shop": "executor(shop)", "any": "executor", "ops": "operator", "both": "executor(shop)+operator",
}  # fmt: skip
TOKENS = {name: make_token() for name in GRANTS}


@pytest.fixture
def driver(make_driver: MakeDriver) -> Driver:
    return make_driver(services=True)


@pytest.fixture
async def client(driver: Driver) -> AsyncGenerator[RawClient]:
    gate = make_gate()
    gate.replace_tokens(
        KnownToken(name, name, TOKENS[name].digest, read_grant(grant), float("inf")) for name, grant in GRANTS.items()
    )
    services = [WorkerService(driver.engine), Rows(driver.engine)]
    with trio.fail_after(60):
        async with connected(GrpcServer(services, status_of=status_of, gate=gate)) as found:
            yield found


@pytest.fixture(autouse=True)
def nobody() -> Generator[None]:
    set_identity(None)
    yield
    set_identity(None)


def by(name: str) -> list[tuple[str, str]]:
    return [("authorization", f"Bearer {TOKENS[name].text}")]


async def ask(client: RawClient, who: str, method: str, request: msgspec.Struct, service: str = RUNS) -> Status:
    answer = await call(client, service + method, by(who), encode_message(request))
    return Status(answer.status)


def registers(app: str, *, queue: str = "", name: str = "order") -> r.RegisterWorkflowsRequest:
    return r.RegisterWorkflowsRequest(app=app, workflows=[r.CodeWorkflow(name=name, version=1, queue=queue)])


# -- point 4: an executor of an App


def test_an_executor_may_be_limited_to_apps() -> None:
    grant = read_grant("executor(shop|bank)+viewer")
    assert grant.apps == {"shop", "bank"}
    assert read_grant(str(grant)) == grant
    assert merged([grant, read_grant("executor(post)")]) == read_grant("executor(bank|post|shop)+viewer")
    assert merged([grant, read_grant("executor")]) == grant_of([*grant.roles], None)
    for text in ("viewer(shop)", "executor()", "executor(a|)", "admin+executor(shop)"):
        with pytest.raises(BadRequest):
            read_grant(text)


async def test_an_executor_registers_and_starts_its_own_app_only(client: RawClient) -> None:
    assert await ask(client, "shop", "Register", registers("bank")) is Status.PERMISSION_DENIED
    assert await ask(client, "shop", "Register", registers("")) is Status.PERMISSION_DENIED
    assert await ask(client, "shop", "Register", registers("shop")) is Status.OK
    assert await ask(client, "any", "Register", registers("bank")) is Status.OK
    for who, app, status in [
        ("shop", "shop", Status.OK), ("shop", "bank", Status.PERMISSION_DENIED), ("both", "bank", Status.OK),
    ]:  # fmt: skip
        assert await ask(client, who, "Start", r.StartRunRequest(app=app, workflow="order", version=1)) is status


async def test_an_executor_sends_to_runs_of_its_own_app_only(driver: Driver, client: RawClient) -> None:
    for app, status in (("shop", Status.OK), ("bank", Status.PERMISSION_DENIED)):
        run = await driver.engine.code.start(CodeWorkflow("order", 1, app))
        assert (
            await ask(client, "shop", "Send", r.SendToRunRequest(instance_id=run.id, name="paid", payload=b"1"))
            is status
        )


async def test_an_executor_finds_and_asks_runs_of_its_own_app_only(driver: Driver, client: RawClient) -> None:
    bank, shop = [await driver.engine.code.start(CodeWorkflow("order", 1, app), id="a-1") for app in ("bank", "shop")]
    for who, run, app, found in [
        ("shop", shop, "shop", Status.OK),
        ("shop", bank, "bank", Status.PERMISSION_DENIED),
        ("any", bank, "bank", Status.OK),
        ("both", bank, "bank", Status.OK),
        ("ops", bank, "bank", Status.OK),
    ]:
        asked = u.AskRunRequest(run.id, UpdateCall("set", msgspec.Raw(b"[1]"), f"{who}-{app}"))
        assert await ask(client, who, "AskRun", asked, UPDATES) is found, (who, app)
        answers = u.GetRunUpdateRequest(run.id, f"{who}-{app}")
        expected = Status.OK if found is Status.OK else Status.PERMISSION_DENIED
        assert await ask(client, who, "GetRunUpdate", answers, UPDATES) is expected, (who, app)
        assert await ask(client, who, "GetRunView", u.GetRunViewRequest(run.id), UPDATES) is expected, (who, app)
        assert await ask(client, who, "Find", r.FindRunRequest(app, "a-1", ["order"])) is expected, (who, app)
    # by the id of its instance, whatever App is said
    assert await ask(client, "shop", "Find", r.FindRunRequest("shop", bank.id, ["order"])) is Status.PERMISSION_DENIED
    assert await ask(client, "shop", "Find", r.FindRunRequest("shop", shop.id, ["order"])) is Status.OK
    asked = "SELECT instance_id, count(*) FROM journal WHERE kind = 15 GROUP BY 1 ORDER BY 2"
    numbers = [(int(run.id, 16), count) for run, count in ((shop, 1), (bank, 3))]
    assert driver.rows(asked) == numbers
    unknown = u.AskRunRequest("ffffff", UpdateCall("set", msgspec.Raw(b"[1]"), "x"))
    assert await ask(client, "shop", "AskRun", unknown, UPDATES) is Status.NOT_FOUND


async def test_nor_over_rest(driver: Driver) -> None:
    rest = Rest(cast(Any, driver.engine), gate=make_gate(grants={"worker": "executor(shop)"}))
    runs = {app: await driver.engine.code.start(CodeWorkflow("order", 1, app)) for app in ("shop", "bank")}
    await driver.engine.updates.ask(runs["bank"].id, UpdateCall("set", msgspec.Raw(b"[1]"), "a"))
    for app, status in (("shop", 200), ("bank", 403)):
        run = runs[app]
        headers, path = {"Authorization": bearer("worker")}, f"/v1/instances/{run.id}"
        call = b'{"name": "set", "arguments": [1], "id": "a"}'
        assert (await rest.send("POST", f"{path}/updates", call, headers)).status == status
        assert (await rest.send("GET", f"{path}/view", headers=headers)).status == status
        assert (await rest.send("GET", f"{path}/updates/a", headers=headers)).status == status
        assert (await rest.send("GET", path, headers=headers)).status == 403, "it reads nothing else"


async def test_an_executor_takes_runs_of_its_own_app_only(client: RawClient) -> None:
    for job_type, refused in (("code:shop:order@1", False), ("code:bank:order@1", True), ("code:order@1", True)):
        stream_id = await opened(client, "/penstock.v1.Worker/Work", by("shop"))
        request = w.WorkRequest(worker_id="w", executor=True, credits=[w.Credit(job_type, 1)])
        await client.send(stream_id, framed(encode_message(request)), end=not refused)
        answer = await client.finished(stream_id)
        assert (Status(answer.status) is Status.PERMISSION_DENIED) is refused, job_type


# -- point 5: who starts registers nothing


async def test_who_may_not_execute_registers_nothing_by_a_start(driver: Driver, client: RawClient) -> None:
    start = r.StartRunRequest(workflow="invoice", version=1)
    assert await ask(client, "ops", "Start", start) is Status.NOT_FOUND
    assert driver.rows("SELECT count(*) FROM definition") == [(0,)]
    await driver.upload(linear(1, definition_id="invoice", job_type="work"))
    await driver.engine.code.register(CodeWorkflow("order"))
    assert await ask(client, "ops", "Start", r.StartRunRequest(workflow="order", version=1)) is Status.OK
    assert await ask(client, "ops", "Start", r.StartRunRequest(workflow="order", version=2)) is Status.NOT_FOUND


async def test_an_operator_who_executes_another_app_registers_nothing_by_a_start(
    driver: Driver, client: RawClient
) -> None:
    for app, status in (("bank", Status.NOT_FOUND), ("", Status.NOT_FOUND), ("shop", Status.OK)):
        assert await ask(client, "both", "Start", r.StartRunRequest(app=app, workflow="order", version=1)) is status
    assert driver.rows("SELECT id FROM definition") == [("shop:order",)]


async def test_nor_by_a_child(driver: Driver) -> None:
    run = await begin(driver)
    children = driver.engine.children
    set_identity(Identity.of("both", read_grant("executor(shop)+operator")))
    with pytest.raises(NotFound, match="no executor has registered 'bank:pay'"):
        await children.start(run.run_lease, "/0", CodeWorkflow("pay", 1, "bank"), b"{}", "k")
    await children.start(run.run_lease, "/0", CodeWorkflow("pay", 1, "shop"), b"{}", "k")
    assert driver.rows("SELECT id FROM definition ORDER BY key") == [("order",), ("shop:pay",)]


async def test_who_signs_in_with_a_limit_to_apps_executes_nothing_in_the_session(driver: Driver) -> None:
    """A session keeps no Apps: it would be one without the limit."""
    sessions = Sessions(TokenBook(), max_hours=1)
    sessions.attach(driver.engine.database.connection)
    await sessions.open(Identity.of("oidc:anna", read_grant("executor(shop)+viewer"), expires_at=4e9))
    await sessions.open(Identity.of("oidc:ben", read_grant("executor+viewer"), expires_at=4e9))
    await sessions.open(Identity.of("oidc:cem", read_grant("executor(shop)"), expires_at=4e9))
    await sessions.open(Identity.of("oidc:dora", read_grant("executor(shop)+operator"), expires_at=4e9))
    assert driver.rows("SELECT name, permissions FROM session ORDER BY name") == [
        ("oidc:anna", ["answers", "stream", "view"]),
        ("oidc:ben", ["answers", "execute", "runs", "stream", "view"]),
        ("oidc:cem", ["stream"]),
        ("oidc:dora", ["answers", "operate", "runs", "stream", "tasks", "view"]),
    ]


async def test_a_session_of_before_reads_answers_too(driver: Driver) -> None:
    """An engine that did not know the permission opened it."""
    sessions = Sessions(TokenBook(), max_hours=1)
    sessions.attach(driver.engine.database.connection)
    opened = await sessions.open(Identity.of("oidc:anna", read_grant("viewer"), expires_at=4e9))
    driver.rows("UPDATE session SET permissions = ARRAY['view'] RETURNING 1")
    found = await sessions.identify(opened.cookie.encode(), None)
    assert found.permissions == {Permission.VIEW, Permission.ANSWERS}


async def test_a_start_of_nobody_names_what_is_missing(driver: Driver) -> None:
    set_identity(Identity.of("ops", read_grant("operator")))
    with pytest.raises(NotFound, match="no executor has registered 'shop:order' in version 3"):
        await driver.engine.code.start(CodeWorkflow("order", 3, "shop"))


# -- point 3: queues that an operator filled


async def test_a_type_stays_in_the_queue_where_it_was_placed(driver: Driver, client: RawClient) -> None:
    queues, job_type = driver.engine.queues, "code:shop:order@1"
    assert await ask(client, "shop", "Register", registers("shop", queue="free")) is Status.OK
    await queues.put("slow", QueuePolicy([job_type], concurrency=1))  # joined only: it may be taken away
    assert await ask(client, "shop", "Register", registers("shop", queue="free")) is Status.OK
    placed = "SELECT q.name FROM job_type j JOIN queue q ON q.id = j.queue WHERE starts_with(j.name, 'code:')"
    assert driver.rows(placed) == [("slow",)]
    with pytest.raises(Conflict, match="is in queue 'slow'"):
        await queues.put("other", QueuePolicy([job_type]))
    await queues.put("slow", QueuePolicy([], concurrency=1))  # the operator takes it out
    assert await ask(client, "shop", "Register", registers("shop", queue="free")) is Status.OK
    assert driver.rows(placed) == [("free",)]


async def test_joining_a_queue_is_audited(driver: Driver, client: RawClient) -> None:
    assert await ask(client, "shop", "Register", registers("shop", queue="free")) is Status.OK
    assert driver.rows("SELECT actor, detail FROM audit WHERE kind = 'QUEUE_JOINED'") == [
        ("token:shop", "free: code:shop:order@1")
    ]


async def test_registrations_are_bounded(driver: Driver, client: RawClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code, "APP_VERSIONS_MAX", 2)
    monkeypatch.setattr(queues_of_engine, "JOINED_QUEUES_MAX", 1)
    for name, status in [("a", Status.OK), ("b", Status.OK), ("c", Status.FAILED_PRECONDITION), ("a", Status.OK)]:
        assert await ask(client, "any", "Register", registers("shop", name=name)) is status
    assert await ask(client, "any", "Register", registers("bank", name="c", queue="one")) is Status.OK
    assert await ask(client, "any", "Register", registers("bank", name="d", queue="two")) is not Status.OK
    assert driver.rows("SELECT name FROM queue") == [("one",)]


async def test_origins_of_a_workflow_are_bounded(driver: Driver, client: RawClient) -> None:
    """A program without a name says where it stands: as often as it likes, in other words each time."""
    await driver.engine.code.start(CodeWorkflow("order"))
    for n in range(ORIGINS_MAX + 15):
        each = r.CodeWorkflow(name="order", version=1, origin=f"module{n}.order")
        assert await ask(client, "any", "Register", r.RegisterWorkflowsRequest(workflows=[each])) is Status.OK
    kept = {row[0] for row in driver.rows("SELECT origin FROM code_origin")}
    assert len(kept) == ORIGINS_MAX
    assert {f"module{ORIGINS_MAX + 14}.order", f"module{ORIGINS_MAX + 13}.order"} < kept


# -- point 7: what became of a job is told to those who might have done it


@pytest.mark.parametrize("end", ["completed", "failed", "cancelled"])
async def test_a_job_of_another_type_is_refused_when_it_is_over(driver: Driver, end: str) -> None:
    await driver.upload(linear(1, definition_id="s", job_type="ship"))
    run = await driver.start("s")
    job = await driver.one("ship")
    if end == "cancelled":
        await driver.cancel(run.id)
    elif end == "failed":
        await driver.fail(job, retryable=False)
    else:
        await driver.complete(job)
    set_identity(Identity.of("p", read_grant("worker(pack)")))
    for report in (driver.complete, driver.fail, driver.heartbeat):
        with pytest.raises(Forbidden, match="job type 'ship'"):
            await report(job)
