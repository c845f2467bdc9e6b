"""``penstock.v1.Flow``: queues over gRPC, in the terms of `wire.queue`."""

from __future__ import annotations

from typing import Final

from grpclib.const import Handler

from penstock.engine.engine import Engine
from penstock.rpc.methods import unary
from penstock.rpc.reading import required
from penstock.wire import penstock_v1 as w
from penstock.wire.queue_settings import policy_of, settings_of

_PREFIX: Final = "/penstock.v1.Flow/"


class Flow:
    """Set, look, pause, forget."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def __mapping__(self) -> dict[str, Handler]:
        methods = {
            "PutQueue": unary(self.put, w.PutQueueRequest, w.PutQueueResponse),
            "GetQueue": unary(self.get, w.GetQueueRequest, w.GetQueueResponse),
            "ListQueues": unary(self.list, w.ListQueuesRequest, w.ListQueuesResponse),
            "DeleteQueue": unary(self.delete, w.DeleteQueueRequest, w.DeleteQueueResponse),
            "PauseQueue": unary(self.pause, w.PauseQueueRequest, w.PauseQueueResponse),
            "ResumeQueue": unary(self.resume, w.ResumeQueueRequest, w.ResumeQueueResponse),
        }
        return {_PREFIX + name: handler for name, handler in methods.items()}

    async def put(self, request: w.PutQueueRequest, _call: object) -> w.PutQueueResponse:
        """Make or change one."""
        policy = policy_of(request.settings or w.QueueSettings())
        found = await self._engine.queues.put(required(request.name, "name"), policy)
        return w.PutQueueResponse(settings_of(found.policy))

    async def get(self, request: w.GetQueueRequest, _call: object) -> w.GetQueueResponse:
        """One, and how it stands."""
        found = await self._engine.queues.get(required(request.name, "name"))
        return w.GetQueueResponse(
            settings=settings_of(found.policy),
            running=found.running or 0,
            waiting=found.waiting or 0,
            oldest_ms=round(1_000 * (found.oldest_s or 0)),
            keys=[w.QueueKeyState(key.flow_key, key.running, key.waiting) for key in found.keys or ()],
            open_runs=found.open_runs or 0,
        )

    async def list(self, request: w.ListQueuesRequest, _call: object) -> w.ListQueuesResponse:
        """Some of them."""
        page = await self._engine.queues.list(request.cursor or None, request.limit)
        queues = [w.ListedQueue(queue.name, settings_of(queue.policy)) for queue in page.items]
        return w.ListQueuesResponse(queues, page.next or "")

    async def delete(self, request: w.DeleteQueueRequest, _call: object) -> w.DeleteQueueResponse:
        """Forget one."""
        await self._engine.queues.delete(required(request.name, "name"))
        return w.DeleteQueueResponse()

    async def pause(self, request: w.PauseQueueRequest, _call: object) -> w.PauseQueueResponse:
        """Let none of its jobs begin."""
        found = await self._engine.queues.pause(required(request.name, "name"), paused=True)
        return w.PauseQueueResponse(settings_of(found.policy))

    async def resume(self, request: w.ResumeQueueRequest, _call: object) -> w.ResumeQueueResponse:
        """Let its jobs begin again."""
        found = await self._engine.queues.pause(required(request.name, "name"), paused=False)
        return w.ResumeQueueResponse(settings_of(found.policy))
