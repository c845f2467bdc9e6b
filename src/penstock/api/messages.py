"""The operations on messages to whoever waits for their name with their key."""

from __future__ import annotations

from typing import Any, Final

from msgspec import Struct

from penstock.api.operation import SLICE, Body, DeclaredOperation, Grpc, ItemRefused, Rest
from penstock.api.permission import Permission
from penstock.wire import penstock_v1 as w
from penstock.wire.model import KeptMessage, PublishedMessage, PublishRequest
from penstock.wire.page import Page


class ListMessages(Struct, frozen=True):
    """Which messages."""

    name: str | None = None
    correlation_key: str | None = None
    cursor: str | None = None
    limit: int | None = None


def _read_published(message: w.PublishMessagesResponse, _asked: object) -> Any:
    [result] = message.results
    if result.message is None:
        raise ItemRefused(result.error or "internal-error", result.reason or "")
    return result.message


PUBLISH_MESSAGE: Final = DeclaredOperation(
    name="publishMessage",
    summary="Publish a message (addition)",
    description=(
        "It goes to the `WAIT` that waits longest for its name and key, or with `deliver` `ALL` to all that wait "
        "now (at most 1,000, else 409). A message that nobody waits for is `kept` for `ttl` (ISO 8601, by default"
        " `P1D`; `PT0S`: now or never), and goes to the first wait that comes. A second message with the same "
        "`messageId` is answered as the first. 503: `messages_kept_max_items` or `messages_kept_max_bytes` are "
        "kept."
    ),
    tag="tasks",
    request=PublishRequest,
    answer=PublishedMessage,
    needs=Permission.OPERATE,
    rest=Rest(
        "POST",
        "/v1/messages",
        body=Body(name="PublishBody", text="A message to whoever waits for its name with its key."),
    ),
    grpc=Grpc(
        "/penstock.v1.Worker/PublishMessages",
        message=w.PublishMessagesRequest,
        send=lambda asked: w.PublishMessagesRequest([asked]),
        answer=w.PublishMessagesResponse,
        read=_read_published,
        elsewhere=True,
    ),
    errors=(400, 409),
    required=("name", "correlation_key"),
    keyed=("message_id",),
    maps=("variables",),
)
LIST_MESSAGES: Final = DeclaredOperation(
    name="listMessages",
    summary="List messages that nobody has received yet, oldest first (addition)",
    description="Without their variables. `taken`: on its way to a wait.",
    tag="tasks",
    request=ListMessages,
    answer=Page[KeptMessage],
    needs=Permission.VIEW,
    rest=Rest("GET", "/v1/messages", {"name": "Exactly this.", "correlationKey": "Exactly this.", **SLICE}),
    errors=(400,),
)
