"""Checkpoints that carry the version of their own format: what is stored, what a handler reads, what is logged."""

from __future__ import annotations

import logging
from typing import Any

import msgspec
import pytest

from penstock.client import Job
from penstock.worker import JobContext, Worker
from tests.sdk import cpu_handlers
from tests.sdk.loops import Run
from tests.sdk.scripted_transport import ScriptedTransport, job

PAGE = {"page": 3}
OF_FORMAT_1 = {"format": 1, "value": PAGE}
LOGGED = (
    "its checkpoint has {}, and the handler has checkpoint_format=2: the handler gets no checkpoint, and may read this"
    " one with job.checkpoint_of({}) (job 1, attempt 1)"
)
WITHOUT_A_FORMAT: list[Any] = [
    PAGE,
    {"format": 2, "page": 3},
    {"format": 2, "value": PAGE, "more": 1},
    {"format": True, "value": PAGE},
    {"format": "2", "value": PAGE},
    {"format": 0, "value": PAGE},
    {"format": 10**4000, "value": PAGE},
    [2, PAGE],
    0,
]


async def reads(context: JobContext) -> dict[str, Any]:
    return {
        "checkpoint": context.checkpoint,
        "in the job": context.job.checkpoint,
        "of 1": context.checkpoint_of(1),
        "of none": context.checkpoint_of(None),
    }


def given(run: Run, function: Any, checkpoint: object, **options: Any) -> dict[str, Any]:
    """Run one job that has this checkpoint; what the handler returned."""

    async def main() -> Any:
        transport = ScriptedTransport()
        worker = Worker(transport)
        worker.handler("t", **options)(function)
        async with worker:
            transport.hand_out(job(checkpoint=checkpoint))
            await transport.wait_until(lambda: transport.completed or transport.failed)
        (completed,) = transport.completed
        assert completed.variables is not None
        return msgspec.json.decode(completed.variables)

    return run(main)


def stored(run: Run, checkpoint: object, **options: Any) -> list[object]:
    """What a handler's ``report`` of this checkpoint gave to the transport."""
    transport = ScriptedTransport()

    async def stores(context: JobContext) -> None:
        await context.report(checkpoint=checkpoint, progress="3 of 9")

    async def main() -> None:
        worker = Worker(transport)
        worker.handler("t", **options)(stores)
        async with worker:
            transport.hand_out(job())
            await transport.wait_until(lambda: transport.completed or transport.failed)

    run(main)
    assert transport.failed == []
    return transport.checkpoints


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_checkpoint_of_the_handlers_own_format_is_given_without_its_wrapping(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    found = given(run, reads, {"format": 2, "value": PAGE}, checkpoint_format=2)
    assert found == {"checkpoint": PAGE, "in the job": PAGE, "of 1": None, "of none": None}
    assert warnings_of(caplog) == []


def test_a_checkpoint_of_another_format_is_given_only_to_who_asks_for_it(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    found = given(run, reads, OF_FORMAT_1, checkpoint_format=2)
    assert found == {"checkpoint": None, "in the job": None, "of 1": PAGE, "of none": None}
    assert warnings_of(caplog) == [LOGGED.format("format 1", 1)]


@pytest.mark.parametrize("checkpoint", WITHOUT_A_FORMAT, ids=lambda value: repr(value)[:40])
def test_a_checkpoint_without_a_format_is_given_only_to_who_asks_for_it(
    run: Run, caplog: pytest.LogCaptureFixture, checkpoint: object
) -> None:
    found = given(run, reads, checkpoint, checkpoint_format=2)
    assert found == {"checkpoint": None, "in the job": None, "of 1": None, "of none": checkpoint}
    assert warnings_of(caplog) == [LOGGED.format("no format", None)]


def test_a_job_without_a_checkpoint_is_no_news(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    found = given(run, reads, None, checkpoint_format=2)
    assert set(found.values()) == {None}
    assert warnings_of(caplog) == []


def test_without_the_option_a_checkpoint_is_given_as_it_is(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    found = given(run, reads, OF_FORMAT_1)
    assert found == {"checkpoint": OF_FORMAT_1, "in the job": OF_FORMAT_1, "of 1": PAGE, "of none": None}
    assert warnings_of(caplog) == []


@pytest.mark.parametrize(("found", "seen"), [({"format": 2, "value": PAGE}, PAGE), (OF_FORMAT_1, None)])
@pytest.mark.parametrize("in_process", [False, True])
def test_the_bare_job_has_the_same_checkpoint(run: Run, in_process: bool, found: object, seen: object) -> None:
    function = cpu_handlers.shows_checkpoint
    assert given(run, function, found, checkpoint_format=2, in_process=in_process) == {"checkpoint": seen}


def test_a_checkpoint_is_stored_with_the_handlers_format_and_progress_is_not(run: Run) -> None:
    assert stored(run, PAGE, checkpoint_format=2) == [({"format": 2, "value": PAGE}, "3 of 9")]
    assert stored(run, 0, checkpoint_format=2) == [({"format": 2, "value": 0}, "3 of 9")]
    assert stored(run, PAGE) == [(PAGE, "3 of 9")]


@pytest.mark.parametrize("nothing", [None, msgspec.Raw()])
def test_nothing_stays_nothing_and_takes_no_checkpoint_away(run: Run, nothing: object) -> None:
    assert stored(run, nothing, checkpoint_format=2) == [(nothing, "3 of 9")]
    assert stored(run, msgspec.UNSET, checkpoint_format=2) == []


def test_a_blocking_report_stores_the_format_too(run: Run) -> None:
    transport = ScriptedTransport()

    def stores(context: JobContext) -> None:
        context.report_blocking(checkpoint=PAGE)

    async def main() -> None:
        worker = Worker(transport)
        worker.handler("t", checkpoint_format=7)(stores)
        async with worker:
            transport.hand_out(job())
            await transport.wait_until(lambda: transport.completed)

    run(main)
    assert transport.checkpoints == [({"format": 7, "value": PAGE}, msgspec.UNSET)]


@pytest.mark.parametrize(
    ("value", "error"),
    [
        ("2", TypeError),
        (2.0, TypeError),
        (True, TypeError),
        ([2], TypeError),
        (0, ValueError),
        (-1, ValueError),
        (2**31, ValueError),
    ],
)
def test_a_format_that_is_no_version_is_refused_at_the_decorator(value: Any, error: type[Exception]) -> None:
    worker = Worker("http://127.0.0.1:1")
    with pytest.raises(error, match=r"'t': checkpoint_format must be a whole number from 1 to 2147483647, not "):

        @worker.handler("t", checkpoint_format=value)
        async def handle(_job: Job) -> None: ...

    assert worker.handlers == {}
