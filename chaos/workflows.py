"""The mixed load: what is run, and what must have happened once it has ended.

No workflow has a loop, so every step is closed by a completion at most once per instance; ``always`` names those that
every completed instance has gone through, ``before`` the steps whose output a job must see.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from penstock.testing.definitions import Json, definition, end, service, step, timer
from penstock.wire.queue import QueuePolicy

JOB_TYPES = ("steady", "batch", "sdk")
"""Each is polled by workers of another make."""
LIMITED = "batch"
LIMITS = QueuePolicy([LIMITED], concurrency=10, concurrency_per_key=4)
"""Few enough to be met, and enough for what a killed worker holds until its leases end."""
NEVER = "never"
"""A job type that nobody polls: only its timer gets an instance past it."""
MESSAGE = "chaos"
GO, GATHERED = "go", "gathered"
BACKOFF: Json = {"initial": "PT0.2S", "multiplier": 2, "max": "PT1S"}


class Workflow(NamedTuple):
    definition: Json
    weight: int
    always: frozenset[str]
    before: Mapping[str, Sequence[str]] = {}
    joins: Sequence[str] = ()
    signal: str = ""
    message: str = ""
    """The step that waits for the message with the instance's number as its key."""
    user_task: str = ""
    fails: bool = False
    """Whether a job of it may fail for good: the load then retries the instance."""
    undoes: Sequence[str] = ()
    """The steps with handlers: what they did is undone before the instance ends FAILED or CANCELLED."""
    stuck: str = ""
    """The step that only the load gets it past: it skips it, or moves it to `GO`."""
    gathers: int = 0
    """How many items its forEach has: the numbers from the instance's own on, gathered in `GATHERED`."""


def _workflow(body: Json, weight: int, *always: str, **fields: Any) -> Workflow:
    return Workflow(body, weight, frozenset(always), **fields)


def _line() -> Workflow:
    body = definition(
        service("first", "second", job_type="steady", retryCount=3, retryBackoff=BACKOFF),
        service("second", "third", job_type="batch", retryCount=3),
        service("third", "end", job_type="sdk", retryCount=3),
        end(), definition_id="line",
    )  # fmt: skip
    before = {"second": ["first"], "third": ["first", "second"]}
    return _workflow(body, 4, "first", "second", "third", "end", before=before)


def _fork() -> Workflow:
    body = definition(
        step("fork", "PARALLEL_GATEWAY", parallelNextSteps=["left", "middle-1", "right"], joinStep="join"),
        service("left", "join", job_type="steady", retryCount=2),
        service("middle-1", "middle-2", job_type="batch"),
        service("middle-2", "join", job_type="sdk"),
        service("right", "join", job_type="batch", retryCount=2),
        step("join", "JOIN_GATEWAY", nextStep="after"),
        service("after", "end", job_type="steady"),
        end(), definition_id="fork",
    )  # fmt: skip
    branches = ["left", "middle-1", "middle-2", "right"]
    before = {"middle-2": ["middle-1"], "after": branches}
    return _workflow(body, 4, *branches, "join", "after", "end", before=before, joins=["join"])


def _choose() -> Workflow:
    body = definition(
        service("ask", "choose", job_type="batch"),
        step("choose", "DECISION", conditionalNextSteps={"number % 2 == 0": "even", "true": "odd"}),
        service("even", "count", job_type="steady"),
        service("odd", "count", job_type="sdk"),
        step("count", "TRANSFORMATION", transformations={"number": "${number + 1}"}, nextStep="end"),
        end(), definition_id="choose",
    )  # fmt: skip
    return _workflow(body, 3, "ask", "choose", "count", "end", before={"even": ["ask"], "odd": ["ask"]})


