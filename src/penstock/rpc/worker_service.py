"""``penstock.v1.WorkerService``: the service made for speed. Calls take lists; `work_stream` replaces polling."""

from __future__ import annotations

from typing import Final

from grpclib.const import Handler

from penstock.engine.engine import Engine
from penstock.engine.requests.payload import PayloadLimits, check_count, given_variables
from penstock.errors import BadRequest, PayloadTooLarge
from penstock.loop.offload import run_sized
from penstock.rpc import worker_items
from penstock.rpc.call import ServerCall
from penstock.rpc.methods import both_stream, unary
from penstock.rpc.reading import required
from penstock.rpc.work_stream import WorkStream
from penstock.wire import penstock_v1 as w
from penstock.wire.model import MessageResult, PublishRequest, StartRequest, StartResult
from penstock.wire.noun import text_bytes

_PREFIX: Final = "/penstock.v1.Worker/"


class WorkerService:
    """Batch start, publish, complete, fail, release, heartbeat; and the stream."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def __mapping__(self) -> dict[str, Handler]:
        methods = {
            "StartInstances": unary(self.start, w.StartInstancesRequest, w.StartInstancesResponse),
            "PublishMessages": unary(self.publish, w.PublishMessagesRequest, w.PublishMessagesResponse),
            "CompleteJobs": unary(self.complete, w.CompleteJobsRequest, w.CompleteJobsResponse),
            "FailJobs": unary(self.fail, w.FailJobsRequest, w.FailJobsResponse),
            "ReleaseJobs": unary(self.release, w.ReleaseJobsRequest, w.ReleaseJobsResponse),
            "ParkJobs": unary(self.park, w.ParkJobsRequest, w.ParkJobsResponse),
            "HeartbeatJobs": unary(self.heartbeat, w.HeartbeatJobsRequest, w.HeartbeatJobsResponse),
            "Work": both_stream(self.work, w.WorkRequest, w.WorkResponse),
        }
        return {_PREFIX + name: handler for name, handler in methods.items()}

    async def start(self, request: w.StartInstancesRequest, _call: object) -> w.StartInstancesResponse:
        """Each item is started or has an error of its own."""
        check_count(len(request.items), "items")
        requests: list[StartRequest] = []
        refused: dict[int, StartResult] = {}

        def read() -> None:
            for index, item in enumerate(request.items):
                try:
                    requests.append(start_request(item, self._engine.limits))
                except (BadRequest, PayloadTooLarge) as error:
                    refused[index] = StartResult(error=error.code, reason=error.reason)

        await run_sized(sum(text_bytes(item.variables) for item in request.items), read)
        answers = iter(await self._engine.instances.start_batch(requests))
        results = [refused.get(index) or next(answers) for index in range(len(request.items))]
        return w.StartInstancesResponse(results)

    async def publish(self, request: w.PublishMessagesRequest, _call: object) -> w.PublishMessagesResponse:
        """Each message is published or has an error of its own."""
        check_count(len(request.messages), "messages")
        limits = self._engine.limits
        messages: list[PublishRequest] = []
        refused: dict[int, MessageResult] = {}

        def read() -> None:
            for index, item in enumerate(request.messages):
                try:
                    variables = given_variables(item.variables, limits, "variables")
                    message_id, ttl, deliver = item.message_id or None, item.ttl or None, item.deliver or None
                    messages.append(
                        PublishRequest(
                            name=required(item.name, "name"),
                            correlation_key=required(item.correlation_key, "correlation_key"),
                            variables=variables,
                            ttl=ttl,
                            message_id=message_id,
                            deliver=deliver,
                        )
                    )
                except (BadRequest, PayloadTooLarge) as error:
                    refused[index] = MessageResult(error=error.code, reason=error.reason)

        await run_sized(sum(text_bytes(item.variables) for item in request.messages), read)
        answers = iter(await self._engine.messages.publish_many(messages))
        return w.PublishMessagesResponse(
            [refused.get(index) or next(answers) for index in range(len(request.messages))]
        )

    async def complete(self, request: w.CompleteJobsRequest, _call: object) -> w.CompleteJobsResponse:
        """Return one outcome each."""
        worker_id = required(request.worker_id, "worker_id")
        check_count(len(request.completions), "completions")
        return w.CompleteJobsResponse(await worker_items.complete(self._engine, worker_id, request.completions))

    async def fail(self, request: w.FailJobsRequest, _call: object) -> w.FailJobsResponse:
        """Return one outcome each."""
        worker_id = required(request.worker_id, "worker_id")
        check_count(len(request.failures), "failures")
        return w.FailJobsResponse(await worker_items.fail(self._engine, worker_id, request.failures))

    async def release(self, request: w.ReleaseJobsRequest, _call: object) -> w.ReleaseJobsResponse:
        """Return one outcome each."""
        worker_id = required(request.worker_id, "worker_id")
        check_count(len(request.releases), "releases")
        return w.ReleaseJobsResponse(await worker_items.release(self._engine, worker_id, request.releases))

    async def park(self, request: w.ParkJobsRequest, _call: object) -> w.ParkJobsResponse:
        """Return one outcome each."""
        worker_id = required(request.worker_id, "worker_id")
        check_count(len(request.parks), "parks")
        return w.ParkJobsResponse(await worker_items.park(self._engine, worker_id, request.parks))

    async def heartbeat(self, request: w.HeartbeatJobsRequest, _call: object) -> w.HeartbeatJobsResponse:
        """Return the new end of the lease or an outcome each."""
        worker_id = required(request.worker_id, "worker_id")
        check_count(len(request.heartbeats), "heartbeats")
        return w.HeartbeatJobsResponse(await worker_items.heartbeat(self._engine, worker_id, request.heartbeats))

    async def work(self, call: ServerCall[w.WorkRequest, w.WorkResponse]) -> None:
        """See `work_stream`."""
        await WorkStream(self._engine, call).run()


def start_request(item: StartRequest, limits: PayloadLimits) -> StartRequest:
    """What is empty is not given. Raises BadRequest, PayloadTooLarge."""
    return StartRequest(
        definition_id=required(item.definition_id, "definition_id"),
        definition_version=item.definition_version,
        variables=given_variables(item.variables, limits, "variables") or b"{}",
        business_key=item.business_key or None,
        instance_key=item.instance_key or None,
        keep_instance_key=item.keep_instance_key,
        idempotency_key=item.idempotency_key or None,
        priority=item.priority,
        flow_key=item.flow_key or None,
        start_at=item.start_at or None,
        delay=item.delay or None,
        dedupe=item.dedupe,
        throttle=item.throttle,
        debounce=item.debounce,
        wait_seconds=item.wait_seconds,
    )
