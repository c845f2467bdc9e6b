"""What a database of tests has to do next, in an order that is the same each time.

An engine in service does what is due as it finds it, several things at once; here one thing at a time is
found, the earliest first, and of two at the same time the one whose step was entered first. Queries of a millisecond,
blocking, on the connection of the test; `fire` and `end_lease` run in the engine's loop.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, assert_never, cast

import psycopg

from penstock.core.rules.state import OVERTAKEN_TIMER, RECORDED_TIMER, RUN_ENDED_TIMER, START_TIMER, TokenState
from penstock.engine.advance.call_commands import timer_command
from penstock.engine.engine import Engine
from penstock.engine.requests.ids import read_instance, read_job, show_instance
from penstock.engine.schedules.schedule_spec import read_rules
from penstock.store.rows import batches

SLOW_JOB, LEASE, TIMER, SCHEDULE, BATCH, RATE, SQL_REQUEST = range(7)
"""Kinds of due things. A job that ends at the moment of a timer was in time. ``token`` is the id of a schedule or a
batch; of a rate, which lets a job begin that waits, nothing is to be done but to look."""

_DUE: Final = """
SELECT at, kind, seq, token_id, event, instance_id, attempt FROM (
  SELECT fire_at AS at, 2 AS kind, seq, token_id, index::int AS event, instance_id, 0 AS attempt FROM timer
  UNION ALL
  SELECT lease_until, 1, seq, id, 0, instance_id, attempt FROM token WHERE state = 1
  UNION ALL
  SELECT fire_at, 3, 0, id, 0, 0, 0 FROM schedule WHERE fire_at IS NOT NULL
  UNION ALL  -- one whose instances are open is looked at when they have ended
  SELECT created_at, 4, 0, id, 0, 0, 0 FROM batch b WHERE look_at IS NOT NULL AND NOT (
    coalesce(cancelled, begun) >= total AND EXISTS (
      SELECT FROM batch_item i JOIN instance n ON n.id = i.instance_id WHERE i.batch = b.id AND n.status = 0))
  UNION ALL
  SELECT coalesce(due_at, asked_at), 6, 0, 0, 0, 0, 0 FROM sql_request WHERE failed_at IS NULL
  UNION ALL
  SELECT at, 5, 0, 0, 0, 0, 0 FROM (
    SELECT tat - floor(((r.rate ->> 'burst')::float8 - 1) * (r.rate ->> 'paceMicros')::float8)
      * interval '1 microsecond' AS at FROM (
        SELECT s.tat, q.policy -> CASE s.flow_key WHEN '' THEN 'rate' ELSE 'ratePerKey' END AS rate
        FROM queue q JOIN slot s ON s.queue = q.id WHERE EXISTS (
          SELECT FROM job_type j JOIN ready_flow w ON w.job_type = j.id
          WHERE j.queue = q.id AND (s.flow_key = '' OR w.flow_key = s.flow_key))) r) rates
  WHERE at > penstock_now()) due
ORDER BY at, kind, seq, token_id, event LIMIT 1"""

# Until a run that it waits for tells its end there is nothing to look for but the next time.
_WAITING_SCHEDULES: Final = """
SELECT s.id, s.name, s.spec::text, s.done_until, s.paused FROM schedule s
JOIN instance i ON i.id = s.last_instance AND i.status = 0 JOIN scheduled d ON d.instance_id = i.id AND d.watched
WHERE s.fire_at > penstock_now() AND (s.buffered <> '{}' OR s.backfill IS NOT NULL)"""

_OLDEST_JOB: Final = """
SELECT j.name FROM (
  SELECT job_type, priority, seq FROM ready UNION ALL SELECT job_type, priority, seq FROM ready_flow) r
