"""Journals of runs, and the states in which runs wait. One function per statement of ``queries/journal.sql``.

Payloads are sealed where there are keys, each whole. Lists of runs are given in lock order, that of their ids.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, Final, NamedTuple, cast

from penstock.store.db import arrays
from penstock.store.db.connection import TrioConnection
from penstock.store.db.statements import SQL, Statement
from penstock.store.db.vault import CHECKPOINT, PAYLOAD, PROGRESS, KeyMissing, Sealing, Vault, offloaded
from penstock.store.rows import bulk
from penstock.store.rows import timers as timer_store

PAGE_MAX_ROWS: Final = 5_000
PAGE_MAX_BYTES: Final = 4 * 1024 * 1024
DUE_MAX_S: Final = 253_402_300_799.0
"""The end of the year 9999: what is due later never is."""
_UNSIGNED: Final = 1 << 32
_SIGN: Final = 1 << 31
_SMALLINT_MAX: Final = (1 << 15) - 1
ASKED: Final = 15
ANSWERED: Final = 17
REFUSED: Final = 18
"""Of calls of updates: the call, its answer, its refusal. The last is not stored."""
OF_OTHERS: Final = (6, 7, 8, 10, 11, 12, ASKED)
"""Kinds of records that no executor writes: message, cancel, child, begun, supplied, view, call. That a message was
dropped is none of these: it tells of rules, as it was rejected by them."""


class RunLease(NamedTuple):
    """A run under its holder's lease: what fences everything that an executor writes. Its token is the root."""

    instance: int
    seq: int
    attempt: int
    holder: str


class NewRecord(NamedTuple):
    """A record that an executor appends. ``payload`` is JSON, or ``~<codec>:<base64>``. ``mark`` is for `patched`.
    ``rules``: the version of the rules by which it is delivered; 0 for those before there were versions."""

    kind: int
    path: str = ""
    name: str | None = None
    payload: str | None = None
    digest: int | None = None
    attempt: int = 1
    took_ms: int | None = None
    mark: str | None = None
    rules: int = 0


class JournalRow(NamedTuple):
    """A row of a journal. ``at`` is in seconds since 1970. ``rules``: the version of the rules by which it was
    delivered, 0 for those before there were versions; of what others wrote that of the next record which an executor
    wrote, None where there is none."""

    pos: int
    at: float
    kind: int
    path: str
    name: str | None
    payload: str | None
    digest: int | None
    attempt: int
    took_ms: int | None
    mark: str | None
    rules: int | None = None


class Append(NamedTuple):
    """Records for one run. ``lease_s``: the lease is extended to so long from now."""

    run_lease: RunLease
    mail: int
    lease_s: float | None
    records: Sequence[NewRecord]


class Placed(NamedTuple):
    """Where an appended record stands."""

    pos: int
    at: float


class Appended(NamedTuple):
    """What became of one `Append`. ``mail``: how many records of others there are now."""

    placed: list[Placed]
    mail: int
    lease_left_s: float | None


class RunState(NamedTuple):
    """How a run stands; the columns of its token are None when it has ended, or goes on as another execution."""

    status: int | None
    state: int | None
    attempt: int | None
    holder: str | None
    mail: int | None
    closed_attempt: int | None
    closed_by: str | None
    flow_key: str | None


class RunNotice(NamedTuple):
    """A record that somebody else has for a run. ``hash`` in hex: what makes two with one ``dedup`` the same. ``note``:
    for the audit trail, in place of the name. ``bulk``: the bulk operation that it is of, which counts it. ``sender``:
    who sent it, for people. ``as_of``: it is written only where no record came after that position, but for those that
    drop messages. ``forced``: a message that may be one that the run does not accept."""

    instance: int
    kind: int
    path: str
    name: str | None
    payload: str | None
    dedup: str
    hash: str
    actor: str | None
    note: str | None = None
    bulk: int | None = None
    sender: str | None = None
    as_of: int | None = None
    rules: int | None = None
    forced: bool = False


class NoticeOutcome(NamedTuple):
    """What became of one `RunNotice`. ``state``, ``job_type``, ``holder`` and ``flow_key`` are of its token, as that
    was."""

    status: int | None
    is_code: bool | None
    is_new: bool
    used_hash: str | None
    is_full: bool
    state: int | None
    job_type: str | None
    holder: str | None
    mail: int
    flow_key: str | None


class RunWaits(NamedTuple):
    """What an open run has said of its branches (JSON), and the position of its last record that may change it."""

    branches: str
    last: int | None


