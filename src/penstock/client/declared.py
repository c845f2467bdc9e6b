"""The client's calls about schedules and queues that the code of durable workflows has."""

from __future__ import annotations

from penstock.api import declared as api
from penstock.client.call import RowCall
from penstock.client.caller import Caller
from penstock.wire import schedules_v1 as w
from penstock.wire.declared import Declaration
from penstock.wire.page import Page


class DeclarationCalls(Caller):
    """List what code has, and put it again."""

    async def list_declarations(self, *, cursor: str | None = None, limit: int | None = None) -> Page[Declaration]:
        """Return schedules and queues that code has, or had; go on with ``cursor=page.next`` until that is None."""
        return await self.call(RowCall(api.LIST_DECLARATIONS, w.ListDeclarationsRequest(cursor, limit)))

    async def apply_declaration(self, kind: str, id: str) -> Declaration:
        """Put a ``"schedule"`` or a ``"queue"`` as the code has it. What somebody has changed is lost.

        Raises:
            NotFound: no code ever had it.
            Conflict: no code has it any more.
        """
        return await self.call(RowCall(api.APPLY_DECLARATION, w.ApplyDeclarationRequest(kind, id)))
