"""Ways to break the Python worker and client on purpose, one for each rule at least: scenarios have to notice.

Each replaces one thing that the worker does; ``rules`` are those of which some scenario must fail then.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import anyio
import msgspec

from penstock.client import caller, instances, messages
from penstock.client.errors import ClientError
from penstock.client.grpc import credit
from penstock.wire.model import Completion, Failure, Park
from penstock.worker import (
    Worker,
    errors,
    execution,
    handler,
    held,
    intake,
    leases,
    outage,
    reporter,
    session,
    transport,
)
from penstock.worker.context import JobContext


class Defect(NamedTuple):
    """How a worker is broken; ``rules`` tell what it breaks."""

    rules: Sequence[str]
    install: Callable[[Worker | None], None]


DEFECTS: dict[str, Defect] = {}


def defect(*rules: str) -> Callable[[Callable[[Worker | None], None]], None]:
    """Register a way to break what these rules ask for, under the function's name."""

    def register(install: Callable[[Worker | None], None]) -> None:
        DEFECTS[install.__name__] = Defect(rules, install)

    return register


def _report_as(change: Callable[[Any], Any]) -> None:
    """Whatever a handler ends with is reported otherwise."""
    run = session.run_handler

    async def run_handler(*args: Any) -> Any:
        return change(await run(*args))

    session.run_handler = run_handler


def _failures(**changed: object) -> Callable[[Any], Any]:
    def change(report: Any) -> Any:
        return msgspec.structs.replace(report, **changed) if isinstance(report, Failure) else report

    return change


@defect("result-merged")
def forgets_results(worker: Worker | None) -> None:
    _report_as(lambda r: Completion(job_id=r.job_id, attempt=r.attempt) if isinstance(r, Completion) else r)


@defect("numbers-exact")
def rounds_numbers(worker: Worker | None) -> None:
    def change(report: Any) -> Any:
        if not isinstance(report, Completion) or report.variables is None:
            return report
        decoded = msgspec.json.decode(msgspec.json.encode(report.variables))
        text = msgspec.json.encode(_floats(decoded))
        return Completion(job_id=report.job_id, attempt=report.attempt, variables=msgspec.Raw(text))

    _report_as(change)


