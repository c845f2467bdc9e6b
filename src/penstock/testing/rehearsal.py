"""`TestEngine`: workflows run to where a test wants them, in virtual time, one thing after the other.

Nothing happens by itself. `settle` runs what can run now, `advance` lets time pass and does what becomes due on the
way, in order. Jobs are done one at a time, the oldest first, by stubs and handlers that run in the caller's event loop;
the engine runs in a thread of its own (`engine_thread.py`). So two runs of a test do the same. Everything is bounded:
by things done and by real time.
"""

from __future__ import annotations

import datetime as dt
import inspect
import os
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import anyio
import psycopg

from penstock.client import Client, DefinitionSummary, Job, JobRef, NotFound, PublishedMessage
from penstock.client.builder import WorkflowBuilder
from penstock.client.validation import Document
from penstock.settings import SETTINGS, load_settings
from penstock.testing.agenda import (
    BATCH,
    LEASE,
    SCHEDULE,
    SLOW_JOB,
    SQL_REQUEST,
    Agenda,
    Due,
    carry_out_requests,
    due_of_job,
    end_lease,
    fire,
    fire_schedules,
    scan_all,
    show_time,
    work_on_batch,
)
from penstock.testing.clock import FrozenClock
from penstock.testing.engine_thread import EngineThread
from penstock.testing.in_process import in_process_client
from penstock.testing.performer import Performer
from penstock.testing.run import FINISH_WITHIN, Run
from penstock.testing.stubs import Answer, Duration, Stub, answer_of, fails, raises, returns
from penstock.worker import Worker
from penstock.worker.handler import Handler

EVENTS_MAX = 10_000
"""Jobs, timers and ended leases in one call of `settle`, `advance` or `finish`."""
REAL_TIME_MAX_S = 60.0
"""How long one such call may take."""
LAST_EVENTS = 12
"""Shown when a call does not come to its end."""
LEASE_S = 30
SLOW_LEASE_S = 86_400
"""What the lease of a job that takes virtual time is extended by, as long as it goes on."""
WORKER = "stub"
POLLED_MAX = 1000
KEYS_MAX = 10_000
"""Flow keys that wait at once: a look comes to all of them, as nobody looks again while time stands still."""


class NotSettled(AssertionError):
    """There was always more to do; the message tells the last of it."""


class Stuck(AssertionError):
    """A run does not come to its end by itself; the message says what it waits for."""


