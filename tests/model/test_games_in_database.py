"""The same games through the engine: two engines on one database, many games at once, compared after each move.

Between the moves come things that must not matter: repeated and stale results, ended leases, jobs given back, folds.
The database's clock only goes forward, to the time of the timer that is to fire; no loop fires any on its own.
"""

from __future__ import annotations

import contextlib
import copy
import random
from collections import Counter
from datetime import timedelta
from typing import Any, cast

import msgspec
import pytest
import trio

from penstock.core.graph.definition import StepType
from penstock.core.parsing.parsing import parse_definition
from penstock.core.rules.state import RECORDED_TIMER, START_TIMER
from penstock.engine.advance.call_commands import timer_command
from penstock.engine.advance.commands import FoldCommand
from penstock.engine.instances.batches import BatchStart
from penstock.engine.requests.ids import show_instance
from penstock.errors import Conflict, NotFound, PenstockError, Unavailable
from penstock.store.rows import batches as batch_store
from penstock.store.rows import jobs as job_store
from penstock.store.rows.engines import require_version
from penstock.store.rows.recorded import RECORDED_VERSION
from penstock.testing.clock import DatabaseClock
from penstock.testing.definitions import Json, definition, end, service
from penstock.testing.random_definitions import MESSAGE, START_VARIABLES, random_definition
from penstock.wire.edits import MigrationRequest, StepSkip, TokenMove, VariablesEdit
from penstock.wire.model import Job, JobRef, Park, StartRequest
from penstock.wire.queue import QueuePolicy
from tests.engine.conftest import MakeDriver
from tests.engine.driver import Driver, number, variables_of
from tests.model.moves import (
    MAX_AUTOMATIC,
    MAX_WORK,
    PARK_SIGNAL,
    PARK_UNTIL,
    SIGNAL,
    Move,
    Seeded,
    next_move,
    output_of,
    play,
    without_ids,
)
from tests.model.reference_model import ModelToken, ReferenceModel, kind, map_of
from tests.shares import in_shares

GAMES_AT_ONCE = 8
MOVES = {
    "complete",
    "fire",
    "fail",
    "fail for good",
    "err",
    "park",
    "signal job",
    "cancel",
    "undo",
    "retry",
    "keep signal",
    "publish",
    "publish to all",
    "edit",
    "skip",
    "move",
    "fire for all",
    "migrate",
}
MOVES_MAX = 20
RENAMED = "-now"
"""What steps have behind their names in the other version."""


