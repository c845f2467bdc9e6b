"""The client's calls about requests that programs made by SQL functions in transactions of their own."""

from __future__ import annotations

from penstock.api import sql_requests as api
from penstock.client.call import RowCall
from penstock.client.caller import Caller
from penstock.wire.page import Page
from penstock.wire.sql_request import SqlRequest


class SqlRequestCalls(Caller):
    """Look at requests that were refused after their commit, retry or drop them."""

    async def list_sql_requests(
        self, *, waiting: bool = False, cursor: str | None = None, limit: int | None = None
    ) -> Page[SqlRequest]:
        """Requests that failed, or with ``waiting`` those that no engine has carried out yet, oldest first; go on with
        ``cursor=page.next`` until that is None."""
        state = api.WAITING if waiting else api.FAILED
        return await self.call(RowCall(api.LIST_SQL_REQUESTS, api.ListSqlRequests(state, cursor, limit)))

    async def retry_sql_request(self, request_id: str) -> None:
        """Let an engine carry out a request that failed.

        Raises:
            NotFound: no such request; it may be carried out.
            Conflict: it has not failed, or another request waits with its instance key.
        """
        await self.call(RowCall(api.RETRY_SQL_REQUEST, api.OneSqlRequest(request_id)))

    async def drop_sql_request(self, request_id: str) -> None:
        """Forget a request that failed.

        Raises:
            NotFound: no such request; it may be carried out.
            Conflict: it has not failed.
        """
        await self.call(RowCall(api.DROP_SQL_REQUEST, api.OneSqlRequest(request_id)))