class TestEngine:
    """An engine with a virtual clock on a database of its own. Runs under asyncio and Trio; see `SyncTestEngine`.

    Args:
        dsn: an empty database with the engine's tables (`penstock.testing.postgres`); it is the test's alone.
        now: where its clock starts; by default at the present time, in whole seconds.
        settings: settings of the engine, by name.
        directory: where relative paths of definitions are looked up first.

    Use it as ``with TestEngine(dsn) as engine``. The fixture ``penstock`` gives one to each test.
    """

    __test__ = False  # not a class of tests

    def __init__(
        self,
        dsn: str,
        *,
        now: dt.datetime | None = None,
        settings: Mapping[str, object] | None = None,
        directory: Path | None = None,
        events_max: int = EVENTS_MAX,
        real_time_max_s: float = REAL_TIME_MAX_S,
    ) -> None:
        if now is not None and now.tzinfo is None:
            raise ValueError("now needs a time zone, e.g. datetime(2030, 1, 1, tzinfo=UTC)")
        self._dsn = dsn
        self._start = now or dt.datetime.now(dt.UTC).replace(microsecond=0)
        self._directory = directory
        self._events_max = events_max
        self._real_time_max_s = real_time_max_s
        self._performing = False
        self._slow: dict[Due, tuple[Job, Handler]] = {}
        if unknown := set(settings or {}) - set(SETTINGS):
            raise TypeError(f"there is no setting {min(unknown)!r}")
        options = {"lease_max_seconds": SLOW_LEASE_S, "flow_keys_per_claim": KEYS_MAX, **(settings or {})}
        checked = load_settings(environ={}, options=options, default_config_path=Path(os.devnull))
        self.thread = EngineThread(dsn, checked)
        self.stubs: dict[str, Stub] = {}
        """What answers the jobs of each type."""
        self.client: Client
        """The engine's client: everything that is not simpler here, and for code that takes one."""
        self.clock: FrozenClock
        self.agenda: Agenda

    def __enter__(self) -> TestEngine:
        self._connection = psycopg.connect(self._dsn, autocommit=True)
        try:
            self.clock = FrozenClock(self._connection, self._start)
            self.agenda = Agenda(self._connection)
            self.thread.start()
        except BaseException:
            self._connection.close()
            raise
        self.client = in_process_client(self.thread)
        self._performer = Performer(self.client, WORKER, LEASE_S)
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.thread.stop()
        finally:
            self._connection.close()

    # -- what a test sets up

    @property
    def now(self) -> dt.datetime:
        """Return the virtual time, in UTC."""
        return self.clock.now()

    async def deploy(self, *definitions: Document | WorkflowBuilder) -> DefinitionSummary:
        """Upload definitions: paths (beside the test file, else from the current directory), dicts or builders.

        Returns the summary of the last one.

        Raises:
            BadRequest: a definition is refused; ``problems`` lists everything that is wrong with it.
        """
        if not definitions:
            raise TypeError("deploy needs a definition: a file, a dictionary or JSON")
        for definition in definitions[:-1]:
            await self.client.upload_definition(self._document(definition))
        return await self.client.upload_definition(self._document(definitions[-1]))

    def stub(self, job_type: str, *answers: object, takes: Duration = 0.0, **one: Any) -> Stub:
        """Answer the jobs of a type from now on; replaces what answered them before.

        ``answers`` are given one after the other, the last one again and again: an `Answer` (`returns`, `raises`,
        `fails`, `vanishes`, `handles`), variables to return, an exception to raise, or a function as a worker's
        handler. In place of them one of ``returns=``, ``raises=``, ``fails=``. Without any, the job just completes.
        ``takes`` is the virtual time that each of them takes.
        """
        kinds: dict[str, Callable[[Any], Answer]] = {"returns": returns, "raises": raises, "fails": fails}
        if unknown := set(one) - set(kinds):
            raise TypeError(f"stub has no argument {min(unknown)!r}: give answers, returns=, raises= or fails=")
        if len(one) + bool(answers) > 1:
            raise TypeError("give either answers, or one of returns=, raises= and fails=")
        given = [answer_of(answer) for answer in answers] + [kinds[name](value) for name, value in one.items()]
        pause = _timedelta(takes)
        stub = self.stubs[job_type] = Stub(
            job_type, [each.taking(pause) for each in given or [returns()]], names=_names_of_caller()
        )
        return stub

    async def stub_workflow(self, definition_id: str, /, *answers: object, takes: Duration = 0.0, **one: Any) -> Stub:
        """Answer the calls of a workflow in its place: an instance of it is one job, answered as by `stub`.

        What the job returns are the variables that the instance ends with. Deploys a definition of that id.
        """
        job_type = f"workflow:{definition_id}"
        job = {"id": "stub", "name": "stub", "type": "SERVICE_TASK", "jobType": job_type, "nextStep": "end"}
        end = {"id": "end", "name": "end", "type": "END"}
        await self.deploy({"id": definition_id, "name": definition_id, "steps": [job, end]})
        return self.stub(job_type, *answers, takes=takes, **one)

    def use(self, *workers: Worker) -> None:
        """Let the handlers of these workers answer the jobs of their types. The workers themselves need not run."""
        for worker in workers:
            for job_type, handler in worker.handlers.items():
                self.stubs[job_type] = Stub(job_type, (), handler=handler)

    async def start(
        self,
        definition_id: str,
        variables: object = None,
        *,
        version: int | None = None,
        business_key: str | None = None,
        instance_key: str | None = None,
        **more: Any,
    ) -> Run:
        """Start an instance; its jobs wait for `settle`. ``more``: as the client's `start_instance` takes it,
        such as ``flow_key=``, ``delay=``, ``dedupe=``. Raises NotFound for an unknown definition."""
        instance = await self.client.start_instance(
            definition_id, variables, version=version, business_key=business_key, instance_key=instance_key, **more
        )
        return Run(self, instance.id)

    async def publish(
        self, name: str, correlation_key: str, variables: object = None, *, ttl: str | None = None
    ) -> PublishedMessage:
        """Publish a message to whoever waits for it; what nobody waits for is kept for ``ttl``, by default a day."""
        return await self.client.publish_message(name, correlation_key, variables, ttl=ttl)

    def run(self, instance_id: str) -> Run:
        """Return the run of an instance that was started in another way."""
        return Run(self, instance_id)

    @asynccontextmanager
    async def serve(self) -> AsyncGenerator[str]:
        """Open the engine's REST interface on a free port, for the block, and give its URL. Time stays virtual."""
        url, end = await self.thread.call(self.thread.start_serving)
        try:
            yield url
        finally:
            with anyio.CancelScope(shield=True):  # bounded by SERVE_GRACE_S
                await self.thread.call(end)

    # -- how it goes on

    async def settle(self) -> None:
        """Go on until nothing more happens without time passing. Jobs without a stub stay where they are.

        Raises:
            NotSettled: there is always more (a loop), or a handler does not come to its end.
        """
        with self._going_on() as budget:
            await self._settle(budget)

    async def advance(self, by: Duration | None = None, /, *, to: dt.datetime | None = None, **units: float) -> None:
        """Let time pass: ``by`` a timedelta or seconds, by ``days=``, ``hours=`` … as of `timedelta`, or ``to`` a time.

        What becomes due on the way – timers, back-offs, ends of leases, slow jobs – happens in order, each at its time,
        and what follows from it. Ends settled.

        Raises:
            NotSettled: as `settle`.
            ValueError: it would go back.
        """
        target = self._target(by, to, units)
        with self._going_on() as budget:
            await self._settle(budget)
            while (due := self._next_due()) is not None and due.at <= target:
                self.clock.set(max(due.at, self.now))
                await self._settle(budget)
            self.clock.set(target)

    async def run_until(
        self, condition: Callable[[], bool], run: Run | None = None, within: Duration = FINISH_WITHIN
    ) -> None:
        """Go on, jumping to each next time at which something is due, until ``condition()`` holds.

        Raises:
            Stuck: nothing more will happen without an event from outside, or not within this time. Says what ``run``
                waits for.
            NotSettled: as `settle`.
        """
        deadline = self.now + _timedelta(within)
        with self._going_on() as budget:
            await self._settle(budget)
            while not condition():
                due = self._next_due()
                if due is None:
                    raise Stuck(f"nothing more will happen without an event from outside{_described(run)}")
                if due.at > deadline:
                    raise Stuck(f"not before {show_time(deadline)}{_described(run)}")
                self.clock.set(max(due.at, self.now))
                await self._settle(budget)

    async def take_job(self, job_id: str) -> Job:
        """Lease one job that waits; those that came before it go back. Raises NotFound when it does not wait."""
        job_type = self.agenda.job_type_of(job_id)
        others: list[Job] = []
        try:
            while job_type is not None:
                jobs = await self._poll(job_type, POLLED_MAX)
                others += [job for job in jobs if job.id != job_id]
                if found := [job for job in jobs if job.id == job_id]:
                    return found[0]
                if not jobs:
                    break
            raise NotFound(f"no job {job_id!r} waits")
        finally:
            if others:
                refs = [JobRef(job_id=job.id, attempt=job.attempt) for job in others]
                for at in range(0, len(refs), POLLED_MAX):
                    await self.client.release_jobs(WORKER, refs[at : at + POLLED_MAX])

    # -- one thing after the other

    async def _settle(self, budget: _Budget) -> None:
        while (happened := await self._happen() or await self._do_job()) is not None:
            budget.spend(f"{show_time(self.now)} {happened}")

    async def _happen(self) -> str | None:
        """Do the first thing that is due by now; what it was."""
        due = self._next_due()
        if due is None or due.at > self.now:
            return None
        if due.kind == SLOW_JOB:
            job, handler = self._slow.pop(due)
            if not await self._performer.keep(job, LEASE_S):
                return f"a slow job of type {job.job_type!r} had been lost"
            return await self._perform(handler, job)
        if due.kind == LEASE:
            return await self._end_lease(due)
        if due.kind == SCHEDULE:
            fired = await self.thread.call(fire_schedules, self.thread.engine)
            self.agenda.put_off_schedules()
            return f"{fired} schedules fired"
        if due.kind == BATCH:
            self.agenda.hurry_batch(due.token)
            await self.thread.call(work_on_batch, self.thread.engine)
            return f"batch {due.token} went on"
        if due.kind == SQL_REQUEST:
            await self.thread.call(carry_out_requests, self.thread.engine)
            return "a request of a transaction was carried out"
        await self.thread.call(fire, self.thread.engine, due)
        return f"a timer fired in instance {due.instance:x}"

    async def _end_lease(self, due: Due) -> str:
        for slow, (job, _) in self._slow.items():
            if (slow.token, slow.seq) == (due.token, due.seq) and await self._performer.keep(job, SLOW_LEASE_S):
                return f"the lease of a slow job of type {job.job_type!r} was extended"
        await self.thread.call(end_lease, self.thread.engine, due)
        return f"a lease ended in instance {due.instance:x}"

    async def _do_job(self) -> str | None:
        """Do the job that has waited longest of those that may begin; what it was."""
        job = await self._next_job()
        if job is None:
            return None
        job_type = job.job_type
        stub = self.stubs[job_type]
        takes = stub.takes
        handler = stub.take(job)
        if handler is None:
            return f"a job of type {job_type!r} was taken by a worker that vanishes"
        if takes:
            self._slow[due_of_job(job.id, self.now + takes)] = (job, handler)
            return f"a job of type {job_type!r} was begun, it takes {takes}"
        return await self._perform(handler, job)

    async def _next_job(self) -> Job | None:
        types = list(self.stubs)
        while (job_type := self.agenda.oldest_job_type(types)) is not None:
            if jobs := await self._poll(job_type, 1):
                return jobs[0]
            types.remove(job_type)  # its queue keeps it back, or another worker took it
        return None

    async def _poll(self, job_type: str, number: int) -> list[Job]:
        await self.thread.call(scan_all, self.thread.engine, job_type)
        return await self.client.poll_jobs(WORKER, [job_type], max_jobs=number, lease_s=LEASE_S)

    async def _perform(self, handler: Handler, job: Job) -> str:
        return f"a job of type {job.job_type!r} {await self._performer.perform(handler, job)}"

    def _next_due(self) -> Due | None:
        candidates = [self.agenda.next_due(), min(self._slow, default=None)]
        return min((due for due in candidates if due is not None), default=None)

    # -- bounds and words

    @contextmanager
    def _going_on(self) -> Generator[_Budget]:
        if self._performing:
            raise RuntimeError("settle, advance and finish can't be called by a handler: it runs inside of one")
        self._performing = True
        try:
            yield _Budget(self._events_max, self._real_time_max_s)
        finally:
            self._performing = False

    def _target(self, by: Duration | None, to: dt.datetime | None, units: Mapping[str, float]) -> dt.datetime:
        if (by is not None) + (to is not None) + bool(units) != 1:
            raise TypeError("advance takes a duration, or units like days=30, or to=")
        if to is None:
            to = self.now + (dt.timedelta(**units) if by is None else _timedelta(by))
        if to < self.now:
            raise ValueError(f"time does not go back from {show_time(self.now)} to {show_time(to)}")
        return to

    def _document(self, definition: Document | WorkflowBuilder) -> Document:
        if isinstance(definition, WorkflowBuilder):
            return definition.document()
        if isinstance(definition, str | os.PathLike) and self._directory is not None:
            beside = self._directory / definition
            if not beside.exists() and not Path(definition).exists():
                raise FileNotFoundError(f"there is no {definition} in {self._directory}, nor in {Path.cwd()}")
            return beside if beside.exists() else definition
        return definition


