"""``penstock.v1.RunService``: runs of durable workflows, for whoever starts them and asks for them.

The operations are those that REST and an engine in a program's own process have; executors come by the Work stream.
"""

from __future__ import annotations

from typing import Final

import msgspec
from grpclib.const import Handler

from penstock.access.identity import actor, check_app, is_limited_to_apps
from penstock.api.permission import Permission
from penstock.core.graph.definition import BUSINESS_KEY_MAX_CHARS
from penstock.engine.definitions.definitions import app_of
from penstock.engine.engine import Engine
from penstock.engine.requests.payload import EMPTY_OBJECT, check_count, check_text
from penstock.engine.runs.code import CodeWorkflow
from penstock.engine.runs.records import run_record, time_of
from penstock.engine.schedules.declared import InCode
from penstock.errors import BadRequest
from penstock.rpc.methods import unary
from penstock.rpc.reading import read_variables, required
from penstock.store.rows.origins import OriginRow
from penstock.wire import runs_v1 as w
from penstock.wire.model import Instance, RunTree, StartRequest

LIST_MAX: Final = 1_000
ENDED_MAX: Final = 1_000
OVERHEAD_BYTES: Final = 16_384
"""Of a message beside its payloads."""
_PREFIX: Final = "/penstock.v1.Runs/"