class Played:
    """One game: the instance, the model of it, and the jobs that were handed out."""

    def __init__(self, engines: list[Driver], clock: DatabaseClock, seed: int) -> None:
        self.engines = engines
        self.clock = clock
        self.seed = seed
        self.source = random.Random(seed)
        self.body = own_job_types(random_definition(self.source, failing=seed % 4 == 0, max_steps=20), seed)
        self.fairness_order = Turns(self, seed)
        self.fairness_order.give(self.body)
        if seed % 3 == 0:  # an invariant compares them with the variables
            self.body["searchAttributes"] = {"n": "NUMBER", "flag": "BOOLEAN", "word": "STRING", "result": "STRING"}
        self.other, self.renamed = other_version(self.body, self.source)
        self.version = 1
        self.all_steps = parse_definition(self.body).steps
        self.types = sorted(
            {step.job_type for step in self.all_steps if step.type is StepType.SERVICE_TASK and step.job_type}
        )
        self.child = definition(service("work", "end", job_type=f"child-{seed}"), end(), definition_id=f"child-{seed}")
        self.jobs: dict[str, Job] = {}
        self.done: list[Job] = []
        self.children: dict[str, Job] = {}
        self.signals: list[tuple[str, str, str, dict[str, Any]]] = []
        self.moves: list[Move] = []
        self.retried_from = 0
        self.instance = ""
        self.game: ReferenceModel | None = None

    @property
    def steps(self) -> list[dict[str, Any]]:
        return cast("list[dict[str, Any]]", self.body["steps"])

    @property
    def engine(self) -> Driver:
        """One of the two, at random."""
        return self.source.choice(self.engines)

    async def begin(self) -> str:
        await self.upload(self.child)
        await self.upload(self.body)
        return await (self.start_in_batch() if self.seed % 7 == 3 else self.start())

    async def upload(self, body: Json) -> None:
        await self.engines[0].upload(body)

    async def start(self) -> str:
        """The instance, by the game's own key: also when it was started before, and after its end."""
        return (await self.engine.start(str(self.body["id"]), START_VARIABLES, **self.fields_of_start)).id

    @property
    def key(self) -> str:
        return f"key {self.seed}"

    @property
    def fields_of_start(self) -> dict[str, Any]:
        return {
            "instance_key": self.key,
            "keep_instance_key": True,
            "delay": self.delay,
            **self.fairness_order.of_start,
        }

    async def start_in_batch(self) -> str:
        """As the item of a batch, which starts it once however many work on it."""
        about: Any = {"definition_id": self.body["id"], "variables": msgspec.json.encode(START_VARIABLES)}
        asked = BatchStart([StartRequest(**about, **self.fields_of_start)])
        batches = self.engines[0].engine.batches
        batch = await batches.create(asked)
        with trio.fail_after(60):
            while (await batches.get(batch.id)).pending:
                for driver in self.engines:
                    async with driver.engine.database.connection() as connection:
                        work = await batch_store.work_of(connection, int(batch.id))
                    with contextlib.suppress(Unavailable):  # the loop comes to it again
                        if work is not None:
                            await driver.engine.batches.work_on(work)
        (only,) = (await batches.results(batch.id, None, None, 10)).items
        assert only.instance is not None
        return only.instance.id

    @property
    def delay(self) -> str | None:
        """Some games begin later than they are started."""
        return "PT1S" if self.seed % 5 == 2 else None

    async def begin_late(self) -> None:
        """The time of the start has come."""
        found = "SELECT token_id, seq FROM timer WHERE instance_id = %s AND index = %s"
        ((token, seq),) = self.engines[0].rows(found, number(self.instance), START_TIMER)
        await self.fire(token, seq, START_TIMER)

    async def signal(self, step: str, output: dict[str, Any], *, early: bool = False) -> None:
        how = self.source.choice(["id", "key", "plain"])
        if how == "plain":
            await self.send(None, step, output, early)
        else:
            self.signals.append((how, f"s{len(self.signals)}", step, output))
            await self.signal_again(-1)

    async def signal_again(self, which: int) -> None:
        """One that has an id; only the first time it has an effect, and any time it is accepted."""
        how, id, step, output = self.signals[which]
        await self.send(id, step, output, False, by_key=how == "key")

    async def send(
        self, id: str | None, step: str, output: dict[str, Any], buffer: bool, *, by_key: bool = False
    ) -> None:
        if by_key:
            await self.engine.signal_by_key(str(self.body["id"]), self.key, step, output, signal_id=id)
        else:
            await self.engine.signal(self.instance, step, output, signal_id=id, buffer=buffer)

    async def play(self) -> None:
        self.instance = await self.begin()
        if self.delay is not None:
            await self.begin_late()
        self.game = ReferenceModel(self.body, START_VARIABLES, self.clock.now(), MAX_AUTOMATIC, MAX_WORK)
        self.game.has_versions = True
        await self.upload(self.other)
        await self.fairness_order.limit()
        await self.compare()
        drawing = Seeded(self.source)
        while len(self.moves) < MOVES_MAX:
            move = next_move(self.game, drawing, self.moves)
            if move is None:
                return
            self.moves.append(move)
            await self.make(move)
            await self.receive()
            if move.what != "migrate":  # which it says itself
                play(self.game, move)
            await self.compare()
            if self.source.random() < 0.4:
                await self.disturb()
                await self.compare()

    # -- moves

    async def make(self, move: Move) -> None:
        assert self.game is not None
        match move.what:
            case "cancel":
                await self.engine.cancel(self.instance, "cancelled")
                return
            case "undo":
                await self.engine.cancel(self.instance, "cancelled", compensate=True)
                return
            case "retry":
                await self.engine.retry(self.instance)
                return
            case "edit":
                changes = VariablesEdit(set=msgspec.Raw(msgspec.json.encode(output_of(move))), remove=[move.removed])
                await self.engine.engine.repair.edit_variables(self.instance, changes)
                return
            case "skip" | "move":
                await self.repair_by_hand(move)
                return
            case "migrate":
                await self.migrate()
                return
            case "keep signal":
                for _ in range(move.times):
                    await self.signal(move.step, output_of(move), early=True)
                return
            case "publish" | "publish to all":
                await self.publish(move)
                return
            case _:
                pass
        opened = self.wholes() if move.what == "fire for all" else self.open_executions()
        token, seq = opened[move.place]
        if move.what in ("fire", "fire for all"):
            await self.fire(token, seq, move.index)
            return
        step = self.game.steps[self.game.open_tokens[move.place].step]
        if move.what == "signal job":
            await self.signal(SIGNAL, output_of(move))
        elif kind(step) == "CALL_ACTIVITY":
            await self.end_child(token, seq, move)
        elif kind(step) == "USER_TASK":
            await self.engine.finish_task(self.instance, step["id"], output_of(move))
        elif kind(step) == "WAIT":
            await self.signal(step["id"], output_of(move))
        else:
            job = await self.job(token, seq)
            mark = self.game.open_tokens[move.place]
            self.compare_job(self.game, variables_of(job), mark)
            attempt = self.source.choice([None, job.attempt])
            if move.what == "park":
                await self.engine.engine.jobs.park(self.park_of(job, move))
            elif move.what == "complete":
                if len(self.moves) % 4:
                    await self.engine.complete(job, output_of(move), attempt=attempt)
                else:
                    await self.complete_itself(job, token, seq, output_of(move))
                self.done.append(job)
            else:
                error: dict[str, Any] = {}
                if move.what == "err":
                    error = {"error_code": move.code, "variables": msgspec.json.encode(output_of(move))}
                retryable = move.what != "fail for good"
                await self.engine.fail(job, "boom", retryable=retryable, attempt=attempt, **error)

    async def complete_itself(self, job: Job, token: int, seq: int, output: dict[str, Any]) -> None:
        """In a transaction of the worker's."""
        body = msgspec.json.encode(output).decode()
        async with self.engine.engine.database.connection() as connection:
            await require_version(connection, RECORDED_VERSION)
        self.engine.rows("SELECT complete(%s, %s, %s, %s)", job.id, job.attempt, job.worker_id, body)
        timer = timer_command(number(self.instance), (token, seq, RECORDED_TIMER))
        assert await self.engine.engine.full_path.submit(timer) is True

    def compare_job(self, game: ReferenceModel, reported: dict[str, Any], mark: ModelToken) -> None:
        """What its worker is told beside the instance's variables, in the words of the version that it was claimed
        in."""
        undoes = reported.get("compensating")
        expected = game.compensating(mark) if mark.undoes >= 0 else None
        for about in (undoes, expected):
            if about is not None:
                about["stepId"] = about["stepId"].removesuffix(RENAMED)
        assert undoes == expected
        if mark.item is not None:
            assert reported.items() >= map_of(mark).items[mark.item].items()

    async def migrate(self) -> None:
        """To the other version, or back; refused where a join would never end."""
        game = self.game
        assert game is not None
        assert await self.may_migrate(3 - self.version) is game.may_migrate
        if game.may_migrate:
            game.migrate(self.other, self.renamed)
            self.version = 3 - self.version
            self.body, self.other = self.other, self.body
            self.renamed = {new: old for old, new in self.renamed.items()}
            self.all_steps = parse_definition(self.body).steps

    async def may_migrate(self, version: int) -> bool:
        request = MigrationRequest(version=version, steps=self.renamed)
        try:
            await self.engine.engine.migrations.migrate(self.instance, request)
        except Conflict:
            return False
        return True

    async def publish(self, move: Move) -> None:
        """Once or twice, which is once."""
        game = self.game
        assert game is not None
        for_all = move.what == "publish to all"
        receivers = [self.instance for _ in game.receivers(move.code)]
        expected = (receivers, False) if for_all else (receivers[:1], not receivers)
        id = f"{self.seed}-{len(self.moves)}"
        for _ in range(self.source.randint(1, 2)):
            assert await self.publish_once(id, move.code, output_of(move), "ALL" if for_all else "ONE") == expected

    async def publish_once(self, id: str, key: str, output: dict[str, Any], deliver: str) -> tuple[list[str], bool]:
        """Who got it, and whether it was kept."""
        answer = await self.engine.publish(f"{MESSAGE}-{self.seed}", key, output, message_id=id, deliver=deliver)
        return [one.instance_id for one in answer.delivered], answer.kept

    async def repair_by_hand(self, move: Move) -> None:
        """A step is skipped, or a token moved; refused where that would break a join."""
        game = self.game
        assert game is not None
        about = {"stepId": game.mendable[move.place].step, "note": "because"}
        if game.status == "ACTIVE":
            opened = sorted((*self.open_executions(), *self.wholes()), key=lambda execution: execution[1])
            token, seq = opened[move.place]
            about["executionId"] = f"{self.instance}-{token:x}-{seq:x}"
        refused = move.what == "move" and game.mover(move.place, move.step) is None
        given = {"variables": output_of(move)} if move.what == "skip" else {"toStepId": move.step}
        what = move.what
        if what == "move" and game.status == "FAILED" and self.source.random() < 0.5:
            what, given = "retry", {"fromStepId": move.step}
            self.retried_from += not refused
        assert await self.may_repair(what, {**about, **given}) is not refused

    async def may_repair(self, what: str, about: dict[str, Any]) -> bool:
        repair = self.engine.engine.repair
        try:
            if what == "retry":
                await repair.retry_from(self.instance, about["fromStepId"], about["stepId"], about["note"])
            elif what == "skip":
                skip = msgspec.json.decode(msgspec.json.encode(about), type=StepSkip)
                await repair.skip(self.instance, skip)
            else:
                await repair.move(self.instance, msgspec.convert(about, TokenMove))
        except Conflict:
            return False
        return True

    def park_of(self, job: Job, move: Move) -> Park:
        until = None if move.index == PARK_SIGNAL else self.clock.now() + timedelta(hours=1)
        signal = None if move.index == PARK_UNTIL else SIGNAL
        return Park(job_id=job.id, attempt=job.attempt, worker_id=job.worker_id or "", until=until, signal=signal)

    async def job(self, token: int, seq: int) -> Job:
        """The job, under lease; all others of the game are taken on the way."""
        id = f"{number(self.instance):x}-{token:x}-{seq:x}"
        for lifted in (False, True):
            if lifted:  # what others hold, or come before it for, keeps it back
                await self.fairness_order.lift()
            before = self.fairness_order.running()
            for job in await self.engine.poll(*self.types, worker=f"w{self.seed}", n=100):
                self.jobs[job.id] = job
            assert self.fairness_order.keeps_to_its_limit(before)
            if id in self.jobs and self.is_held(token, self.jobs[id].attempt):
                break
        return self.jobs[id]

    def is_held(self, token: int, attempt: int | None) -> bool:
        """Whether a job is under that attempt's lease."""
        return self.engines[0].rows("SELECT state, attempt FROM token WHERE id = %s", token) == [(1, attempt)]

    async def end_child(self, token: int, seq: int, move: Move) -> None:
        """Of the instance that a call waits for: it completes, is cancelled, or fails for good."""
        ((child,),) = self.engines[0].rows("SELECT id FROM called WHERE (token_id, seq) = (%s, %s)", token, seq)
        if move.what == "fail":
            await self.engine.cancel(show_instance(child), "by hand")
            return
        job = await self.child_job(child)
        if move.what == "complete":
            await self.engine.complete(job, output_of(move))
        else:
            await self.engine.fail(job, "boom", retryable=False)

    async def child_job(self, child: int) -> Job:
        """Under lease; those of the game's other children are taken on the way."""
        jobs = {job.instance_id: job for job in await self.engine.poll(f"child-{self.seed}", n=100)}
        self.children |= jobs
        return self.children.pop(show_instance(child))

    async def receive(self) -> None:
        """What the game's instances have told each other."""
        reported = (
            "SELECT instance_id, token_id, seq, index::int FROM timer WHERE index IN (-4, -5, -7) AND instance_id IN"
            " (SELECT %s UNION ALL SELECT id FROM called WHERE caller = %s)"
        )
        mine = number(self.instance)
        while timers := self.engines[0].rows(reported, mine, mine):
            for instance, *timer in timers:
                await self.engine.engine.full_path.submit(timer_command(instance, (timer[0], timer[1], timer[2])))

    async def fire(self, token: int, seq: int, index: int) -> None:
        timer = (
            "SELECT extract(epoch FROM fire_at - penstock_now()) FROM timer WHERE (token_id, seq, index) = (%s, %s, %s)"
        )
        ((left,),) = self.engines[0].rows(timer, token, seq, index)
        if left > 0:
            self.clock.advance(float(left) + 0.001)
        driver = self.engine
        assert await driver.engine.full_path.submit(timer_command(number(self.instance), (token, seq, index)))

    async def disturb(self) -> None:
        """Something that changes nothing anybody can see."""
        await self.fairness_order.change()
        match self.source.randrange(6):
            case 0 if self.done:
                job = self.source.choice(self.done)
                try:
                    await self.source.choice([self.engine.complete, self.engine.fail, self.engine.heartbeat])(job)
                except PenstockError as error:
                    if error.code not in ("lease-lost", "cancelled"):
                        raise
            case 1:
                await self.expire()
            case 3:
                assert await self.start() == self.instance
            case 4 if self.signals:
                await self.signal_again(self.source.randrange(len(self.signals)))
            case 2:
                held = list(self.jobs.values())[:2]
                releases = [JobRef(job_id=job.id, worker_id=job.worker_id, attempt=job.attempt) for job in held]  # pyright: ignore[reportArgumentType] - a stand-in
                await self.engine.engine.jobs.release_many(releases)
            case _:
                await self.engine.engine.full_path.submit(FoldCommand(number(self.instance), lambda: None))

    async def expire(self) -> None:
        leased = self.engines[0].rows(
            "SELECT id, seq, attempt FROM token WHERE instance_id = %s AND state = 1", number(self.instance)
        )
        if leased:
            async with self.engine.engine.database.connection() as connection:
                await job_store.expire(connection, leased, 1_000)

    # -- looking

    def open_executions(self) -> list[tuple[int, int]]:
        return [
            (token, seq)
            for token, seq in self.engines[0].rows(
                "SELECT id, seq FROM token WHERE instance_id = %s AND state IN (0, 1, 2, 4, 5, 7) ORDER BY seq",
                number(self.instance),
            )
        ]

    def wholes(self) -> list[tuple[int, int]]:
        """Of the forEach steps that are under way."""
        return [
            (token, seq)
            for token, seq in self.engines[0].rows(
                "SELECT id, seq FROM token t WHERE instance_id = %s AND state = 3 AND EXISTS (SELECT FROM map_state m"
                " WHERE m.instance_id = t.instance_id AND m.token_id = t.id) ORDER BY seq",
                number(self.instance),
            )
        ]

    async def compare(self) -> None:
        game = self.game
        assert game is not None
        view = await self.engine.view(self.instance)
        active = "WAITING" if game.waiting else "ACTIVE"
        assert view.status == (active if game.status == "ACTIVE" else game.status)
        if game.failure not in (None, "expression"):
            assert game.failure in (view.failure_reason or "")
        assert view.failure_code == game.failure_code
        assert (view.result is None) == (game.result is None)
        if game.result is not None:
            assert without_times(msgspec.json.decode(view.result)) == without_times(game.result)
        assert view.current_step_ids == list(dict.fromkeys(mark.step for mark in game.open_tokens))
        assert without_times(msgspec.json.decode(view.variables)) == without_times(game.variables)  # pyright: ignore[reportArgumentType] - a stand-in
        self.compare_rows(game)
        items = await self.engine.history(self.instance)
        closed = Counter((item.step_id, item.status) for item in items if item.status != "RUNNING")
        names = {"INTERRUPTED": "FAILED", "CAUGHT": "FAILED", "COMPENSATED": "COMPLETED"}
        assert closed == sum((Counter({(s, names.get(h, h)): n}) for (s, h), n in game.closed.items()), Counter())
        running = [item for item in items if item.status == "RUNNING"]
        assert [(item.step_id, item.item) for item in running] == [(mark.step, mark.item) for mark in game.running]
        counts = [item.items for item in running if item.items is not None]
        assert [(one.total, one.completed, one.failed, one.running) for one in counts] == [
            (len(about.items), about.done, about.failed, about.under_way - about.arrived) for about in game.maps
        ]
        assert view.definition_version == self.version
        assert [item.step_id for item in items] == [item.step_id for item in sorted(items, key=lambda i: seq_of(i.id))]
        kept = Counter(signal.step_id for signal in await self.engine.engine.tasks.buffered(self.instance))
        reported = self.engines[0].rows(
            "SELECT key FROM message WHERE name = %s AND NOT taken ORDER BY id", f"{MESSAGE}-{self.seed}"
        )
        assert [key for (key,) in reported] == game.kept_messages
        assert kept == (game.kept_signals if game.status in ("ACTIVE", "FAILED") else Counter())

    def compare_rows(self, game: ReferenceModel) -> None:
        rows = self.engines[0].rows(
            "SELECT t.id, t.step, t.state, t.side, t.parent_id IS NOT NULL, t.pending, t.arrived, t.failures,"
            " ARRAY(SELECT m.index::int FROM timer m WHERE m.token_id = t.id AND m.seq = t.seq ORDER BY 1),"
            " coalesce(t.flow_key, ''), t.priority"
            " FROM token t WHERE t.instance_id = %s AND t.state <> 6 ORDER BY t.seq",
            number(self.instance),
        )
        names = [step.id for step in self.all_steps]
        seen = [
            (names[step], side, branch, state == 4, failures, set(timers))
            for _, step, state, side, branch, _, _, failures, timers, _, _ in rows
            if state != 3 or names[step] in {about.gateway for about in game.maps}
        ]
        expected = [
            (mark.step, mark.side, mark.block is not None, mark.backing_off, mark.failures, mark.timers)
            for mark in game.running
        ]
        assert seen == expected
        jobs = [(names[row[1]], *row[-2:]) for row in rows if row[2] == 0]
        assert [job for job in jobs if self.fairness_order.says_else(*job)] == []
        forked = Counter((names[row[1]], row[5], row[6]) for row in rows if row[2] == 3)
        assert forked == Counter((block.gateway, block.under_way, block.arrived) for block in game.blocks)


