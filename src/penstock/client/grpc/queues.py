"""The gRPC calls about queues: ``penstock.v1.Flow``. Pure, as `exchange.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.client.errors import BadRequest
from penstock.client.grpc.unary import UnaryExchange
from penstock.client.grpc.values import int32
from penstock.client.operation import Operation
from penstock.client.queue_operation import DeleteQueue, GetQueue, ListQueues, PauseQueue, PutQueue
from penstock.wire import penstock_v1 as w
from penstock.wire.page import Page
from penstock.wire.queue import Queue, QueueKey, QueuePolicy
from penstock.wire.queue_settings import policy_of, settings_of

_SERVICE = "/penstock.v1.Flow/"


def _put(operation: PutQueue) -> UnaryExchange:
    def read(answer: w.PutQueueResponse) -> Queue:
        return Queue(name=operation.name, policy=policy_of(answer.settings or w.QueueSettings()))

    request = w.PutQueueRequest(operation.name, _settings(operation.policy))
    return UnaryExchange(f"{_SERVICE}PutQueue", request, w.PutQueueResponse, read)


def _settings(policy: QueuePolicy) -> w.QueueSettings:
    """Of a policy whose limits fit the wire, on which 0 is no limit at all. Raises BadRequest."""
    limits = {"concurrency": policy.concurrency, "concurrencyPerKey": policy.concurrency_per_key, "runs": policy.runs}
    for field, rate in (("rate", policy.rate), ("ratePerKey", policy.rate_per_key)):
        if rate is not None:
            limits |= {f"{field}.limit": rate.limit, f"{field}.burst": rate.burst}
    for field, limit in limits.items():
        if limit is not None and not int32(limit, field):
            raise BadRequest(f"{field}: must be 1 or more")
    return settings_of(policy)


def _get(operation: GetQueue) -> UnaryExchange:
    def read(answer: w.GetQueueResponse) -> Queue:
        policy = policy_of(answer.settings or w.QueueSettings())
        counted = policy.concurrency is not None or policy.concurrency_per_key is not None
        return Queue(
            name=operation.name,
            policy=policy,
            running=answer.running if counted else None,
            waiting=answer.waiting,
            oldest_s=answer.oldest_ms / 1_000 if answer.waiting else None,
            keys=[QueueKey(key.flow_key, key.waiting, key.running) for key in answer.keys],
            open_runs=None if policy.runs is None else answer.open_runs,
        )

    return UnaryExchange(f"{_SERVICE}GetQueue", w.GetQueueRequest(operation.name), w.GetQueueResponse, read)


def _list(operation: ListQueues) -> UnaryExchange:
    def read(answer: w.ListQueuesResponse) -> Page[Queue]:
        found = [Queue(name=each.name, policy=policy_of(each.settings or w.QueueSettings())) for each in answer.queues]
        return Page(items=found, next=answer.next or None)

    window = operation.window
    request = w.ListQueuesRequest(window.cursor or "", int32(window.limit, "limit"))
    return UnaryExchange(f"{_SERVICE}ListQueues", request, w.ListQueuesResponse, read)


def _pause(operation: PauseQueue) -> UnaryExchange:
    def read(answer: w.PauseQueueResponse | w.ResumeQueueResponse) -> Queue:
        return Queue(name=operation.name, policy=policy_of(answer.settings or w.QueueSettings()))

    if operation.paused:
        return UnaryExchange(f"{_SERVICE}PauseQueue", w.PauseQueueRequest(operation.name), w.PauseQueueResponse, read)
    return UnaryExchange(f"{_SERVICE}ResumeQueue", w.ResumeQueueRequest(operation.name), w.ResumeQueueResponse, read)


def _delete(operation: DeleteQueue) -> UnaryExchange:
    request = w.DeleteQueueRequest(operation.name)
    return UnaryExchange(f"{_SERVICE}DeleteQueue", request, w.DeleteQueueResponse, _nothing)


def _nothing(_answer: object) -> None:
    return None


QUEUE_EXCHANGES: dict[type[Operation[Any]], Callable[[Any], UnaryExchange]] = {
    PutQueue: _put,
    GetQueue: _get,
    ListQueues: _list,
    PauseQueue: _pause,
    DeleteQueue: _delete,
}
