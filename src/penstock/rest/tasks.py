"""The route on jobs by state: those that failed come by pages, too."""

from __future__ import annotations

import msgspec
from quart import Response, request

from penstock.engine.engine import Engine
from penstock.engine.requests.payload import check_variables
from penstock.loop.offload import run_sized
from penstock.rest.codec import PublishBody, UserTaskBody, decoder, given_variables, optional_decoder
from penstock.rest.exchange import NO_CONTENT, Reply, text_header
from penstock.rest.reading import body_of, query_flag, query_number, query_slice, query_text, respond
from penstock.rest.starts import IDEMPOTENCY_KEY
from penstock.wire.model import PublishRequest, Signal, UserTaskCompletion

_read_completion = optional_decoder(UserTaskBody)
_read_message = decoder(PublishBody)
_encode = msgspec.json.Encoder().encode


class TaskRoutes:
    """One route."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def complete_user_task(self, id: str, step_id: str) -> Response:
        """``POST /v1/instances/{id}/user-tasks/{stepId}/complete``"""
        data = await body_of(request)
        limits = self._engine.limits

        def read() -> UserTaskCompletion:
            body = _read_completion(data)
            variables = given_variables(body.variables, limits)
            if variables is None:
                variables = given_variables(body.result, limits, "result")
            return UserTaskCompletion(
                instance_id=id,
                step_id=step_id,
                variables=variables,
                completed_by=body.completed_by or body.worker_id,
                execution_id=body.execution_id,
            )

        await self._engine.tasks.complete_user_task(await run_sized(len(data), read))
        return respond(NO_CONTENT)

    async def signal(self, id: str, step_id: str) -> Response:
        """``POST /v1/instances/{id}/signals/{stepId}``"""
        await self._engine.tasks.signal(await self._read_signal(id, step_id))
        return respond(NO_CONTENT)

    async def signal_by_key(self, id: str, key: str, step_id: str) -> Response:
        """``POST /v1/definitions/{id}/keys/{key}/signals/{stepId}``"""
        await self._engine.tasks.signal_by_key(id, key, await self._read_signal("", step_id))
        return respond(NO_CONTENT)

    async def _read_signal(self, instance_id: str, step_id: str) -> Signal:
        body = await body_of(request)
        headers: dict[bytes, bytes] = dict(request.scope["headers"])
        limits = self._engine.limits
        variables = await run_sized(len(body), lambda: check_variables(body, limits, "body") if body.strip() else None)
        return Signal(
            instance_id=instance_id,
            step_id=step_id,
            variables=variables,
            idempotency_key=text_header(headers, IDEMPOTENCY_KEY),
            signal_id=query_text(request, "signalId"),
            buffer=query_flag(request, "buffer"),
        )

    async def list_signals(self, id: str) -> Response:
        """``GET /v1/instances/{id}/signals``"""
        return respond(Reply(200, b'{"items":%b}' % _encode(await self._engine.tasks.buffered(id))))

    async def publish(self) -> Response:
        """``POST /v1/messages``"""
        data = await body_of(request)
        limits = self._engine.limits

        def read() -> PublishRequest:
            body = _read_message(data)
            return PublishRequest(
                name=body.name or "",
                correlation_key=body.correlation_key or "",
                variables=given_variables(body.variables, limits),
                ttl=body.ttl,
                message_id=body.message_id,
                deliver=body.deliver,
            )

        published = await self._engine.messages.publish(await run_sized(len(data), read))
        return respond(Reply(200, _encode(published)))

    async def list_messages(self) -> Response:
        """``GET /v1/messages``"""
        found = await self._engine.messages.listing(
            query_text(request, "name"),
            query_text(request, "correlationKey"),
            query_text(request, "cursor"),
            query_number(request, "limit"),
        )
        return respond(Reply(200, _encode(found)))

    async def list_jobs(self) -> Response:
        """``GET /v1/jobs``: those that failed for good, or of another status"""
        status = query_text(request, "status") or "FAILED"
        job_type = query_text(request, "jobType")
        if status != "FAILED":
            cursor, limit = query_slice(request) or (None, 0)
            found = await self._engine.open_work.jobs(status, job_type, cursor, limit)
            return respond(Reply(200, _encode(found)))
        if (part := query_slice(request)) is not None:
            return respond(Reply(200, _encode(await self._engine.jobs.failed_slice(*part, job_type))))
        page = await self._engine.jobs.failed(
            query_number(request, "page"), query_number(request, "pageSize"), job_type
        )
        return respond(Reply(200, _encode(page)))