JOIN job_type j ON j.id = r.job_type WHERE j.name = ANY(%s) ORDER BY r.priority, r.seq LIMIT 1"""

# Numbers of states: core/rules/state.py. Timers of -1 are back-offs, of -2 the ends of waits.
_OPEN_STEPS: Final = """
SELECT coalesce(d.content::jsonb -> 'steps' -> t.step::int,
    jsonb_build_object('id', penstock_step_id(d.content, t.step), 'type', 'SERVICE_TASK')) AS step,
  t.state, j.name, t.claimed_by, t.lease_until,
  ARRAY(SELECT m.index::int FROM timer m WHERE m.token_id = t.id AND m.seq = t.seq ORDER BY m.fire_at, m.index),
  ARRAY(SELECT m.fire_at FROM timer m WHERE m.token_id = t.id AND m.seq = t.seq ORDER BY m.fire_at, m.index),
  (SELECT u.key FROM subscription u WHERE u.token_id = t.id AND u.seq = t.seq)
FROM token t JOIN instance i ON i.id = t.instance_id JOIN definition d ON d.key = i.definition
LEFT JOIN job_type j ON j.id = t.job_type
WHERE t.instance_id = %s AND t.state IN (0, 1, 2, 4, 7, 8) ORDER BY t.seq"""


class Due(NamedTuple):
    """Something that happens by itself at a time; sorts in the order in which it happens."""

    at: dt.datetime
    kind: int
    seq: int
    token: int
    event: int
    instance: int
    attempt: int


class AgendaStep(NamedTuple):
    """A step that an instance stands at, and what it waits for there."""

    step_id: str
    what: str
    job_type: str | None
    in_queue: bool


class Agenda:
    """The database of one test, looked at through ``connection`` (in autocommit mode)."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection

    def next_due(self) -> Due | None:
        """The timer or the end of a lease that comes first, whether its time has come or not."""
        row = self._connection.execute(_DUE).fetchone()
        return None if row is None else Due(*row)

    def put_off_schedules(self) -> None:
        """Those that wait for the end of a run look again at their next time: else they did every ten seconds."""
        for id, name, spec, done, paused in self._connection.execute(_WAITING_SCHEDULES).fetchall():
            times = read_rules(name, spec).times
            upcoming = None if paused else times.next(done)
            fire_at = None if upcoming is None else times.due_at(name, upcoming)
            self._connection.execute("UPDATE schedule SET fire_at = %s WHERE id = %s", (fire_at, id))

    def hurry_batch(self, batch: int) -> None:
        """It is looked at now."""
        self._connection.execute("UPDATE batch SET look_at = penstock_now() WHERE id = %s", (batch,))

    def oldest_job_type(self, job_types: Sequence[str]) -> str | None:
        """Of these types, that of the job which waits longest in the queue; None when there is none."""
        row = self._connection.execute(_OLDEST_JOB, (list(job_types),)).fetchone()
        return None if row is None else row[0]

    def open_steps(self, instance_id: str) -> list[AgendaStep]:
        """Where an instance stands, in the order of entry."""
        rows = self._connection.execute(_OPEN_STEPS, (read_instance(instance_id),)).fetchall()
        return [_open_step(step, TokenState(state), *others) for step, state, *others in rows]

    def child_of(self, instance_id: str) -> str | None:
        """Return the instance that this one chained into."""
        row = self._connection.execute(
            "SELECT id FROM instance i WHERE parent_id = %s AND NOT EXISTS (SELECT FROM called c WHERE c.id = i.id)",
            (read_instance(instance_id),),
        ).fetchone()
        return None if row is None else show_instance(row[0])

    def called_by(self, instance_id: str) -> list[str]:
        """Return the instances that this one's calls started, in order."""
        rows = self._connection.execute(
            "SELECT id FROM called WHERE caller = %s ORDER BY seq", (read_instance(instance_id),)
        )
        return [show_instance(id) for (id,) in rows.fetchall()]

    def called_at(self, execution_id: str) -> str | None:
        """The instance that an execution of a call waits for."""
        key = read_job(execution_id)
        row = self._connection.execute(
            "SELECT id FROM called WHERE token_id = %s AND seq = %s", (key.token, key.seq)
        ).fetchone()
        return None if row is None else show_instance(row[0])

    def job_type_of(self, execution_id: str) -> str | None:
        """Of a job that waits in the queue."""
        key = read_job(execution_id)
        row = self._connection.execute(
            "SELECT j.name FROM token t JOIN job_type j ON j.id = t.job_type"
            " WHERE t.id = %s AND t.seq = %s AND t.state = %s",
            (key.token, key.seq, TokenState.READY.value),
        ).fetchone()
        return None if row is None else row[0]


