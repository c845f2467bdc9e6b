"""What a handler may take and return, and what its end means for the job."""

from __future__ import annotations

import asyncio
import functools
import threading
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypedDict

import anyio
import msgspec
import pytest
from pydantic import BaseModel

from penstock.client import Completion, Failure
from penstock.worker import JobContext, NonRetryable, Retry, Worker
from tests.sdk.loops import Run
from tests.sdk.scripted_transport import ScriptedTransport, job


class Refused(Exception):
    """As psycopg and asyncpg raise what the SQL function `complete` never takes."""

    sqlstate = "PK003"


class Order(msgspec.Struct):
    order_id: int
    due: datetime | None = None


@dataclass
class OrderData:
    order_id: int


class OrderModel(BaseModel):
    order_id: int


class OrderKeys(TypedDict):
    order_id: int


def report_of(run: Run, function: Any, variables: dict[str, Any] | None = None, **options: Any) -> Any:
    """Run one job with the handler; what the worker reported."""

    async def main() -> Completion | Failure:
        transport = ScriptedTransport()
        worker = Worker(transport)
        worker.handler("t", **options)(function)
        async with worker:
            transport.hand_out(job(variables=variables or {}))
            await transport.wait_until(lambda: transport.completed or transport.failed)
        return (*transport.completed, *transport.failed)[0]

    return run(main)


def result_of(report: Completion | Failure) -> object:
    assert isinstance(report, Completion), report
    return None if report.variables is None else msgspec.json.decode(report.variables)


async def takes_nothing() -> dict[str, Any]:
    return {"seen": None}


async def takes_context(anything: JobContext) -> dict[str, Any]:
    return {"seen": anything.variables["order_id"]}


async def takes_plain(variables: dict[str, Any]) -> dict[str, Any]:
    return {"seen": variables["order_id"]}


async def takes_unannotated(variables, job):  # type: ignore[no-untyped-def]
    return {"seen": variables["order_id"], "id": job.id}


async def takes_struct(order: Order) -> dict[str, Any]:
    return {"seen": order.order_id}


async def takes_dataclass(context: JobContext, order: OrderData) -> dict[str, Any]:
    return {"seen": order.order_id, "id": context.id}


async def takes_pydantic(order: OrderModel, context: JobContext) -> dict[str, Any]:
    return {"seen": order.order_id, "id": context.id}


async def takes_typed_dict(order: OrderKeys) -> dict[str, Any]:
    return {"seen": order["order_id"]}


def takes_in_a_thread(order: Order) -> dict[str, Any]:
    assert threading.current_thread() is not threading.main_thread()
    return {"seen": order.order_id}


async def takes_more(extra: int, order: Order) -> dict[str, Any]:
    return {"seen": order.order_id + extra}


class Callable:
    async def __call__(self, order: Order) -> dict[str, Any]:
        return {"seen": order.order_id}


@pytest.mark.parametrize(
    ("function", "result"),
    [
        (takes_nothing, {"seen": None}),
        (takes_context, {"seen": 10**20}),
        (takes_plain, {"seen": 10**20}),
        (takes_unannotated, {"seen": 10**20, "id": "1"}),
        (takes_struct, {"seen": 10**20}),
        (takes_dataclass, {"seen": 10**20, "id": "1"}),
        (takes_pydantic, {"seen": 10**20, "id": "1"}),
        (takes_typed_dict, {"seen": 10**20}),
        (takes_in_a_thread, {"seen": 10**20}),
        (functools.partial(takes_more, 1), {"seen": 10**20 + 1}),
        (Callable(), {"seen": 10**20}),
    ],
)
def test_a_handler_takes_context_and_variables_in_any_form(run: Run, function: Any, result: object) -> None:
    assert result_of(report_of(run, function, {"order_id": 10**20, "other": True})) == result


def test_classes_that_are_local_to_the_registration_are_found(run: Run) -> None:
    async def main() -> None:
        class Local(msgspec.Struct):
            order_id: int

        transport = ScriptedTransport()
        worker = Worker(transport)

        @worker.handler("t")
        async def handle(order: Local) -> Local:
            return order

        async with worker:
            transport.hand_out(job(variables={"order_id": 5}))
            await transport.wait_until(lambda: transport.completed)
        assert result_of(transport.completed[0]) == {"order_id": 5}

    run(main)


@pytest.mark.parametrize("returned", [{"a": 1}, Order(1), OrderData(1), OrderModel(order_id=1), None])
def test_a_handler_returns_a_dict_a_model_or_nothing(run: Run, returned: object) -> None:
    async def handle() -> object:
        return returned

    expected = {"a": 1} if isinstance(returned, dict) else {"order_id": 1}
    if isinstance(returned, Order):
        expected = {"order_id": 1, "due": None}
    assert result_of(report_of(run, handle)) == (expected if returned is not None else None)


