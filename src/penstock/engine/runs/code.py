"""Durable workflows, as the engine sees them: a generated definition with one job, for executors only.

The engine never runs or knows bodies. A run is an instance of the definition, so that starts, leases, lists, history
and retention are those that there are.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Sequence
from itertools import count
from math import inf
from typing import Any, Final, NamedTuple

import msgspec
import trio

from penstock.access.identity import actor, may_execute
from penstock.core.graph.definition import BUSINESS_KEY_MAX_CHARS
from penstock.core.parsing.parsing import parse_definition
from penstock.engine.definitions.definitions import CODE_PREFIX, Definitions
from penstock.engine.definitions.json_schema import shown
from penstock.engine.instances.instance_filter import InstanceFilter
from penstock.engine.instances.instances import Instances
from penstock.engine.jobs.jobs import Jobs
from penstock.engine.queues.journal_items import RULES, RULES_VERSION, ClaimedRun, JournalPage, RunLease
from penstock.engine.queues.polls import Polls
from penstock.engine.queues.waiters import Waiter
from penstock.engine.requests import ids
from penstock.engine.requests.ids import IdSource, show_instance
from penstock.engine.requests.paging import NAME_MAX_CHARS
from penstock.engine.requests.payload import EMPTY_OBJECT, check_text
from penstock.errors import BadRequest, Conflict, IdempotencyConflict, NotFound, PayloadTooLarge
from penstock.log.log import get_logger
from penstock.settings import Settings
from penstock.store.db.connection import TrioConnection
from penstock.store.db.database import Database, unavailable_when_away
from penstock.store.rows import activity as activity_store
from penstock.store.rows import definitions as definition_store
from penstock.store.rows import engines as engine_store
from penstock.store.rows import forks as fork_store
from penstock.store.rows import journal as journal_store
from penstock.store.rows import run_claims as store
from penstock.wire.fields import json_text
from penstock.wire.model import Instance, Job, StartRequest

SCHEMA_VERSION_NEEDED: Final = 4
"""Of all engines on the database, as an older one would not leave runs alone."""
RULES_PAUSE_S: Final = 5.0
"""Between two looks whether an engine lives that does not know rules."""
VERSION_MAX: Final = (1 << 31) - 1
SLICE_RUNS: Final = 200
DEADLINE: Final = "$deadline_s"
"""Among the arguments of a run: see `durable.workflow`."""
LATEST_S: Final = 10.0
"""So long runs are looked for among instances of other workflows: about a million of them a second or two."""
_NAME: Final = re.compile(r"[^\s:@/\x00-\x1f]{1,100}")
_APP: Final = re.compile(r"[^\s:@/\x00-\x1f]{0,100}")

log = get_logger("penstock.engine.code")

_UNWRITTEN: Final = store.ClaimedRow(0, 0, None, None, blocked=False, records=None, more=False)


APP_VERSIONS_MAX: Final = 1_000
"""Versions of workflows that the programs of one App may register."""


class CodeWorkflow(NamedTuple):
    """A workflow of an app, in a version. Two apps may each have an ``order``: they don't run each other's."""

    name: str
    version: int = 1
    app: str = ""

    @property
    def definition_id(self) -> str:
        """``order``, ``shop:order``."""
        return f"{self.app}:{self.name}" if self.app else self.name

    @property
    def job_type(self) -> str:
        """``code:order@1``, ``code:shop:order@1``."""
        return f"{CODE_PREFIX}{self.definition_id}@{self.version}"

    def check(self) -> None:
        """Raises BadRequest for what can't be a name."""
        if _NAME.fullmatch(self.name) is None:
            raise BadRequest("workflow: a name has 1 to 100 characters, none of them a blank, ':', '@' or '/'")
        if _APP.fullmatch(self.app) is None:
            raise BadRequest("app: a name has at most 100 characters, none of them a blank, ':', '@' or '/'")
        if not 0 < self.version <= VERSION_MAX:
            raise BadRequest(f"version: must be between 1 and {VERSION_MAX}")

    def definition(self) -> bytes:
        """Return the generated definition: one job, then the end."""
        about: dict[str, Any] = {"name": self.name, "version": self.version}
        if self.app:
            about["app"] = self.app
        steps = [
            {"id": "run", "name": "run", "type": "SERVICE_TASK", "jobType": self.job_type, "nextStep": "end"},
            {"id": "end", "name": "end", "type": "END"},
        ]
        body = {"id": self.definition_id, "name": self.definition_id, "steps": steps, "metadata": {"code": about}}
        return msgspec.json.encode(body)


