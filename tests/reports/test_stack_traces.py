"""Issue 39, point 18: of a worker's exception only the last line reached whoever had to find its cause."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.access.identity import Identity, set_identity
from penstock.access.roles import ALLOWED, Role
from penstock.rest.codec import decoder, error_tolerant
from penstock.testing.definitions import linear
from penstock.wire.model import Failure
from penstock.worker import NonRetryable, StepError, Worker
from penstock.worker.execution import MAX_STACK_TRACE_BYTES
from tests.engine.conftest import MakeDriver, make_driver
from tests.engine.driver import Driver
from tests.sdk.scripted_transport import ScriptedTransport, job

__all__ = ["make_driver"]
TRACE = 'Traceback (most recent call last):\n  File "shop.py", line 7, in pay\nValueError: no card'


async def failed(driver: Driver, trace: str | None, *, attempt: bool = True) -> str:
    """The id of a job that failed once, and waits for its next attempt."""
    await driver.start("linear")
    job = await driver.one("work")
    changes: dict[str, Any] = {} if attempt else {"attempt": None}
    await driver.fail(job, "ValueError: no card", stack_trace=trace, **changes)
    return job.id


async def trace_of(driver: Driver, job: str) -> str | None:
    return (await driver.engine.attempts.of(job))[0].stack_trace


@pytest.mark.parametrize("attempt", [True, False])
async def test_what_a_worker_sends_is_shown_with_its_attempt(make_driver: MakeDriver, attempt: bool) -> None:
    driver = make_driver()
    await driver.upload(linear(1, job_type="work"))
    job = await failed(driver, TRACE, attempt=attempt)
    (shown,) = await driver.engine.attempts.of(job)
    assert (shown.stack_trace, shown.attempt, shown.reason) == (TRACE, 1, "ValueError: no card")
    assert shown.worker is not None
    assert shown.ended_at is not None
    assert await trace_of(driver, await failed(driver, None)) is None


async def test_who_may_only_look_is_not_shown_it(make_driver: MakeDriver) -> None:
    driver = make_driver()
    await driver.upload(linear(1, job_type="work"))
    job = await failed(driver, TRACE)
    try:
        for role in Role:
            set_identity(Identity("token:ada", ALLOWED[role]))
            assert (await trace_of(driver, job) == TRACE) == (role in (Role.OPERATOR, Role.ADMIN)), role
    finally:
        set_identity(None)


@pytest.mark.parametrize(("most", "kept"), [(9, ": no card"), (10_000, TRACE), (0, None)])
async def test_the_end_of_a_long_one_is_kept(make_driver: MakeDriver, most: int, kept: str | None) -> None:
    driver = make_driver(stack_trace_max_bytes=most)
    await driver.upload(linear(1, job_type="work"))
    assert await trace_of(driver, await failed(driver, TRACE)) == kept
    odd = await trace_of(driver, await failed(driver, "ü" * 9_000 + "\x00\ud800"))
    assert odd is None or len(odd.encode()) <= most


@pytest.mark.parametrize("sent", [TRACE, 7, ["a", "b"], {"a": 1}, None, "\ud800"])
def test_no_form_of_it_is_the_reason_that_a_failure_is_refused(sent: object) -> None:
    body = json.dumps({"workerId": "w", "retryable": True, "errorMessage": "no card", "stackTrace": sent}).encode()
    read = error_tolerant(decoder(Failure))(body)
    assert (read.error_message, read.retryable) == ("no card", True)
    assert read.stack_trace is None or isinstance(read.stack_trace, str)


class Unwritable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    ("error", "sent"),
    [
        (ValueError("no card"), "ValueError: no card\n"),
        (NonRetryable("no card"), "NonRetryable: no card\n"),
        pytest.param(ValueError("no card " * 10_000), "no card \n", id="long"),
        pytest.param(ValueError("нет карты " * 10_000), "нет карты \n", id="long and not ASCII"),
        (Unwritable(), None),
        (StepError("NoCard", "no card"), None),
    ],
)
async def test_our_worker_sends_where_the_error_was(error: Exception, sent: str | None) -> None:
    async def pay() -> None:
        raise error

    transport = ScriptedTransport()
    worker = Worker(transport)
    worker.handler("t")(pay)
    async with worker:
        transport.hand_out(job())
        await transport.wait_until(lambda: transport.failed)
    (failure,) = transport.failed
    if sent is None:
        assert failure.stack_trace is None or "Unwritable" in failure.stack_trace
    else:
        assert failure.stack_trace is not None
        assert failure.stack_trace.endswith(sent)
        assert "in pay" in failure.stack_trace
        assert len(failure.stack_trace.encode()) <= MAX_STACK_TRACE_BYTES
