"""The client's calls of updates: into runs of code, checked, recorded and answered."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence

import msgspec

from penstock.api import updates as api
from penstock.client.call import RowCall
from penstock.client.caller import Caller
from penstock.client.encoding import to_json
from penstock.wire import updates_v1 as w
from penstock.wire.update import RunUpdate, RunView, UpdateCall


class UpdateCalls(Caller):
    """Call updates, and look what became of a call."""

    async def ask_run(
        self,
        instance_id: str,
        name: str,
        arguments: Sequence[object] | Mapping[str, object] = (),
        *,
        update_id: str | None = None,
        wait_seconds: int = 15,
    ) -> RunUpdate:
        """Call an update of a run: a handler that its workflow function has made with ``@update``.

        ``arguments`` go by position, or by name. Waits for the answer up to ``wait_seconds``, 20 at most. If the call
        is PENDING then, ``get_run_update`` waits on. Repeated safely: without an ``update_id`` the client makes one
        for this call. With your own, a call is made once however often it is sent, as long as the run is kept. Of
        refused calls the newest are remembered (``refused_calls_max_items``).

        Raises:
            BadRequest: a field has a value that it can't have.
            NotFound: no such run.
            Conflict: it has ended, or is an instance of a workflow that is no code.
            TooManyRequests: it has as many unread messages and calls as it may.
            IdempotencyConflict: another call was made with this ``update_id``.
        """
        given = dict(arguments) if isinstance(arguments, Mapping) else list(arguments)
        call = UpdateCall(name, msgspec.Raw(to_json(given)), update_id or uuid.uuid4().hex, wait_seconds)
        return await self.call(RowCall(api.ASK_RUN, w.AskRunRequest(instance_id, call)))

    async def get_run_view(self, instance_id: str, key: str | None = None, *, wait_seconds: int = 0) -> RunView:
        """Return what a run shows, under a key or without one. Waits up to ``wait_seconds``, 20 at most, until there is
        something, or the run has ended. Raises ``NotFound``."""
        return await self.call(RowCall(api.GET_RUN_VIEW, w.GetRunViewRequest(instance_id, key or "", wait_seconds)))

    async def get_run_update(self, instance_id: str, update_id: str, *, wait_seconds: int = 0) -> RunUpdate:
        """Return what became of a call, after up to ``wait_seconds``, 20 at most. Raises ``NotFound``."""
        request = w.GetRunUpdateRequest(instance_id, update_id, wait_seconds)
        return await self.call(RowCall(api.GET_RUN_UPDATE, request))
