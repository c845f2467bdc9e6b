"""Random lives of durable runs, from two engines, against a model of them: after each move the rows are compared."""

from __future__ import annotations

import itertools
import random
import re

import msgspec
import pytest
from msgspec import Raw

from penstock.core.rules.state import InstanceStatus
from penstock.engine.queues.journal_items import ClaimedRun, RunEnd
from penstock.engine.runs.code import CodeWorkflow
from penstock.errors import Conflict, LeaseLost, NotFound
from penstock.wire.model import ForkedFrom
from penstock.wire.update import UpdateCall
from tests.engine import runs
from tests.engine.conftest import MakeDriver
from tests.engine.driver import Driver

MOVES = 40
READY, LOCKED, PARKED, BACKOFF, ENDED = 0, 1, 2, 4, -1
MESSAGE, ENDED_CHILD, BEGUN, DROPPED = 6, 8, 10, 14
ASKED, ACCEPTED, ANSWERED, REFUSED = 15, 16, 17, 18
AUDIT = CodeWorkflow("audit")


class Life:
    """A run as it should be, and the moves on it."""

    def __init__(self, engines: list[Driver], seed: int, refusals_max: int) -> None:
        self.engines, self.refusals_max = engines, refusals_max
        self.source = random.Random(seed)
        self.state, self.mail, self.expiries, self.blocks, self.sent = READY, 0, 0, 0, 0
        self.records: list[tuple[int, str]] = []
        self.seen, self.known, self.continued = 0, 0, 0
        self.is_due = False
        self.run: ClaimedRun | None = None
        self.before: ClaimedRun | None = None
        self.closer: ClaimedRun | None = None
        self.child: tuple[str, str] | None = None  # its path and id, while it is open
        self.is_awaited, self.calls = False, 0
        self.is_deleted = False
        # behind which record which messages were rejected, as was said last
        self.noted: tuple[int, list[int]] = (0, [])
        self.dropped: set[int] = set()
        self.asked = 0  # calls of updates
        self.open_calls: list[str] = []  # those without an answer, by id
        self.answers: dict[str, str] = {}  # the others: what their status is
        self.refused: list[str] = []  # of these the ones that are remembered, oldest first
        self.forgotten: list[str] = []
        self.forks = itertools.count()

    @property
    def engine(self) -> Driver:
        return self.source.choice(self.engines)

    async def move(self) -> str:
        moves = {
            READY: [self.take, self.send],
            LOCKED: [
                self.append,
                self.append,
                self.park,
                self.block,
                self.give_back,
                self.expire,
                self.extend,
                self.read,
                self.fail,
                self.continue_as_new,
                self.answer,
                self.refuse,
            ],
            PARKED: [self.send, self.pass_time],
            BACKOFF: [self.send, self.pass_time],
            ENDED: [self.retry, self.fork],
        }[self.state]
        if self.state != ENDED:
            moves += [self.send, self.ask, self.late, self.drop, self.fork]
        if self.child is None:
            moves += [self.call] if self.state == LOCKED else []
        else:
            moves.append(self.end_child)
        moves.append(self.register if self.is_deleted else self.delete)
        move = self.source.choice(moves)
        await move()
        return move.__name__

    async def take(self) -> None:
        [run] = await runs.take(self.engine, f"e0.0123abcd/shop-{self.source.randint(1, 3)}")
        assert self.before is None or run.run_lease.attempt == self.before.run_lease.attempt + 1
        assert (run.mail, run.expiries) == (self.mail, self.expiries)
        self.run, self.state, self.known = run, LOCKED, 0
        await self.read()

    async def read(self) -> None:
        assert self.run is not None
        page = await runs.read(self.engine, self.run.run_lease, self.known)
        self.seen = page.mail or 0
        assert self.seen == self.mail
        self.known = page.records[-1].pos if page.records else self.known

    async def append(self) -> None:
        assert self.run is not None
        paths = [f"/{len(self.records) + n}" for n in range(self.source.randint(1, 3))]
        new = [runs.done(path) for path in paths]
        answer = await runs.append(self.engine, self.run.run_lease, *new, after=self.known, mail=self.seen)
        assert (len(answer.placed), answer.mail) == (len(paths), self.mail)
        self.records += [(runs.DONE, path) for path in paths]
        self.expiries = self.blocks = 0
        if answer.mail == self.seen:
            self.known = answer.placed[-1].pos

    async def send(self) -> None:
        self.sent += 1
        for _ in range(self.source.randint(1, 2)):  # twice is once
            await self.engine.engine.runs.send(self.instance, "go", b"1", dedup=str(self.sent))
        self.records.append((MESSAGE, ""))
        self.mail += 1
        self.state = READY if self.state == PARKED else self.state

    async def ask(self) -> str:
        """A call of an update; twice is once. Nobody waits for its answer. One that was refused and is forgotten is
        asked as if it had never been."""
        if self.forgotten and self.source.random() < 0.3:
            id = self.forgotten.pop(self.source.randrange(len(self.forgotten)))
        else:
            self.asked += 1
            id = f"c{self.asked}"
        for _ in range(self.source.randint(1, 2)):
            found = await self.engine.engine.updates.ask(self.instance, UpdateCall("set", Raw(b"[1]"), id))
            assert found.status == "PENDING"
        self.records.append((ASKED, id))
        self.open_calls.append(id)
        self.mail += 1
        self.state = READY if self.state == PARKED else self.state
        return id

    async def refuse(self, count: int | None = None) -> None:
        """Some calls, which are asked and refused at once: in one append, or each in its own."""
        assert self.run is not None
        ids = [await self.ask() for _ in range(count or self.source.randint(1, 3))]
        await self.read()
        places = {self.records[n][1]: pos for n, (pos, kind) in enumerate(self.positions()) if kind == ASKED}
        self.source.shuffle(ids)
        new = [runs.NewRecord(REFUSED, id, str(places[id]), '{"refused":"no"}', rules=3) for id in ids]
        for records in [new] if self.source.random() < 0.5 else [[each] for each in new]:
            answer = await runs.append(self.engine, self.run.run_lease, *records, after=self.known, mail=self.seen)
            self.known = answer.placed[-1].pos
        self.expiries = self.blocks = 0
        for id in ids:
            self.records.remove((ASKED, id))
            self.is_refused(id)

    def is_refused(self, id: str) -> None:
        self.open_calls.remove(id)
        self.answers[id] = "REFUSED"
        self.refused.append(id)
        for old in self.refused[: -self.refusals_max]:
            del self.answers[old]
            self.forgotten.append(old)
        del self.refused[: -self.refusals_max]

    async def answer(self) -> None:
        """A call that was read is refused, and leaves the journal, or is accepted and answered. An answer that came
        before stays."""
        assert self.run is not None
        rows = [(pos, self.records[n][1]) for n, (pos, kind) in enumerate(self.positions()) if kind == ASKED]
        rows = [(pos, id) for pos, id in rows if pos <= self.known and (ACCEPTED, id) not in self.records]
        if not rows:
            return
        position, id = self.source.choice(rows)
        refuses = self.source.random() < 0.5
        if refuses:
            new = [runs.NewRecord(REFUSED, id, str(position), '{"refused":"no"}', rules=3)]
            self.records.remove((ASKED, id))
        else:
            value = '{"value":7}'
            new = [runs.NewRecord(kind, id, "set", value, rules=3) for kind in (ACCEPTED, ANSWERED)]
            self.records += [(ACCEPTED, id), (ANSWERED, id)]
        answer = await runs.append(self.engine, self.run.run_lease, *new, after=self.known, mail=self.seen)
        self.expiries = self.blocks = 0
        if answer.mail == self.seen:
            self.known = answer.placed[-1].pos
        if id in self.open_calls and refuses:
            self.is_refused(id)
        elif id in self.open_calls:
            self.open_calls.remove(id)
            self.answers[id] = "DONE"

    def positions(self) -> list[tuple[int, int]]:
        """Of the records, each with its kind."""
        number = int(self.instance, 16)
        rows = self.engines[0].rows(f"SELECT pos, kind FROM journal WHERE instance_id = {number} ORDER BY pos")
        return [(pos, kind) for pos, kind in rows]

    def said(self) -> tuple[tuple[int, list[int]], bytes]:
        """What the run says next of what it rejected: some of its messages."""
        found = [pos for pos, kind in self.positions() if kind == MESSAGE and pos <= self.known]
        rejected = [pos for pos in found if pos not in self.dropped and self.source.random() < 0.5][:20]
        notes = [{"pos": f"{pos:x}"} for pos in rejected]
        wait = {"path": "/0", "kind": "receive", "name": "go", "as_of": f"{self.known:x}", "rejected": notes}
        return (self.known, rejected), msgspec.json.encode([wait])

    async def drop(self) -> None:
        """A message, if the run rejected it last, and nothing came since; twice is once."""
        messages = [pos for pos, kind in self.positions() if kind == MESSAGE]
        if not messages:
            return
        as_of, rejected = self.noted
        position = self.source.choice([pos for pos in messages if pos in rejected] or messages)
        since = {kind for pos, kind in self.positions() if pos > as_of}
        may = position in rejected and since <= {DROPPED}
        for _ in range(self.source.randint(1, 2)):
            call = self.engine.engine.runs.resolve_message(self.instance, f"{position:x}")
            if position in self.dropped:
                await call
                continue
            if not may:
                with pytest.raises(Conflict):
                    await call
                continue
            await call
            self.dropped.add(position)
            self.records.append((DROPPED, f"{position:x}"))
            self.mail += 1
            self.state = READY if self.state == PARKED else self.state

    async def park(self) -> None:
        assert self.run is not None
        self.is_due = self.source.random() < 0.7
        due_at = self.engines[0].clock.now().timestamp() + 60 if self.is_due else None
        noted, branches = self.said()
        parked = await self.engine.engine.journal.park(
            self.run.run_lease, mail=self.seen, due_at=due_at, branches=branches
        )
        assert parked is (self.seen == self.mail)
        if parked:
            self.noted = noted
            self.let_go(PARKED)
            self.expiries = self.blocks = 0

    async def block(self) -> None:
        assert self.run is not None
        pause_s = await self.engine.engine.journal.block(self.run.run_lease, "other code")
        assert pause_s == min(5 * 2**self.blocks, 300)
        self.blocks, self.expiries = self.blocks + 1, 0
        self.let_go(BACKOFF)

    async def give_back(self) -> None:
        assert self.run is not None
        await self.engine.engine.journal.release(self.run.run_lease)
        self.let_go(READY)

    async def expire(self) -> None:
        assert self.run is not None
        held = self.run.run_lease
        self.engines[0].clock.advance(3600)
        assert len(await self.engine.engine.leases.end([(held.instance, held.seq, held.attempt)])) == 1
        self.expiries += 1
        self.let_go(READY if self.expiries < 3 else BACKOFF)

    async def extend(self) -> None:
        assert self.run is not None
        noted, branches = self.said()
        if self.blocks:  # what it says of its branches would tell that it is blocked no more
            assert (await self.engine.engine.journal.extend(self.run.run_lease)).mail == self.mail
            return
        assert (await self.engine.engine.journal.extend(self.run.run_lease, branches=branches)).mail == self.mail
        self.noted = noted

    async def pass_time(self) -> None:
        fires = self.state == BACKOFF or self.is_due
        assert await self.engine.due(301) == fires
        if fires:
            self.state = READY

    async def late(self) -> None:
        """Who held it before does what it did not hear the end of."""
        if self.before is None:
            return
        held, journal = self.before.run_lease, self.engine.engine.journal
        with pytest.raises(LeaseLost):
            await runs.append(self.engine, held, runs.done("/late"), after=self.known, mail=self.mail)
        with pytest.raises(LeaseLost):
            await journal.park(held, mail=self.mail, due_at=None)
        if self.before is self.closer:
            assert await runs.finish(self.engine, held, mail=self.mail), "it did end it, once"
            return
        with pytest.raises(LeaseLost):
            await runs.finish(self.engine, held, mail=self.mail)

    async def call(self) -> None:
        """A child; asked for twice it is the same one."""
        assert self.run is not None
        self.calls += 1
        path = f"/{self.calls}.[child]/0"
        for _ in range(self.source.randint(1, 2)):
            id = f"{self.instance}{path}"
            self.child = path, await self.engine.engine.children.start(self.run.run_lease, path, AUDIT, b"{}", id)
        self.is_awaited = True

    async def end_child(self) -> None:
        """It completes, or is ended by force; who called it is told, unless that has failed meanwhile."""
        assert self.child is not None
        (path, child), self.child = self.child, None
        if self.source.random() < 0.5:
            [run] = await self.engine.engine.code.take(runs.HOLDER, [AUDIT], 1, wait_s=5)
            assert run.mail == (not self.is_awaited), "it was asked to end when its caller had failed"
            assert await runs.finish(self.engine, run.run_lease, mail=run.mail)
        else:
            await self.engine.engine.instances.cancel(child, None, force=True)
        assert await self.engine.due() == self.is_awaited
        if self.is_awaited:
            self.records.append((ENDED_CHILD, path))
            self.mail += 1
            self.state = READY if self.state == PARKED else self.state
        self.is_awaited = False

    async def continue_as_new(self) -> None:
        """With some of the messages."""
        assert self.run is not None
        if self.is_awaited:
            await self.end_child()
        page = await runs.read(self.engine, self.run.run_lease)
        records = [record for record in page.records if record.kind in (MESSAGE, ASKED)]
        records = [record for record in records if (ACCEPTED, record.path) not in self.records]
        records = [record for record in records if self.source.random() < 0.5]
        kept = [record.pos for record in records]
        self.continued += 1
        for _ in range(self.source.randint(1, 2)):  # twice is once
            begun = f'{{"arguments":{{}},"continuation":{self.continued}}}'
            done = await runs.continue_as_new(
                self.engine, self.run.run_lease, begun, name=str(self.continued), mail=self.seen, kept=kept
            )
            assert done is (self.seen == self.mail)
        if self.seen == self.mail:
            self.records = [(BEGUN, ""), *((record.kind, record.path) for record in records)]
            self.known, self.mail = 0, len(kept)
            await self.read()

    async def fail(self) -> None:
        """What it was told last is not seen: it goes on; else it fails, of its last step or of its own."""
        assert self.run is not None
        if self.seen == self.mail and self.source.random() < 0.5:
            path = f"/{len(self.records)}"
            record = runs.NewRecord(runs.FAILED, path, "charge", "{}")
            await runs.append(self.engine, self.run.run_lease, record, after=self.known, mail=self.seen)
            self.records.append((runs.FAILED, path))
            self.expiries = self.blocks = 0
        failed = RunEnd(InstanceStatus.FAILED, failure="no")
        ended = await self.engine.engine.journal.finish(self.run.run_lease, failed, mail=self.seen)
        assert ended is (self.seen == self.mail)
        if ended:
            self.closer = self.run
            self.let_go(ENDED)
            self.noted = 0, []
            if self.is_awaited and await self.engine.due():  # the child, which nobody has had, is cancelled at once
                self.child, self.is_awaited = None, False

    async def retry(self) -> None:
        """From a path, the start, the end, or the step that failed last."""
        failed = [n for n, (kind, _) in enumerate(self.records) if kind == runs.FAILED]
        done = [n for n, (kind, _) in enumerate(self.records) if kind in (runs.DONE, ENDED_CHILD)]
        choices: list[tuple[str | None, int]] = [("start", 0), ("end", len(self.records))]
        choices += [(self.records[n][1], n) for n in (*failed, *done)]
        if not failed or not done or done[-1] < failed[-1]:
            choices.append((None, failed[-1] if failed else len(self.records)))
        path, first = self.source.choice(choices)
        await self.engine.engine.instances.retry_run(self.instance, path)
        kept = [
            record
            for n, record in enumerate(self.records)
            if n < first or record[0] in (MESSAGE, BEGUN, DROPPED, ASKED)
        ]
        self.records, self.state = kept, READY
        self.mail = self.expiries = self.blocks = 0

    async def fork(self) -> None:
        """From a path, the start, or the end, with or without later messages. The fork has what came before the place,
        this run stays as it is, and the fork is ended at once."""
        done = [n for n, (kind, _) in enumerate(self.records) if kind in (runs.DONE, runs.FAILED, ENDED_CHILD)]
        path = self.source.choice(["start", "end", *(self.records[n][1] for n in done)])
        first = {"start": 0, "end": len(self.records)}.get(path)
        if first is None:  # or of something within the operation
            first = next(n for n in done if re.match(re.escape(path) + r"($|[/.])", self.records[n][1]))
        later, id = self.source.random() < 0.5, f"fork {next(self.forks)}"
        for engine in self.engines if self.source.random() < 0.5 else self.engines[:1]:  # twice is once
            call = engine.engine.forks.fork(self.instance, path, fork_id=id, later_messages=later)
            if self.is_deleted:
                with pytest.raises(NotFound):
                    await call
                return
            fork = await call
        tree = await self.engine.engine.runs.tree(fork.id)
        assert tree.forked_from == ForkedFrom(self.instance, path)
        reported = f"at {path} as {fork.id}{', with later messages' if later else ''}"
        acts = (await self.engine.engine.instances.audit(self.instance)).items
        assert [each.detail for each in acts if each.kind == "FORKED" and fork.id in (each.detail or "")] == [reported]
        kept = [
            each for n, each in enumerate(self.records) if n < first or (later and each[0] in (MESSAGE, DROPPED, ASKED))
        ]
        found = self.engines[0].rows(
            f"SELECT kind, path FROM journal WHERE instance_id = {int(fork.id, 16)} ORDER BY pos"
        )
        assert found == [(BEGUN, ""), *[each for each in kept if each[0] != BEGUN]]
        for call in (path for kind, path in kept if kind == ASKED):
            answer = await self.engine.engine.updates.get(fork.id, call)
            assert answer.status == ("DONE" if (ANSWERED, call) in kept else "PENDING")
        await self.engine.engine.instances.cancel(fork.id, None, force=True)

    async def delete(self) -> None:
        """Its workflow, as soon as it has ended; its executors have gone half a minute ago."""
        self.forget_executors()
        code = self.engine.engine.code
        if self.state == ENDED:
            await code.delete("order")
            self.is_deleted = True
        else:
            with pytest.raises(Conflict, match="are open"):
                await code.delete("order")

    def forget_executors(self) -> None:
        for engine in self.engines:
            engine.engine.polls.activity._seen.clear()

    async def register(self) -> None:
        """Until then no id finds the workflow; its runs are as before."""
        self.forget_executors()
        for engine in self.engines:
            with pytest.raises(NotFound):
                await engine.engine.definitions.get("order")
            with pytest.raises(NotFound):
                await engine.engine.code.delete("order")
        assert await self.engine.engine.code.register(runs.ORDER, anew=True) == 1
        self.is_deleted = False

    def let_go(self, state: int) -> None:
        self.before, self.run, self.state = self.run, None, state

    def check(self) -> None:
        eyes = self.engines[0]
        number = int(self.instance, 16)
        row = eyes.rows(f"SELECT state, mail, expiries, failures FROM token WHERE id = {number}")
        open_row = (self.state, self.mail, self.expiries, self.blocks)
        assert row == ([] if self.state == ENDED else [open_row])
        journal = eyes.rows(f"SELECT kind, path FROM journal WHERE instance_id = {number} ORDER BY pos")
        assert journal == self.records
        calls = eyes.rows(
            f"SELECT id, answer IS NULL FROM signal_id WHERE instance_id = {number} AND starts_with(id, 'u:')"
        )
        assert dict(calls) == {f"u:{id}": id in self.open_calls for id in (*self.open_calls, *self.answers)}

    async def play(self) -> None:
        for engine in self.engines:
            await engine.engine.code.register(runs.ORDER)
        self.instance = await runs.start(self.engine)
        done: list[str] = []
        for _ in range(MOVES):
            done.append(await self.move())
            try:
                self.check()
            except AssertionError as error:
                error.add_note(f"after {done}")
                raise
        while self.child is not None or self.state != LOCKED:
            if self.child is not None:
                await self.end_child()
                continue
            if self.state == ENDED:
                await self.retry()
            await (self.take if self.state == READY else self.send if self.state == PARKED else self.pass_time)()
        assert self.run is not None
        await self.refuse(self.refusals_max + 1)
        self.check()
        assert self.forgotten, "each life gets to the limit"
        if self.seen != self.mail:
            assert not await runs.finish(self.engine, self.run.run_lease, mail=self.seen)
            await self.read()
        assert await runs.finish(self.engine, self.run.run_lease, mail=self.seen)
        assert await self.engine.status(self.instance) == "COMPLETED"
        for id in (*self.open_calls, *self.answers):
            found = await self.engine.engine.updates.get(self.instance, id, 10)
            assert found.status == self.answers.get(id, "UNANSWERED"), "answered once, or known as unanswered"
        for id in self.forgotten:
            with pytest.raises(NotFound):
                await self.engine.engine.updates.get(self.instance, id, 10)


@pytest.mark.parametrize("seed", range(8))
async def test_a_life_is_as_the_model_has_it(make_driver: MakeDriver, seed: int) -> None:
    refusals_max = 1 + seed % 3
    engines = [make_driver(number, refused_calls_max_items=refusals_max) for number in range(2)]
    await Life(engines, seed, refusals_max).play()