def _timed() -> Workflow:
    body = definition(
        step("pause", "WAIT", duration="PT0.5S", nextStep="stuck"),
        service("stuck", "end", job_type=NEVER, boundaryEvents=[
            timer("side", "PT0.3S"), timer("late", "PT0.6S", interrupting=True)]),
        service("side", None, job_type="batch"),
        service("late", "end", job_type="steady"),
        end(), definition_id="timed",
    )  # fmt: skip
    return _workflow(body, 2, "pause", "late", "end")


def _signalled() -> Workflow:
    body = definition(
        service("begin", "wait", job_type="sdk"),
        step("wait", "WAIT", nextStep="go"),
        service("go", "end", job_type="batch"),
        end(), definition_id="signalled",
    )  # fmt: skip
    return _workflow(body, 2, "begin", "wait", "go", "end", before={"go": ["begin", "wait"]}, signal="wait")


def _notified() -> Workflow:
    message = {"name": MESSAGE, "correlationKey": "${number}"}
    body = definition(
        service("begin", "wait", job_type="batch"),
        step("wait", "WAIT", nextStep="go", message=message),
        service("go", "end", job_type="sdk"),
        end(), definition_id="told",
    )  # fmt: skip
    return _workflow(body, 2, "begin", "wait", "go", "end", before={"go": ["begin", "wait"]}, message="wait")


def _asked() -> Workflow:
    body = definition(
        step("ask", "USER_TASK", nextStep="go"), service("go", "end", job_type="steady"), end(), definition_id="asked"
    )
    return _workflow(body, 2, "ask", "go", "end", before={"go": ["ask"]}, user_task="ask")


def _chained() -> Workflow:
    body = definition(
        service("begin", "end", job_type="batch"),
        end(), definition_id="chained", autoStartNextWorkflow=True, nextWorkflowId="choose",
    )  # fmt: skip
    return _workflow(body, 2, "begin", "end")


def _doomed() -> Workflow:
    body = definition(
        service("doomed", "then", job_type="steady"),
        service("then", "end", job_type="batch"),
        end(), definition_id="doomed",
    )  # fmt: skip
    return _workflow(body, 1, "doomed", "then", "end", before={"then": ["doomed"]}, fails=True)


def _saga() -> Workflow:
    """Its card is declined now and then (`worker_process.DECLINED`)."""
    undo: Json = {"jobType": "batch", "retryCount": 3}
    body = definition(
        service("flight", "hotel", job_type="steady", retryCount=3, compensation=undo),
        service("hotel", "card", job_type="batch", retryCount=3, compensation={**undo, "jobType": "sdk"}),
        service("card", "end", job_type="steady", retryCount=3),
        end(), definition_id="saga", onFailure="COMPENSATE",
    )  # fmt: skip
    before = {"hotel": ["flight"], "card": ["flight", "hotel"]}
    return _workflow(body, 3, "flight", "hotel", "card", "end", before=before, undoes=["flight", "hotel"])


def _each() -> Workflow:
    items = 7
    each: Json = {"items": f"${{map(1..{items}, # + number)}}", "parallel": 3, "collect": "${item}", "into": GATHERED}
    body = definition(
        service("price", "go", job_type="batch", retryCount=3, retryBackoff=BACKOFF, forEach=each),
        service("go", "end", job_type="sdk"),
        end(), definition_id="each",
    )  # fmt: skip
    return _workflow(body, 2, "price", "go", "end", gathers=items)


def _stuck() -> Workflow:
    body = definition(
        service("begin", "stuck", job_type="sdk"),
        service("stuck", GO, job_type=NEVER),
        service(GO, "end", job_type="batch"),
        end(), definition_id="stuck",
    )  # fmt: skip
    return _workflow(body, 2, "begin", GO, "end", before={GO: ["begin"]}, stuck="stuck")


WORKFLOWS: Mapping[str, Workflow] = {
    str(each.definition["id"]): each
    for each in (
        _line(),
        _fork(),
        _choose(),
        _timed(),
        _signalled(),
        _notified(),
        _asked(),
        _chained(),
        _doomed(),
        _saga(),
        _each(),
        _stuck(),
    )
}
