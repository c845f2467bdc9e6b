"""What serves the operations on durable runs: messages to them, and what programs ask that serve workflows.

Must not decide anything but whom a call reaches: executors are limited to their Apps.
"""

from __future__ import annotations

from typing import Final

from penstock.access.identity import actor, check_app, is_limited_to_apps
from penstock.api import runs as api
from penstock.api.permission import Permission
from penstock.core.graph.definition import BUSINESS_KEY_MAX_CHARS
from penstock.engine.definitions.definitions import app_of
from penstock.engine.engine import Engine
from penstock.engine.requests.bound import Binding, bind, needed
from penstock.engine.requests.paging import NAME_MAX_CHARS
from penstock.engine.requests.payload import EMPTY_OBJECT, check_count, check_text, given_variables
from penstock.engine.runs.code import CodeWorkflow
from penstock.engine.runs.records import run_record, time_of
from penstock.engine.schedules.declared import InCode
from penstock.errors import BadRequest
from penstock.loop.offload import run_sized
from penstock.store.rows.origins import OriginRow
from penstock.wire import runs_v1 as w
from penstock.wire.alike import alike
from penstock.wire.model import StartRequest

LIST_MAX: Final = 1_000
ENDED_MAX: Final = 1_000
OVERHEAD_BYTES: Final = 16_384
"""Of a message beside its payloads."""


def bindings(engine: Engine) -> tuple[Binding, ...]:
    """Return what serves them."""
    served = _Runs(engine)
    return (
        bind(api.SEND_MESSAGE, served.send_message),
        bind(api.RESOLVE_MESSAGE, served.resolve_message),
        bind(api.REGISTER_WORKFLOWS, served.register),
        bind(api.START_RUN, served.start),
        bind(api.FIND_RUN, served.find),
        bind(api.LIST_RUNS, served.list),
        bind(api.SEND_TO_RUN, served.send),
        bind(api.RETRY_RUN, served.retry),
        bind(api.LIST_ENDED_RUNS, served.ended),
        bind(api.LIST_RECORDS, served.records),
        bind(api.ADOPT_RUNS, served.adopt),
    )