class Turns:
    """The queue of a game's jobs, and where its jobs have flow keys and priorities from: of two games in three."""

    def __init__(self, played: Played, seed: int) -> None:
        self._played = played
        self._source = random.Random(f"turns of {seed}")
        self._plain = seed % 3 == 0
        self._queue = f"queue-{seed}"
        self._own: dict[str, Json] = {}
        tenant: Json = {"flow_key": f"tenant-{seed % 2}", "priority": 7}
        self.of_start: Json = {} if self._plain else self._source.choice([tenant, {}])
        self._priority = self.of_start.get("priority", 5)
        self._limit: int | None = None

    def give(self, body: Json) -> None:
        """Flow keys and priorities for some of its steps."""
        choices: list[Json] = [{}, {"flowKey": "own"}, {"priority": 2}, {"flowKey": "own", "priority": "${1 + 1}"}]
        steps: Any = body["steps"]
        for step in steps:
            if step["type"] == "SERVICE_TASK" and not self._plain:
                self._own[step["id"]] = own = self._source.choice(choices)
                step |= own
                self._own[f"{step['id']}{RENAMED}"] = own

    def says_else(self, step: str, flow_key: str, priority: int) -> bool:
        """Whether a job that waits has another key or priority than it should have."""
        if step not in self._own:  # a handler, or of a game without
            return False
        own = self._own[step]
        key = own.get("flowKey", self.of_start.get("flow_key", ""))
        return (flow_key, priority) != (key, 2 if "priority" in own else self._priority)

    async def change(self) -> None:
        """A queue of its jobs comes, changes, pauses for a moment or goes; or the instance gets another priority."""
        if self._plain:
            return
        engine = self._source.choice(self._played.engines).engine  # not the game's own choice: it would be another game
        queues = engine.queues
        match self._source.randrange(6):
            case 0 | 1:
                await self.limit()
            case 2:
                self._limit = None
                with contextlib.suppress(NotFound):
                    await queues.delete(self._queue)
            case 3:
                with contextlib.suppress(NotFound):
                    for paused in (True, False):
                        await queues.pause(self._queue, paused=paused)
            case 4 if self._played.game is not None and self._played.game.status == "ACTIVE":
                self._priority = self._source.randrange(10)
                await engine.repair.set_priority(self._played.instance, self._priority)
            case _:
                pass
        for driver in self._played.engines:
            await driver.engine.queues.run_once()

    async def limit(self) -> None:
        """A queue of the game's jobs, or another policy of it."""
        if self._plain:
            return
        self._limit = self._source.choice([None, 1, 1, 2])
        limits: Any = {"concurrency": self._limit, "concurrency_per_key": self._source.choice([None, 1, 1_000])}
        engine = self._source.choice(self._played.engines).engine
        await engine.queues.put(self._queue, QueuePolicy(self._played.types, weights={"own": 3}, **limits))
        for driver in self._played.engines:
            await driver.engine.queues.run_once()

    async def lift(self) -> None:
        """Let all that waits begin."""
        if self._plain:
            return
        self._limit = None
        await self._played.engines[0].engine.queues.put(self._queue, QueuePolicy(self._played.types))
        for driver in self._played.engines:
            await driver.engine.queues.run_once()

    def running(self) -> int:
        """What its queue counts."""
        counted = "SELECT running FROM slot s JOIN queue q ON q.id = s.queue WHERE q.name = %s AND flow_key = ''"
        return sum(number for (number,) in self._played.engines[0].rows(counted, self._queue))

    def keeps_to_its_limit(self, before: int) -> bool:
        """After a claim that found so many under way."""
        return self._limit is None or self.running() <= max(before, self._limit)