class MessageRow(NamedTuple):
    """A message in a journal. ``at`` is in seconds since 1970."""

    pos: int
    at: float
    name: str | None
    payload: str | None
    sender: str | None


class RunReleased(NamedTuple):
    """A run that has no holder any more. ``told``: what its statement says of it; ``freed``: its job type, if it gave
    something back to a queue."""

    result: Any
    freed: str | None
    flow_key: str | None


class UnloadedRun(NamedTuple):
    """A run that waits: until ``due_at`` (seconds since 1970), or until it is told something."""

    run_lease: RunLease
    mail: int
    due_at: float | None
    branches: bytes | None
    view: bytes | None


class Finish(NamedTuple):
    """A run that ends."""

    run_lease: RunLease
    mail: int
    status: int
    end_step: int
    output: bytes | None
    failure: str | None
    view: str | None = None
    error: str | None = None


class Woken(NamedTuple):
    """A wake-up that was dealt with. ``job_type`` None: it had nothing to wake."""

    token: int
    seq: int
    job_type: str | None
    flow_key: str | None


class EndedLease(NamedTuple):
    """A run that was taken from its holder. ``state``: where it went; ``expiries`` since its last record."""

    token: int
    seq: int
    attempt: int
    job_type: str
    state: int
    expiries: int
    flow_key: str | None


class OutlineRow(NamedTuple):
    """A record without its payload."""

    pos: int
    at: datetime
    kind: int
    path: str
    name: str | None
    attempt: int
    took_ms: int | None


class RunAbout(NamedTuple):
    """A run that has not ended. ``branches`` and ``view`` are JSON; ``reason`` of the attempt that failed last, or why
    it is blocked, and ``blocked_since`` when."""

    state: int
    mail: int
    failures: int
    expiries: int
    branches: str | None
    view: str | None
    due_at: datetime | None
    reason: str | None
    blocked_since: datetime | None


class OpenRun(NamedTuple):
    """A run that has not ended, as whoever takes it meets it. ``started_at`` is in seconds since 1970."""

    id: int
    key: str | None
    state: int
    started_at: float
    arguments: str
    branches: str | None


def _held(items: Sequence[RunLease]) -> tuple[str, str, str, str]:
    instances, seqs, attempts, holders = zip(*items, strict=True)
    return arrays.ints(instances), arrays.ints(seqs), arrays.ints(attempts), arrays.texts(holders)


def _released(rows: Any) -> dict[int, RunReleased]:
    return {instance: RunReleased(*row) for instance, *row in rows}


def _signed(digest: int | None) -> int | None:
    return None if digest is None else (digest + _SIGN) % _UNSIGNED - _SIGN


def seal(payloads: Sequence[str | None], vault: Vault | None) -> str | Sealing:
    """Payloads of records, as they are stored."""
    if vault is None:
        return arrays.texts(payloads)
    return arrays.sealed_values([None if text is None else text.encode() for text in payloads], vault, PAYLOAD)


async def append(connection: TrioConnection, items: Sequence[Append], *, refusals_max: int) -> dict[int, Appended]:
    """Write records; by instance. Those that are not in the answer were refused. One transaction of its own.
    ``refusals_max``: so many refused calls of a run are remembered."""
    rows = [(item.run_lease.instance, record) for item in items for record in item.records]
    records = [record for _, record in rows]
    params = (
        *_held([item.run_lease for item in items]),
        arrays.ints(item.mail for item in items),
        arrays.floats(item.lease_s for item in items),
        arrays.ints(instance for instance, _ in rows),
        arrays.ints(record.kind for record in records),
        arrays.texts(record.path for record in records),
        arrays.texts(record.name for record in records),
        seal([record.payload for record in records], connection.vault),
        arrays.ints(_signed(record.digest) for record in records),
        arrays.ints(min(record.attempt, _SMALLINT_MAX) for record in records),
        arrays.ints(record.took_ms for record in records),
        arrays.texts(record.mark for record in records),
        arrays.ints(record.rules for record in records),
    )
    if any(record.kind == REFUSED for record in records):
        answers: Statement = SQL["append_answers"], (*params, ANSWERED, REFUSED)
        found, *_ = await connection.roundtrip([answers, *_take_out_refused(items, refusals_max)])
    elif any(record.kind == ANSWERED for record in records):
        found = await connection.fetch(SQL["append_answers"], (*params, ANSWERED, REFUSED))
    else:
        found = await connection.fetch(SQL["append_records"], params)
    seen = {item.run_lease.instance: item.mail for item in items}
    placed: dict[int, list[Placed]] = {}
    mails: dict[int, int] = {}
    leases: dict[int, float] = {}
    for instance, pos, at, mail, left_s in cast(Any, found):
        if pos is not None:
            placed.setdefault(instance, []).append(Placed(pos, at))
        elif mail is not None:
            mails[instance] = mail
        else:
            leases[instance] = left_s
    return {
        instance: Appended(places, mails.get(instance, seen[instance]), leases.get(instance))
        for instance, places in placed.items()
    }


