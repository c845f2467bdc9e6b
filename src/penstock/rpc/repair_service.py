"""``penstock.v1.Repair``: mending instances, one or many at once. The operations are those of REST."""

from __future__ import annotations

from typing import Final

from grpclib.const import Handler
from msgspec import Raw

from penstock.engine.engine import Engine
from penstock.engine.repair.bulk_acts import rule_of
from penstock.engine.repair.migrations import MigrationRequest
from penstock.engine.repair.repair import StepSkip, TokenMove, VariablesEdit
from penstock.engine.requests.payload import EMPTY_OBJECT
from penstock.errors import BadRequest
from penstock.rpc.methods import unary
from penstock.rpc.reading import known, required
from penstock.wire import repair_v1 as w
from penstock.wire.attention import AcknowledgeBody, Attention
from penstock.wire.audit import AuditTrailRecord
from penstock.wire.bulk import BulkFilter, BulkRequest
from penstock.wire.model import Instance, RunTree
from penstock.wire.repair import BulkPreview, BulkStarted, BulkView, ImpactView, MigrationCheck
from penstock.wire.workflow_v1 import InstanceStatus

LIST_DEFAULT: Final = 50
PER_SECONDS: Final = 1_000
"""A rate is a whole number in so many seconds."""
_PREFIX: Final = "/penstock.v1.Repair/"


