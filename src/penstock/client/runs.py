"""The client's calls about runs of durable workflows: messages, journal, tree.

The rest of a run is an instance's: `get_instance`, `list_instances`, `get_history`, `cancel_instance`.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator

import msgspec

from penstock.api import instances, runs
from penstock.client.call import RowCall
from penstock.client.caller import Caller, every_item
from penstock.client.encoding import to_json
from penstock.wire import repair_v1 as w
from penstock.wire.model import Instance, JournalRecord, RunTree
from penstock.wire.page import Page
from penstock.wire.runs_v1 import ForkRunRequest


class RunCalls(Caller):
    """Send to runs, and look at them."""

    async def send_message(
        self,
        instance_id: str,
        name: str,
        payload: object = None,
        *,
        dedup: str | None = None,
        force: bool = False,
    ) -> None:
        """Send a message, which a ``receive(name)`` of the body gives. One that comes early is kept.

        ``payload`` is anything with a JSON form. Repeated safely: without a ``dedup`` the client makes one for this
        call. With your own, a message comes once however often it is sent, as long as the run is kept. ``force`` sends
        also what does not fit the type that the run waits for.

        Raises:
            BadRequest: the payload does not fit; the error names its place.
            NotFound: no such run.
            Conflict: it has ended, or is an instance of a workflow that is no code.
            TooManyRequests: it has as many unread messages as it may.
            IdempotencyConflict: another message came with this ``dedup``.
        """
        value = msgspec.Raw(to_json(payload))
        request = runs.SendMessage(instance_id, name, value, dedup or uuid.uuid4().hex, force)
        await self.call(RowCall(runs.SEND_MESSAGE, request))

    async def fork_run(
        self, instance_id: str, path: str, *, fork_id: str | None = None, later_messages: bool = False
    ) -> Instance:
        """Start another run with the journal of this one up to an operation, and return it. This run stays as it is.

        ``path`` is of the operation that the new run does again, as the journal has it; ``"start"``: from the
        beginning, ``"end"``: from where the journal ends. With ``fork_id`` at most one is ever started.
        ``later_messages``: the new run gets the messages that came after that operation, too.

        Raises:
            NotFound: no such run.
            BadRequest: the journal has no such operation.
            Conflict: it is no durable run.
            IdempotencyConflict: another run has the ``fork_id``.
        """
        request = ForkRunRequest(instance_id, path, fork_id, later_messages)
        return await self.call(RowCall(runs.FORK_RUN, request))

    async def drop_message(self, instance_id: str, position: str, *, note: str | None = None) -> None:
        """Drop a message that a run rejected: one of ``rejected`` in its tree, by its position.

        ``note`` is for the audit trail. Repeated safely.

        Raises:
            NotFound: no such run.
            Conflict: a receive has the message by now, or the run is at work: look again.
        """
        request = runs.ResolveMessage(instance_id, position, drop=True, note=note)
        await self.call(RowCall(runs.RESOLVE_MESSAGE, request))

    async def correct_message(
        self, instance_id: str, position: str, payload: object, *, note: str | None = None, force: bool = False
    ) -> None:
        """Send another message in the place of one that a run rejected, with the same name.

        ``payload`` is anything with a JSON form, which has to fit, unless you ``force`` it. Raises as ``drop_message``,
        and:

        Raises:
            BadRequest: the payload does not fit; the error names its place.
            IdempotencyConflict: the message was dropped, or corrected to something else.
        """
        value = msgspec.Raw(to_json(payload))
        request = runs.ResolveMessage(instance_id, position, payload=value, note=note, force=force)
        await self.call(RowCall(runs.RESOLVE_MESSAGE, request))

    async def get_journal(
        self, instance_id: str, *, cursor: str | None = None, limit: int | None = None
    ) -> Page[JournalRecord]:
        """Read a part of a run's journal, oldest first; go on with ``cursor=page.next`` until that is None.

        Raises:
            NotFound: no such run.
            Conflict: the instance is none of code.
        """
        return await self.call(RowCall(instances.GET_JOURNAL, instances.GetJournal(instance_id, cursor, limit)))

    def iterate_journal(self, instance_id: str) -> AsyncIterator[JournalRecord]:
        """Read a run's whole journal, oldest first, as you go. Raises as ``get_journal``."""
        return every_item(lambda cursor: self.get_journal(instance_id, cursor=cursor))

    async def get_tree(self, instance_id: str) -> RunTree:
        """Return a run's branches: what they did, what they wait for, and since when. Raises as ``get_journal``."""
        return await self.call(RowCall(instances.GET_TREE, w.GetTreeRequest(instance_id)))