class _Budget:
    """What one call may do until it has to come to its end."""

    def __init__(self, events: int, real_time_s: float) -> None:
        self._left = self._events = events
        self._real_time_s = real_time_s
        self._deadline = time.monotonic() + real_time_s
        self._last: deque[str] = deque(maxlen=LAST_EVENTS)

    def spend(self, happened: str) -> None:
        """Something happened. Raises NotSettled when that was too much."""
        self._last.append(happened)
        self._left -= 1
        if self._left <= 0:
            bound = f"{self._events} jobs and timers"
        elif time.monotonic() > self._deadline:
            bound = f"{self._real_time_s:g} s of real time"
        else:
            return
        last = "".join(f"\n  {line}" for line in self._last)
        raise NotSettled(f"there is still more to do after {bound}; the last of it:{last}")


def _names_of_caller() -> Mapping[str, Any]:
    """Return the local names of the test: annotations of its functions may be text (PEP 563) and name its classes."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__", "").startswith("penstock.testing."):
        frame = frame.f_back
    return {} if frame is None else frame.f_locals


def _timedelta(duration: Duration) -> dt.timedelta:
    return duration if isinstance(duration, dt.timedelta) else dt.timedelta(seconds=duration)


def _described(run: Run | None) -> str:
    return "" if run is None else f"; the run of {run.instance.definition_id} has not ended\n{run.story()}"
