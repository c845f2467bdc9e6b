"""The Python worker and client as programs under test. What they do: README.md of the folder above."""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import anyio
import anyio.to_thread
import msgspec

from penstock.client import Client, ClientError
from penstock.client.grpc import GrpcTransport
from penstock.wire.start import Debounce, Dedupe, Throttle
from penstock.worker import JobContext, Later, NonRetryable, Retry, StepError, WaitFor, Worker

assert GrpcTransport


class Order(msgspec.Struct):
    """Variables with a type."""

    name: str
    count: int
    tags: list[str]


def emit(**event: object) -> None:
    """One line of standard output."""
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


async def behave(job: JobContext) -> Any:
    """The handler of all job types: does what the variables say."""
    reported = {"job": job.id, "attempt": job.attempt, "instance": job.instance_id}
    emit(event="begin", type=job.job.job_type, idempotencyKey=job.idempotency_key, **reported)
    try:
        steps = job.variables["do"]
        return await act(job, steps[min(job.attempt, len(steps)) - 1])
    except anyio.get_cancelled_exc_class():
        emit(event="stop", reason=str(job.stop_reason), **reported)
        raise
    finally:
        emit(event="end", **reported)


async def act(job: JobContext, step: dict[str, Any]) -> Any:
    """One step of the variable `do`."""
    if "report" in step:
        await job.report(**step["report"])
    match step["op"]:
        case "complete":
            return step["variables"]
        case "none":
            return None
        case "echo":
            return {"echo": job.variables["input"]}
        case "context":
            return {"context": context_of(job)}
        case "checkpoint":
            return {"saw": job.checkpoint}
        case "notJson":
            return {"value": math.nan}
        case "nul":
            return {"text": "a\0b"}
        case "throw":
            raise RuntimeError(step.get("message", "boom"))
        case "fail":
            raise failure_of(step)
        case "sleep":
            await anyio.sleep(step["seconds"])
            return step.get("variables", {"slept": True})
        case "stubborn":
            await anyio.to_thread.run_sync(time.sleep, step["seconds"])
            return step.get("variables", {"slept": True})
        case "later":
            raise Later(until=datetime.now(UTC) + timedelta(seconds=step["seconds"]))
        case "waitFor":
            until = datetime.now(UTC) + timedelta(seconds=step["seconds"]) if "seconds" in step else None
            raise WaitFor(step["signal"], until=until)
        case "worst":
            return worst(step["way"])
        case "crash":
            return os.kill(os.getpid(), signal.SIGKILL)
        case other:
            raise AssertionError(f"unknown op {other}")