class RunService:
    """Register, start, find, list, send, cancel, retry, adopt; result, tree, journal, records."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def __mapping__(self) -> dict[str, Handler]:
        methods = {
            "Register": unary(self.register, w.RegisterWorkflowsRequest, w.RegisterWorkflowsResponse),
            "Start": unary(self.start, w.StartRunRequest, w.StartRunResponse),
            "Find": unary(self.find, w.FindRunRequest, w.FindRunResponse),
            "List": unary(self.list, w.ListRunsRequest, w.ListRunsResponse),
            "Send": unary(self.send, w.SendToRunRequest, w.SendToRunResponse),
            "ResolveMessage": unary(self.resolve_message, w.ResolveMessageRequest, w.ResolveMessageResponse),
            "Cancel": unary(self.cancel, w.CancelRunRequest, w.CancelRunResponse),
            "Retry": unary(self.retry, w.RetryRunRequest, w.RetryRunResponse),
            "Result": unary(self.result, w.RunResultRequest, Instance),
            "Ended": unary(self.ended, w.EndedRunsRequest, w.EndedRunsResponse),
            "Tree": unary(self.tree, w.RunTreeRequest, RunTree),
            "Journal": unary(self.journal, w.RunJournalRequest, w.RunJournalResponse),
            "Records": unary(self.records, w.RunRecordsRequest, w.RunRecordsResponse),
            "Adopt": unary(self.adopt, w.AdoptRunsRequest, w.AdoptRunsResponse),
        }
        return {_PREFIX + name: handler for name, handler in methods.items()}

    async def register(self, request: w.RegisterWorkflowsRequest, _call: object) -> w.RegisterWorkflowsResponse:
        """Each is registered; the first that can't be is told."""
        check_count(len(request.workflows), "workflows")
        check_app(request.app)
        for each in request.workflows:
            workflow = CodeWorkflow(required(each.name, "name"), each.version, request.app)
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

    async def start(self, request: w.StartRunRequest, _call: object) -> w.StartRunResponse:
        """Registers the workflow when nobody has, if the caller may execute."""
        workflow = CodeWorkflow(required(request.workflow, "workflow"), request.version, request.app)
        check_app(request.app, Permission.OPERATE)
        arguments = await read_variables(request.arguments, self._engine.limits, "arguments") or EMPTY_OBJECT
        started = await self._engine.code.start(
            workflow,
            arguments,
            id=request.id or None,
            asked=StartRequest(
                priority=request.priority,
                flow_key=request.flow_key or None,
                start_at=request.start_at or None,
                delay=request.delay or None,
                dedupe=request.dedupe,
                throttle=request.throttle,
                debounce=request.debounce,
            ),
            idempotency_key=request.idempotency_key or None,
        )
        return w.StartRunResponse(started.id, bool(started.deduplicated))

    async def find(self, request: w.FindRunRequest, _call: object) -> w.FindRunResponse:
        """NOT_FOUND when there is none."""
        check_app(request.app, Permission.VIEW)
        found = await self._find(request)
        await self._check_app_of(found, Permission.VIEW)
        return w.FindRunResponse(found)

    async def _check_app_of(self, instance_id: str, otherwise: Permission) -> None:
        if is_limited_to_apps(otherwise):
            check_app(app_of((await self._engine.instances.get(instance_id)).definition_id))

    async def _find(self, request: w.FindRunRequest) -> str:
        check_count(len(request.workflows), "workflows")
        id = check_text(required(request.id, "id"), "id", BUSINESS_KEY_MAX_CHARS)
        return await self._engine.code.find(request.app, id, request.workflows, or_any=request.or_any)

    async def list(self, request: w.ListRunsRequest, _call: object) -> w.ListRunsResponse:
        """Of one workflow; without one of all."""
        if not 0 < request.limit <= LIST_MAX:
            raise BadRequest(f"limit: is between 1 and {LIST_MAX:,}")
        workflow, status = request.workflow or None, request.status or None
        latest = self._engine.code.latest(request.app, workflow, status, request.limit, blocked=request.blocked)
        return w.ListRunsResponse(await latest)

    async def send(self, request: w.SendToRunRequest, _call: object) -> w.SendToRunResponse:
        """FAILED_PRECONDITION when the run has ended, INVALID_ARGUMENT when it waits for another message."""
        instance_id = request.instance_id or (await self._find(request.to) if request.to is not None else "")
        await self._check_app_of(required(instance_id, "instance_id"), Permission.OPERATE)
        by = actor()
        sender = f"{request.sender} ({by})" if request.sender and by else request.sender or by
        await self._engine.runs.send(
            required(instance_id, "instance_id"),
            request.name,
            request.payload,
            dedup=request.dedup or None,
            sender=sender,
            force=request.force,
        )
        return w.SendToRunResponse()

    async def resolve_message(self, request: w.ResolveMessageRequest, _call: object) -> w.ResolveMessageResponse:
        """FAILED_PRECONDITION when it is none that the run rejects now."""
        await self._engine.runs.resolve_message(
            required(request.instance_id, "instance_id"),
            required(request.position, "position"),
            request.payload or None,
            note=request.note or None,
            force=request.force,
        )
        return w.ResolveMessageResponse()

    async def cancel(self, request: w.CancelRunRequest, _call: object) -> w.CancelRunResponse:
        """FAILED_PRECONDITION when it has ended."""
        instance_id, reason = required(request.instance_id, "instance_id"), request.reason or None
        await self._engine.instances.cancel(instance_id, reason, force=request.force)
        return w.CancelRunResponse()

    async def retry(self, request: w.RetryRunRequest, _call: object) -> w.RetryRunResponse:
        """FAILED_PRECONDITION when it has not failed."""
        instance_id = required(request.instance_id, "instance_id")
        await self._engine.instances.retry_run(instance_id, request.from_path or None, request.note or None)
        return w.RetryRunResponse()

    async def result(self, request: w.RunResultRequest, _call: object) -> Instance:
        """Also of a run that has not ended."""
        return await self._engine.instances.get(required(request.instance_id, "instance_id"), request.wait_ms / 1_000)

    async def ended(self, request: w.EndedRunsRequest, _call: object) -> w.EndedRunsResponse:
        """Of those that are asked for."""
        if len(request.instance_ids) > ENDED_MAX:
            raise BadRequest(f"instance_ids: {ENDED_MAX:,} at most")
        return w.EndedRunsResponse(await self._engine.instances.find_ended(request.instance_ids))

    async def tree(self, request: w.RunTreeRequest, _call: object) -> RunTree:
        """As REST shows it."""
        return await self._engine.runs.tree(required(request.instance_id, "instance_id"))

    async def journal(self, request: w.RunJournalRequest, _call: object) -> w.RunJournalResponse:
        """Return a slice of it."""
        limit = request.limit or LIST_MAX
        page = await self._engine.runs.journal(
            required(request.instance_id, "instance_id"), request.cursor or None, limit
        )
        return w.RunJournalResponse([msgspec.json.encode(record) for record in page.items], page.next or "")

    async def records(self, request: w.RunRecordsRequest, _call: object) -> w.RunRecordsResponse:
        """Return a page of them, the first one with the arguments."""
        instance_id, runs = required(request.instance_id, "instance_id"), self._engine.runs
        page = await runs.records(instance_id, request.after or None)
        began_at = await runs.began_at(instance_id)
        arguments = b"" if request.after else await runs.arguments(instance_id)
        return w.RunRecordsResponse([run_record(row) for row in page.records], page.more, time_of(began_at), arguments)

    async def adopt(self, request: w.AdoptRunsRequest, _call: object) -> w.AdoptRunsResponse:
        """NOT_FOUND where no program without a name has served it."""
        return w.AdoptRunsResponse(await self._engine.origins.adopt(required(request.workflow, "workflow")))
