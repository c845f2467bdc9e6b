"""The engine as a whole: its parts, put together once, and its readiness.

Holds no task of its own: `runtime` runs `batchers()` and the services in its nursery. REST, gRPC and Kafka call the
operations of the parts and nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import trio

from penstock.core.graph.definition import DefinitionLimits
from penstock.core.rules.state import OVERTAKEN_TIMER, RUN_CHILD_TIMER, RUN_ENDED_TIMER, WAKE_TIMER
from penstock.engine.advance.call_commands import timer_command
from penstock.engine.advance.command import IsCode
from penstock.engine.advance.commands import FoldCommand
from penstock.engine.advance.full_path import FullPath
from penstock.engine.advance.quarantine import Quarantine
from penstock.engine.advance.timers import Timers
from penstock.engine.advance.transaction import Transactions
from penstock.engine.definitions.definitions import Definitions
from penstock.engine.definitions.drafts import Drafts
from penstock.engine.definitions.signatures import Signatures
from penstock.engine.group_commit.batcher import Batcher
from penstock.engine.instances.audit_trail import AuditTrail
from penstock.engine.instances.batches import Batches
from penstock.engine.instances.definition_use import DefinitionUse
from penstock.engine.instances.inbox import Inbox
from penstock.engine.instances.instances import Instances
from penstock.engine.instances.messages import Messages
from penstock.engine.instances.tasks import Tasks
from penstock.engine.instances.views import view_instances
from penstock.engine.jobs.inline_jobs import InlineJobs
from penstock.engine.jobs.jobs import Jobs
from penstock.engine.jobs.leases import Leases
from penstock.engine.queues.attempts import Attempts
from penstock.engine.queues.ends import Ends
from penstock.engine.queues.events import Events
from penstock.engine.queues.fast_path import FastPath
from penstock.engine.queues.polls import Polls
from penstock.engine.queues.queues import Queues
from penstock.engine.queues.traces import Traces
from penstock.engine.queues.variables import VariablesCache
from penstock.engine.repair.bulk import Bulk
from penstock.engine.repair.bulk_acts import Acts
from penstock.engine.repair.impact import Impact
from penstock.engine.repair.migrations import Migrations
from penstock.engine.repair.repair import Repair
from penstock.engine.requests.answers import AnswerMemory
from penstock.engine.requests.hiding import Hiding
from penstock.engine.requests.ids import IdSource
from penstock.engine.requests.payload import PayloadLimits
from penstock.engine.requests.read_pool import ReadPool
from penstock.engine.runs.children import Children
from penstock.engine.runs.code import Code
from penstock.engine.runs.forks import Forks
from penstock.engine.runs.journal import Journal
from penstock.engine.runs.origins import Origins
from penstock.engine.runs.runs import Runs
from penstock.engine.runs.updates import Updates
from penstock.engine.schedules.declared import Declarations
from penstock.engine.schedules.firings import Firings
from penstock.engine.schedules.schedules import Schedules
from penstock.engine.simulation.simulations import Simulations
from penstock.engine.sql_requests.sql_requests import SqlRequests
from penstock.engine.starts.starts import Starts
from penstock.engine.status.acknowledgements import Acknowledgements
from penstock.engine.status.diagnosis import Diagnosis
from penstock.engine.status.failures import Failures
from penstock.engine.status.open_work import OpenWork
from penstock.engine.status.overview import Overview
from penstock.engine.status.watch import Watch
from penstock.errors import TooManyRequests, Unavailable
from penstock.settings import Settings
from penstock.store.db.connection import TrioConnection
from penstock.store.db.database import Database, DatabaseError
from penstock.store.db.replica import Replica
from penstock.telemetry.metrics import Metrics
from penstock.telemetry.spans import Spans


class Engine:
    """All operations, by noun: ``definitions``, ``instances``, ``jobs``, ``tasks``; of durable workflows ``code``,
    ``journal``, ``runs``. With ``spans`` there are traces; lists are read from a ``replica``."""

    def __init__(
        self,
        database: Database,
        settings: Settings,
        metrics: Metrics,
        engine_number: int,
        events: Events | None = None,
        spans: Spans | None = None,
        replica: Replica | None = None,
    ) -> None:
        self.traces = traces = None if spans is None else Traces(spans)
        self.events = Events() if events is None else events
        self.settings, self.metrics = settings, metrics
        self.database, self.limits, database.on_other_server = database, PayloadLimits.of(settings), self._forget
        self.ids, self.answer_memory = IdSource(engine_number), AnswerMemory(settings.answer_max_memory_bytes)
        self._cache = cache = VariablesCache(settings.variables_cache_max_bytes)
        self.definitions = Definitions(
            database,
            metrics,
            cache_max_bytes=settings.definition_cache_max_bytes,
            audit=settings.audit_log_enabled,
            outage_wait_s=settings.outage_wait_seconds,
            need_topics=settings.through_kafka,
            upload_limits=DefinitionLimits(steps_max_count=settings.definition_max_steps),
            uploaded=self.events.uploaded,
        )
        queues = self.queues = Queues(database, audit=settings.audit_log_enabled)
        self.polls = Polls(
            database, self.definitions, settings, metrics, cache, self.answer_memory, self.events, queues, traces
        )
        self.quarantine, self.ends = Quarantine(metrics), (ends := Ends(database))
        self.timers = Timers(database, self.fire, self.quarantine, settings.background_failure_limit, self.events.armed)
        subs = self.timers.on_armed, ends, traces
        self.transactions = Transactions(database, settings, metrics, self.definitions, self.polls, self.ids, *subs)
        self.full_path = FullPath(database, settings, metrics, self.definitions, self.transactions)
        self.fast_path = FastPath(database, settings, metrics, self.polls, cache, self._fold, ends)
        callbacks, whole = (self.polls.came_back, self.timers.on_due_in), (self.ids, self.transactions, view_instances)
        self.starts = Starts(database, settings, metrics, self.definitions, self.polls, *whole)
        self.leases = Leases(database, settings, metrics, self.definitions, self.full_path, self.quarantine, *callbacks)
        self.jobs = Jobs(database, settings, metrics, self.definitions, self.polls, self.fast_path, self.full_path)
        self.inline_jobs = InlineJobs(settings, metrics, self.jobs, self.polls, self.fast_path)
        journal = self.journal = Journal(database, settings, metrics, self.polls, self.jobs, self.timers, self.events)
        self.runs, self.updates = Runs(database, settings, self.definitions, journal), Updates(settings, journal)
        self.messages = Messages(database, settings, metrics, self.definitions, self.full_path, self.timers, self.ids)
        self.read_pool = read_pool = ReadPool(database, replica)
        audit, polled, paths = settings.audit_log_enabled, not settings.through_kafka, (self.starts, self.full_path)
        self.instances = Instances(database, read_pool, settings, self.definitions, *paths, self.runs, ends)
        self.tasks = Tasks(database, self.definitions, self.instances, self.full_path, self.runs, audit=audit)
        self.attempts, self.hiding = Attempts(database, settings), Hiding(settings.console_hide_variables)
        self.inbox, self.audit_trail = Inbox(database, self.definitions, self.hiding, audit=audit), AuditTrail(database)
        self.repair = Repair(database, settings, self.limits, self.instances, self.full_path, self.hiding)
        self.migrations = Migrations(database, settings, self.definitions, self.full_path, self.polls, self.timers)
        self.definition_use = DefinitionUse(self.read_pool, self.definitions, self.instances)
        self.impact = Impact(read_pool, self.definitions, self.definition_use, self.instances, self.migrations)
        self.drafts = Drafts(database, self.definitions, self.instances, self.limits, self.hiding, polled=polled)
        self.simulations = Simulations(self.definitions, self.limits, settings)
        self.open_work = OpenWork(database, read_pool, self.definitions, self.jobs, self.polls, audit=audit)
        self.code = Code(database, settings, self.definitions, self.instances, self.polls, self.jobs, self.ids)
        self.children = Children(database, settings, self.code, self.instances, self.journal, self.timers)
        self.diagnosis = Diagnosis(self.read_pool, self.definitions, queues, polled=polled)
        kept = self.polls.activity, queues, settings.retention_days, Origins(database, self.code, engine_number)
        self.overview = Overview(read_pool, self.definitions, *kept, Acknowledgements(database, settings))
        self.watch, self.failures = Watch(database, self.overview), Failures(database, read_pool, self.definitions)
        self.firings = Firings(database, settings, metrics, self.definitions, self.ids, self.transactions)
        self.schedules, self.declarations = self._schedules(audit=audit)
        self.bulk, self.batches = self._bulk(engine_number), Batches(database, settings, metrics, self.instances)
        _watch(self.batchers(), metrics)
        self.sql_requests, self._folding, self._scanning = self._sql_requests(), set[int](), trio.Lock()
        self._stopping, self._scans_begun, self._scan_answered = False, 0, 0

    def _schedules(self, *, audit: bool) -> tuple[Schedules, Declarations]:
        fired = self.definitions, self.firings, self.instances
        schedules = Schedules(self.database, self.limits, *fired, self.quarantine, audit=audit)
        return schedules, Declarations(self.database, self.limits, schedules, self.queues)

    def _bulk(self, engine_number: int) -> Bulk:
        acts = Acts(self.instances, self.tasks, self.repair, self.migrations)
        return Bulk(self.database, acts, self.limits, engine_number)

    def _sql_requests(self) -> SqlRequests:
        given = self.database, self.settings, self.metrics, self.limits
        return SqlRequests(*given, self.instances, self.tasks, self.runs, self.messages)

    async def _forget(self, connection: TrioConnection) -> None:
        """What is remembered may be of commits that the server never had: tokens count on from where it stands, and
        keys, ids and versions are given again."""
        await self.definitions.forget(connection)
        await self.queues.read_again(connection)
        self._cache.clear()
        self.polls.leases.doubt()
        self.polls.claims.low_water_marks.drop()

    @property
    def forks(self) -> Forks:
        """Starts durable runs with the journals of others."""
        return Forks(self.database, self.definitions, self.instances)

    @property
    def signatures(self) -> Signatures:
        """What durable workflows take."""
        return self.definitions.signatures

    @property
    def origins(self) -> Origins:
        """Which programs serve durable workflows."""
        return self.overview.origins

    def batchers(self) -> list[Batcher[Any]]:
        """Return the flushers to run, each in a task of its own."""
        return [
            self.fast_path,
            self.full_path,
            self.starts.commit_queue,
            self.starts.keyed,
            self.full_path.long,
            self.starts.long,
            self.firings,
            self.polls.claims,
            self.polls.releases,
            self.jobs.beats,
            self.jobs.lookups,
            self.messages.commit_queue,
            *self.journal.batchers(),
        ]

    async def ready(self) -> None:
        """Returns when the engine can serve. Raises Unavailable with the reason when it can't."""
        if self._stopping:
            raise Unavailable("the engine is shutting down")
        for batcher in self.batchers():
            age_s = _batch_age_s(batcher)
            if age_s > self.settings.batch_stuck_seconds:
                raise Unavailable(f"a batch of {batcher.name} calls has been under way for {age_s:.0f} s")
        asked = self._scans_begun
        async with self._scanning:  # anybody may ask: one look that began later answers all who wait for it
            if self._scan_answered <= asked:
                self._scans_begun = scan = self._scans_begun + 1
                try:
                    await self.database.fetch("now")
                except DatabaseError as error:
                    raise Unavailable("the database does not answer") from error
                self._scan_answered = scan

    def drain(self) -> None:
        """Not ready any more; parked polls are answered now, new ones at once. Everything else goes on."""
        self._stopping = True
        self.polls.draining = True
        self.polls.releases.return_unreadable(math.inf)
        self.polls.waiters.wake_all()
        self.polls.losses.drain()
        self.watch.drain()
        self.ends.drain()
        self.batches.drain()

    async def fire(self, instance: int, timer: tuple[int, int, int], give_up: str | None) -> bool | None:
        """Act on a timer that is due. None: it takes long, or somebody else has what it is about: later."""
        if timer[2] == WAKE_TIMER:
            return await self.journal.wake(timer[0], timer[1])
        if timer[2] == RUN_ENDED_TIMER:
            return await self.schedules.run_ended(instance)
        if timer[2] == OVERTAKEN_TIMER:
            return await self.schedules.cancel_overtaken(instance, timer)
        if timer[2] == RUN_CHILD_TIMER:
            return await self.children.notify(instance, timer)
        item = timer_command(instance, timer, give_up, self.timers.on_refusal)
        self.full_path.submit_nowait(item)
        try:
            return bool(await item.wait_answer()) if await item.wait_tried() else None
        except IsCode:
            return await self.children.cancel_called(instance, timer)

    def _fold(self, instance: int) -> None:
        """Queue a fold; a hint that is lost comes again with the next completion."""
        if instance in self._folding or len(self._folding) > 1000:
            return
        self._folding.add(instance)
        item = FoldCommand(instance, lambda: self._folding.discard(instance))
        try:
            self.full_path.submit_nowait(item, within_s=0)
        except TooManyRequests:
            self._folding.discard(instance)


def _watch(batchers: Sequence[Batcher[Any]], metrics: Metrics) -> None:
    for batcher in batchers:
        metrics.watch_batches(batcher.name, partial(_batch_age_s, batcher), partial(_lock_waiting, batcher))


def _batch_age_s(batcher: Batcher[Any]) -> float:
    return batcher.statistics().batch_age_s or 0.0


def _lock_waiting(batcher: Batcher[Any]) -> int:
    return batcher.statistics().lock_waiting
