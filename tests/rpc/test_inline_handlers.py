"""Polls and completions without a coroutine (`rpc/inline_handler`) are answered, and given up, as those that have
one."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator
from typing import Any

import psycopg
import pytest
import trio
from h2.errors import ErrorCodes

from penstock.access.roles import read_grant
from penstock.access.tokens import KnownToken, make_token
from penstock.engine.jobs.inline_jobs import InlineJobs
from penstock.testing.definitions import linear
from penstock.wire import workflow_v1 as m
from penstock.wire.codec import decode_message, encode_message
from penstock.wire.fields import json_text
from penstock.wire.model import Completion, PollRequest
from tests.access.people import bearer, make_gate
from tests.engine.conftest import MakeDriver, make_driver
from tests.engine.driver import Driver
from tests.rpc.raw import Answer, RawClient, framed
from tests.rpc.served import WORKFLOW, Served, served
from tests.waiting import wait_until

__all__ = ["make_driver"]  # pytest finds the fixture here

TRACED = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
"""With it a call goes the long way."""
POLL = encode_message(PollRequest("w", ["work"], 1, 60))


@pytest.fixture
async def driver(make_driver: MakeDriver) -> Driver:
    driver = make_driver()
    await driver.upload(linear(1))
    return driver


@pytest.fixture
async def grpc(driver: Driver) -> AsyncGenerator[Served]:
    with trio.fail_after(60):
        async with served(driver.engine) as run:
            yield run


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which calls were begun without a coroutine."""
    found: list[str] = []

    def note(name: str) -> None:
        begin = getattr(InlineJobs, name)

        def noted(*args: Any) -> Any:
            item = begin(*args)
            if item is not None:
                found.append(name)
            return item

        monkeypatch.setattr(InlineJobs, name, noted)

    note("claim")
    note("complete")
    return found


async def ask(client: RawClient, method: str, message: bytes, **headers: Any) -> Answer:
    stream_id = await client.open(WORKFLOW + method, body=framed(message), **headers)
    return await client.finished(stream_id)


async def known(client: RawClient, body: bytes = POLL, **headers: Any) -> None:
    """Both methods' headers, and the poll."""
    for method, message in 2 * (("PollJobs", body), ("CompleteJob", b"")):
        await ask(client, method, message, **headers)


def shown(answer: Answer) -> tuple[Any, ...]:
    """All that does not differ from job to job."""
    jobs = decode_message(answer.messages[0], m.PollJobsResponse).jobs if answer.data else []
    seen = [(job.job_type, job.step_id, job.attempt, job.retries_remaining, job.variables) for job in jobs]
    return answer.headers, answer.trailers, answer.reason, seen, len(answer.messages)


async def test_both_ways_answer_alike(driver: Driver, grpc: Served, taken: list[str]) -> None:
    client = grpc.client
    await known(client)
    answers: list[list[str]] = []
    statuses: list[int] = []
    ways: tuple[dict[str, Any], ...] = {}, TRACED
    for headers in ways:
        await driver.start("linear", {"n": 1, "text": "é"})
        taken.clear()
        polled = await ask(client, "PollJobs", POLL, **headers)
        job = decode_message(polled.messages[0], m.PollJobsResponse).jobs[0].id
        said = [shown(polled)]
        for worker, id, output in (
            ("other", job, b"{}"),
            ("w", "nothing", b""),
            ("", job, b""),
            ("w", job, b'{"a":1}'),
        ):
            body = encode_message(Completion(id, worker_id=worker, variables=output), m.PACKAGE)
            said.append(shown(await ask(client, "CompleteJob", body, **headers)))
        said.append(shown(await ask(client, "CompleteJob", b"\xff", **headers)))
        said.append(shown(await ask(client, "PollJobs", POLL, **headers)))
        answers.append([repr(each).replace(job, "ID") for each in said])
        statuses += [int({**each[0], **each[1]}["grpc-status"]) for each in said]
        assert taken == ([] if headers else ["claim", "complete", "complete", "claim"])
    assert answers[0] == answers[1]
    assert statuses == 2 * [0, 10, 5, 3, 0, 3, 0]


async def test_callers_may_do_the_same_on_both_ways(driver: Driver, taken: list[str]) -> None:
    """clerk is a worker of other jobs here, admin one of these among others."""
    gate = make_gate(grants={"clerk": "worker(other)", "admin": "worker(work|other)"})
    worker: dict[str, Any] = {"authorization": bearer("worker")}
    with trio.fail_after(60):
        async with served(driver.engine, gate=gate) as run:
            for role, status in (("worker", 0), ("admin", 0), ("clerk", 7), ("viewer", 7), ("", 16)):
                proof: dict[str, Any] = {"authorization": bearer(role)} if role else {}
                await known(run.client, **worker)
                await known(run.client, **proof)
                said: list[list[str]] = []
                for headers in (proof, proof | TRACED):
                    await driver.start("linear")
                    taken.clear()
                    polled = await ask(run.client, "PollJobs", POLL, **headers)
                    leased = polled if polled.data else await ask(run.client, "PollJobs", POLL, **worker, **TRACED)
                    job = decode_message(leased.messages[0], m.PollJobsResponse).jobs[0].id
                    body = encode_message(Completion(job, worker_id="w"), m.PACKAGE)
                    completed = await ask(run.client, "CompleteJob", body, **headers)
                    assert (polled.status, completed.status) == (status, status), role
                    said.append([repr(shown(each)) for each in (polled, completed)])
                    assert taken == (["claim", "complete"] if headers is proof and not status else []), role
                assert said[0] == said[1]


