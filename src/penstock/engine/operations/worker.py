"""What serves the calls of workers and starters that take many items: each is done, or refused by itself."""

from __future__ import annotations

import msgspec

from penstock.api import jobs as api
from penstock.engine.engine import Engine
from penstock.engine.operations import worker_items
from penstock.engine.requests.bound import Binding, bind, needed
from penstock.engine.requests.payload import PayloadLimits, check_count, given_variables
from penstock.wire import penstock_v1 as w
from penstock.wire.model import MessageResult, PublishRequest, StartRequest, StartResult
from penstock.wire.noun import text_bytes


def bindings(engine: Engine) -> tuple[Binding, ...]:
    """Return what serves them."""
    served = _Items(engine)
    return (
        bind(api.START_INSTANCES, served.start),
        bind(api.PUBLISH_MESSAGES, served.publish),
        bind(api.COMPLETE_JOBS, served.complete),
        bind(api.FAIL_JOBS, served.fail),
        bind(api.RELEASE_JOBS, served.release),
        bind(api.PARK_JOBS, served.park),
        bind(api.HEARTBEAT_JOBS, served.heartbeat),
    )


class _Items:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def start(self, ask: w.StartInstancesRequest) -> w.StartInstancesResponse:
        """Start each item, or tell its error."""
        check_count(len(ask.items), "items")
        limits = self._engine.limits
        results = await worker_items.serve_items(
            ask.items,
            lambda item: _start_request(item, limits),
            self._engine.instances.start_batch,
            lambda _, error: StartResult(error=error.code, reason=error.reason),
            sum(text_bytes(item.variables) for item in ask.items),
        )
        return w.StartInstancesResponse(results)

    async def publish(self, ask: w.PublishMessagesRequest) -> w.PublishMessagesResponse:
        """Publish each message, or tell its error."""
        check_count(len(ask.messages), "messages")
        limits = self._engine.limits
        results = await worker_items.serve_items(
            ask.messages,
            lambda item: _message(item, limits),
            self._engine.messages.publish_many,
            lambda _, error: MessageResult(error=error.code, reason=error.reason),
            sum(text_bytes(item.variables) for item in ask.messages),
        )
        return w.PublishMessagesResponse(results)

    async def complete(self, ask: w.CompleteJobsRequest) -> w.CompleteJobsResponse:
        """Return one outcome each."""
        check_count(len(ask.completions), "completions")
        return w.CompleteJobsResponse(await worker_items.complete(self._engine, ask.worker_id, ask.completions))

    async def fail(self, ask: w.FailJobsRequest) -> w.FailJobsResponse:
        """Return one outcome each."""
        check_count(len(ask.failures), "failures")
        return w.FailJobsResponse(await worker_items.fail(self._engine, ask.worker_id, ask.failures))

    async def release(self, ask: w.ReleaseJobsRequest) -> w.ReleaseJobsResponse:
        """Return one outcome each."""
        check_count(len(ask.releases), "releases")
        return w.ReleaseJobsResponse(await worker_items.release(self._engine, ask.worker_id, ask.releases))

    async def park(self, ask: w.ParkJobsRequest) -> w.ParkJobsResponse:
        """Return one outcome each."""
        check_count(len(ask.parks), "parks")
        return w.ParkJobsResponse(await worker_items.park(self._engine, ask.worker_id, ask.parks))

    async def heartbeat(self, ask: w.HeartbeatJobsRequest) -> w.HeartbeatJobsResponse:
        """Return the new end of the lease or an outcome each."""
        check_count(len(ask.heartbeats), "heartbeats")
        return w.HeartbeatJobsResponse(await worker_items.heartbeat(self._engine, ask.worker_id, ask.heartbeats))


def _start_request(item: StartRequest, limits: PayloadLimits) -> StartRequest:
    """Read a start: what is empty is not given. Raises BadRequest, PayloadTooLarge."""
    return msgspec.structs.replace(
        item,
        definition_id=needed(item.definition_id or None, "definition_id"),
        variables=given_variables(item.variables, limits, "variables") or b"{}",
        business_key=item.business_key or None,
        instance_key=item.instance_key or None,
        idempotency_key=item.idempotency_key or None,
        flow_key=item.flow_key or None,
        start_at=item.start_at or None,
        delay=item.delay or None,
    )


def _message(item: PublishRequest, limits: PayloadLimits) -> PublishRequest:
    """Read a message, likewise."""
    variables = given_variables(item.variables, limits, "variables")
    return PublishRequest(
        name=needed(item.name or None, "name"),
        correlation_key=needed(item.correlation_key or None, "correlation_key"),
        variables=variables,
        ttl=item.ttl or None,
        message_id=item.message_id or None,
        deliver=item.deliver or None,
    )