class Repair:
    """Edit variables, retry, skip, move, migrate; bulk operations; impact; what an instance has called."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def __mapping__(self) -> dict[str, Handler]:
        methods = {
            "EditVariables": unary(self.edit, w.EditVariablesRequest, Instance),
            "RetryInstance": unary(self.retry, w.RetryInstanceRequest, Instance),
            "SkipStep": unary(self.skip, w.SkipStepRequest, Instance),
            "SetPriority": unary(self.set_priority, w.SetPriorityRequest, Instance),
            "MoveToken": unary(self.move, w.MoveTokenRequest, Instance),
            "MigrateInstance": unary(self.migrate, w.MigrateInstanceRequest, Instance),
            "CheckMigration": unary(self.check, w.CheckMigrationRequest, MigrationCheck),
            "PreviewBulk": unary(self.preview_bulk, w.BulkRequest, BulkPreview),
            "StartBulk": unary(self.start_bulk, w.BulkRequest, BulkStarted),
            "GetBulk": unary(self.get_bulk, w.GetBulkRequest, BulkView),
            "ListBulk": unary(self.list_bulk, w.ListBulkRequest, w.ListBulkResponse),
            "StopBulk": unary(self.stop_bulk, w.StopBulkRequest, BulkView),
            "GetImpact": unary(self.impact, w.GetImpactRequest, ImpactView),
            "ActivateVersion": unary(self.activate, w.ActivateVersionRequest, w.ActivateVersionResponse),
            "DeleteDefinition": unary(self.delete, w.DeleteDefinitionRequest, w.DeleteDefinitionResponse),
            "GetInstance": unary(self.get, w.GetInstanceRequest, Instance),
            "GetTree": unary(self.tree, w.GetTreeRequest, RunTree),
            "ListAudit": unary(self.list_audit, w.ListAuditRequest, w.ListAuditResponse),
            "ListAttention": unary(self.list_attention, w.ListAttentionRequest, w.ListAttentionResponse),
            "AcknowledgeAttention": unary(
                self.acknowledge, w.AcknowledgeAttentionRequest, w.AcknowledgeAttentionResponse
            ),
            "WithdrawAcknowledgement": unary(
                self.withdraw, w.WithdrawAcknowledgementRequest, w.WithdrawAcknowledgementResponse
            ),
        }
        return {_PREFIX + name: handler for name, handler in methods.items()}

    async def edit(self, request: w.EditVariablesRequest, _call: object) -> Instance:
        """FAILED_PRECONDITION when it neither waits nor has failed."""
        edit = VariablesEdit(
            set=_variables(request.set),
            remove=request.remove,
            if_version=request.if_version or None,
            note=request.note or None,
        )
        return await self._engine.repair.edit_variables(required(request.instance_id, "instance_id"), edit)

    async def retry(self, request: w.RetryInstanceRequest, _call: object) -> Instance:
        """At the failed step, or at another one."""
        id, note = required(request.instance_id, "instance_id"), request.note or None
        if request.from_step_id:
            return await self._engine.repair.retry_from(id, request.from_step_id, request.step_id or None, note)
        if request.step_id:
            raise BadRequest("step_id: needs a from_step_id, where the instance is to go on")
        return await self._engine.instances.retry(id, note, again=request.again)

    async def skip(self, request: w.SkipStepRequest, _call: object) -> Instance:
        """Its result is merged as a completion's."""
        skip = StepSkip(
            step_id=required(request.step_id, "step_id"),
            variables=_variables(request.variables),
            execution_id=request.execution_id or None,
            note=request.note or None,
        )
        return await self._engine.repair.skip(required(request.instance_id, "instance_id"), skip)

    async def set_priority(self, request: w.SetPriorityRequest, _call: object) -> Instance:
        """FAILED_PRECONDITION when it has ended."""
        if request.priority is None:
            raise BadRequest("priority: is required")
        return await self._engine.repair.set_priority(required(request.instance_id, "instance_id"), request.priority)

    async def move(self, request: w.MoveTokenRequest, _call: object) -> Instance:
        """Refused where a join would wait for ever."""
        move = TokenMove(
            step_id=required(request.step_id, "step_id"),
            to_step_id=required(request.to_step_id, "to_step_id"),
            execution_id=request.execution_id or None,
            note=request.note or None,
        )
        return await self._engine.repair.move(required(request.instance_id, "instance_id"), move)

    async def migrate(self, request: w.MigrateInstanceRequest, _call: object) -> Instance:
        """FAILED_PRECONDITION with every reason."""
        id = required(request.instance_id, "instance_id")
        rule = rule_of(request.timers)
        wanted = MigrationRequest(version=request.version, steps=request.steps, timers=rule, note=request.note or None)
        await self._engine.migrations.migrate(id, wanted)
        return await self._engine.instances.after_change(id)

    async def check(self, request: w.CheckMigrationRequest, _call: object) -> MigrationCheck:
        """Nothing is changed."""
        wanted = MigrationRequest(version=request.version, steps=request.steps, timers=rule_of(request.timers))
        return await self._engine.migrations.check(required(request.instance_id, "instance_id"), wanted)

    async def preview_bulk(self, request: w.BulkRequest, _call: object) -> BulkPreview:
        """Nothing is changed."""
        return await self._engine.bulk.preview(_wanted(request))

    async def start_bulk(self, request: w.BulkRequest, _call: object) -> BulkStarted:
        """FAILED_PRECONDITION when nothing matches."""
        return await self._engine.bulk.create(_wanted(request))

    async def get_bulk(self, request: w.GetBulkRequest, _call: object) -> BulkView:
        """As it stands."""
        return await self._engine.bulk.get(required(request.id, "id"))

    async def list_bulk(self, request: w.ListBulkRequest, _call: object) -> w.ListBulkResponse:
        """Newest first."""
        found = await self._engine.bulk.list(request.cursor or None, request.limit or LIST_DEFAULT)
        return w.ListBulkResponse(list(found.items), next=found.next or "")

    async def stop_bulk(self, request: w.StopBulkRequest, _call: object) -> BulkView:
        """What is done stays done."""
        return await self._engine.bulk.stop(required(request.id, "id"))

    async def activate(self, request: w.ActivateVersionRequest, _call: object) -> w.ActivateVersionResponse:
        """NOT_FOUND for version 0, too: it has to be named."""
        id = required(request.definition_id, "definition_id").replace("\0", "\N{REPLACEMENT CHARACTER}")
        if request.version <= 0:
            raise self._engine.definitions.unknown(id, request.version)
        made = await self._engine.definitions.activate(id, request.version)
        return w.ActivateVersionResponse(
            made.id, made.version, made.name, made.description or "", made.uploaded_at, bool(made.active)
        )

    async def delete(self, request: w.DeleteDefinitionRequest, _call: object) -> w.DeleteDefinitionResponse:
        """FAILED_PRECONDITION while a program serves it, or runs are open."""
        await self._engine.code.delete(required(request.definition_id, "definition_id"))
        return w.DeleteDefinitionResponse()

    async def impact(self, request: w.GetImpactRequest, _call: object) -> ImpactView:
        """Nothing is stored."""
        id, body = required(request.definition_id, "definition_id"), request.definition
        definition = await self._engine.definitions.parse(lambda: body, len(body)) if body else None
        return await self._engine.impact.of(id, request.version, definition)

    async def get(self, request: w.GetInstanceRequest, _call: object) -> Instance:
        """With its result."""
        return await self._engine.instances.get(required(request.instance_id, "instance_id"))

    async def list_audit(self, request: w.ListAuditRequest, _call: object) -> w.ListAuditResponse:
        """What people and programs did."""
        found = await self._engine.audit_trail.list(
            request.cursor or None,
            request.limit,
            kind=request.kind or None,
            actor=request.actor or None,
            contains=request.contains or None,
            since=request.since,
            until=request.until,
        )
        return w.ListAuditResponse([_record(one) for one in found.items], found.next or "")

    async def list_attention(self, _request: w.ListAttentionRequest, _call: object) -> w.ListAttentionResponse:
        """What needs somebody."""
        return w.ListAttentionResponse(list(map(_attention, (await self._engine.overview.attention()).items)))

    async def acknowledge(
        self, request: w.AcknowledgeAttentionRequest, _call: object
    ) -> w.AcknowledgeAttentionResponse:
        """By its key."""
        body = AcknowledgeBody(request.count, request.note or None)
        await self._engine.overview.acknowledge(required(request.key, "key"), body)
        return w.AcknowledgeAttentionResponse()

    async def withdraw(
        self, request: w.WithdrawAcknowledgementRequest, _call: object
    ) -> w.WithdrawAcknowledgementResponse:
        """NOT_FOUND where it is not acknowledged."""
        await self._engine.overview.withdraw(required(request.key, "key"))
        return w.WithdrawAcknowledgementResponse()

    async def tree(self, request: w.GetTreeRequest, _call: object) -> RunTree:
        """What it called, and what those called."""
        return await self._engine.runs.tree(required(request.instance_id, "instance_id"))