async def test_a_token_counts_no_longer_once_it_is_revoked(driver: Driver, taken: list[str]) -> None:
    gate, token = make_gate(), make_token()
    gate.replace_tokens([KnownToken("x", "x", token.digest, read_grant("worker"), math.inf)])
    proof: dict[str, Any] = {"authorization": f"Bearer {token.text}"}
    with trio.fail_after(60):
        async with served(driver.engine, gate=gate) as run:
            await known(run.client, **proof)
            taken.clear()
            assert (await ask(run.client, "PollJobs", POLL, **proof)).status == 0
            assert taken == ["claim"]
            gate.replace_tokens([])
            assert (await ask(run.client, "PollJobs", POLL, **proof)).status == 16
            assert taken == ["claim"]


@pytest.mark.parametrize("headers", [{}, TRACED], ids=["hot", "long"])
async def test_a_token_revoked_while_its_poll_waits_gets_no_job(
    driver: Driver, taken: list[str], headers: dict[str, Any]
) -> None:
    gate, token = make_gate(), make_token()
    gate.replace_tokens([KnownToken("x", "x", token.digest, read_grant("worker"), math.inf)])
    proof: dict[str, Any] = {"authorization": f"Bearer {token.text}", **headers}
    with trio.fail_after(60):
        async with served(driver.engine, gate=gate) as run:
            await known(run.client, **proof)
            await driver.start("linear")
            taken.clear()
            with psycopg.connect(driver.dsn) as blocker:
                blocker.execute("LOCK TABLE token IN ACCESS EXCLUSIVE MODE")
                stream_id = await run.client.open(WORKFLOW + "PollJobs", body=framed(POLL), **proof)

                async def under_way() -> bool:
                    return driver.engine.polls.claims.statistics().batch_age_s is not None

                await wait_until(under_way)
                assert taken == ([] if headers else ["claim"])
                gate.replace_tokens([])
            answer = await run.client.finished(stream_id)
            assert (answer.status, answer.reason, answer.messages) == (16, "the token was revoked", [])

            async def back() -> bool:
                return driver.rows("SELECT state, claimed_by FROM token") == [(0, None)]

            await wait_until(back)


async def test_a_poll_that_is_given_up_keeps_no_job(driver: Driver, grpc: Served, taken: list[str]) -> None:
    await known(grpc.client)
    for how in ("reset", "drop", "deadline"):
        await driver.start("linear")
        async with grpc.connect() as client:
            headers: dict[str, Any] = {"grpc_timeout": "300m"} if how == "deadline" else {}
            for _ in range(2):
                await ask(client, "PollJobs", encode_message(PollRequest("", ["work"], 1, 60)), **headers)
            taken.clear()
            with psycopg.connect(driver.dsn) as blocker:
                blocker.execute("LOCK TABLE token IN ACCESS EXCLUSIVE MODE")
                stream_id = await client.open(WORKFLOW + "PollJobs", body=framed(POLL), **headers)

                async def under_way() -> bool:  # a lock is waited for in short turns: others look there too late
                    return driver.engine.polls.claims.statistics().batch_age_s is not None

                await wait_until(under_way)
                assert taken == ["claim"]
                if how == "reset":
                    await client.reset(stream_id, ErrorCodes.CANCEL)
                    await client.ping()
                elif how == "drop":
                    await trio.aclose_forcefully(client.stream)
                else:
                    assert (await client.finished(stream_id)).status == 4

        for batcher in driver.engine.batchers():  # the claim goes on only now
            await batcher.wait_flushed()

        async def back() -> bool:
            return driver.rows("SELECT count(*) FROM token WHERE state <> 0") == [(0,)]

        await wait_until(back)
    assert len(await grpc.poll("work", n=10)) == 3


async def test_large_answers_and_closed_windows_are_waited_for(driver: Driver, grpc: Served, taken: list[str]) -> None:
    await known(grpc.client)
    for variables in ({"text": "x" * 300}, {"text": "x" * 100_000}):
        await driver.start("linear", variables)
        async with grpc.connect(window=0) as client:
            for _ in range(2):
                await ask(client, "PollJobs", encode_message(PollRequest("", ["work"], 1, 60)))
            taken.clear()
            stream_id = await client.open(WORKFLOW + "PollJobs", body=framed(POLL))

            async def leased() -> bool:
                return driver.rows("SELECT count(*) FROM token WHERE state = 1") == [(1,)]

            await wait_until(leased)
            assert taken == ["claim"]
            client.h2.increment_flow_control_window(200_000, stream_id)
            client.h2.increment_flow_control_window(200_000)
            await client.flush()
            answer = await client.finished(stream_id)
            (job,) = decode_message(answer.messages[0], m.PollJobsResponse).jobs
            assert b"xxx" in json_text(job.variables)
            await grpc.complete(job.id)


@pytest.mark.parametrize("method", ["PollJobs", "CompleteJob"])
async def test_a_fault_of_the_engine_ends_its_call_alone(
    driver: Driver, grpc: Served, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    def fail(item: Any, **named: Any) -> None:
        raise ZeroDivisionError

    client, polls = grpc.client, method == "PollJobs"
    await known(client)
    await driver.start("linear")
    polled = await ask(client, "PollJobs", POLL)
    job = decode_message(polled.messages[0], m.PollJobsResponse).jobs[0].id
    message = POLL if polls else encode_message(Completion(job, worker_id="w"), m.PACKAGE)
    ways: tuple[dict[str, Any], ...] = {}, TRACED
    with monkeypatch.context() as patch:
        patch.setattr(driver.engine.polls.claims if polls else driver.engine.fast_path, "submit_nowait", fail)
        said = [shown(await ask(client, method, message, **headers)) for headers in ways]
    assert said[0] == said[1]
    assert {**said[0][0], **said[0][1]}["grpc-status"] == "13"
    assert (await ask(client, "PollJobs", POLL)).status == 0  # by the same connection
