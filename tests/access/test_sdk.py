"""The client and the worker against an engine with authentication, over both transports."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Generator
from typing import Any

import anyio
import pytest

from penstock.access.roles import read_grant
from penstock.client import Client, Forbidden, SyncClient, Unauthenticated, Unavailable
from penstock.runtime import api_tokens
from penstock.settings import Secret, Settings
from penstock.testing.definitions import linear
from penstock.worker import Worker, WorkerObserver
from penstock.worker.kafka import KafkaWork
from tests import postgres
from tests.access.people import TOKENS, lines
from tests.runtime.engine_process import EngineProcess
from tests.waiting import wait_until

_NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def database(postgres_server: postgres.PostgresServer) -> Generator[str]:
    with postgres_server.database(postgres.apply_schema) as dsn:
        yield dsn


@pytest.fixture(scope="module")
def engine(database: str) -> Generator[EngineProcess]:
    tokens = ",".join(lines(worker="worker(work)"))
    with EngineProcess(database, authentication=True, api_tokens=tokens) as process:
        yield process.wait_ready()


@pytest.fixture(params=["rest", "grpc"])
def url(engine: EngineProcess, request: pytest.FixtureRequest) -> str:
    if request.param == "rest":
        return f"http://127.0.0.1:{engine.port}"
    return f"grpc://127.0.0.1:{engine.grpc_port}"


def given_as_text(role: str) -> Any:
    return TOKENS[role].text


def given_by_a_function(role: str) -> Any:
    return lambda: TOKENS[role].text


def given_by_an_async_function(role: str) -> Any:
    async def token() -> str:
        await anyio.lowlevel.checkpoint()
        return TOKENS[role].text

    return token


@pytest.mark.parametrize("given", [given_as_text, given_by_a_function, given_by_an_async_function])
async def test_a_client_proves_who_it_is(url: str, given: Callable[[str], Any]) -> None:
    async with Client(url, token=given("viewer")) as client:
        await client.list_definitions()
        with pytest.raises(Forbidden, match="needs the role admin, which token:viewer does not have"):
            await client.upload_definition(linear(1))


async def test_a_client_with_no_or_wrong_token_fails_at_once(url: str) -> None:
    for token in (None, "wrong"):
        async with Client(url, token=token) as client:
            assert await client.is_ready()
            with pytest.raises(Unauthenticated):
                await client.list_definitions()


async def test_a_function_that_fails_is_asked_again(url: str) -> None:
    asked: list[int] = []

    def token() -> str:
        asked.append(1)
        if len(asked) < 3:
            raise OSError("the vault is away")
        return TOKENS["viewer"].text

    async with Client(url, token=token) as client:
        await client.list_definitions()
        assert len(asked) == 3
    async with Client(url, token=lambda: 1 / 0, timeout_s=0.1) as client:  # type: ignore[arg-type, return-value]  # on purpose  # pyright: ignore[reportArgumentType] - on purpose
        with pytest.raises(Unavailable, match="token function failed: ZeroDivisionError"):
            await client.list_definitions()


def test_a_blocking_client_proves_who_it_is(engine: EngineProcess) -> None:
    with SyncClient(f"http://127.0.0.1:{engine.port}", token=TOKENS["viewer"].text) as client:
        assert client.list_definitions().items == []


@pytest.mark.parametrize("token", ["", "a b", "pst_x\n", "ü"])
def test_what_can_be_no_token_is_refused_without_showing_it(token: str) -> None:
    for make in (Client, Worker):
        with pytest.raises(ValueError, match=r"^token: must be printable ASCII") as caught:
            make("http://127.0.0.1:1", token=token)
        assert not token or token not in str(caught.value)


def test_a_token_goes_with_a_url() -> None:
    client = Client("http://127.0.0.1:1")
    for make in (
        lambda: Client(client.transport, token="x"),
        lambda: Worker(client, token="x"),
        lambda: KafkaWork.connect(client, ["127.0.0.1:1"], token="x")(None),  # type: ignore[arg-type]  # not reached  # pyright: ignore[reportArgumentType] - on purpose
    ):
        with pytest.raises(ValueError, match="token and ssl_context go with an engine's URL"):
            make()


async def test_a_worker_proves_who_it_is(url: str, engine: EngineProcess) -> None:
    name = f"d{next(_NUMBERS)}"
    async with Client(url, token=TOKENS["admin"].text) as client:
        await client.upload_definition(linear(1, definition_id=name))
        worker = Worker(url, token=given_by_an_async_function("worker"))
        done = anyio.Event()

        @worker.handler("work")
        async def handle(variables: dict[str, Any]) -> dict[str, Any]:
            done.set()
            return {"did": True}

        async with worker:
            started = await client.start_instance(name)
            ended = await client.wait_until_ended(started.id, timeout_s=120)
        assert (ended.status, ended.variables) == ("COMPLETED", {"did": True})


async def test_a_worker_that_never_got_in_ends_with_the_reason(url: str) -> None:
    worker = Worker(url, token="wrong")
    worker.handler("work")(lambda variables: None)  # type: ignore[arg-type, misc]  # never called
    with pytest.raises(Unauthenticated), anyio.fail_after(20):
        await worker.run(handle_signals=False)


async def test_a_kafka_worker_asks_whether_it_may_report(url: str) -> None:
    for token, refusal in (("wrong", Unauthenticated), (TOKENS["viewer"].text, Forbidden)):
        worker = Worker(KafkaWork.connect(url, ["127.0.0.1:1"], token=token))
        worker.handler("work")(lambda variables: None)  # type: ignore[arg-type, misc]  # never called
        with pytest.raises(refusal), anyio.fail_after(60):
            await worker.run(handle_signals=False)


async def test_a_worker_for_another_job_type_ends_with_the_reason(url: str) -> None:
    worker = Worker(url, token=TOKENS["worker"].text)
    worker.handler("secret")(lambda variables: None)  # type: ignore[arg-type, misc]  # never called
    with pytest.raises(Forbidden, match="worker for job type 'secret'"), anyio.fail_after(20):
        await worker.run(handle_signals=False)


async def test_a_worker_goes_on_when_its_token_counts_again(url: str) -> None:
    """Its issuer was away for a while, or the token was exchanged."""
    name = f"d{next(_NUMBERS)}"
    token = [TOKENS["worker"].text]
    async with Client(url, token=TOKENS["admin"].text) as client:
        await client.upload_definition(linear(2, definition_id=name))
        worker = Worker(url, token=lambda: token[0], wait_s=1)
        begun, go_on = anyio.Event(), anyio.Event()

        @worker.handler("work")
        async def handle(variables: dict[str, Any]) -> dict[str, Any]:
            begun.set()
            await go_on.wait()
            return {}

        async with worker:
            started = await client.start_instance(name)
            with anyio.fail_after(60):
                await begun.wait()
            token[0] = "wrong"
            go_on.set()
            with anyio.fail_after(60):
                while url.startswith("http") and worker.statistics().unreported == 0:
                    await anyio.lowlevel.checkpoint()
            token[0] = TOKENS["worker"].text
            ended = await client.wait_until_ended(started.id, timeout_s=120)
        assert ended.status == "COMPLETED"


async def accepts(url: str, token: str) -> bool:
    """Whether the engine has heard of a token that was made beside it."""
    async with Client(url, token=token) as client:
        try:
            await client.poll_jobs("nobody", ["no work"])
        except Unauthenticated:
            return False
    return True


async def test_a_worker_says_that_its_token_was_revoked(
    url: str, engine: EngineProcess, database: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Once, and it does not take the stream for open each time that it asks again."""
    caplog.set_level(logging.INFO, logger="penstock.worker")
    settings = Settings(postgres_dsn=Secret(database))
    made = await anyio.to_thread.run_sync(api_tokens.new, settings, "passing", read_grant("worker"), None)
    await wait_until(lambda: accepts(url, made.text))  # else the worker would be refused at its start, and end
    asked = [made.text]
    reached = 0
    changes = anyio.Event()

    def ring() -> None:
        nonlocal changes
        changes.set()
        changes = anyio.Event()

    async def until(done: Callable[[], bool]) -> None:
        while not done():
            await changes.wait()

    class Observer(WorkerObserver):
        def on_engine(self, reachable: bool) -> None:
            nonlocal reached
            reached += reachable
            ring()

    def token() -> str:
        asked.append(asked[0])
        ring()
        return asked[0]

    def reported(word: str) -> int:
        return sum(word in text for text in caplog.messages)

    worker = Worker(url, token=token, wait_s=1, observer=Observer())
    worker.handler("work")(lambda variables: None)  # type: ignore[arg-type, misc]  # never called
    with anyio.fail_after(60):
        async with worker:
            await until(lambda: reached >= 1)
            await anyio.to_thread.run_sync(api_tokens.revoke, settings, made.id)
            await until(lambda: reported("REFUSES THIS WORKER'S TOKEN") > 0)
            tries = len(asked)
            await until(lambda: len(asked) >= tries + 4)
            assert reported("REFUSES THIS WORKER'S TOKEN") == 1
            assert reported("open again") + reported("answers again") == 0
            asked[0], before = TOKENS["worker"].text, reached
            await until(lambda: reached > before)
            assert reported("open again") + reported("answers again") == 1