def _take_out_refused(items: Sequence[Append], refusals_max: int) -> list[Statement]:
    calls = [(item.run_lease, record) for item in items for record in item.records if record.kind == REFUSED]
    held = _held([run_lease for run_lease, _ in calls])
    positions = arrays.ints(int(call.name or 0) for _, call in calls)
    paths = arrays.texts(call.path for _, call in calls)
    return [
        (SQL["take_out_calls"], (*held, positions, paths, ASKED)),
        (SQL["forget_refusals"], (*held, refusals_max)),
    ]


class Answered(NamedTuple):
    """How a call of an update stands, and who holds the run. ``answer`` is JSON, None while there is none."""

    definition_id: str
    status: int
    is_code: bool
    holder: str | None
    is_known: bool
    answer: str | None


async def find_answer(connection: TrioConnection, instance: int, id: str) -> Answered | None:
    """Return a call by its id; None where there is no such instance. Raises KeyMissing."""
    rows = await connection.fetch(SQL["find_answer"], (instance, id))
    if not rows:
        return None
    found, vault = Answered(*cast(Any, rows[0])), connection.vault
    if vault is not None and found.answer is not None:
        found = found._replace(answer=vault.open_value(found.answer, PAYLOAD))
    return found


class FoundView(NamedTuple):
    """What a run shows (JSON), and who holds it."""

    definition_id: str
    status: int
    is_code: bool
    holder: str | None
    view: str | None


async def find_view(connection: TrioConnection, instance: int, view: int) -> FoundView | None:
    """Return what a run shows; None where there is no such instance. ``view`` is the kind of its last record, of one
    that has ended. Raises KeyMissing."""
    rows = await connection.fetch(SQL["find_view"], (instance, view))
    if not rows:
        return None
    definition_id, status, is_code, holder, noted, last = cast(Any, rows[0])
    vault, text, kind = connection.vault, noted, PROGRESS
    if noted is None:
        text, kind = last, PAYLOAD
    if vault is not None and text is not None:
        text = vault.open_value(text, kind)
    return FoundView(definition_id, status, is_code, holder, text)


async def appended(connection: TrioConnection, items: Sequence[tuple[int, NewRecord, int]]) -> set[int]:
    """The instances whose record stands in the journal beyond a position: (instance, record, position)."""
    instances, records, after = zip(*items, strict=True)
    params = (
        arrays.ints(instances),
        arrays.ints(record.kind for record in records),
        arrays.texts(record.path for record in records),
        arrays.ints(min(record.attempt, _SMALLINT_MAX) for record in records),
        arrays.ints(after),
    )
    return {cast(int, row[0]) for row in await connection.fetch(SQL["appended"], params)}


async def read(
    connection: TrioConnection,
    instance: int,
    after: int,
    *,
    max_rows: int = PAGE_MAX_ROWS,
    max_bytes: int = PAGE_MAX_BYTES,
) -> tuple[list[JournalRow], int | None, bool]:
    """Records beyond a position, how much others have written up to there (None: the run has ended), and whether there
    are more. Raises KeyMissing."""
    # the mail first: it may then tell of fewer records than are read, never of more
    marks, rows = cast(
        Any,
        await connection.roundtrip(
            [
                (SQL["run_marks"], (arrays.ints([instance]),)),
                (SQL["read_journal"], (instance, after, max_rows + 1, max_bytes)),
            ]
        ),
    )
    connection.remember_row_size(max((len(row[5]) for row in rows if row[5] is not None), default=0))
    found = await offloaded(
        0 if connection.vault is None else sum(len(row[5]) for row in rows if row[5] is not None),
        lambda: [read_record(row[:-1], connection.vault) for row in rows[:max_rows]],
    )
    more = bool(rows) and rows[0][-1] > len(found)
    behind = None
    if more and found and found[-1].kind in OF_OTHERS:
        params = (instance, found[-1].pos, arrays.ints(OF_OTHERS))
        behind = next((cast(int, row[0]) for row in await connection.fetch(SQL["rules_behind"], params)), None)
    return with_rules(found, behind), marks[0][1] if marks else None, more


