"""What everybody may do with a run: send to it, cancel it, read its journal and the tree of its branches."""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import AsyncGenerator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple, assert_never, cast

import msgspec

from penstock.access.identity import actor
from penstock.core.rules.state import TokenState
from penstock.engine.definitions.definitions import CODE_PREFIX, Definitions, LoadedDefinition
from penstock.engine.instances import call_tree
from penstock.engine.instances.views import status_of
from penstock.engine.queues.journal_items import FROM_OTHERS, RULES, JournalPage, JournalRow, RecordKind
from penstock.engine.queues.queues import KeptBack, kept_back
from penstock.engine.requests import ids
from penstock.engine.requests.answers import COPIES, current_reservation
from penstock.engine.requests.paging import NAME_MAX_CHARS, read_cursor
from penstock.engine.requests.payload import EMPTY_OBJECT, check_text
from penstock.engine.runs import mailbox
from penstock.engine.runs.journal import Journal, digest_of, read_sent
from penstock.engine.runs.mailbox import OpenBranch, read_branches
from penstock.engine.starts.forked_run import forked_from
from penstock.errors import BadRequest, Conflict, NotFound
from penstock.loop.offload import run_sized
from penstock.settings import Settings
from penstock.store.db.connection import TrioConnection
from penstock.store.db.database import Database
from penstock.store.rows import activity as activity_store
from penstock.store.rows import calls as call_store
from penstock.store.rows import forks as fork_store
from penstock.store.rows import instances as instance_store
from penstock.store.rows import journal as store
from penstock.store.rows import run_claims as claim_store
from penstock.store.rows.instances import InstanceRow
from penstock.wire.model import Branch, JournalRecord, RunTree
from penstock.wire.page import Page
from penstock.wire.shown import parts as shown_parts

JOURNAL_PAGE_MAX = 1_000
JOURNAL_PAGE_BYTES: Final = 1_048_576
REASON_MAX_CHARS: Final = 4_096
SENDER_MAX_CHARS: Final = 1_000
WAITS_SHOWN: Final = 3
OPEN_RUNS_SLICE: Final = 200
TREE_MAX_RECORDS: Final = 10_000
"""The latest ones; a tree of a longer journal lacks what ended before."""
KINDS: Final = {
    1: "done", 2: "failed", 3: "stopped", 4: "abandoned", 5: "clock", 6: "message", 7: "cancel", 8: "child", 9: "retry",
    10: "begun", 11: "supplied", 12: "view", 13: "error", 14: "dropped", 15: "asked", 16: "accepted", 17: "answered",
}  # fmt: skip
"""Kinds of records as clients read them."""
RECORD_COST: Final = 100
"""What a record is in a tree, in bytes of JSON that take as long."""
_STATUS: Final = {1: "done", 2: "failed", 3: "stopped", 4: "abandoned", 8: "done", 9: "retrying", 11: "done"}
NOT_AWAITED: Final = "not awaited"
_OPEN: Final = {
    "step": "running", "sleep": "waiting", "receive": "waiting", "child": "waiting", NOT_AWAITED: "failed"
}  # fmt: skip
_POSITION: Final = re.compile(r"[0-9a-f]{1,16}", re.ASCII)
_LAST: Final = re.compile(r"(?:/\d+|\.\d+|\.\[[^\]]*\])$")
"""The last part of a path: an operation's index, or a child's place or key in its nursery."""


class Raised(NamedTuple):
    """An error in a run's journal, for people: of the step at a path, or of the workflow function (without one)."""

    path: str
    name: str | None
    type_name: str
    message: str
    traceback: str


class ReplayPage(NamedTuple):
    """What a replay needs of a run. ``began_at`` is when its time began, in seconds since 1970. ``arguments`` are a
    JSON object, and come with the first records only. What an instance shows of a run that has completed has its result
    in the place of an argument with that name."""

    records: list[JournalRow]
    more: bool
    began_at: float
    arguments: bytes | None


class _RecordedError(msgspec.Struct, frozen=True):
    """Of what an executor writes of an error (`durable.codec`)."""

    type_name: str = ""
    message: str = ""
    traceback: str = ""
    not_awaited: list[str] = []