def _attention(one: Attention) -> w.Attention:
    by = one.acknowledged
    return w.Attention(
        kind=one.kind,
        severity=one.severity,
        text=one.text,
        detail=one.detail,
        count=one.count,
        since=one.since,
        job_type=one.job_type or "",
        query=one.query,
        more=not one.exact,
        key=one.key,
        acknowledged=None if by is None else w.Acknowledgement(by.at, by.until, by.by or "", by.note or ""),
    )


def _record(one: AuditTrailRecord) -> w.AuditTrailRecord:
    return w.AuditTrailRecord(one.at, one.kind, one.actor or "", one.detail or "", one.old or "", one.instance_id or "")


def _variables(text: bytes) -> Raw:
    return Raw(text or EMPTY_OBJECT)


def _wanted(request: w.BulkRequest) -> BulkRequest:
    """What is empty is not given. Raises BadRequest."""
    return BulkRequest(
        action=required(request.action, "action"),
        step_id=request.step_id or None,
        variables=Raw(request.variables) if request.variables else None,
        remove=request.remove or None,
        from_step_id=request.from_step_id or None,
        to_step_id=request.to_step_id or None,
        version=request.version or None,
        steps=request.steps or None,
        timers=request.timers or None,
        filter=None if request.filter is None else _filter(request.filter),
        besides=None if request.besides is None else _filter(request.besides),
        ids=request.ids or None,
        per_second=request.per_1000_seconds / PER_SECONDS if request.per_1000_seconds else None,
        note=request.note or None,
    )


def _filter(given: w.BulkFilter) -> BulkFilter:
    status = known(InstanceStatus, given.status, "status")
    return BulkFilter(
        status=None if status is None else status.name,
        definition_id=given.definition_id or None,
        business_key=given.business_key or None,
        cause=given.cause or None,
        definition_version=given.definition_version or None,
        step_id=given.step_id or None,
        business_key_prefix=given.business_key_prefix or None,
        started_after=given.started_after,
        started_before=given.started_before,
        error_contains=given.error_contains or None,
    )
