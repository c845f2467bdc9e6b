"""The operations on what people and programs did, and on what needs somebody."""

from __future__ import annotations

from typing import Final

from penstock.api.operation import SLICE, Body, DeclaredOperation, Grpc, Rest, items_in, nothing_in
from penstock.api.permission import Permission
from penstock.wire import repair_v1 as w
from penstock.wire.alike import alike
from penstock.wire.attention import AcknowledgeBody, Attention, AttentionList
from penstock.wire.audit import AuditTrailRecord
from penstock.wire.page import Page

_SERVICE: Final = "/penstock.v1.Repair/"
_KEY: Final = "/v1/attention/{key}"


def _give_attention(found: AttentionList) -> w.ListAttentionResponse:
    return w.ListAttentionResponse([alike(one, w.Attention, more=not one.exact) for one in found.items])


def _read_attention(message: w.ListAttentionResponse, _asked: object) -> AttentionList:
    return AttentionList([alike(one, Attention, exact=not one.more) for one in message.items])


LIST_AUDIT: Final = DeclaredOperation(
    name="listAudit",
    summary="List what people and programs did, newest first (addition)",
    description=(
        "Who paused, changed, uploaded, made a token or signed in. `old` is the value before a change. A page may"
        " have fewer records than `limit`, and more after it."
    ),
    tag="service",
    request=w.ListAuditRequest,
    answer=Page[AuditTrailRecord],
    needs=Permission.OPERATE,
    rest=Rest(
        "GET",
        "/v1/audit",
        {
            "kind": "Of this kind, such as `QUEUE_CHANGED`.",
            "actor": "By this caller.",
            "contains": "With this in `detail`, in any case.",
            "since": "Not before this time.",
            "until": "Before this time.",
            **SLICE,
        },
    ),
    grpc=items_in(_SERVICE + "ListAudit", w.ListAuditResponse, "records", w.AuditTrailRecord, AuditTrailRecord),
    errors=(400, 503),
)
LIST_ATTENTION: Final = DeclaredOperation(
    name="listAttention",
    summary="List problems that need attention (addition)",
    description="As in the overview: problems that concern most work first, acknowledged ones last.",
    tag="service",
    request=w.ListAttentionRequest,
    answer=AttentionList,
    needs=Permission.VIEW,
    rest=Rest("GET", "/v1/attention"),
    grpc=Grpc(_SERVICE + "ListAttention", answer=w.ListAttentionResponse, give=_give_attention, read=_read_attention),
    errors=(503,),
)
ACKNOWLEDGE_ATTENTION: Final = DeclaredOperation(
    name="acknowledgeAttention",
    summary="Acknowledge a problem (addition)",
    description=(
        "By the `key` of its row, for `attention_acknowledged_hours`. Failures need attention again when there "
        "are more than `count`."
    ),
    tag="service",
    request=w.AcknowledgeAttentionRequest,
    answer=type(None),
    needs=Permission.OPERATE,
    rest=Rest("PUT", _KEY, body=Body(kind=AcknowledgeBody, required=False), status=204),
    grpc=nothing_in(_SERVICE + "AcknowledgeAttention", w.AcknowledgeAttentionResponse),
    errors=(400, 409, 503),
)
WITHDRAW_ACKNOWLEDGEMENT: Final = DeclaredOperation(
    name="withdrawAcknowledgement",
    summary="Withdraw an acknowledgement (addition)",
    description="It needs attention again. 404: it is not acknowledged.",
    tag="service",
    request=w.WithdrawAcknowledgementRequest,
    answer=type(None),
    needs=Permission.OPERATE,
    rest=Rest("DELETE", _KEY, status=204),
    grpc=nothing_in(_SERVICE + "WithdrawAcknowledgement", w.WithdrawAcknowledgementResponse),
    errors=(404, 503),
)