class Runs:
    """The operations on runs; ids are instance ids as text. Raises NotFound, and Conflict for one that is no run."""

    def __init__(self, database: Database, settings: Settings, definitions: Definitions, journal: Journal) -> None:
        self._database = database
        self._settings = settings
        self._definitions = definitions
        self._journal = journal

    async def send(
        self,
        instance_id: str,
        name: str,
        payload: bytes,
        *,
        dedup: str | None = None,
        bulk: int | None = None,
        sender: str | None = None,
        force: bool = False,
    ) -> None:
        """Send a message: JSON. With ``dedup`` a second one is the same one, for as long as the run is kept. ``bulk``:
        the bulk operation that counts it. ``sender``: who it is, for people, where not the caller. ``force``: also one
        that does not fit what the run says that it waits for.

        Raises NotFound, BadRequest, WrongValue (it does not fit), Conflict (the run has ended), MailboxFull,
        IdempotencyConflict, PayloadTooLarge.
        """
        if not name:
            raise BadRequest("name: is required")
        check_text(name, "name", NAME_MAX_CHARS)
        if dedup is not None:
            check_text(dedup, "dedup", NAME_MAX_CHARS)
        sender = actor() if sender is None else check_text(sender, "sender", SENDER_MAX_CHARS)
        digest = self._digest(name, payload)
        await self._journal.notify(
            store.RunNotice(
                ids.read_instance(instance_id),
                RecordKind.MESSAGE,
                "",
                name,
                payload.decode(),
                f"m:{dedup}" if dedup else f"~{secrets.token_hex(12)}",
                digest,
                None,
                bulk=bulk,
                sender=sender,
                forced=force,
            )
        )

    def _digest(self, name: str, payload: bytes) -> str:
        """Raises BadRequest, PayloadTooLarge."""
        return digest_of(name, read_sent(payload, "payload", self._settings.payload_max_bytes))

    async def resolve_message(
        self,
        instance_id: str,
        position: str,
        payload: bytes | None = None,
        *,
        note: str | None = None,
        force: bool = False,
    ) -> None:
        """Drop a message that the run rejected, or send another one (JSON) in its place, with the same name. ``force``
        as in `send`. A second time it is the same. No receive has had the message: what one has is not dropped.

        Raises NotFound, BadRequest, WrongValue, PayloadTooLarge, Conflict (it is no rejected one, or not any more; the
        run has ended), IdempotencyConflict (something else became of it).
        """
        number, at = ids.read_instance(instance_id), _read_position(position)
        if note is not None:
            check_text(note, "note", REASON_MAX_CHARS)
        async with self._database.connection() as connection:
            await self._run(connection, number, instance_id)
            found = await store.waits(connection, [number], RecordKind.DROPPED)
            gone = await store.messages_at(connection, number, [at])
        if not gone:
            raise Conflict(mailbox.NOT_KNOWN)
        waits, name = found.get(number), gone[0].name or ""
        digest = hashlib.sha256(b"drop").hexdigest() if payload is None else self._digest(name, payload)
        as_of = 0 if waits is None else mailbox.rejected_as_of(read_branches(waits.branches), at)
        text, dedup = None if payload is None else payload.decode(), f"~drop:{at:x}"
        audited = (actor() or "") if self._settings.audit_log_enabled else None
        detail = name if note is None else f"{name}: {note}"
        await self._journal.notify(
            store.RunNotice(
                number, RecordKind.DROPPED, f"{at:x}", name, text, dedup, digest, audited, detail,
                sender=actor() if text is not None else None, as_of=as_of, rules=RULES, forced=force,
            )
        )  # fmt: skip

    async def cancel(
        self, instance_id: str, reason: str | None = None, *, note: str | None = None, bulk: int | None = None
    ) -> None:
        """Ask a run to end: its root scope is cancelled, and clean-up runs. `Instances.cancel` with ``force`` ends it
        without. A second one changes nothing. ``note``: for the audit trail, in place of the reason. Raises NotFound,
        Conflict (it has ended)."""
        if reason is not None:
            check_text(reason, "reason", REASON_MAX_CHARS)
        by = actor()
        said = msgspec.json.encode({"reason": reason, "by": by}).decode()
        record = (RecordKind.CANCEL, "", reason, said, "~cancel", hashlib.sha256(b"cancel").hexdigest())
        audited = (by or "") if self._settings.audit_log_enabled else None
        await self._journal.notify(store.RunNotice(ids.read_instance(instance_id), *record, audited, note, bulk))

    async def journal(
        self, instance_id: str, cursor: str | None = None, limit: int = JOURNAL_PAGE_MAX
    ) -> Page[JournalRecord]:
        """Records after ``cursor``, oldest first; fewer where they are large. Raises NotFound, BadRequest."""
        after = read_cursor(cursor, 0)
        number = ids.read_instance(instance_id)
        await current_reservation().reserve_soon(COPIES * (JOURNAL_PAGE_BYTES + self._settings.payload_max_bytes))
        async with self._database.connection() as connection:
            await self._run(connection, number, instance_id)
            count = min(max(limit, 1), JOURNAL_PAGE_MAX)
            records, _, more = await store.read(connection, number, after, max_rows=count, max_bytes=JOURNAL_PAGE_BYTES)
            claimed = await claim_store.last_run_claim(connection, number)
            senders = await store.senders(connection, number, records[0].pos, records[-1].pos) if records else {}
        replayed = _replayed(records, claimed, more=more)
        items = [
            _shown(record, known, senders.get(record.pos)) for record, known in zip(records, replayed, strict=True)
        ]
        return Page(items=items, next=f"{records[-1].pos:x}" if more else None)

    async def records(self, instance_id: str, after: str | None = None) -> ReplayPage:
        """The records of a run behind the position ``after``, as an executor reads them, the first ones with what the
        run was started with: all that a replay needs. Raises NotFound, BadRequest."""
        number = ids.read_instance(instance_id)
        try:
            since = read_cursor(after, 0)
        except BadRequest:
            raise BadRequest("after: is not the position of a record") from None
        parts = 1 if since else 2  # a page may be larger by a payload
        await current_reservation().reserve_soon(
            COPIES * (store.PAGE_MAX_BYTES + parts * self._settings.payload_max_bytes)
        )  # at once: who held a part while it waited for the other would keep others from theirs
        async with self._database.connection() as connection:
            row, _ = await self._run(connection, number, instance_id)
            page = JournalPage(*await store.read(connection, number, since))
            began_at = await claim_store.began_at(connection, number)
            arguments = None if since else await fork_store.arguments(connection, number)
        return ReplayPage(
            page.records,
            page.more,
            row.started_at.timestamp() if began_at is None else began_at,
            None if since else (arguments or "").encode() or EMPTY_OBJECT,
        )

    async def raised(self, instance_id: str) -> list[Raised]:
        """What a run's steps raised last, then its function: as far as its journal has it."""
        async with self._database.connection() as connection:
            number = ids.read_instance(instance_id)
            found = await store.last_errors(connection, number, RecordKind.FAILED, RecordKind.ERROR)
        return [_raised(row) for row in found]

    async def tree(self, instance_id: str) -> RunTree:
        """Return the run's branches: what has ended from its journal, what is open as the executor last said. Of an
        instance of a definition: the instances that it has called."""
        number = ids.read_instance(instance_id)
        async with self._database.connection() as connection:
            row, loaded = await self._instance(connection, number, instance_id)
            if not loaded.code:
                return await self._call_tree(connection, row, loaded)
            records = await store.outline(connection, number, TREE_MAX_RECORDS)
            about, executors, kept = await self._about(connection, number)
            view = await store.last_view(connection, number, RecordKind.VIEW) if about is None else about.view
            open_ones = _open_branches(about) if about is not None else await _dropped_calls(connection, number)
            noted = mailbox.rejected_notes(open_ones)
            messages = await store.messages_at(connection, number, sorted(noted)) if noted else []
            forked = await forked_from(connection, number)
        code = cast("dict[str, dict[str, Any]]", loaded.definition.metadata)["code"]  # as generated
        plain, keyed = shown_parts(view)
        return RunTree(
            id=instance_id,
            status=status_of(row),
            workflow=code["name"],
            version=code["version"],
            branches=await run_sized(len(records) * RECORD_COST, lambda: _branches(records, open_ones)),
            view=None if plain is None else msgspec.Raw(plain.encode()),
            views={key: msgspec.Raw(text.encode()) for key, text in keyed.items()} or None,
            waits_for=None if about is None else _waits_for(about, loaded, executors, kept),
            mail=0 if about is None else about.mail,
            rejected=mailbox.shown(open_ones, messages),
            rejected_count=sum(branch.rejects for branch in open_ones) or None,
            blocked=row.blocked_since is not None or None,
            blocked_since=row.blocked_since,
            blocked_reason=row.blocked_reason,
            forked_from=forked,
        )

    async def read_open(self, definition: int) -> AsyncGenerator[list[tuple[store.OpenRun, JournalPage]]]:
        """All runs of a definition (its key) that have not ended, in slices, each with the beginning of its journal;
        what ends meanwhile is left out."""
        after = 0
        while True:
            async with self._database.connection() as connection:
                found, after = await store.open_runs(connection, definition, after, OPEN_RUNS_SLICE)
                claimed = await claim_store.taken_runs(connection, [run.id for run in found]) if found else {}
            pages = [(run, claimed[run.id]) for run in found if run.id in claimed]
            yield [  # what can't be read here raises when it is asked for alone
                (run, JournalPage(page.records or [], page.mail, page.more or page.records is None))
                for run, page in pages
            ]
            if not after:
                return

    async def waits_for(self, instance_id: str) -> str | None:
        """What an open run waits for, in words; None for one that is at work or has ended."""
        number = ids.read_instance(instance_id)
        async with self._database.connection() as connection:
            _, loaded = await self._run(connection, number, instance_id)
            about, executors, kept = await self._about(connection, number)
        return None if about is None else _waits_for(about, loaded, executors, kept)

    async def _about(
        self, connection: TrioConnection, number: int
    ) -> tuple[store.RunAbout | None, Mapping[str, int] | None, KeptBack | None]:
        """How a run stands; where it waits for an executor: how many take which job types, and what its queue says."""
        about = await store.about(connection, number)
        if about is None or about.state != TokenState.READY:
            return about, None, None
        kept = await kept_back(connection, [number])
        return about, await activity_store.read_worker_counts(connection), kept.get(number)

    async def _call_tree(self, connection: TrioConnection, row: InstanceRow, loaded: LoadedDefinition) -> RunTree:
        rows = await call_store.tree(connection, row.id, call_tree.TREE_MAX)
        keys = {key for called in rows for key in (called.definition, called.caller_definition)}
        definitions = {key: await self._definitions.by_key(connection, key) for key in sorted(keys)}
        return RunTree(
            id=ids.show_instance(row.id),
            status=status_of(row),
            workflow=loaded.definition.id,
            version=loaded.version,
            branches=call_tree.branches_of(row.id, rows, definitions),
        )

    async def _instance(
        self, connection: TrioConnection, number: int, instance_id: str
    ) -> tuple[InstanceRow, LoadedDefinition]:
        rows = await instance_store.view(connection, [number], None)
        if not rows:
            raise NotFound(f"instance '{instance_id}' is unknown")
        return rows[0], await self._definitions.by_key(connection, rows[0].definition)

    async def _run(
        self, connection: TrioConnection, number: int, instance_id: str
    ) -> tuple[InstanceRow, LoadedDefinition]:
        row, loaded = await self._instance(connection, number, instance_id)
        if not loaded.code:
            raise Conflict(f"instance '{instance_id}' is not a durable run: it has a history, no journal")
        return row, loaded