def with_rules(rows: list[JournalRow], behind: int | None) -> list[JournalRow]:
    """Each with the rules by which it was delivered: what others wrote is delivered by whoever writes next. ``behind``:
    by those the next one of an executor behind these was."""
    for index in range(len(rows) - 1, -1, -1):
        row = rows[index]
        if row.kind not in OF_OTHERS:
            behind = row.rules or 0
        if row.rules != behind:
            rows[index] = row._replace(rules=behind)
    return rows


async def beyond_rules(connection: TrioConnection, instances: Sequence[int], rules: int) -> set[int]:
    """Those of these runs that have records which were delivered by newer rules."""
    rows = await connection.fetch(SQL["newest_rules"], (arrays.ints(instances), rules))
    return {cast(int, row[0]) for row in rows}


async def marks(connection: TrioConnection, instance: int) -> list[str]:
    """Return the marks of all records of a run."""
    return [cast(str, row[0]) for row in await connection.fetch(SQL["journal_marks"], (instance,))]


def read_record(row: Any, vault: Vault | None) -> JournalRow:
    """Return a row of the columns of a `JournalRow`, for `with_rules`. Raises KeyMissing."""
    record = JournalRow(*row)
    if record.digest is not None and record.digest < 0:
        record = record._replace(digest=record.digest + _UNSIGNED)
    if vault is not None and record.payload is not None:
        record = record._replace(payload=vault.open_value(record.payload, PAYLOAD))
    return record


async def last_view(connection: TrioConnection, instance: int, view: int) -> str | None:
    """What a run that has ended showed last, as JSON; ``view`` is the kind of that record. Raises KeyMissing."""
    rows = await connection.fetch(SQL["last_view"], (instance, view))
    text = cast("str | None", rows[0][0]) if rows else None
    vault = connection.vault
    return text if vault is None or text is None else vault.open_value(text, PAYLOAD)


class RaisedRow(NamedTuple):
    """An error in a journal; ``payload`` is JSON."""

    kind: int
    path: str
    name: str | None
    payload: str | None


async def last_errors(connection: TrioConnection, instance: int, failed: int, error: int) -> list[RaisedRow]:
    """What a run's steps raised last (kind ``failed``), and its function (``error``). Raises KeyMissing."""
    vault, found = connection.vault, list[RaisedRow]()
    for row in await connection.fetch(SQL["last_errors"], (instance, failed, error)):
        raised = RaisedRow(*cast(Any, row))
        if vault is not None and raised.payload is not None:
            raised = raised._replace(payload=vault.open_value(raised.payload, PAYLOAD))
        found.append(raised)
    return found


async def run_states(connection: TrioConnection, runs: Sequence[RunLease]) -> list[RunState]:
    """How runs stand now, in order. Reads only."""
    params = (arrays.ints(run.instance for run in runs), arrays.ints(run.seq for run in runs))
    return [RunState(*cast(Any, row)) for row in await connection.fetch(SQL["run_states"], params)]


async def send_notices(
    connection: TrioConnection,
    items: Sequence[RunNotice],
    timers: Sequence[timer_store.Timer | None],
    *,
    unread_max: int,
    message: int,
    cancel: int,
    dropped: int,
) -> list[NoticeOutcome]:
    """Write what others have for runs; in order. ``message``, ``cancel`` and ``dropped`` are the kinds; the ``timers``
    that say so go. A transaction of its own."""
    columns = list(zip(*items, strict=True))
    params = (
        arrays.ints(columns[0]),
        arrays.ints(columns[1]),
        arrays.texts(columns[2]),
        arrays.texts(columns[3]),
        seal(columns[4], connection.vault),
        arrays.texts(columns[5]),
        arrays.texts(columns[6]),
        arrays.texts(columns[7]),
        unread_max,
        message,
        cancel,
        *(arrays.ints(column) for column in zip(*(timer or (None,) * 3 for timer in timers), strict=True)),
        arrays.texts(columns[8]),
        arrays.texts(columns[10]),
        arrays.ints(columns[11]),
        arrays.ints(columns[12]),
        dropped,
    )
    statements: list[Statement] = [
        (SQL["begin"], ()),
        (SQL["lock_roots"], (arrays.ints(sorted({item.instance for item in items})),)),
        (SQL["tell_runs"], params),
    ]
    if all(item.bulk is None for item in items):
        *_, rows, _ = await connection.roundtrip([*statements, (SQL["commit"], ())])
        return [NoticeOutcome(*cast(Any, row)) for row in rows]
    *_, rows = await connection.roundtrip(statements)
    result = [NoticeOutcome(*cast(Any, row)) for row in rows]
    new = [(item.bulk, item.instance) for item, row in zip(items, result, strict=True) if row.is_new]
    await connection.roundtrip([*bulk.counts(new), (SQL["commit"], ())])
    return result


