"""What an `App` asks for its caller of an engine that it is connected to: `penstock.v1.Runs`."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar
from uuid import uuid4

import msgspec
import trio

from penstock.client.errors import ClientError, NotFound, Unavailable, error_for
from penstock.client.grpc.channel import Channel
from penstock.durable.backend import SavedPage, StartedRun
from penstock.durable.codec import PAYLOAD_MAX_BYTES
from penstock.durable.names import RunNames
from penstock.durable.takes import schema_of_arguments
from penstock.durable.workflow import Workflow
from penstock.kernel.record import JournalKind, Record
from penstock.wire import runs_v1 as r
from penstock.wire import updates_v1 as u
from penstock.wire.alike import alike
from penstock.wire.model import Instance, RunTree, StartRequest
from penstock.wire.penstock_v1 import RunRecord
from penstock.wire.update import RunUpdate, RunView, UpdateCall

AnswerT = TypeVar("AnswerT", bound=msgspec.Struct)

ANSWER_MAX_BYTES: Final = 1 << 30
"""What an engine stored it may say: a message has one record of a journal at least."""
CALL_TIMEOUT_S: Final = 30.0
OUTAGE_WAIT_S: Final = 60.0
RETRY_FIRST_S, RETRY_MAX_S = 0.05, 2.0
JOURNAL_RECORDS: Final = 500
AWAY: Final = "the engine is away: %s. The next try is in %.1f s"
"""For the log."""
BACK: Final = "the engine is back after %.1f s"
"""Likewise, at the same level: whoever hears the one waits for the other."""
_PATH: Final = "/penstock.v1.Runs/"
_UPDATES: Final = "/penstock.v1.Updates/"

log = logging.getLogger("penstock.durable")


class RemoteRuns:
    """What an `App` asks of the engine for its caller. Calls wait an outage out; all of them may be made twice."""

    def __init__(self, channel: Channel, app: str, outage_wait_s: float = OUTAGE_WAIT_S) -> None:
        self._channel, self.app = channel, app
        self.outage_wait_s = outage_wait_s
        self.payload_max_bytes = PAYLOAD_MAX_BYTES
        self.names = RunNames()
        self._answered = False

    async def register(self, workflows: Sequence[Workflow[..., Any]]) -> None:
        """Make workflows known, and learn the engine's limits."""
        about = [
            r.CodeWorkflow(
                each.name,
                each.version,
                each.queue or "",
                each.origin.name,
                schema_of_arguments(each.parameters, each.name) or b"",
                each.schedule_text(),
                each.policy_text(),
            )
            for each in workflows
        ]
        answer = await self._call("Register", r.RegisterWorkflowsRequest(self.app, about), r.RegisterWorkflowsResponse)
        self.payload_max_bytes = answer.payload_max_bytes

    async def start(
        self, workflow: str, version: int, arguments: str, id: str | None, asked: StartRequest | None = None
    ) -> StartedRun:
        """A new run, or the one that has this id, or with which ``asked`` has it answered."""
        asked = asked or StartRequest()
        request = alike(
            asked,
            r.StartRunRequest,
            app=self.app,
            workflow=workflow,
            version=version,
            arguments=arguments.encode(),
            id=id or "",
            idempotency_key="" if id is not None else str(uuid4()),
            priority=asked.priority,
        )
        answer = await self._call("Start", request, r.StartRunResponse)
        self.names.note(answer.instance_id, id)
        return StartedRun(answer.instance_id, answer.deduplicated)

    async def find(self, id: str, workflows: Mapping[str, object], *, or_any: bool = False) -> str:
        """Return the instance id of the run with this id: of these workflows, else of any if there are none, or
        ``or_any``."""
        request = r.FindRunRequest(self.app, id, list(workflows), or_any)
        return (await self._call("Find", request, r.FindRunResponse)).instance_id

    async def latest(
        self, workflow: str | None, status: str | None, limit: int, *, blocked: bool = False
    ) -> list[Instance]:
        """The latest runs of a workflow, or of all, newest first, without their arguments."""
        request = r.ListRunsRequest(self.app, workflow or "", status or "", limit, blocked)
        return (await self._call("List", request, r.ListRunsResponse)).runs

    async def read_run(self, instance_id: str) -> Instance:
        """The run as it is now."""
        return await self._call("Result", r.RunResultRequest(instance_id), Instance, wait_s=0)

    async def find_ended(self, instance_ids: Sequence[str]) -> Sequence[str]:
        """Those that have ended, or are not there."""
        request = r.EndedRunsRequest(list(instance_ids))
        return (await self._call("Ended", request, r.EndedRunsResponse, wait_s=0)).instance_ids

    async def journal(self, instance_id: str, cursor: str | None) -> tuple[list[dict[str, Any]], str | None]:
        """Some records of a run, oldest first, as REST shows them, and where the next ones are."""
        request = r.RunJournalRequest(instance_id, cursor or "", JOURNAL_RECORDS)
        answer = await self._call("Journal", request, r.RunJournalResponse)
        return [msgspec.json.decode(record) for record in answer.records], answer.next or None

    async def records(self, instance_id: str, after: int) -> SavedPage:
        """Return a page of a run's journal beyond a position."""
        request = r.RunRecordsRequest(instance_id, f"{after:x}" if after else "")
        answer = await self._call("Records", request, r.RunRecordsResponse)
        assert answer.began_at is not None
        arguments = answer.arguments.decode() or None
        return SavedPage(list(map(read_record, answer.records)), answer.more, answer.began_at.timestamp(), arguments)

    async def tree(self, instance_id: str) -> dict[str, Any]:
        """Return the run's branches, as REST shows them."""
        tree: dict[str, Any] = msgspec.json.decode(
            msgspec.json.encode(await self._call("Tree", r.RunTreeRequest(instance_id), RunTree))
        )
        return tree

    async def waits_for(self, instance_id: str) -> str | None:
        """What an open run waits for, in words."""
        return (await self.tree(instance_id)).get("waitsFor")

    async def send(
        self, instance_id: str, name: str, payload: str, dedup: str | None, *, id: str, force: bool = False
    ) -> None:
        """A message."""
        await self.send_to(r.SendToRunRequest(instance_id, None, name, payload.encode(), dedup or "", force), id)

    async def ask(self, instance_id: str, call: UpdateCall, *, id: str) -> RunUpdate:
        """Call an update."""
        return await self._call("AskRun", u.AskRunRequest(instance_id, call), RunUpdate, id=id, service=_UPDATES)

    async def find_update(self, instance_id: str, update_id: str, wait_s: int, *, id: str) -> RunUpdate:
        """Return what became of a call."""
        request = u.GetRunUpdateRequest(instance_id, update_id, wait_s)
        return await self._call("GetRunUpdate", request, RunUpdate, id=id, service=_UPDATES)

    async def view(self, instance_id: str, key: str | None, wait_s: int, *, id: str) -> RunView:
        """Return what the run shows."""
        request = u.GetRunViewRequest(instance_id, key or "", wait_s)
        return await self._call("GetRunView", request, RunView, id=id, service=_UPDATES)

    async def resolve_message(
        self, instance_id: str, position: str, payload: str | None, note: str | None, *, force: bool, id: str
    ) -> None:
        """Drop a message that the run rejected, or send another one in its place."""
        request = r.ResolveMessageRequest(instance_id, position, (payload or "").encode(), note or "", force)
        await self._call("ResolveMessage", request, r.ResolveMessageResponse, id=id)

    async def send_to(self, request: r.SendToRunRequest, id: str) -> None:
        """A message; made twice it is one."""
        request.dedup = request.dedup or str(uuid4())
        await self._call("Send", request, r.SendToRunResponse, id=id)

    async def cancel(self, instance_id: str, reason: str | None, *, force: bool, id: str) -> None:
        """Ask the run to end, or end it."""
        request = r.CancelRunRequest(instance_id, reason or "", force)
        await self._call("Cancel", request, r.CancelRunResponse, id=id)

    async def adopt(self, workflow: str) -> list[str]:
        """Let the next program that serves a workflow under no name have its runs; its job types."""
        return (await self._call("Adopt", r.AdoptRunsRequest(workflow), r.AdoptRunsResponse)).job_types

    async def fork(
        self, instance_id: str, path: str, fork_id: str | None, *, later_messages: bool, id: str
    ) -> StartedRun:
        """Start another run with the journal of this one, up to an operation. Without ``fork_id`` a call that was lost
        is not made again, as it may have started one."""
        request = r.ForkRunRequest(instance_id, path, fork_id, later_messages)
        found = await self._call("Fork", request, Instance, id=id, wait_s=None if fork_id is not None else 0)
        self.names.note(found.id, fork_id)
        return StartedRun(found.id, bool(found.deduplicated))

    async def retry(self, instance_id: str, from_path: str | None, note: str | None, *, id: str) -> None:
        """Let a failed run go on."""
        request = r.RetryRunRequest(instance_id, from_path or "", note or "")
        await self._call("Retry", request, r.RetryRunResponse, id=id)

    async def _call(
        self,
        method: str,
        request: msgspec.Struct,
        answer_type: type[AnswerT],
        *,
        id: str | None = None,
        wait_s: float | None = None,
        service: str = _PATH,
    ) -> AnswerT:
        """Errors name the run as the caller does. ``wait_s``: how long an outage is waited out, by default as all."""
        begun = trio.current_time()
        ends, pause_s, logged = begun + (self.outage_wait_s if wait_s is None else wait_s), RETRY_FIRST_S, False
        while True:
            try:
                answer = await self._channel.unary(service + method, request, answer_type, timeout_s=CALL_TIMEOUT_S)
            except Unavailable as error:
                if trio.current_time() + pause_s >= ends:
                    raise
                if not self._answered:  # a wrong address, perhaps; later outages are told by the stream
                    log.warning(AWAY, error.reason, pause_s)
                    logged = True
            except ClientError as error:
                if id is None or isinstance(error, NotFound):
                    raise
                raise error_for(error.code, f"run {id}: {error.reason}") from None
            else:
                self._answered = True
                if logged:
                    log.warning(BACK, trio.current_time() - begun)
                return answer
            await trio.sleep(pause_s)
            pause_s = min(2 * pause_s, RETRY_MAX_S)


def read_record(message: RunRecord) -> Record:
    """Return a record of a journal."""
    assert message.at is not None
    return Record(
        message.at.timestamp(),
        JournalKind(message.kind),
        message.path,
        message.name,
        message.payload,
        message.digest,
        message.attempt,
        int(message.position, 16),
        message.took_ms,
        message.mark,
        message.rules,
    )