def _replayed(records: Sequence[JournalRow], claimed: claim_store.RunClaim | None, *, more: bool) -> list[bool | None]:
    """Of each record whether who has the run ran the body again on it: it was there when they took the run. What came
    last before that from others is what the run was woken by: it is new to the body."""
    if claimed is None:
        return [None] * len(records)
    found = sum(record.at < claimed.at for record in records) if claimed.attempt > 1 else 0
    if found and records[found - 1].kind in FROM_OTHERS and (found < len(records) or not more):
        found -= 1
    return [number < found for number in range(len(records))]


def _shown(record: JournalRow, replayed: bool | None, sender: str | None) -> JournalRecord:
    payload, codec = record.payload, None
    if payload is not None and payload.startswith("~"):
        codec, _, text = payload[1:].partition(":")
        payload = msgspec.json.encode(text).decode()
    return JournalRecord(
        pos=f"{record.pos:x}",
        at=datetime.fromtimestamp(record.at, UTC),
        kind=KINDS.get(record.kind, str(record.kind)),
        path=record.path,
        name=record.name,
        attempt=record.attempt,
        took_ms=record.took_ms,
        payload=None if payload is None else msgspec.Raw(payload.encode()),
        codec=codec,
        replayed=replayed,
        sender=sender,
    )


