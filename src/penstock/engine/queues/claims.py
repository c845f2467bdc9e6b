"""The group-commit queue of claims: polls that look into the queue, together, and lease what they find."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from time import perf_counter
from typing import Final, NamedTuple

import trio

from penstock.engine.definitions.definitions import Definitions, LoadedDefinition
from penstock.engine.group_commit.item import Item
from penstock.engine.group_commit.queue import GroupCommitQueue
from penstock.engine.queues.deliveries import Deliveries, Delivery
from penstock.engine.queues.fairness_order import FairnessOrder
from penstock.engine.queues.job_sizes import JobSizes
from penstock.engine.queues.low_water_marks import LowWaterMarks
from penstock.engine.queues.queue_counts import QueueCounts
from penstock.engine.queues.queues import Queues
from penstock.engine.queues.releases import Releases
from penstock.engine.queues.variables import Recollection, VariablesCache
from penstock.engine.queues.waiters import Waiter, Waiters
from penstock.engine.requests.answers import AnswerMemory
from penstock.settings import Settings
from penstock.store.db.connection import TrioConnection
from penstock.store.db.database import LOCKED, Database
from penstock.store.db.outcome import InDoubt
from penstock.store.rows import flow as flow_store
from penstock.store.rows import jobs as store
from penstock.telemetry.metrics import Metrics

REASSIGN_MAX_ROWS: Final = 1_000
"""Of each type: some ten milliseconds."""
HINTED_KEYS_MIN: Final = 16
"""Keys of which something was heard that are looked at together; then twice as many, while jobs are wanted."""
TABLES_OF_TURNS: Final = ("job_type", "ready_flow")
"""Without them the queue of jobs that take no turns can be counted."""
CLAIM_TYPES_MAX_COUNT: Final = 2_000
"""Job types of one look at the queue; more polls than that take several."""


class ClaimItem(Item[None]):
    """A poll that looks into the queue; its jobs are delivered to the waiter."""

    __slots__ = ("versions", "waiter")

    def __init__(self, waiter: Waiter) -> None:
        super().__init__()
        self.versions: list[int] = []  # of its types' queues, for whoever asks what was queued meanwhile
        self.waiter = waiter


class ClaimPlan:
    """What one claim asks for: slots, whose they are by (job type, ordinal), and how many of each type.
    ``free_bytes``: what there is for more of them."""

    __slots__ = ("free_bytes", "holders", "reserved", "slots")

    def __init__(self, free_bytes: int) -> None:
        self.slots: list[store.ClaimSlot] = []
        self.holders: dict[tuple[int, int], Waiter] = {}
        self.reserved: dict[str, int] = {}
        self.free_bytes = free_bytes


class KeyedClaim(NamedTuple):
    """What a claim of one job type saw, and how many it found of those it was for."""

    scan: flow_store.ClaimScan
    found: int
    wanted: int


ClaimCall = Callable[[Sequence[store.ClaimSlot]], Awaitable[tuple[flow_store.ClaimScan, list[store.ClaimedJob]]]]


class Claims(GroupCommitQueue[ClaimItem]):
    """Claims jobs for polls; what it claims is delivered to them."""

    def __init__(
        self,
        database: Database,
        settings: Settings,
        metrics: Metrics,
        definitions: Definitions,
        cache: VariablesCache,
        memory: AnswerMemory,
        sizes: JobSizes,
        waiters: Waiters,
        counts: QueueCounts,
        deliveries: Deliveries,
        releases: Releases,
        queues: Queues,
    ) -> None:
        super().__init__("poll", database, settings, metrics, label="claim", gathers=True)
        self._seconds = metrics.db_transaction_seconds["claim"].distribution
        self._settings = settings
        self._definitions = definitions
        self._cache = cache
        self._recollection = Recollection()
        self._memory = memory
        self._sizes = sizes
        self._waiters = waiters
        self._counts = counts
        self._deliveries = deliveries
        self._releases = releases
        self._queues = queues
        self.low_water_marks = LowWaterMarks(trio.current_time)
        self.fairness_order = FairnessOrder(trio.current_time)
        self._turn = 0
        self._fell_short: set[str] = set()  # types of which the last claim found too few: there may be rows of no job

    def scan_all(self, job_types: Sequence[str]) -> None:
        """The next claim of these types sees all that waits, however short ago the last look was."""
        self.low_water_marks.drop()
        self.fairness_order.open(job_types)
        self.fairness_order.reassign_again(job_types)

    def divide(self, items: list[ClaimItem]) -> list[list[ClaimItem]]:
        return groups_by_types(items)

    async def apply(self, connection: TrioConnection, items: list[ClaimItem], again: bool) -> None:
        waiters = [item.waiter for item in items]
        types = list(dict.fromkeys(chain.from_iterable([waiter.types for waiter in waiters])))
        keyed = self._queues.keyed
        plain = types if keyed.isdisjoint(types) else [name for name in types if name not in keyed]
        if plain and not await self._claim_for(connection, waiters, plain, self._counts.waiting(plain)):
            await self._claim_for(connection, [waiter for waiter in waiters if not waiter.jobs], plain, {})
        if self.locked:
            for item in items:
                if item.waiter.jobs:
                    item.answer(None)  # before what follows is refused for a lock
        keyed = self._queues.keyed  # a probe may have found more of them
        if not keyed.isdisjoint(types):
            await self._claim_turns(connection, waiters, [name for name in types if name in keyed])
        for item in items:
            item.answer(None)

    async def _claim_for(
        self, connection: TrioConnection, waiters: Sequence[Waiter], types: Sequence[str], counts: dict[str, int]
    ) -> bool:
        """Claim for polls, after a probe unless ``counts`` is enough for all of them. False: what was counted is gone,
        and somebody got nothing."""
        plan = ClaimPlan(self._memory.free_bytes)
        try:
            for waiter in waiters:
                self._reserve(waiter, counts, plan)
            probed = any(waiter.free_slots > 0 for waiter in waiters)
            if probed:
                counts = await self.probe(connection, types)
                for name, number in plan.reserved.items():
                    counts[name] = counts.get(name, 0) - number
                for waiter in waiters:
                    self._reserve(waiter, counts, plan)
            if plan.slots:
                low_water_marks, dropped = self.low_water_marks.current()
                clear, known = not self._fell_short.isdisjoint(plan.reserved), self._recollection.is_good
                began = perf_counter()
                try:
                    claimed = await store.claim(
                        connection,
                        plan.slots,
                        low_water_marks,
                        clear=clear,
                        known=known,
                        spared="job_type" in self.locked,
                    )
                except InDoubt as doubt:
                    self._return_doubtful(doubt, plan)
                    raise
                finally:
                    self._seconds.observe(perf_counter() - began)
                self.low_water_marks.mark_taken(dropped, claimed)
                self._on_claimed(plan, claimed)
                remembered = self._remembered(claimed)
                if claimed:
                    self._recollection.note(complete=len(remembered) == len(claimed))
                await self._deliver_claimed(connection, plan, claimed, remembered)
        finally:
            for waiter in plan.holders.values():
                self._waiters.give_up(waiter)
        return probed or all(waiter.jobs for waiter in waiters)

    def _on_claimed(self, plan: ClaimPlan, claimed: Sequence[store.ClaimedJob]) -> None:
        found: dict[int, int] = {}
        for row in claimed:
            found[row.job_type] = found.get(row.job_type, 0) + 1
        for name, number in plan.reserved.items():
            self._counts.on_claimed(name, number)
            if found.get(self._definitions.job_type_ids.get(name, -1), 0) < number:
                self._fell_short.add(name)
            else:
                self._fell_short.discard(name)

    async def _claim_turns(self, connection: TrioConnection, waiters: Sequence[Waiter], types: Sequence[str]) -> None:
        """Claim jobs that wait for turns, from another type first each time."""
        await self._definitions.resolve_job_types(connection, [*types])
        ids = self._definitions.job_type_ids
        known = [name for name in types if name in ids]
        due = self.fairness_order.to_reassign(known)
        if (
            due
            and await flow_store.reassign(connection, [ids[name] for name in due], REASSIGN_MAX_ROWS)
            >= REASSIGN_MAX_ROWS
        ):
            self.fairness_order.reassign_again(due)
        first = self._turn % max(1, len(known))
        for name in (*known[first:], *known[:first]):
            if self.fairness_order.is_open(name) and (wanted := await self._claim_type(connection, waiters, name)):
                await self._claim_hinted(connection, waiters, name, wanted)

    async def _claim_type(self, connection: TrioConnection, waiters: Sequence[Waiter], name: str) -> int:
        """Go on with the round; how many more jobs are wanted, if there are keys that were not looked at."""
        keys_max, started = self._settings.flow_keys_per_claim, trio.current_time()
        claim = partial(
            flow_store.claim,
            connection,
            cursor=self.fairness_order.cursor(name),
            keys_max=keys_max,
            after=self.fairness_order.after(name),
        )
        done = await self._claim_by(connection, waiters, name, claim)
        if done is None:
            return 0
        scan, found, wanted = done
        self.fairness_order.note(name, scan, found, keys_max=keys_max, took_s=trio.current_time() - started)
        queue = self._queues.queue_of(name)
        if queue is not None:
            self._metrics.observe_flow_claim(queue, blocked=scan.blocked, throttled=scan.retry_s is not None)
        return wanted - found if scan.visited >= keys_max else 0

    async def _claim_hinted(
        self, connection: TrioConnection, waiters: Sequence[Waiter], name: str, wanted: int
    ) -> None:
        """After a look that did not come round: what waits under keys of which something was heard. Never before it, as
        a key that is freed all the time would be served for ever. Few at first, as a job of each is locked."""
        keys_left, number = self._settings.flow_keys_per_claim, max(wanted, HINTED_KEYS_MIN)
        while wanted > 0 and (keys := self.fairness_order.take_hints(name, min(number, keys_left))):
            claim = partial(flow_store.claim_hinted, connection, keys=keys)
            done = await self._claim_by(connection, waiters, name, claim)
            self.fairness_order.keep(name, keys if done is None else done.scan.unserved(keys))
            if done is None or not done.scan.visited:
                return
            if done.found:
                self.fairness_order.open((name,))
            wanted, keys_left, number = wanted - done.found, keys_left - len(keys), 2 * number

    async def _claim_by(
        self, connection: TrioConnection, waiters: Sequence[Waiter], name: str, claim: ClaimCall
    ) -> KeyedClaim | None:
        """Claim jobs of one type by ``claim``, and deliver them; None: there was nobody to claim for."""
        plan = ClaimPlan(self._memory.free_bytes)
        try:
            for waiter in waiters:
                if name in waiter.types:
                    self._reserve(waiter, {name: self._settings.batch_max_items - len(plan.slots)}, plan)
            if not plan.slots:
                return None
            wanted = len(plan.slots)
            try:
                with self._metrics.flow_claim_seconds.time():
                    scan, claimed = await claim(plan.slots)
            except InDoubt as doubt:
                self._return_claimed(flow_store.doubtful(doubt), plan)
                raise
            await self._deliver_claimed(connection, plan, claimed, self._remembered(claimed))
            return KeyedClaim(scan, len(claimed), wanted)
        finally:
            for waiter in plan.holders.values():
                self._waiters.give_up(waiter)

    def _return_doubtful(self, doubt: InDoubt, plan: ClaimPlan) -> None:
        """Give back what a claim may have leased, as nobody will get it. Of a claim whose answer did not come at all
        nothing is known: its jobs come back with the end of their leases."""
        self._return_claimed(store.doubtful(doubt), plan)

    def _return_claimed(self, rows: Sequence[store.ClaimedJob], plan: ClaimPlan) -> None:
        for row in rows:
            worker = plan.holders[row.job_type, row.ordinal].worker
            lease = store.Lease(row.token, row.seq, row.attempt, worker, row.claimed_at)
            self._releases.release_nowait(store.JobKey(row.instance, row.token, row.seq), lease)

    def _reserve(self, waiter: Waiter, counts: dict[str, int], plan: ClaimPlan) -> None:
        # from another type each time: with one that never runs dry the others would starve
        types = waiter.types
        first = self._turn % len(types)
        self._turn += 1
        free_slots = waiter.free_slots
        for name in (*types[first:], *types[:first]) if first else types:
            wanted = counts.get(name, 0)
            if wanted <= 0:
                continue
            if free_slots <= 0:
                return
            id = self._definitions.job_type_ids.get(name)
            if id is None:
                continue
            if wanted > free_slots:
                wanted = free_slots
            job_bytes = self._sizes.job_bytes(name)
            if wanted * job_bytes > plan.free_bytes:
                alone = not plan.slots and self._memory.fits(job_bytes)
                wanted = max(plan.free_bytes // job_bytes, int(alone))
                if wanted <= 0:
                    continue
            plan.free_bytes -= wanted * job_bytes
            counts[name] -= wanted
            before = plan.reserved.get(name, 0)
            for ordinal in range(before + 1, before + wanted + 1):
                plan.slots.append(store.slot((id, ordinal, waiter.worker, waiter.lease_s)))
                plan.holders[id, ordinal] = waiter
            plan.reserved[name] = before + wanted
            waiter.reserved += wanted
            free_slots -= wanted

    async def _deliver_claimed(
        self,
        connection: TrioConnection,
        plan: ClaimPlan,
        claimed: Sequence[store.ClaimedJob],
        remembered: Mapping[int, bytes],
    ) -> None:
        deliveries: list[Delivery] = []
        known: dict[int, bytes] = {}
        loaded_by_key: dict[int, LoadedDefinition] = {}
        try:
            for key in {row.definition for row in claimed}:
                loaded_by_key[key] = await self._definitions.by_key(connection, key)
        except BaseException:  # committed, but nobody can be given them: back to the queue
            self._return_claimed(claimed, plan)
            raise
        for row in claimed:
            waiter, loaded = plan.holders[row.job_type, row.ordinal], loaded_by_key[row.definition]
            deliveries.append(
                Delivery(
                    waiter=waiter,
                    loaded=loaded,
                    instance=row.instance,
                    token=row.token,
                    seq=row.seq,
                    entry=row.entry,
                    step=row.step,
                    attempt=row.attempt,
                    failures=row.failures,
                    entered_at=row.entered_at,
                    claimed_at=row.claimed_at,
                    lease_until=row.lease_until,
                    business_key=row.business_key,
                )
            )
            found = remembered.get(row.token) if row.variables is None else row.variables.encode()
            if found is not None:
                known[row.token] = found
        for row in claimed:  # from here on `deliver_all` answers for them
            del plan.holders[row.job_type, row.ordinal]
        await self._deliveries.deliver_all(connection, deliveries, known)

    def _remembered(self, claimed: Sequence[store.ClaimedJob]) -> dict[int, bytes]:
        """By token the variables that are known. Of a job that came back they may be of another version by now."""
        found = {row.token: self._cache.find(row.token, row.seq) for row in claimed if row.place == row.seq}
        return {token: variables for token, variables in found.items() if variables is not None}

    async def probe(self, connection: TrioConnection, types: Sequence[str]) -> dict[str, int]:
        """How many jobs of each type wait, as far as a batch takes them."""
        versions = {name: self._counts.version(name) for name in types}
        await self._definitions.resolve_job_types(connection, list(types))
        names = {self._definitions.job_type_ids[name]: name for name in types if name in self._definitions.job_type_ids}
        whole, started = self.low_water_marks.drop_if_due(), trio.current_time()
        low_water_marks, _ = self.low_water_marks.current()
        limit = self._settings.batch_max_items
        found = await self._count_ready(connection, list(names), limit, low_water_marks) if names else []
        if whole:
            self.low_water_marks.remember_whole_scan(trio.current_time() - started)
        counts = {names[row.job_type]: row.waiting for row in found if row.waiting and not row.keyed}
        fairness_order = {names[row.job_type]: row for row in found if row.flows or row.keyed}
        if fairness_order:
            await self._know_turns(connection, fairness_order)
            counts.update((name, limit) for name in fairness_order if self.fairness_order.is_open(name))
        self._counts.remember_probed(versions, counts)
        return counts

    async def _count_ready(
        self, connection: TrioConnection, ids: list[int], limit: int, low_water_marks: Mapping[int, store.LowWaterMark]
    ) -> list[store.Ready]:
        if self.locked.isdisjoint(TABLES_OF_TURNS):
            try:
                return await store.probe_ready(connection, ids, limit, low_water_marks)
            except LOCKED:
                if connection.pgconn.transaction_status != 0:
                    raise
        return await store.probe_ready(connection, ids, limit, low_water_marks, spared=True)

    async def _know_turns(self, connection: TrioConnection, fairness_order: Mapping[str, store.Ready]) -> None:
        if any(row.keyed and name not in self._queues.keyed for name, row in fairness_order.items()):
            await self._queues.refresh(connection)
        # what an instance with a key has started, or came to in another version: its types were not known by its start
        await self._queues.remember_keyed(
            connection, {name: row.job_type for name, row in fairness_order.items() if row.flows}
        )


def groups_by_types(items: list[ClaimItem]) -> list[list[ClaimItem]]:
    """The polls of one batch in their order, so that one look at the queue is for no more job types than the loop can
    deal with at once."""
    if sum(len(item.waiter.types) for item in items) <= CLAIM_TYPES_MAX_COUNT:
        return [items]
    groups: list[list[ClaimItem]] = []
    free_slots = 0
    for item in items:
        count = len(item.waiter.types)
        if count > free_slots:
            groups.append([])
            free_slots = max(CLAIM_TYPES_MAX_COUNT, count)
        groups[-1].append(item)
        free_slots -= count
    return groups