def due_of_job(job_id: str, at: dt.datetime) -> Due:
    """Return the end of the work on a job."""
    key = read_job(job_id)
    return Due(at, SLOW_JOB, key.seq, key.token, 0, key.instance, 0)


async def fire(engine: Engine, timer: Due) -> None:
    """Fire a timer that is due; one that was disarmed meanwhile does nothing."""
    if timer.event in (RUN_ENDED_TIMER, OVERTAKEN_TIMER):
        await engine.fire(timer.instance, (timer.token, timer.seq, timer.event), None)
        return
    await engine.full_path.submit(timer_command(timer.instance, (timer.token, timer.seq, timer.event)))


async def fire_schedules(engine: Engine) -> int:
    """Fire those that are due; how many."""
    return await engine.schedules.fire_once()


async def work_on_batch(engine: Engine) -> None:
    """Start the next items of the batch that is due longest, cancel some, or look whether all have ended."""
    async with engine.database.connection() as connection:
        work = await batches.claim(connection, engine.settings.start_batch_lease_seconds)
    if work is not None:
        await engine.batches.work_on(work)


async def carry_out_requests(engine: Engine) -> None:
    """Do what transactions of the test's have asked for by SQL functions."""
    await engine.sql_requests.run_once()


async def scan_all(engine: Engine, job_type: str) -> None:
    """The next poll sees all jobs that may begin, in their order; how much real time has passed does not matter."""
    engine.polls.claims.scan_all((job_type,))


async def end_lease(engine: Engine, lease: Due) -> None:
    """Do what the lease sweeper does at the end of a lease."""
    await engine.leases.expire([(lease.token, lease.seq, lease.attempt)])


def _parked(step: dict[str, Any], timers: dict[int, dt.datetime], message_key: str | None) -> str:
    if step["type"] == "USER_TASK":
        return "a user task is open"
    if RECORDED_TIMER in timers:
        return f"a job of type {step['jobType']!r} was completed by its worker's own transaction"
    text = "a signal"
    if message_key is not None:
        text = f"the message {step['message']['name']!r} {message_key!r}"
    return f"waits until {show_time(timers[-2])} or {text}" if -2 in timers else f"waits for {text}"


def _open_step(
    step: dict[str, Any],
    state: TokenState,
    job_type: str | None,
    worker: str | None,
    lease_until: dt.datetime | None,
    indexes: list[int],
    times: list[dt.datetime],
    message_key: str | None,
) -> AgendaStep:
    timers = dict(zip(indexes, times, strict=True))
    match state:
        case TokenState.READY:
            what = f"a job of type {job_type!r} waits for a worker"
        case TokenState.LOCKED:
            what = f"a job of type {job_type!r} is held by {worker} until {show_time(cast(dt.datetime, lease_until))}"
        case TokenState.BACKOFF:
            what = f"a job of type {job_type!r} failed and is tried again at {show_time(timers[-1])}"
        case TokenState.PARKED:
            what = _parked(step, timers, message_key)
        case TokenState.CALLED:
            what = f"waits for the instance of {step['definitionId']!r} that it called"
        case TokenState.DELAYED:
            what = f"is not entered before the instance begins at {show_time(timers[START_TIMER])}"
        case TokenState.FORKED | TokenState.DISPATCHED | TokenState.ENDED:
            what = f"is {state.name}"
        case _:
            assert_never(state)
    for index, at in timers.items():
        if index >= 0:
            event = step["boundaryEvents"][index]
            what += f"; its timer goes to {event['targetStepId']!r} at {show_time(at)}"
    return AgendaStep(step["id"], what, job_type, state is TokenState.READY)


def show_time(at: dt.datetime) -> str:
    """Return a time as messages show it, in UTC."""
    return at.astimezone(dt.UTC).isoformat(sep=" ", timespec="seconds").removesuffix("+00:00") + "Z"