def _read_position(text: str) -> int:
    """Raises BadRequest."""
    if _POSITION.fullmatch(text) is None or (position := int(text, 16)) >= 1 << 63:
        raise BadRequest("position: is not one of a journal's: give `position` of a rejected message")
    return position


def _notices_of(row: store.RaisedRow) -> _RecordedError:
    try:
        return msgspec.json.decode(row.payload or "{}", type=_RecordedError)
    except msgspec.MsgspecError:  # of another version: it is for people only
        return _RecordedError()


async def _dropped_calls(connection: TrioConnection, number: int) -> list[OpenBranch]:
    """Of a run that has ended the calls that its function dropped without an `await`, as its end says."""
    rows = await store.last_errors(connection, number, RecordKind.FAILED, RecordKind.ERROR)
    calls = [text for row in rows if row.kind == RecordKind.ERROR for text in _notices_of(row).not_awaited]
    return [OpenBranch(f"!{count}", NOT_AWAITED, text) for count, text in enumerate(calls, 1)]


def _raised(row: store.RaisedRow) -> Raised:
    recorded = _notices_of(row)
    return Raised(row.path, row.name, recorded.type_name, recorded.message, recorded.traceback)


def _open_branches(about: store.RunAbout | None) -> list[OpenBranch]:
    return [] if about is None or about.branches is None else read_branches(about.branches)


