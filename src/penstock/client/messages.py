"""The client's calls about messages."""

from __future__ import annotations

import uuid

from penstock.api import messages as api
from penstock.client.call import RowCall
from penstock.client.caller import Caller
from penstock.client.encoding import optional_object
from penstock.wire.model import KeptMessage, PublishedMessage, PublishRequest
from penstock.wire.page import Page


class MessageCalls(Caller):
    """Publish messages, and list those that wait."""

    async def publish_message(
        self,
        name: str,
        correlation_key: str,
        variables: object = None,
        *,
        ttl: str | None = None,
        message_id: str | None = None,
        to_all: bool = False,
    ) -> PublishedMessage:
        """Publish a message to the ``WAIT`` that waits longest for this name and key, or ``to_all`` that wait now.

        What nobody waits for is kept for ``ttl`` (ISO 8601, by default a day; ``PT0S``: now or never) and goes to the
        first wait that comes. A ``message_id`` of your own is remembered: however often the message is sent, it is
        published once. Without one the client makes one up, so that its own repeats are safe.

        Raises:
            BadRequest: a field is no such thing.
            Conflict: more than 1,000 wait for a message to all.
            IdempotencyConflict: another message came with this ``message_id``.
        """
        message = PublishRequest(
            name=name,
            correlation_key=correlation_key,
            variables=optional_object(variables),
            ttl=ttl,
            message_id=message_id or uuid.uuid4().hex,
            deliver="ALL" if to_all else None,
        )
        return await self.call(RowCall(api.PUBLISH_MESSAGE, message))

    async def list_messages(
        self,
        *,
        name: str | None = None,
        correlation_key: str | None = None,
        cursor: str | None = None,
        limit: int | None = None,
    ) -> Page[KeptMessage]:
        """List a part of the messages that nobody has received yet, oldest first, without their variables."""
        return await self.call(RowCall(api.LIST_MESSAGES, api.ListMessages(name, correlation_key, cursor, limit)))