@pytest.mark.parametrize("returned", [[1], "text", 5, {"a": float("nan")}, {"a": object()}])
def test_a_result_that_cannot_be_variables_fails_for_good(run: Run, returned: object) -> None:
    async def handle() -> object:
        return returned

    report = report_of(run, handle)
    assert isinstance(report, Failure)
    assert not report.retryable
    assert "the handler returned what can't be stored" in report.error_message


@pytest.mark.parametrize("function", [takes_struct, takes_dataclass, takes_pydantic, takes_typed_dict])
def test_unfit_variables_fail_the_job_and_say_why(run: Run, function: Any) -> None:
    report = report_of(run, function, {"order_id": "seven"})
    assert isinstance(report, Failure)
    assert not report.retryable
    assert "the variables do not fit Order" in report.error_message
    assert "order_id" in report.error_message


@pytest.mark.parametrize("in_thread", [False, True])
@pytest.mark.parametrize(
    ("error", "retryable", "message", "after_s"),
    [
        (ValueError("bad luck"), True, "ValueError: bad luck", None),
        (NonRetryable("never"), False, "never", None),
        (Refused("variables: nested too deep"), False, "Refused: variables: nested too deep", None),
        (Retry("later", after=timedelta(minutes=1)), True, "later", 60),
        (Retry(after=2), True, "the handler asked for another try", 2),
        (SystemExit(3), True, "SystemExit: 3", None),
        (ExceptionGroup("g", [ValueError("a"), NonRetryable("never")]), False, "never", None),
        (ExceptionGroup("g", [ExceptionGroup("h", [ValueError("a")])]), True, "ValueError: a", None),
        (ValueError("lone \ud800 surrogate"), True, "ValueError: lone \\ud800 surrogate", None),
        (ValueError("x" * 10_000), True, "ValueError: " + "x" * (4096 - 12), None),
    ],
)
def test_an_exception_becomes_a_failure(
    run: Run, error: BaseException, retryable: bool, message: str, after_s: float | None, in_thread: bool
) -> None:
    async def handle() -> None:
        raise error

    def handle_in_thread() -> None:
        raise error

    report = report_of(run, handle_in_thread if in_thread else handle)
    assert isinstance(report, Failure)
    assert (report.stack_trace is None) == isinstance(error, Retry)
    assert msgspec.structs.replace(report, stack_trace=None) == Failure(
        job_id="1", attempt=1, retryable=retryable, error_message=message, retry_after_s=after_s
    )


def test_a_handler_over_its_time_is_cancelled_and_retried(run: Run) -> None:
    reasons: list[object] = []

    async def handle(context: JobContext) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            reasons.append(context.stop_reason)

    report = report_of(run, handle, timeout_s=0.05)
    assert isinstance(report, Failure)
    assert (report.retryable, report.error_message) == (True, "not finished within its time limit of 0.05 s")
    assert reasons == ["deadline"]


def test_a_result_after_the_time_limit_is_still_reported(run: Run) -> None:
    async def handle() -> dict[str, Any]:
        with anyio.CancelScope(shield=True):
            await anyio.sleep(0.1)
        return {"done": True}

    assert result_of(report_of(run, handle, timeout_s=0.01)) == {"done": True}


def test_a_cancellation_inside_a_handler_fails_only_its_job() -> None:
    async def handle() -> None:
        task = asyncio.ensure_future(asyncio.sleep(60))
        task.cancel()
        await task

    def run(main: Any) -> Any:
        return anyio.run(main, backend="asyncio")

    report = report_of(run, handle)
    assert isinstance(report, Failure)
    assert (report.retryable, report.error_message) == (True, "the handler was cancelled from within")


def two_variables(one: Order, two: Order) -> None: ...


def keyword_only(*, order: Order) -> None: ...


def not_validatable(order: threading.Lock) -> None: ...


def unknown_name(order: Missing) -> None: ...  # type: ignore[name-defined]  # noqa: F821 - the point of the test  # pyright: ignore[reportUndefinedVariable] - the point of the test


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (two_variables, "another parameter 'two'"),
        (keyword_only, "keyword-only parameter 'order'"),
        (not_validatable, "can't be validated"),
        (unknown_name, "can't be resolved"),
    ],
)
def test_an_impossible_signature_is_refused_at_registration(function: Any, reason: str) -> None:
    with pytest.raises(TypeError, match=reason):
        Worker("http://127.0.0.1:1").handler("t")(function)


def test_a_job_type_has_one_handler() -> None:
    worker = Worker("http://127.0.0.1:1")
    worker.handler("t")(takes_nothing)
    with pytest.raises(ValueError, match="'t' has a handler already"):
        worker.handler("t")(takes_nothing)