class Code:
    """Registers workflows, starts runs, and gives them to executors."""

    def __init__(
        self,
        database: Database,
        settings: Settings,
        definitions: Definitions,
        instances: Instances,
        polls: Polls,
        jobs: Jobs,
        id_source: IdSource,
    ) -> None:
        self._database = database
        self._settings = settings
        self._definitions = definitions
        self._instances = instances
        self._polls = polls
        self._jobs = jobs
        self._ids = id_source
        self._versions: dict[CodeWorkflow, int] = {}
        self._streams = count(1)
        self._rules, self._rules_refused_at = 0, -inf
        self.tag = secrets.token_hex(4)
        """What tells the executors of this engine from those of all others, also of earlier ones with its number."""

    def holder(self, app: str, number: int) -> str:
        """The text under which an executor of this engine holds runs: ``e<engine number>.<tag>/<app>-<number>``."""
        return f"e{self._ids.number}.{self.tag}/{app}-{number}"

    def stream_holder(self, worker: str) -> str:
        """That of an executor which is connected to this engine, for one stream: another one has other leases."""
        return self.holder(worker, next(self._streams))

    async def register(self, workflow: CodeWorkflow, *, anew: bool = False) -> int:
        """Make sure that its definition exists; the version of it. Idempotent. ``anew``: its program says so, and it
        may have been deleted meanwhile, by another engine.

        Raises BadRequest (a name that can't be one), Conflict (the id is a graph's; older engines live here; the App
        has too many), Unavailable.
        """
        if workflow in self._versions and not anew:
            return self._versions[workflow]
        workflow.check()
        with unavailable_when_away():
            async with self._database.connection() as connection:
                await engine_store.require_version(connection, SCHEMA_VERSION_NEEDED)
                await self._check_count(connection, workflow)
            stored = await self._definitions.upload(parse_definition(workflow.definition()), code=True)
            await self._definitions.let_call(workflow.definition_id)
        self._versions[workflow] = stored.version
        return stored.version

    async def delete(self, id: str) -> None:
        """Let no id find a workflow that no program serves. Its runs that have ended stay; its program brings it back
        when it registers it again. An engine that has started it may start it until it is told so by its own program.

        Raises NotFound, and Conflict where it is another definition, is served, or has open runs, and while an engine
        lives that would not know.
        """
        check_text(id, "id", NAME_MAX_CHARS)
        async with self._database.connection() as connection:
            polled = {**await activity_store.read_worker_counts(connection), **self._polls.activity.workers()}
            if any(count and name.startswith(f"{CODE_PREFIX}{id}@") for name, count in polled.items()):
                raise Conflict(f"a program serves '{id}': stop it first, and wait for half a minute")
            try:
                gone = await definition_store.delete(connection, id, actor(), audit=self._settings.audit_log_enabled)
            except definition_store.OtherKind:
                raise Conflict(f"'{id}' is not a durable workflow: only durable workflows can be deleted") from None
            finally:  # also where nobody heard what became of it
                self._definitions.evict(id)
                self._versions = {each: known for each, known in self._versions.items() if each.definition_id != id}
        if gone is None:
            raise self._definitions.unknown(id, 0)
        if not gone:
            raise Conflict(f"runs of '{id}' are open: cancel them first")

    async def _check_count(self, connection: TrioConnection, workflow: CodeWorkflow) -> None:
        """Raises Conflict where one more would be too many."""
        if await definition_store.count_code(connection, workflow.app, APP_VERSIONS_MAX) < APP_VERSIONS_MAX:
            return
        content = parse_definition(workflow.definition()).content
        if await definition_store.same(connection, workflow.definition_id, content) is None:
            raise Conflict(
                f"workflow: the App has {APP_VERSIONS_MAX:,} versions of workflows; '{workflow.name}' is one more"
            )

    async def known(self, workflow: CodeWorkflow) -> int:
        """The version of its definition, which only those make who may execute its App. Raises as `register`, and
        NotFound."""
        if workflow in self._versions or may_execute(workflow.app):
            return await self.register(workflow)
        workflow.check()
        content = parse_definition(workflow.definition()).content
        with unavailable_when_away():
            async with self._database.connection() as connection:
                version = await definition_store.same(connection, workflow.definition_id, content)
        if version is None:
            raise NotFound(
                f"workflow: no executor has registered '{workflow.definition_id}' in version {workflow.version}: start "
                "the program that serves it first"
            )
        return version

    async def start(
        self,
        workflow: CodeWorkflow,
        arguments: bytes = EMPTY_OBJECT,
        *,
        id: str | None = None,
        asked: StartRequest | None = None,
        idempotency_key: str | None = None,
    ) -> Instance:
        """Start a run. ``arguments`` is a JSON object by parameter name. With ``id`` at most one is ever started: a
        second call gives that one. ``asked``: when it begins, what becomes of others with its key, priority and flow
        key. Registers the workflow when that was not done, for those who may execute.

        Raises NotFound (for others), BadRequest, PayloadTooLarge, IdempotencyConflict (the id was used with other
        arguments), Throttled, Unavailable.
        """
        if len(arguments) > self._settings.payload_max_bytes:
            raise PayloadTooLarge(
                f"arguments: have more than {self._settings.payload_max_bytes} bytes: store them elsewhere "
                "and pass a key"
            )
        if id is not None:
            check_text(id, "id", BUSINESS_KEY_MAX_CHARS)
            for rule in ("dedupe", "debounce"):
                if getattr(asked, rule, None) is not None:
                    raise BadRequest(f"{rule}: can't be combined with an id, which starts a run once")
        view = await self._instances.start(
            msgspec.structs.replace(
                asked or StartRequest(),
                definition_id=workflow.definition_id,
                definition_version=await self.known(workflow),
                variables=arguments,
                business_key=id,
                instance_key=id,
                keep_instance_key=id is not None,
                idempotency_key=idempotency_key,
            )
        )
        if id is not None and may_differ(view, arguments):
            with unavailable_when_away():
                async with self._database.connection() as connection:
                    await refuse_other_arguments(connection, view, id, arguments)
        return view

    async def take(
        self, holder: str, workflows: Sequence[CodeWorkflow], max_runs: int, *, wait_s: float, lease_s: float = 0.0
    ) -> list[ClaimedRun]:
        """Runs of these workflows under lease, oldest first; waits while there are none. Cancel-safe: what was
        leased to a call that is cancelled goes back. Raises Unavailable, TooManyRequests."""
        waiter = Waiter(
            holder,
            tuple(dict.fromkeys(workflow.job_type for workflow in workflows)),
            min(max_runs, self._settings.poll_max_jobs),
            self._jobs.lease_s(lease_s),
        )
        jobs = await self._polls.wait_jobs(waiter, min(max(wait_s, 0), self._settings.poll_max_wait_seconds))
        return await self.claimed(jobs)

    async def claimed(self, jobs: Sequence[Job]) -> list[ClaimedRun]:
        """Jobs that were leased to an executor, as runs. Those that it can't be told of go back: raises Unavailable."""
        try:
            with unavailable_when_away():
                rules = await self.rules()
                runs = await self._read([job for job in jobs if not _is_fresh(job)])
        except BaseException:
            self._polls.releases.release_jobs(jobs)
            raise
        return [_claimed(job, runs, rules) for job in jobs]

    async def rules(self) -> int:
        """Return the rules by which executors deliver what comes next: the newest ones, unless an engine lives that
        does not know that there are versions of them. From then on none may join. A database that is away does not
        say whether one lives, so its error is raised."""
        if self._rules or trio.current_time() < self._rules_refused_at + RULES_PAUSE_S:
            return self._rules
        try:
            async with self._database.connection() as connection:
                await engine_store.require_version(connection, RULES_VERSION)
            self._rules = RULES
        except Conflict:  # the runs of now go on by the rules of before
            self._rules_refused_at = trio.current_time()
        return self._rules

    async def beyond_rules(self, instances: Sequence[int], rules: int) -> set[int]:
        """Those of these runs that were gone on with by newer rules. Raises Unavailable."""
        with unavailable_when_away():
            async with self._database.connection() as connection:
                return await journal_store.beyond_rules(connection, instances, rules)

    async def find(self, app: str, id: str, workflows: Iterable[str], *, or_any: bool = False) -> str:
        """Return the instance id of the run with this id: of these workflows of an app, else of any if there are none,
        or ``or_any``; else ``id`` is an instance's. Raises NotFound."""
        names = list(workflows)
        for name in names:
            workflow = CodeWorkflow(name, 1, app)
            workflow.check()
            found = await self._instances.find_by_key(workflow.definition_id, id)
            if found is not None:
                return show_instance(found)
        if or_any or not names:
            page = await self._instances.list(InstanceFilter(business_key=id), 0, 1)
            if page.items:
                return page.items[0].id
        try:
            return (await self._instances.get(id)).id
        except NotFound:
            raise NotFound(f"there is no run with the id '{id}'") from None

    async def latest(
        self, app: str, workflow: str | None, status: str | None, limit: int, *, blocked: bool = False
    ) -> list[Instance]:
        """The latest runs, newest first, without their arguments: of a workflow, or of all that are code; or those of
        them that are ``blocked``. They are looked for no longer than `LATEST_S`."""
        definition_id = None if workflow is None else CodeWorkflow(workflow, 1, app).definition_id
        wanted = InstanceFilter(definition_id=definition_id, status=status, blocked=blocked, code=workflow is None)
        found, cursor = list[Instance](), None
        with trio.move_on_after(LATEST_S):
            while len(found) < limit:
                page = await self._instances.find_slice(wanted, cursor, min(SLICE_RUNS, limit - len(found)))
                found.extend(await self._instances.summarize(page.items))
                cursor = page.next
                if cursor is None:
                    break
        return found

    async def _read(self, jobs: Sequence[Job]) -> dict[int, store.ClaimedRow]:
        if not jobs:
            return {}
        async with self._database.connection(ahead=True) as connection:
            runs = await store.taken_runs(connection, [ids.read_job(job.id).instance for job in jobs])
        for instance, run in runs.items():
            lease = self._polls.leases.latest(instance)
            if lease is not None and run.records is not None:
                lease.records = len(run.records)
                lease.blocked = run.blocked
        return runs