def _waits_for(
    about: store.RunAbout, loaded: LoadedDefinition, executors: Mapping[str, int] | None, kept: KeptBack | None
) -> str | None:
    state = TokenState(about.state)
    if about.blocked_since is not None and state is TokenState.READY:  # its pause is over, and nobody took it since
        return f"other code: {about.reason}"
    match state:
        case TokenState.READY if kept is not None:
            return f"its turn: {kept.text}"
        case TokenState.READY:
            job_type = loaded.definition.steps[0].job_type or ""
            alone = executors is not None and not executors.get(job_type)
            return f"an App with {job_type.removeprefix(CODE_PREFIX)}" + (": none is connected" if alone else "")
        case TokenState.BACKOFF if about.failures:
            return f"other code: {about.reason}"
        case TokenState.BACKOFF:
            return f"a pause, as {about.expiries} executors ended with it"
        case TokenState.PARKED:
            what = mailbox.names_of(_open_branches(about))[:WAITS_SHOWN]
            called = dict.fromkeys(branch.name for branch in _open_branches(about) if branch.kind == "child")
            what += [f"child {name!r}" for name in list(called)[:WAITS_SHOWN]]
            what = what or ["a message"]
            if about.due_at is not None:
                what.append(f"{about.due_at:%Y-%m-%d %H:%M:%S} UTC")
            return ", or ".join(what)
        case TokenState.DELAYED:
            return "its time: it has not begun"
        case TokenState.LOCKED | TokenState.FORKED | TokenState.DISPATCHED | TokenState.ENDED | TokenState.CALLED:
            return None
        case _:
            assert_never(state)


class _Node:
    """A branch while the tree is made."""

    __slots__ = ("children", "fields")

    def __init__(self, path: str) -> None:
        self.fields: dict[str, Any] = {"path": path, "status": "ended"}
        self.children: list[_Node] = []

    def view(self) -> Branch:
        return Branch(**self.fields, children=[child.view() for child in self.children])


def _branches(records: Sequence[store.OutlineRow], open_ones: Sequence[OpenBranch]) -> list[Branch]:
    """Return the tree by path. What is neither in the journal nor open is there for what is below it."""
    root = _Node("")
    nodes = {"": root}

    def node(path: str) -> _Node:
        missing: list[str] = []
        at = path
        while at not in nodes:
            missing.append(at)
            cut = _LAST.search(at)
            at = at[: cut.start()] if cut is not None else ""
        for name in reversed(missing):
            nodes[name] = _Node(name)
            nodes[at].children.append(nodes[name])
            at = name
        return nodes[path]

    for record in records:
        if record.path and record.kind in _STATUS:
            fields = node(record.path).fields
            fields |= {"status": _STATUS[record.kind], "name": record.name, "attempt": record.attempt}
            fields["ended_at"] = record.at
    for branch in open_ones:
        fields = node(branch.path).fields
        fields.pop("ended_at", None)
        fields |= {
            "status": _OPEN.get(branch.kind, "open"),
            "kind": branch.kind,
            "name": branch.name,
            "attempt": branch.attempt,
            "started_at": _time(branch.since),
            "due_at": _time(branch.due_at),
            "where": branch.where,
            "progress": branch.progress,
        }
    return [child.view() for child in root.children]


def _time(seconds: float | None) -> datetime | None:
    try:
        return None if seconds is None else datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, ValueError, OSError):
        return None