class _Runs:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def register(self, ask: w.RegisterWorkflowsRequest) -> w.RegisterWorkflowsResponse:
        """Register each; the first that can't be is told."""
        check_count(len(ask.workflows), "workflows")
        check_app(ask.app)
        for each in ask.workflows:
            workflow = CodeWorkflow(needed(each.name or None, "name"), each.version, ask.app)
            await self._engine.code.register(workflow, anew=True)
            await self._engine.signatures.publish(workflow.job_type, each.arguments_schema or None)
            await self._engine.origins.register(workflow, OriginRow(each.origin), exclusive=False, lives_here=False)
            if each.queue:
                await self._engine.queues.join(each.queue, workflow.job_type)
            in_code = InCode(each.schedule, each.queue, each.queue_policy)
            await self._engine.declarations.register(workflow, in_code)
        settings = self._engine.settings
        fits = settings.grpc_max_message_bytes // 2 - OVERHEAD_BYTES  # a message may hold a result and a view
        return w.RegisterWorkflowsResponse(max(min(settings.payload_max_bytes, fits), 1))

    async def start(self, ask: w.StartRunRequest) -> w.StartRunResponse:
        """Start a run. Registers the workflow when nobody has, if the caller may execute."""
        workflow = CodeWorkflow(ask.workflow, ask.version, ask.app)
        check_app(ask.app, Permission.OPERATE)
        limits, given = self._engine.limits, ask.arguments
        arguments = await run_sized(len(given), lambda: given_variables(given, limits, "arguments"))
        started = await self._engine.code.start(
            workflow,
            arguments or EMPTY_OBJECT,
            id=ask.id or None,
            asked=alike(ask, StartRequest, priority=ask.priority, idempotency_key=None),
            idempotency_key=ask.idempotency_key or None,
        )
        return w.StartRunResponse(started.id, bool(started.deduplicated))

    async def find(self, ask: w.FindRunRequest) -> w.FindRunResponse:
        """Find a run. Raises NotFound."""
        check_app(ask.app, Permission.VIEW)
        found = await self._find(ask)
        await self._check_app_of(found, Permission.VIEW)
        return w.FindRunResponse(found)

    async def _check_app_of(self, instance_id: str, otherwise: Permission) -> None:
        if is_limited_to_apps(otherwise):
            check_app(app_of((await self._engine.instances.get(instance_id)).definition_id))

    async def _find(self, ask: w.FindRunRequest) -> str:
        check_count(len(ask.workflows), "workflows")
        id = check_text(needed(ask.id or None, "id"), "id", BUSINESS_KEY_MAX_CHARS)
        return await self._engine.code.find(ask.app, id, ask.workflows, or_any=ask.or_any)

    async def list(self, ask: w.ListRunsRequest) -> w.ListRunsResponse:
        """List the latest runs of a workflow, or of all."""
        if not 0 < ask.limit <= LIST_MAX:
            raise BadRequest(f"limit: must be between 1 and {LIST_MAX:,}")
        workflow, status = ask.workflow or None, ask.status or None
        latest = self._engine.code.latest(ask.app, workflow, status, ask.limit, blocked=ask.blocked)
        return w.ListRunsResponse(await latest)

    async def send(self, ask: w.SendToRunRequest) -> None:
        """Send a message. Raises Conflict when the run has ended, WrongValue when it waits for another message."""
        found = ask.instance_id or (await self._find(ask.to) if ask.to is not None else "")
        instance_id = needed(found or None, "instance_id")
        await self._check_app_of(instance_id, Permission.OPERATE)
        by = actor()
        sender = f"{ask.sender} ({by})" if ask.sender and by else ask.sender or by
        await self._engine.runs.send(
            instance_id, ask.name, ask.payload, dedup=ask.dedup or None, sender=sender, force=ask.force
        )

    async def send_message(self, ask: api.SendMessage) -> None:
        """Send a message to an instance."""
        name = check_text(needed(ask.name or None, "name"), "name", NAME_MAX_CHARS)
        payload = bytes(ask.payload) or b"null"
        await self._engine.runs.send(ask.id, name, payload, dedup=ask.idempotency_key, force=ask.force)

    async def resolve_message(self, ask: api.ResolveMessage) -> None:
        """Drop or correct a message. Raises Conflict when it is none that the run rejects now."""
        payload = bytes(ask.payload)
        if ask.drop == bool(payload):
            raise BadRequest("drop, payload: give one of them")
        await self._engine.runs.resolve_message(ask.id, ask.position, payload or None, note=ask.note, force=ask.force)

    async def retry(self, ask: w.RetryRunRequest) -> None:
        """Let a run go on. Raises Conflict when it has not failed."""
        await self._engine.instances.retry_run(ask.instance_id, ask.from_path or None, ask.note or None)

    async def ended(self, ask: w.EndedRunsRequest) -> w.EndedRunsResponse:
        """Tell which have ended."""
        if len(ask.instance_ids) > ENDED_MAX:
            raise BadRequest(f"instance_ids: has more than {ENDED_MAX:,} ids")
        return w.EndedRunsResponse(await self._engine.instances.find_ended(ask.instance_ids))

    async def records(self, ask: w.RunRecordsRequest) -> w.RunRecordsResponse:
        """Return a page of them, the first one with the arguments."""
        page = await self._engine.runs.records(ask.instance_id, ask.after or None)
        return w.RunRecordsResponse(
            [run_record(row) for row in page.records], page.more, time_of(page.began_at), page.arguments or b""
        )

    async def adopt(self, ask: w.AdoptRunsRequest) -> w.AdoptRunsResponse:
        """Adopt runs. Raises NotFound where no program without a name has served the workflow."""
        return w.AdoptRunsResponse(await self._engine.origins.adopt(ask.workflow))