def _is_fresh(job: Job) -> bool:
    """Return whether it was born leased: nobody had a moment to write for it."""
    return job.attempt == 1 and job.locked_at == job.created_at


def _claimed(job: Job, runs: dict[int, store.ClaimedRow], rules: int) -> ClaimedRun:
    key = ids.read_job(job.id)
    assert job.attempt is not None
    assert job.worker_id is not None
    assert job.created_at is not None
    assert job.locked_at is not None
    assert job.lock_expires_at is not None
    run = runs.get(key.instance, _UNWRITTEN)
    return ClaimedRun(
        run_lease=RunLease(key.instance, key.seq, job.attempt, job.worker_id),
        instance_id=job.instance_id,
        job_type=job.job_type,
        arguments=json_text(job.variables),
        started_at=job.created_at.timestamp() if run.began_at is None else run.began_at,
        taken_at=job.locked_at.timestamp(),
        lease_left_s=(job.lock_expires_at - job.locked_at).total_seconds(),
        mail=run.mail,
        key=run.key or job.business_key,
        expiries=run.expiries,
        page=None if run.records is None else JournalPage(run.records, run.mail, run.more),
        rules=rules,
    )


async def refuse_other_arguments(connection: TrioConnection, view: Instance, id: str, arguments: bytes) -> None:
    """Raise IdempotencyConflict if a run was started with other arguments than these. Of a run that was started before
    all engines had versions of rules the difference is a warning: a set was written in the order that it had in the
    program."""
    before: str | bytes | None = json_text(view.variables)
    if view.completed_at is not None:  # it shows its result, maybe in the place of an argument
        before = await fork_store.arguments(connection, ids.read_instance(view.id))
    differs = None if before is None else _difference(before, arguments)
    if differs is None:
        return
    since_s = await engine_store.needed_since(connection, RULES_VERSION)
    if ids.started_s(ids.read_instance(view.id)) >= since_s:
        raise IdempotencyConflict(
            f"id: '{id}' is the id of a run that was started with other arguments: {differs}. Give the same ones, or "
            "another id"
        )
    log.warning("a run from before an upgrade has other arguments than this start: it is not changed", id=id)


def may_differ(view: Instance, arguments: bytes) -> bool:
    """Return whether a run was started with other arguments than these, as far as what it shows says: one that has
    ended may show its result in the place of an argument."""
    return view.completed_at is not None or _difference(json_text(view.variables), arguments) is not None


def _difference(before: str | bytes, arguments: bytes) -> str | None:
    """Return what of these arguments is not as before, for people; None where they are the same."""
    found: dict[str, Any] = msgspec.json.decode(before)
    wanted: dict[str, Any] = msgspec.json.decode(arguments)
    for name in dict.fromkeys((*wanted, *found)):
        if name in wanted and name in found and wanted[name] == found[name]:
            continue
        now = f"is {shown(wanted[name])}" if name in wanted else "is not given"
        then = f"was {shown(found[name])}" if name in found else "was not given"
        return f"{'deadline' if name == DEADLINE else name} {now} and {then}"
    return None
