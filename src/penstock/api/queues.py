"""The operations on queues. Their policies have a form of their own over gRPC (`wire.queue_settings`)."""

from __future__ import annotations

from typing import Any, Final

from msgspec import Struct

from penstock.api.operation import SLICE, Body, DeclaredOperation, Grpc, Repeat, Rest, nothing_in
from penstock.api.permission import Permission
from penstock.wire import penstock_v1 as w
from penstock.wire.page import Page
from penstock.wire.queue import Queue, QueueKey, QueuePolicy
from penstock.wire.queue_settings import policy_of, settings_of

_PATH: Final = "/v1/queues/{id}"
_SERVICE: Final = "/penstock.v1.Flow/"
_NAMED: Final = {"name": "id"}
INT32_MAX: Final = 2**31 - 1


class PutQueue(Struct, frozen=True):
    """A queue and its policy from now on."""

    name: str
    policy: QueuePolicy


def _send_put(asked: PutQueue) -> w.PutQueueRequest:
    """Raises ValueError for a limit that does not fit the wire, on which 0 is no limit at all."""
    policy = asked.policy
    limits = {"concurrency": policy.concurrency, "concurrencyPerKey": policy.concurrency_per_key, "runs": policy.runs}
    for field, rate in (("rate", policy.rate), ("ratePerKey", policy.rate_per_key)):
        if rate is not None:
            limits |= {f"{field}.limit": rate.limit, f"{field}.burst": rate.burst}
    for field, limit in limits.items():
        if limit == 0:
            raise ValueError(f"{field}: must be 1 or more")
        if limit is not None and abs(limit) > INT32_MAX:
            raise ValueError(f"{field}: {limit} does not fit 32 bits")
    return w.PutQueueRequest(asked.name, settings_of(policy))


def _take_put(message: w.PutQueueRequest) -> PutQueue:
    return PutQueue(message.name, _policy(message))


def _policy(message: Any) -> QueuePolicy:
    return policy_of(message.settings or w.QueueSettings())


def _settings_in(method: str, answer: type[Struct], **more: Any) -> Grpc:
    """Return the form of an operation that answers with the policy of the queue."""

    def give(queue: Queue) -> Struct:
        return answer(settings=settings_of(queue.policy))

    def read(message: Any, asked: Any) -> Queue:
        return Queue(name=asked.name, policy=_policy(message))

    return Grpc(_SERVICE + method, answer=answer, give=give, read=read, **more)


def _give_state(queue: Queue) -> w.GetQueueResponse:
    return w.GetQueueResponse(
        settings=settings_of(queue.policy),
        running=queue.running or 0,
        waiting=queue.waiting or 0,
        oldest_ms=round(1_000 * (queue.oldest_s or 0)),
        keys=[w.QueueKeyState(key.flow_key, key.running, key.waiting) for key in queue.keys or ()],
        open_runs=queue.open_runs or 0,
    )


def _read_state(message: w.GetQueueResponse, asked: w.GetQueueRequest) -> Queue:
    policy = _policy(message)
    counted = policy.concurrency is not None or policy.concurrency_per_key is not None
    return Queue(
        name=asked.name,
        policy=policy,
        running=message.running if counted else None,
        waiting=message.waiting,
        oldest_s=message.oldest_ms / 1_000 if message.waiting else None,
        keys=[QueueKey(key.flow_key, key.waiting, key.running) for key in message.keys],
        open_runs=None if policy.runs is None else message.open_runs,
    )


def _give_list(page: Page[Queue]) -> w.ListQueuesResponse:
    return w.ListQueuesResponse(
        [w.ListedQueue(queue.name, settings_of(queue.policy)) for queue in page.items], page.next or ""
    )


def _read_list(message: w.ListQueuesResponse, _asked: object) -> Page[Queue]:
    found = [Queue(name=each.name, policy=_policy(each)) for each in message.queues]
    return Page(items=found, next=message.next or None)


LIST_QUEUES: Final = DeclaredOperation(
    name="listQueues",
    summary="List queues by name (addition)",
    tag="jobs",
    request=w.ListQueuesRequest,
    answer=Page[Queue],
    needs=Permission.VIEW,
    rest=Rest("GET", "/v1/queues", SLICE),
    grpc=Grpc(_SERVICE + "ListQueues", answer=w.ListQueuesResponse, give=_give_list, read=_read_list),
    errors=(400, 503),
)
GET_QUEUE: Final = DeclaredOperation(
    name="getQueue",
    summary="Read a queue and its state (addition)",
    description="`keys` has each flow key with its running and waiting jobs.",
    tag="jobs",
    request=w.GetQueueRequest,
    answer=Queue,
    needs=Permission.VIEW,
    rest=Rest("GET", _PATH, names=_NAMED),
    grpc=Grpc(_SERVICE + "GetQueue", answer=w.GetQueueResponse, give=_give_state, read=_read_state),
    errors=(400, 404, 503),
)
PUT_QUEUE: Final = DeclaredOperation(
    name="putQueue",
    summary="Create or change a queue (addition)",
    description=(
        "From the next claim on, in all engines. If you leave `paused` out it stays as it is. Unknown fields are "
        "refused. 409: a job type is in another queue, or an older engine lives."
    ),
    tag="jobs",
    request=PutQueue,
    answer=Queue,
    needs=Permission.OPERATE,
    rest=Rest("PUT", _PATH, body=Body(field="policy"), names=_NAMED),
    grpc=_settings_in("PutQueue", w.PutQueueResponse, message=w.PutQueueRequest, send=_send_put, take=_take_put),
    errors=(400, 409, 503),
)
DELETE_QUEUE: Final = DeclaredOperation(
    name="deleteQueue",
    summary="Delete a queue (addition)",
    description="Its jobs are free at once.",
    tag="jobs",
    request=w.DeleteQueueRequest,
    answer=type(None),
    needs=Permission.OPERATE,
    rest=Rest("DELETE", _PATH, status=204, names=_NAMED),
    grpc=nothing_in(_SERVICE + "DeleteQueue", w.DeleteQueueResponse),
    errors=(400, 404, 503),
    repeat=Repeat.UNTIL_GONE,
)
PAUSE_QUEUE: Final = DeclaredOperation(
    name="pauseQueue",
    summary="Pause a queue (addition)",
    description="None of its jobs begins. Running jobs go on.",
    tag="jobs",
    request=w.PauseQueueRequest,
    answer=Queue,
    needs=Permission.OPERATE,
    rest=Rest("POST", _PATH + "/pause", names=_NAMED),
    grpc=_settings_in("PauseQueue", w.PauseQueueResponse),
    errors=(400, 404, 503),
)
RESUME_QUEUE: Final = DeclaredOperation(
    name="resumeQueue",
    summary="Resume a queue (addition)",
    description="Its jobs begin again.",
    tag="jobs",
    request=w.ResumeQueueRequest,
    answer=Queue,
    needs=Permission.OPERATE,
    rest=Rest("POST", _PATH + "/resume", names=_NAMED),
    grpc=_settings_in("ResumeQueue", w.ResumeQueueResponse),
    errors=(400, 404, 503),
)