def _floats(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _floats(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_floats(each) for each in value]
    return int(float(value)) if isinstance(value, int) and not isinstance(value, bool) else value


@defect("typed-variables")
def takes_what_does_not_fit_for_a_fault_that_passes(worker: Worker | None) -> None:
    call = handler.Handler.__call__

    async def wrapped(self: Any, *args: Any) -> Any:
        try:
            return await call(self, *args)
        except errors.NonRetryable as error:
            raise RuntimeError(str(error)) from None

    handler.Handler.__call__ = wrapped  # type: ignore[method-assign]


@defect("result-has-json-form")
def tries_results_without_a_form_again(worker: Worker | None) -> None:
    _report_as(_failures(retryable=True))


@defect("attempt-sent")
def sends_no_attempt(worker: Worker | None) -> None:
    _report_as(lambda r: None if r is None else msgspec.structs.replace(r, attempt=None))


@defect("failure-reported")
def swallows_errors(worker: Worker | None) -> None:
    _report_as(lambda r: Completion(job_id=r.job_id, attempt=r.attempt) if isinstance(r, Failure) else r)


@defect("retryable-told")
def always_says_retryable(worker: Worker | None) -> None:
    _report_as(_failures(retryable=True))


@defect("error-code-sent")
def sends_no_code(worker: Worker | None) -> None:
    _report_as(_failures(error_code=None, variables=None))


@defect("retry-after-sent")
def sends_no_pause(worker: Worker | None) -> None:
    _report_as(_failures(retry_after_s=None))


@defect("stack-sent")
def sends_no_stack(worker: Worker | None) -> None:
    _report_as(_failures(stack_trace=None))


@defect("waits")
def takes_waiting_for_a_failure(worker: Worker | None) -> None:
    _report_as(
        lambda r: Failure(job_id=r.job_id, attempt=r.attempt, retryable=True) if isinstance(r, Park) else r,
    )


@defect("time-limit")
def has_no_time_limit(worker: Worker | None) -> None:
    assert worker is not None
    for each in worker.handlers.values():
        each.timeout_s = None


@defect("context-given")
def tells_the_wrong_attempt(worker: Worker | None) -> None:
    JobContext.retries_remaining = property(lambda self: 99)  # type: ignore[assignment]


@defect("idempotency-key-given")
def makes_a_key_for_each_attempt(worker: Worker | None) -> None:
    key = property(lambda self: f"{self.job.id}-{self.job.attempt}")
    JobContext.idempotency_key = key  # type: ignore[assignment]


@defect("checkpoint-kept")
def forgets_checkpoints(worker: Worker | None) -> None:
    async def report(self: Any, **_: object) -> None:
        return None

    JobContext.report = report  # type: ignore[method-assign, assignment]


@defect("lease-kept")
def sends_no_heartbeats(worker: Worker | None) -> None:
    async def run(self: Any) -> None:
        await anyio.sleep_forever()

    leases.LeaseKeeper.run = run  # type: ignore[method-assign]


@defect("lost-job-stopped")
def goes_on_with_lost_jobs(worker: Worker | None) -> None:
    held.LeasedJob.stop = lambda self, reason: None  # type: ignore[method-assign, assignment]
    leases.LeaseKeeper.lose = lambda self, ref, reason: None  # type: ignore[method-assign, assignment]


@defect("drain-finishes")
def ends_without_a_drain(worker: Worker | None) -> None:
    session.WorkerSession.drain = lambda self: os._exit(0)  # type: ignore[method-assign]


@defect("drain-gives-back")
def keeps_what_it_did_not_do(worker: Worker | None) -> None:
    async def release_jobs(self: Any, jobs: Any) -> None:
        for each in jobs:
            each.stop(held.StopReason.STOPPING)

    session.WorkerSession._release_jobs = release_jobs  # type: ignore[method-assign]
    execution_failed = execution._failed

    async def run_handler(hdl: Any, job: Any, *args: Any) -> Any:
        report = await execution.run_handler(hdl, job, *args)
        return report or execution_failed(job, "stopped", retryable=False)

    session.run_handler = run_handler


@defect("room-respected")
def asks_for_more_than_there_is_room_for(worker: Worker | None) -> None:
    intake.JobIntake.free_slots = property(lambda self: 50)  # type: ignore[assignment]
    intake.Subscription.free_slots = property(lambda self: 50)  # type: ignore[assignment]
    credit.MAX_CREDIT_JOBS = 50

    assert worker is not None
    worker._settings = msgspec.structs.replace(worker._settings, concurrency=50)
    for each in worker.handlers.values():
        each.concurrency = None


@defect("report-repeated")
def reports_once(worker: Worker | None) -> None:
    deliver = reporter.Reporter._deliver

    async def once(self: Any, batch: Any) -> Any:
        await deliver(self, batch)
        return []

    reporter.Reporter._deliver = once  # type: ignore[method-assign]


@defect("takes-jobs-again")
def gives_up_at_the_first_fault(worker: Worker | None) -> None:
    from penstock.worker import stream

    def never(error: ClientError, *, answered: bool) -> bool:
        return False

    transport.may_pass = never
    stream.may_pass = never


@defect("pauses-grow")
def asks_without_a_pause(worker: Worker | None) -> None:
    outage.Outage.note = lambda self, error: 0.02  # type: ignore[method-assign]


@defect("refusal-ends")
def never_ends(worker: Worker | None) -> None:
    from penstock.worker import stream

    def always(error: ClientError, *, answered: bool) -> bool:
        return True

    transport.may_pass = always
    stream.may_pass = always


@defect("poison-contained")
def does_not_complete_after_another_attempt(worker: Worker | None) -> None:
    def change(report: Any) -> Any:
        late = isinstance(report, Completion) and (report.attempt or 0) > 1
        return execution.Failure(job_id=report.job_id, attempt=report.attempt, retryable=False) if late else report

    _report_as(change)


@defect("start-rules")
def forgets_the_rules_of_a_start(worker: Worker | None) -> None:
    made = instances.StartRequest

    def bare(**given: Any) -> Any:
        kept = ("definition_id", "variables", "business_key", "idempotency_key")
        return made(**{name: given[name] for name in kept})

    instances.StartRequest = bare  # type: ignore[assignment, misc]


@defect("client-errors")
def tells_errors_without_their_code(worker: Worker | None) -> None:
    from penstock.client import rest

    def error(response: Any) -> ClientError:
        return ClientError("it went wrong")

    rest._error = error


@defect("client-repeats")
def calls_once(worker: Worker | None) -> None:
    async def once(self: Any, operation: Any, timeout_s: float, max_pause_s: float) -> Any:
        return await self.transport.call(operation, timeout_s=timeout_s)

    caller.Caller._repeated = once  # type: ignore[method-assign]


@defect("client-repeats")
def repeats_without_a_key(worker: Worker | None) -> None:
    instances._new_idempotency_key = lambda: ""


@defect("client-calls")
def sends_no_variables(worker: Worker | None) -> None:
    instances.optional_object = lambda variables: None
    messages.optional_object = lambda variables: None


@defect("list-by-cursor")
def reads_one_page(worker: Worker | None) -> None:
    async def first_page(read: Any) -> Any:
        page = await read(None)
        for item in page.items[:-1]:
            yield item

    instances.every_item = first_page