async def waits(connection: TrioConnection, instances: Sequence[int], dropped: int) -> dict[int, RunWaits]:
    """What open runs have said of their branches, by instance. Those that have said nothing, or what can't be read
    here, are left out. ``dropped``: the kind of records that does not count."""
    rows = cast(Any, await connection.fetch(SQL["read_waits"], (arrays.ints(instances), dropped)))
    vault = connection.vault
    found = {row[0]: RunWaits(*row[1:]) for row in rows if row[1] is not None}
    if vault is None:
        return found
    size = sum(len(each.branches) for each in found.values())
    return await offloaded(size, lambda: _readable(found, vault))


async def ask_again(connection: TrioConnection, instances: Sequence[int]) -> bool:
    """Let parked runs say again what they wait for, by a timer that is due; False where there are none. Idempotent."""
    return bool(await connection.fetch(SQL["ask_again"], (arrays.ints(instances),)))


def _readable(found: dict[int, RunWaits], vault: Vault) -> dict[int, RunWaits]:
    opened: dict[int, RunWaits] = {}
    for instance, each in found.items():
        with suppress(KeyMissing):
            opened[instance] = each._replace(branches=vault.open_value(each.branches, CHECKPOINT))
    return opened


async def messages_at(connection: TrioConnection, instance: int, positions: Sequence[int]) -> list[MessageRow]:
    """Messages at these positions of a journal, in its order. Raises KeyMissing."""
    rows = cast(Any, await connection.fetch(SQL["read_messages"], (instance, arrays.ints(positions))))
    vault, found = connection.vault, [MessageRow(*row) for row in rows]
    if vault is None:
        return found
    return [
        row if row.payload is None else row._replace(payload=vault.open_value(row.payload, PAYLOAD)) for row in found
    ]


async def senders(connection: TrioConnection, instance: int, first: int, last: int) -> dict[int, str]:
    """Who sent the messages from one position to another, by position, as far as that is known."""
    return dict(cast(Any, await connection.fetch(SQL["read_senders"], (instance, first, last))))


async def park(connection: TrioConnection, items: Sequence[UnloadedRun]) -> dict[int, RunReleased]:
    """Let runs wait; by instance, in how many seconds they are due. Those not in the answer were refused."""
    due = [item.due_at if item.due_at is not None and item.due_at <= DUE_MAX_S else None for item in items]
    params = (
        *_held([item.run_lease for item in items]),
        arrays.ints(item.mail for item in items),
        arrays.floats(due),
        arrays.sealed_values((item.branches for item in items), connection.vault, CHECKPOINT),
        arrays.sealed_values((item.view for item in items), connection.vault, PROGRESS),
    )
    return _released(await connection.fetch(SQL["park_runs"], params))


async def wake(connection: TrioConnection, timers: Sequence[tuple[int, int]]) -> list[Woken]:
    """Deal with due wake-ups: (token, seq). Those that are not in the answer are not due, or somebody holds the run."""
    runs = tuple(arrays.ints(column) for column in zip(*timers, strict=True))
    *_, rows, _ = await connection.roundtrip(
        [(SQL["begin"], ()), (SQL["lock_due_runs"], runs), (SQL["wake_runs"], runs), (SQL["commit"], ())]
    )
    return [Woken(*cast(Any, row)) for row in rows]


SPARED_BY_FINISH: Final = frozenset({"abnormal_end", "called", "instance_key", "job_note", "job_type", "slot", "timer"})
"""Tables that `finish` does without where it is told so."""