class Nasty(BaseException):
    """An error that nobody can read."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


def worst(way: int) -> object:
    """End with the nastiest thing that the language has."""
    if way == 1:
        raise Nasty
    if way == 2:
        sys.exit(3)
    if way == 3:
        return {"value": object()}
    raise BaseExceptionGroup("several", [Nasty(), RuntimeError("x")])


def failure_of(step: dict[str, Any]) -> Exception:
    """What the handler raises for `fail`."""
    message = step.get("message", "")
    if "code" in step:
        return StepError(step["code"], message, variables=step.get("variables"), retryable=step.get("retryable", True))
    if step.get("retryable", True):
        return Retry(message, after=step.get("retryAfterSeconds", 0.0))
    return NonRetryable(message)


def context_of(job: JobContext) -> dict[str, object]:
    """What a handler is told beside the variables."""
    return {
        "id": job.id,
        "jobType": job.job.job_type,
        "instanceId": job.instance_id,
        "stepId": job.step_id,
        "attempt": job.attempt,
        "retriesRemaining": job.retries_remaining,
        "definitionId": job.definition_id,
        "definitionVersion": job.definition_version,
        "businessKey": job.business_key,
        "idempotencyKey": job.idempotency_key,
    }


async def typed(order: Order) -> dict[str, object]:
    """The handler whose variables have a type."""
    return {"summary": f"{order.name}:{order.count}:{len(order.tags)}"}


async def nothing() -> None:
    """The handler of measurements."""


HANDLERS = {"typed": typed, "nothing": nothing}


def make_worker() -> Worker:
    """The worker that CONFORMANCE_OPTIONS asks for."""
    given = json.loads(os.environ["CONFORMANCE_OPTIONS"])
    worker = Worker(
        os.environ["PENSTOCK_URL"],
        token=given.get("token"),
        worker_id=given["workerId"],
        concurrency=given["concurrency"],
        lease_s=given["leaseSeconds"],
        wait_s=given["waitSeconds"],
        drain_grace_s=given["drainGraceSeconds"],
    )
    for each in given["jobTypes"]:
        handle = HANDLERS.get(each.get("handler"), behave)
        worker.handler(each["type"], concurrency=each.get("concurrency"), timeout_s=each.get("timeoutSeconds"))(handle)
    return worker


async def serve_client() -> None:
    """Read a command a line, make the call, print its result or its error."""
    async with Client(os.environ["PENSTOCK_URL"], timeout_s=120) as client:
        async for line in anyio.wrap_file(sys.stdin):
            command = json.loads(line)
            try:
                emit(result=json.loads(msgspec.json.encode(await call(client, command))))
            except ClientError as error:
                emit(error=error.code, reason=error.reason)


async def call(client: Client, given: dict[str, Any]) -> Any:
    """Make the call that a command names."""
    match given["call"]:
        case "start":
            return await client.start_instance(
                given["definitionId"],
                given.get("variables"),
                version=given.get("definitionVersion"),
                business_key=given.get("businessKey"),
                instance_key=given.get("instanceKey"),
                keep_instance_key=given.get("keepInstanceKey", False),
                idempotency_key=given.get("idempotencyKey"),
                priority=given.get("priority"),
                flow_key=given.get("flowKey"),
                start_at=given.get("startAt"),
                delay=given.get("delay"),
                dedupe=_made(Dedupe, given.get("dedupe")),
                throttle=_made(Throttle, given.get("throttle")),
                debounce=_made(Debounce, given.get("debounce")),
                wait_s=given.get("waitSeconds", 0),
            )
        case "get":
            return await client.get_instance(given["id"], wait_s=given.get("waitSeconds", 0))
        case "signal":
            return await client.signal(
                given["id"],
                given["stepId"],
                given.get("variables"),
                buffer=given.get("buffer", False),
                signal_id=given.get("signalId"),
            )
        case "publish":
            return await client.publish_message(
                given["name"],
                given["correlationKey"],
                given.get("variables"),
                ttl=given.get("ttl"),
                message_id=given.get("messageId"),
                to_all=given.get("toAll", False),
            )
        case "cancel":
            return await client.cancel_instance(given["id"], reason=given.get("reason"))
        case "retry":
            return await client.retry_instance(given["id"], from_step=given.get("fromStepId"), note=given.get("note"))
        case "list":
            page = await client.list_instances(
                limit=given.get("limit", 20),
                cursor=given.get("cursor"),
                **{
                    name: given[wire]
                    for name, wire in (
                        ("definition_id", "definitionId"),
                        ("status", "status"),
                        ("business_key", "businessKey"),
                        ("flow_key", "flowKey"),
                    )
                    if wire in given
                },
            )
            return {"items": page.items, "next": page.next}
        case "listAll":
            return [each.id async for each in client.iterate_instances(definition_id=given["definitionId"])]
        case other:
            raise AssertionError(f"unknown call {other}")


def _made(kind: Any, given: Any) -> Any:
    return None if given is None else msgspec.convert(given, kind)


def main() -> None:
    """Be what the argument says."""
    worker = make_worker() if sys.argv[1] == "worker" else None
    if "CONFORMANCE_DEFECT" in os.environ:
        from sdks.conformance.python.defects import DEFECTS

        DEFECTS[os.environ["CONFORMANCE_DEFECT"]].install(worker)
    if worker is None:
        anyio.run(serve_client)
        return
    emit(event="ready")
    worker.main()


if __name__ == "__main__":
    main()
