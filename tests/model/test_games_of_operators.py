"""What operators do to many instances and rows, through two engines, against a model of it: acknowledgements, bulk
operations with what they did, and the audit trail of everything. After each move all of it is compared."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import pytest

from penstock.engine.instances.instance_filter import InstanceFilter
from penstock.errors import Conflict, NotFound
from penstock.store.rows import acknowledged as acknowledged_store
from penstock.testing.definitions import linear
from penstock.wire.attention import AcknowledgeBody
from penstock.wire.bulk import BulkFilter, BulkRequest
from penstock.wire.repair_v1 import ListAuditRequest
from tests.engine.conftest import MakeDriver
from tests.engine.driver import Driver

MOVES = 40
HOURS = 2
ROWS = ("cause:no paper", "cause:no card", "workers:pay")
GROUPS = ("a-", "b-")
KINDS = ("ATTENTION_ACKNOWLEDGED", "ATTENTION_WITHDRAWN")
STATUSES = ("ACTIVE", "COMPLETED", "FAILED", "CANCELLED")
NEEDED = {"cancel": "ACTIVE", "retry": "FAILED"}
"""What a bulk operation of this action is done to."""


@dataclass
class Game:
    """What should be there. ``notes``: kind and detail of each record, oldest first. ``done``: of each operation."""

    engines: list[Driver]
    source: random.Random
    acknowledged: dict[str, tuple[int, datetime]] = field(default_factory=dict)
    notes: list[tuple[str, str]] = field(default_factory=list)
    status: dict[str, str] = field(default_factory=dict)
    group: dict[str, str] = field(default_factory=dict)
    done: dict[str, set[str]] = field(default_factory=dict)

    @property
    def engine(self) -> Driver:
        return self.source.choice(self.engines)

    def holding(self) -> dict[str, tuple[int, datetime]]:
        now = self.engines[0].clock.now()
        return {key: (count, until) for key, (count, until) in self.acknowledged.items() if until > now}

    # -- moves

    async def acknowledge(self) -> None:
        key, count = self.source.choice(ROWS), self.source.randrange(5)
        note = self.source.choice((None, "ordered"))
        await self.engine.engine.overview.acknowledge(key, AcknowledgeBody(count, note))
        self.acknowledged[key] = count, self.engines[0].clock.now() + timedelta(hours=HOURS)
        self.notes.append((KINDS[0], f"{key}: {note}" if note else key))

    async def withdraw(self) -> None:
        key = self.source.choice(ROWS)
        if key not in self.holding():
            with pytest.raises(NotFound):
                await self.engine.engine.overview.withdraw(key)
            return
        await self.engine.engine.overview.withdraw(key)
        del self.acknowledged[key]
        self.notes.append((KINDS[1], key))

    async def pass_time(self) -> None:
        self.engines[0].clock.advance(self.source.choice((60, 3_600, HOURS * 3_600)))

    async def start(self) -> None:
        group = self.source.choice(GROUPS)
        made = await self.engine.start("linear", business_key=f"{group}{len(self.status)}")
        self.status[made.id], self.group[made.id] = "ACTIVE", group

    async def work(self) -> None:
        """The oldest job is completed, or fails for good."""
        for job in await self.engine.poll("work", n=1):
            if self.source.random() < 0.5:
                await self.engine.complete(job)
                self.status[job.instance_id] = "COMPLETED"
            else:
                await self.engine.fail(job, retryable=False)
                self.status[job.instance_id] = "FAILED"

    async def bulk(self) -> None:
        """An operation on a group, or on instances that are named, also such as have ended."""
        action = self.source.choice([*NEEDED])
        if self.source.random() < 0.5:
            group = self.source.choice(GROUPS)
            status = None if action == "cancel" else "FAILED"
            asked = BulkRequest(action=action, filter=BulkFilter(business_key_prefix=group, status=status))
            named = [id for id in self.status if self.group[id] == group]
        else:
            named = self.source.sample([*self.status], self.source.randint(0, min(4, len(self.status))))
            asked = BulkRequest(action=action, ids=named)
        meant = {id for id in named if self.status[id] == NEEDED[action]}
        if not named:
            return
        one = self.engine.engine.bulk
        try:
            made = await one.create(asked)
        except Conflict:
            assert not meant
            return
        while (view := await one.get(made.id)).state == "RUNNING":
            await self.engine.engine.bulk.step()
        assert (view.done, view.failed) == (len(meant), 0)
        self.done[made.id] = meant
        for id in meant:
            self.status[id] = "CANCELLED" if action == "cancel" else "ACTIVE"

    # -- looking

    async def compare(self) -> None:
        engine = self.engine.engine
        async with engine.database.connection() as connection:
            rows = await acknowledged_store.read(connection)
        assert {key: (row.failures, row.until) for key, row in rows.items()} == self.holding()
        kind = self.source.choice(KINDS)
        assert await self.audited(kind=kind) == [each for each in reversed(self.notes) if each[0] == kind]
        row = self.source.choice(ROWS)
        assert await self.audited(contains=row) == [each for each in reversed(self.notes) if row in each[1]]
        for bulk_id in self.source.sample([*self.done], min(2, len(self.done))):
            meant = self.done[bulk_id]
            assert await self.listed(bulk_id=bulk_id) == sorted(meant, key=number, reverse=True)
            status = self.source.choice(STATUSES)
            found = await self.listed(bulk_id=bulk_id, status=status)
            assert set(found) == {id for id in meant if self.status[id] == status}
            found = await self.listed(bulk_id=bulk_id, open=True)
            assert set(found) == {id for id in meant if self.status[id] == "ACTIVE"}

    async def audited(self, **wanted: str) -> list[tuple[str, str]]:
        found: list[tuple[str, str]] = []
        cursor: str | None = None
        while True:
            ask = ListAuditRequest(cursor=cursor, limit=self.source.randint(1, 5), **wanted)
            page = await self.engine.engine.audit_trail.list(ask)
            found += [(each.kind, each.detail or "") for each in page.items]
            cursor = page.next
            if cursor is None:
                return found

    async def listed(self, **wanted: str | bool) -> list[str]:
        found: list[str] = []
        cursor: str | None = None
        while True:
            asked = InstanceFilter(**wanted)  # type: ignore[arg-type]  # names and values of its own fields
            page = await self.engine.engine.instances.find_slice(asked, cursor, self.source.randint(1, 3))
            found += [f"{id:x}" for id in page.items]
            cursor = page.next
            if cursor is None:
                return found

    async def play(self) -> set[str]:
        """Return the names of the moves that were made."""
        await self.engines[0].upload(linear(1, job_type="work"))
        moves = [self.acknowledge, self.withdraw, self.pass_time, self.start, self.start, self.work, self.bulk]
        made: list[str] = []
        for _ in range(MOVES):
            move = self.source.choice(moves)
            made.append(move.__name__)
            try:
                await move()
                await self.compare()
            except BaseException as error:
                error.add_note(f"after {made}")
                raise
        return set(made)


def number(id: str) -> int:
    return int(id, 16)


@pytest.mark.parametrize("seed", range(3))
async def test_what_operators_do_is_as_the_model_has_it(make_driver: MakeDriver, seed: int) -> None:
    engines = [make_driver(n, attention_acknowledged_hours=HOURS) for n in range(2)]
    engines[0].clock.stop()
    game = Game(engines, random.Random(seed))
    assert len(await game.play()) == 6
    assert game.done
