"""The gRPC calls that mend instances: ``penstock.v1.Repair``. Pure, as `exchange.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.client.bulk_operation import GetBulk, ListBulk, PreviewBulk, StartBulk, StopBulk
from penstock.client.errors import BadRequest
from penstock.client.grpc.unary import UnaryExchange
from penstock.client.grpc.values import int32, json_text, status_number
from penstock.client.operation import (
    ActivateVersion,
    CheckMigration,
    DeleteDefinition,
    EditVariables,
    GetImpact,
    GetTree,
    MigrateInstance,
    MoveToken,
    Operation,
    RetryInstance,
    SetPriority,
    SkipStep,
)
from penstock.client.work_operation import Acknowledge, ListAttention, ListAudit
from penstock.wire import repair_v1 as w
from penstock.wire.attention import Acknowledgement, Attention, AttentionList
from penstock.wire.audit import AuditTrailRecord
from penstock.wire.bulk import BulkFilter, BulkRequest
from penstock.wire.model import DefinitionSummary, Instance, RunTree
from penstock.wire.page import Page
from penstock.wire.repair import BulkPreview, BulkStarted, BulkView, ImpactView, MigrationCheck

PER_SECONDS = 1_000
"""A rate is a whole number in so many seconds."""
RATE_MAX = 2**32 - 1
_SERVICE = "/penstock.v1.Repair/"


def _as_it_is(answer: Any) -> Any:
    return answer


def _edit(operation: EditVariables) -> UnaryExchange:
    request = w.EditVariablesRequest(
        operation.id,
        json_text(operation.variables),
        list(operation.remove),
        operation.if_version or "",
        operation.note or "",
    )
    return UnaryExchange(f"{_SERVICE}EditVariables", request, Instance, _as_it_is)


def _retry(operation: RetryInstance) -> UnaryExchange:
    request = w.RetryInstanceRequest(
        operation.id, operation.from_step_id or "", operation.step_id or "", operation.note or "", operation.again
    )
    return UnaryExchange(f"{_SERVICE}RetryInstance", request, Instance, _as_it_is)


def _skip(operation: SkipStep) -> UnaryExchange:
    request = w.SkipStepRequest(
        operation.id,
        operation.step_id,
        json_text(operation.variables),
        operation.execution_id or "",
        operation.note or "",
    )
    return UnaryExchange(f"{_SERVICE}SkipStep", request, Instance, _as_it_is)


def _set_priority(operation: SetPriority) -> UnaryExchange:
    request = w.SetPriorityRequest(operation.id, int32(operation.priority, "priority"))
    return UnaryExchange(f"{_SERVICE}SetPriority", request, Instance, _as_it_is)


def _move(operation: MoveToken) -> UnaryExchange:
    request = w.MoveTokenRequest(
        operation.id, operation.step_id, operation.to_step_id, operation.execution_id or "", operation.note or ""
    )
    return UnaryExchange(f"{_SERVICE}MoveToken", request, Instance, _as_it_is)


def _migrate(operation: MigrateInstance) -> UnaryExchange:
    version, steps = int32(operation.version, "version"), dict(operation.steps or {})
    request = w.MigrateInstanceRequest(operation.id, version, steps, operation.note or "", operation.timers or "")
    return UnaryExchange(f"{_SERVICE}MigrateInstance", request, Instance, _as_it_is)


def _check(operation: CheckMigration) -> UnaryExchange:
    version, steps = int32(operation.version, "version"), dict(operation.steps or {})
    request = w.CheckMigrationRequest(operation.id, version, steps, operation.timers or "")
    return UnaryExchange(f"{_SERVICE}CheckMigration", request, MigrationCheck, _as_it_is)


def _list_bulk(operation: ListBulk) -> UnaryExchange:
    window = operation.window
    request = w.ListBulkRequest(window.cursor or "", int32(window.limit, "limit"))

    def read(answer: w.ListBulkResponse) -> Page[BulkView]:
        return Page(items=answer.operations, next=answer.next or None)

    return UnaryExchange(f"{_SERVICE}ListBulk", request, w.ListBulkResponse, read)


def _list_audit(operation: ListAudit) -> UnaryExchange:
    window = operation.window
    request = w.ListAuditRequest(
        operation.kind or "",
        operation.actor or "",
        operation.contains or "",
        operation.since,
        operation.until,
        window.cursor or "",
        int32(window.limit, "limit"),
    )

    def read(answer: w.ListAuditResponse) -> Page[AuditTrailRecord]:
        return Page(items=[_record(one) for one in answer.records], next=answer.next or None)

    return UnaryExchange(f"{_SERVICE}ListAudit", request, w.ListAuditResponse, read)


def _record(one: w.AuditTrailRecord) -> AuditTrailRecord:
    assert one.at is not None
    return AuditTrailRecord(
        one.at, one.kind, one.actor or None, one.detail or None, one.old or None, one.instance_id or None
    )


def _list_attention(_operation: ListAttention) -> UnaryExchange:
    def read(answer: w.ListAttentionResponse) -> AttentionList:
        return AttentionList([_attention(one) for one in answer.items])

    return UnaryExchange(f"{_SERVICE}ListAttention", w.ListAttentionRequest(), w.ListAttentionResponse, read)


def _attention(one: w.Attention) -> Attention:
    by = one.acknowledged
    return Attention(
        kind=one.kind,
        severity=one.severity,
        text=one.text,
        detail=one.detail,
        count=one.count,
        since=one.since,
        job_type=one.job_type or None,
        query=one.query,
        exact=not one.more,
        key=one.key,
        acknowledged=None
        if by is None or by.at is None or by.until is None
        else Acknowledgement(by.at, by.until, by.by or None, by.note or None),
    )


def _acknowledge(operation: Acknowledge) -> UnaryExchange:
    if operation.withdraw:
        withdrawal = w.WithdrawAcknowledgementRequest(operation.key)
        return UnaryExchange(
            f"{_SERVICE}WithdrawAcknowledgement", withdrawal, w.WithdrawAcknowledgementResponse, _nothing
        )
    request = w.AcknowledgeAttentionRequest(operation.key, int32(operation.count, "count"), operation.note or "")
    return UnaryExchange(f"{_SERVICE}AcknowledgeAttention", request, w.AcknowledgeAttentionResponse, _nothing)


def _bulk(wanted: BulkRequest) -> w.BulkRequest:
    rate = round((wanted.per_second or 0) * PER_SECONDS)
    if wanted.per_second is not None and not 0 < rate <= RATE_MAX:
        raise BadRequest(f"per_second: {wanted.per_second} does not fit")
    return w.BulkRequest(
        action=wanted.action,
        filter=_filter(wanted.filter),
        ids=wanted.ids or [],
        besides=_filter(wanted.besides),
        step_id=wanted.step_id or "",
        variables=json_text(wanted.variables),
        remove=wanted.remove or [],
        from_step_id=wanted.from_step_id or "",
        to_step_id=wanted.to_step_id or "",
        version=int32(wanted.version, "version"),
        steps=wanted.steps or {},
        timers=wanted.timers or "",
        per_1000_seconds=rate,
        note=wanted.note or "",
    )


def _filter(wanted: BulkFilter | None) -> w.BulkFilter | None:
    if wanted is None:
        return None
    return w.BulkFilter(
        status=status_number(wanted.status),
        definition_id=wanted.definition_id or "",
        business_key=wanted.business_key or "",
        cause=wanted.cause or "",
        definition_version=int32(wanted.definition_version, "definition_version"),
        step_id=wanted.step_id or "",
        business_key_prefix=wanted.business_key_prefix or "",
        started_after=wanted.started_after,
        started_before=wanted.started_before,
        error_contains=wanted.error_contains or "",
    )


def _activate_version(operation: ActivateVersion) -> UnaryExchange:
    request = w.ActivateVersionRequest(operation.id, int32(operation.version, "version"))
    return UnaryExchange(f"{_SERVICE}ActivateVersion", request, w.ActivateVersionResponse, _read_version)


def _delete_definition(operation: DeleteDefinition) -> UnaryExchange:
    request = w.DeleteDefinitionRequest(operation.id)
    return UnaryExchange(f"{_SERVICE}DeleteDefinition", request, w.DeleteDefinitionResponse, _nothing)


def _nothing(_answer: object) -> None:
    return None


def _read_version(answer: w.ActivateVersionResponse) -> DefinitionSummary:
    return DefinitionSummary(
        answer.id, answer.version, answer.name, answer.uploaded_at, answer.description or None, answer.active
    )


def _get_impact(operation: GetImpact) -> UnaryExchange:
    version = int32(operation.version, "version")
    request = w.GetImpactRequest(operation.id, version, operation.document or b"")
    return UnaryExchange(f"{_SERVICE}GetImpact", request, ImpactView, _as_it_is)


REPAIR_EXCHANGES: dict[type[Operation[Any]], Callable[[Any], UnaryExchange]] = {
    EditVariables: _edit,
    RetryInstance: _retry,
    SkipStep: _skip,
    SetPriority: _set_priority,
    MoveToken: _move,
    MigrateInstance: _migrate,
    CheckMigration: _check,
    PreviewBulk: lambda each: UnaryExchange(f"{_SERVICE}PreviewBulk", _bulk(each.request), BulkPreview, _as_it_is),
    StartBulk: lambda each: UnaryExchange(f"{_SERVICE}StartBulk", _bulk(each.request), BulkStarted, _as_it_is),
    GetBulk: lambda each: UnaryExchange(f"{_SERVICE}GetBulk", w.GetBulkRequest(each.id), BulkView, _as_it_is),
    ListBulk: _list_bulk,
    StopBulk: lambda each: UnaryExchange(f"{_SERVICE}StopBulk", w.StopBulkRequest(each.id), BulkView, _as_it_is),
    GetImpact: _get_impact,
    ActivateVersion: _activate_version,
    DeleteDefinition: _delete_definition,
    ListAudit: _list_audit,
    ListAttention: _list_attention,
    Acknowledge: _acknowledge,
    GetTree: lambda each: UnaryExchange(f"{_SERVICE}GetTree", w.GetTreeRequest(each.instance_id), RunTree, _as_it_is),
}