def seq_of(execution: str) -> int:
    return int(execution.split("-")[2], 16)


def without_times(variables: dict[str, Any]) -> dict[str, Any]:
    """`moment` is what now() gave: known to the database alone. So are the ids of instances that were called."""
    return {name: without_ids(value) for name, value in variables.items() if name != "moment"}


def own_job_types(body: Json, seed: int) -> Json:
    """Job types that no other game has."""
    steps: Any = body["steps"]
    for step in steps:
        if step["type"] == "SERVICE_TASK":
            step["jobType"] = f"{step['jobType']}-{seed}"
        if "compensation" in step:
            step["compensation"]["jobType"] += f"-{seed}"
        if step["type"] == "CALL_ACTIVITY":
            step["definitionId"] = f"{step['definitionId']}-{seed}"
        if "message" in step:
            step["message"]["name"] = f"{MESSAGE}-{seed}"
    return {**body, "id": f"game-{seed}"}


def other_version(body: Json, source: random.Random) -> tuple[Json, dict[str, str]]:
    """The same workflow with its steps in another order, and other names for some; and which these are."""
    steps: list[Any] = copy.deepcopy(body["steps"])  # type: ignore[arg-type]  # pyright: ignore[reportAssignmentType] - JSON of its own making
    renamed = {step["id"]: f"{step['id']}{RENAMED}" for step in steps if source.random() < 0.4}

    def now(step: str) -> str:
        return renamed.get(step, step)

    for step in steps:
        for field in ("id", "nextStep", "joinStep"):
            if field in step:
                step[field] = now(step[field])
        for field in ("parallelNextSteps", "steps"):
            if field in step:
                step[field] = [now(name) for name in step[field]]
        if "conditionalNextSteps" in step:
            step["conditionalNextSteps"] = {key: now(to) for key, to in step["conditionalNextSteps"].items()}
        for event in step.get("boundaryEvents", ()):
            event["targetStepId"] = now(event["targetStepId"])
    return {**body, "steps": [steps[0], *reversed(steps[1:])]}, renamed


