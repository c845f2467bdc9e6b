"""``penstock.v1.Flow``: queues over gRPC, in the terms of `wire.queue`."""

from __future__ import annotations

from typing import Final

from grpclib.const import Handler

from penstock.engine.engine import Engine
from penstock.rpc.methods import unary
from penstock.rpc.reading import required
from penstock.wire import penstock_v1 as w
from penstock.wire.queue import QueuePolicy, Rate

_PREFIX: Final = "/penstock.v1.Flow/"
PERIOD: Final = "PT1S"


class Flow:
    """Set, look, forget."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def __mapping__(self) -> dict[str, Handler]:
        methods = {
            "PutQueue": unary(self.put, w.PutQueueRequest, w.PutQueueResponse),
            "GetQueue": unary(self.get, w.GetQueueRequest, w.GetQueueResponse),
            "ListQueues": unary(self.list, w.ListQueuesRequest, w.ListQueuesResponse),
            "DeleteQueue": unary(self.delete, w.DeleteQueueRequest, w.DeleteQueueResponse),
        }
        return {_PREFIX + name: handler for name, handler in methods.items()}

    async def put(self, request: w.PutQueueRequest, _call: object) -> w.PutQueueResponse:
        """Make or change one."""
        policy = _policy(request.settings or w.QueueSettings())
        found = await self._engine.queues.put(required(request.name, "name"), policy)
        return w.PutQueueResponse(_settings(found.policy))

    async def get(self, request: w.GetQueueRequest, _call: object) -> w.GetQueueResponse:
        """One, and how it stands."""
        found = await self._engine.queues.get(required(request.name, "name"))
        return w.GetQueueResponse(
            settings=_settings(found.policy),
            running=found.running or 0,
            waiting=found.waiting or 0,
            oldest_ms=round(1_000 * (found.oldest_s or 0)),
            keys=[w.QueueKeyState(key.flow_key, key.running, key.waiting) for key in found.keys or ()],
            open_runs=found.open_runs or 0,
        )

    async def list(self, request: w.ListQueuesRequest, _call: object) -> w.ListQueuesResponse:
        """Some of them."""
        page = await self._engine.queues.list(request.cursor or None, request.limit)
        queues = [w.ListedQueue(queue.name, _settings(queue.policy)) for queue in page.items]
        return w.ListQueuesResponse(queues, page.next or "")

    async def delete(self, request: w.DeleteQueueRequest, _call: object) -> w.DeleteQueueResponse:
        """Forget one."""
        await self._engine.queues.delete(required(request.name, "name"))
        return w.DeleteQueueResponse()


def _policy(settings: w.QueueSettings) -> QueuePolicy:
    return QueuePolicy(
        settings.job_types,
        settings.paused,
        settings.concurrency or None,
        settings.concurrency_per_key or None,
        _rate(settings.rate),
        _rate(settings.rate_per_key),
        not settings.unfair,
        {weight.flow_key: weight.weight for weight in settings.weights},
        settings.runs or None,
    )


def _rate(rate: w.QueueRate | None) -> Rate | None:
    return None if rate is None else Rate(rate.limit, rate.period or PERIOD, rate.burst or None)


def _settings(policy: QueuePolicy) -> w.QueueSettings:
    return w.QueueSettings(
        job_types=policy.job_types,
        paused=policy.paused,
        concurrency=policy.concurrency or 0,
        concurrency_per_key=policy.concurrency_per_key or 0,
        rate=_shown(policy.rate),
        rate_per_key=_shown(policy.rate_per_key),
        unfair=not policy.fair,
        weights=[w.QueueWeight(key, weight) for key, weight in policy.weights.items()],
        runs=policy.runs or 0,
    )


def _shown(rate: Rate | None) -> w.QueueRate | None:
    return None if rate is None else w.QueueRate(rate.limit, rate.period, rate.burst or 0)
