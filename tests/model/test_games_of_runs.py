"""Random lives of runs of code, from two engines, against a model of them: after each move the rows are compared."""

from __future__ import annotations

import random

import pytest

from penstock.engine.journal_items import Taken
from penstock.errors import LeaseLost
from tests.engine import runs
from tests.engine.conftest import MakeDriver
from tests.engine.driver import Driver

MOVES = 40
READY, LOCKED, PARKED, BACKOFF = 0, 1, 2, 4
MESSAGE = 6


class Life:
    """A run as it should be, and the moves on it."""

    def __init__(self, engines: list[Driver], seed: int) -> None:
        self.engines = engines
        self.source = random.Random(seed)
        self.state, self.mail, self.expiries, self.blocks, self.sent = READY, 0, 0, 0, 0
        self.records: list[tuple[int, str]] = []
        self.seen, self.known = 0, 0
        self.is_due = False
        self.run: Taken | None = None
        self.before: Taken | None = None

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
            ],
            PARKED: [self.send, self.pass_time],
            BACKOFF: [self.send, self.pass_time],
        }[self.state]
        move = self.source.choice([*moves, self.send, self.late])
        await move()
        return move.__name__

    async def take(self) -> None:
        [run] = await runs.take(self.engine, f"e0.0123abcd/shop-{self.source.randint(1, 3)}")
        assert self.before is None or run.held.attempt == self.before.held.attempt + 1
        assert (run.mail, run.expiries) == (self.mail, self.expiries)
        self.run, self.state, self.known = run, LOCKED, 0
        await self.read()

    async def read(self) -> None:
        assert self.run is not None
        page = await runs.read(self.engine, self.run.held, self.known)
        self.seen = page.mail or 0
        assert self.seen == self.mail
        self.known = page.records[-1].pos if page.records else self.known

    async def append(self) -> None:
        assert self.run is not None
        paths = [f"/{len(self.records) + n}" for n in range(self.source.randint(1, 3))]
        new = [runs.done(path) for path in paths]
        answer = await runs.append(self.engine, self.run.held, *new, after=self.known, mail=self.seen)
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

    async def park(self) -> None:
        assert self.run is not None
        self.is_due = self.source.random() < 0.7
        due_at = self.engines[0].clock.now().timestamp() + 60 if self.is_due else None
        parked = await self.engine.engine.journal.park(self.run.held, mail=self.seen, due_at=due_at)
        assert parked is (self.seen == self.mail)
        if parked:
            self.let_go(PARKED)
            self.expiries = self.blocks = 0

    async def block(self) -> None:
        assert self.run is not None
        pause_s = await self.engine.engine.journal.block(self.run.held, "other code")
        assert pause_s == min(5 * 2**self.blocks, 300)
        self.blocks, self.expiries = self.blocks + 1, 0
        self.let_go(BACKOFF)

    async def give_back(self) -> None:
        assert self.run is not None
        await self.engine.engine.journal.give_back(self.run.held)
        self.let_go(READY)

    async def expire(self) -> None:
        assert self.run is not None
        held = self.run.held
        self.engines[0].clock.advance(3600)
        assert len(await self.engine.engine.leases.end([(held.instance, held.seq, held.attempt)])) == 1
        self.expiries += 1
        self.let_go(READY if self.expiries < 3 else BACKOFF)

    async def extend(self) -> None:
        assert self.run is not None
        assert (await self.engine.engine.journal.extend(self.run.held)).mail == self.mail

    async def pass_time(self) -> None:
        fires = self.state == BACKOFF or self.is_due
        assert await self.engine.due(301) == fires
        if fires:
            self.state = READY

    async def late(self) -> None:
        """Who held it before does what it did not hear the end of."""
        if self.before is None:
            return
        held, journal = self.before.held, self.engine.engine.journal
        with pytest.raises(LeaseLost):
            await runs.append(self.engine, held, runs.done("/late"), after=self.known, mail=self.mail)
        with pytest.raises(LeaseLost):
            await journal.park(held, mail=self.mail, due_at=None)
        with pytest.raises(LeaseLost):
            await runs.finish(self.engine, held, mail=self.mail)

    def let_go(self, state: int) -> None:
        self.before, self.run, self.state = self.run, None, state

    def check(self) -> None:
        eyes = self.engines[0]
        number = int(self.instance, 16)
        row = eyes.rows(f"SELECT state, mail, expiries, failures FROM token WHERE id = {number}")
        assert row == [(self.state, self.mail, self.expiries, self.blocks)]
        journal = eyes.rows(f"SELECT kind, path FROM journal WHERE instance_id = {number} ORDER BY pos")
        assert journal == self.records

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
        while self.state != LOCKED:
            await (self.take if self.state == READY else self.send if self.state == PARKED else self.pass_time)()
        assert self.run is not None
        if self.seen != self.mail:
            assert not await runs.finish(self.engine, self.run.held, mail=self.seen)
            await self.read()
        assert await runs.finish(self.engine, self.run.held, mail=self.seen)
        assert await self.engine.status(self.instance) == "COMPLETED"


@pytest.mark.parametrize("seed", range(8))
async def test_a_life_is_as_the_model_has_it(make_driver: MakeDriver, seed: int) -> None:
    await Life([make_driver(0), make_driver(1)], seed).play()