async def finish(
    connection: TrioConnection, items: Sequence[Finish], *, view: int, error: int, spared: bool = False
) -> dict[int, RunReleased]:
    """End runs; by instance, whether others may be told. ``view`` and ``error``: the kinds of records for what they
    showed last, and raised. Those that are not in the answer were refused. ``spared``: only those that have completed
    and need none of `SPARED_BY_FINISH`, of runs without a key; their notes stay."""
    params = (
        *_held([item.run_lease for item in items]),
        arrays.ints(item.mail for item in items),
        arrays.ints(item.status for item in items),
        arrays.ints(item.end_step for item in items),
        arrays.sealed((item.output for item in items), connection.vault),
        arrays.texts(item.failure for item in items),
        seal([item.view for item in items], connection.vault),
        view,
        seal([item.error for item in items], connection.vault),
        error,
    )
    return _released(await connection.fetch(SQL["finish_spared" if spared else "finish_runs"], params))


async def block(
    connection: TrioConnection, items: Sequence[tuple[RunLease, str]], *, listed: bool
) -> dict[int, RunReleased]:
    """Let runs stand back; by instance, for how many seconds. Those that are not in the answer were refused.
    ``listed``: they are shown as blocked, which engines before schema version 21 would never take back."""
    runs, reasons = zip(*items, strict=True)
    return _released(await connection.fetch(SQL["block_runs"], (*_held(runs), arrays.texts(reasons), listed)))


async def go_on(connection: TrioConnection, held: RunLease) -> None:
    """A run that was blocked is at work again, before it has written anything. Nothing, where it is not held so."""
    await connection.fetch(SQL["go_on"], held)


async def expire(
    connection: TrioConnection,
    leases: Sequence[tuple[int, int, int]],
    holders: Sequence[str | None] | None = None,
    *,
    plain_of: Mapping[int, str] | None = None,
) -> list[EndedLease]:
    """Take runs, (token, seq, attempt) each, from their holders: as the leases ended, or the ``holders`` are gone.
    ``plain_of``: only those of these job types (by id) that need none of `jobs.SPARED_BY_RETURNS`."""
    tokens, seqs, attempts = (arrays.ints(column) for column in zip(*leases, strict=True))
    gone = arrays.texts(holders if holders is not None else [None] * len(leases))
    params = tokens, seqs, attempts, gone
    if plain_of is None:
        rows = await connection.fetch(SQL["expire_runs"], params)
    else:
        types = arrays.ints(plain_of), arrays.texts(plain_of.values())
        rows = await connection.fetch(SQL["expire_runs_plain"], (*params, *types))
    return [EndedLease(*cast(Any, row)) for row in rows]


async def held_by(connection: TrioConnection, tags: Sequence[str], after: int) -> list[RunLease]:
    """Runs that executors of engines with these tags hold, by id, beyond one; 1,000 at most."""
    *_, rows, _ = await connection.roundtrip(
        [
            (SQL["begin"], ()),
            (SQL["allow_sequential_scan"], ()),
            (SQL["held_by"], (arrays.texts(tags), after)),
            (SQL["commit"], ()),
        ]
    )
    return [RunLease(*cast(Any, row)) for row in rows]


async def outline(connection: TrioConnection, instance: int, limit: int) -> list[OutlineRow]:
    """Return the latest records, oldest first, without payloads."""
    return [OutlineRow(*cast(Any, row)) for row in await connection.fetch(SQL["outline"], (instance, limit))]


async def about(connection: TrioConnection, instance: int) -> RunAbout | None:
    """How a run stands; None when it has ended. Raises KeyMissing."""
    rows = await connection.fetch(SQL["run_about"], (instance,))
    found = RunAbout(*cast(Any, rows[0])) if rows else None
    vault = connection.vault
    if found is None or vault is None:
        return found
    return await offloaded(
        len(found.branches or "") + len(found.view or ""),
        lambda: found._replace(
            branches=None if found.branches is None else vault.open_value(found.branches, CHECKPOINT),
            view=None if found.view is None else vault.open_value(found.view, PROGRESS),
        ),
    )


async def open_runs(connection: TrioConnection, definition: int, after: int, limit: int) -> tuple[list[OpenRun], int]:
    """Runs of a definition that have not ended, of ``limit`` instances beyond an id, and the last of these ids: 0 where
    there are no more. Raises KeyMissing."""
    rows = cast(Any, await connection.fetch(SQL["open_runs"], (definition, after, limit)))
    found = [OpenRun(*row) for row in rows if row[2] is not None]
    vault = connection.vault
    if vault is not None:
        found = await offloaded(
            sum(len(run.arguments) + len(run.branches or "") for run in found),
            lambda: [
                run._replace(
                    arguments=vault.open(run.arguments),
                    branches=None if run.branches is None else vault.open_value(run.branches, CHECKPOINT),
                )
                for run in found
            ],
        )
    return found, rows[-1][0] if len(rows) == limit else 0