async def play_games(make_driver: MakeDriver, seeds: range) -> Counter[str]:
    limits = {"max_automatic_steps": MAX_AUTOMATIC, "advance_max_work_steps": MAX_WORK}
    engines = [make_driver(**limits), make_driver(**limits)]
    clock = engines[0].clock
    left = list(seeds)
    seen: Counter[str] = Counter()

    async def player() -> None:
        while left:
            played = Played(engines, clock, left.pop())
            try:
                await played.play()
            except Exception as error:
                error.add_note(f"seed {played.seed}: {played.moves}\n{msgspec.json.encode(played.body).decode()}")
                raise
            seen.update(move.what for move in played.moves)

    async with trio.open_nursery() as nursery:
        for _ in range(GAMES_AT_ONCE):
            nursery.start_soon(player)
    return seen


@in_shares
async def test_the_engine_plays_by_the_rules(make_driver: MakeDriver, share: int) -> None:
    seen = await play_games(make_driver, range(150 // share))
    assert share > 1 or set(seen) == MOVES, seen


@pytest.mark.chaos
@pytest.mark.parametrize("first", [1000, 2000, 3000])
async def test_the_engine_plays_by_the_rules_in_many_games(make_driver: MakeDriver, first: int) -> None:
    seen = await play_games(make_driver, range(first, first + 500))
    assert set(seen) == MOVES
