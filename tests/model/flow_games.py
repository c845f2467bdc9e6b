"""Games of many instances: limits that bind, starts that share keys, batches, a schedule; compared after each move.

`FlowGame` is played with two engines on one database whose clock stands still between moves; `flow_hands` are what it
moves by: the engines' own operations, REST, or Kafka's relay. What an engine does in loops is done after each move.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from penstock.store.rows import batches as batch_store
from penstock.testing.clock import DatabaseClock
from penstock.testing.definitions import definition, end, service
from tests.engine.driver import number
from tests.model.flow_hands import QUEUE, Hands
from tests.model.flow_model import (
    SECOND,
    FlowModel,
    Foreseen,
    ModelBatch,
    ModelJob,
    ModelSchedule,
    Policy,
    Rate,
)

MOVES_MAX = 50
KEYS = ("", "", "gold", "iron", "zinc")
CATCH_UPS = ("LAST", "ALL", "NONE")
OVERLAPS = ("SKIP", "BUFFER_ONE", "BUFFER_ALL", "ALLOW", "CANCEL_OTHER")
RUNS_SHOWN = 20
STATUSES = ("ACTIVE", "COMPLETED", "FAILED", "CANCELLED")
COUNTED = ("pending", "active", "completed", "failed", "cancelled", "refused", "removed")
WEIGHTS = {
    "start": 8, "poll": 10, "complete": 8, "fail": 2, "release": 2, "expire": 2, "beat": 6, "cancel": 1, "put": 3,
    "drop": 1, "pause": 1, "prioritize": 1, "wait": 5, "batch": 2, "cancel batch": 1, "trigger": 1, "hold": 1,
}  # fmt: skip


class FlowGame:
    """One game, from a seed."""

    def __init__(self, hands: Hands, clock: DatabaseClock, seed: int) -> None:
        self.hands, self.clock, self.seed = hands, clock, seed
        self.engines = hands.engines
        self.source = hands.source
        self.model = FlowModel()
        self.types = (f"a-{seed}", f"b-{seed}")
        self.generation = 0
        self.schedule = f"s-{seed}"
        self.began = clock.now()
        self.moves: list[str] = []
        self.seen: Counter[str] = Counter()
        self._expired: list[ModelJob] = []

    # -- the game

    async def play(self) -> Counter[str]:
        """What was seen. What fails tells the seed and the moves."""
        try:
            await self._play()
        except Exception as error:
            error.add_note(f"seed {self.seed}: {self.moves}")
            raise
        return self.seen

    async def _play(self) -> None:
        one, two = self.types
        for about in (
            definition(service("x", "end", job_type=one, retryCount=99), end(), definition_id=f"one-{self.seed}"),
            definition(
                service("x", "y", job_type=one, retryCount=99), service("y", "end", job_type=two, retryCount=99), end(),
                definition_id=f"two-{self.seed}",
            ),
            definition(service("x", "end", job_type=two, retryCount=99), end(), definition_id=f"sum-{self.seed}"),
        ):  # fmt: skip
            await self.engines[0].upload(about)
        if self.hands.publishes or self.source.random() < 0.5:  # else some wait before there is a queue
            await self.put(self.types)
        if self.source.random() < 0.6:
            await self.schedule_it()
        while len(self.moves) < MOVES_MAX:
            move = self.choose()
            self.moves.append(move)
            self.seen[move] += 1
            await self.make(move)
            await self.settle()
            await self.compare()
        await self.finish()

    def choose(self) -> str:
        """Now and then what was not done yet."""
        possible = self.possible()
        new = [move for move in possible if not self.seen[move]]
        if new and self.source.random() < 0.4:
            return self.source.choice(new)
        return self.source.choice([move for move in possible for _ in range(WEIGHTS[move])])

    def possible(self) -> list[str]:
        moves = ["start", "poll", "put", "wait", "batch"]
        running = self.model.jobs(running=True)
        if running:
            moves += ["complete", "fail", "release", "expire"]
        if self.late():
            moves.append("beat")
        if self.model.instances:
            moves += ["cancel", "prioritize"]
        if self.model.policy is not None:
            moves += ["drop", "pause"]
        if self.model.batches:
            moves.append("cancel batch")
        if self.model.schedule is not None:
            moves += ["trigger", "hold"]
        return moves

    def late(self) -> list[ModelJob]:
        """Jobs that wait again since their leases ended, and whose holders may come back."""
        self._expired = [job for job in self._expired if not job.running and job.instance.job is job]
        return self._expired

    async def make(self, move: str) -> None:
        match move:
            case "start":
                asked = self.asked()
                for _ in range(self.source.choice((1, 1, 5))):
                    await self.start(asked)
            case "poll":
                await self.poll(self.source.choice(self.types), self.source.randint(1, 5))
            case "put":
                await self.put()
            case "wait":
                await self.wait(self.source.choice((0.1, 0.5, 1, 5, 70, 400)))
            case "batch":
                await self.batch()
            case "cancel batch":
                await self.cancel_batch()
            case "drop":
                await self.hands.delete_queue()
                self.model.policy = None
                await self.notify()
            case "pause":
                await self.pause()
            case "cancel":
                await self.cancel()
            case "prioritize":
                await self.prioritize()
            case "trigger" | "hold":
                await (self.trigger() if move == "trigger" else self.hold())
            case "beat":
                job = self.source.choice(self.late())
                await self.hands.beat(job.instance.id)
                self.model.beat(job)
            case _:
                await self.end_attempt(move, self.source.choice(self.model.jobs(running=True)))

    async def end_attempt(self, move: str, job: ModelJob) -> None:
        match move:
            case "complete":
                await self.hands.complete(job.instance.id)
                self.model.complete(job)
                return
            case "fail":
                await self.hands.fail(job.instance.id)
            case "release":
                await self.hands.release(job.instance.id)
            case _:
                await self.expire(job)
                self._expired.append(job)
        self.model.put_back(job)

    async def expire(self, job: ModelJob) -> None:
        await self.hands.hold(job.instance.id)
        rows = self.engines[0].rows(
            "UPDATE token SET lease_until = penstock_now() WHERE instance_id = %s RETURNING id, seq, attempt",
            number(job.instance.id),
        )
        assert len(await self.hands.one.engine.leases.expire(rows)) == 1

    async def poll(self, job_type: str, most: int) -> int:
        """How many jobs were taken."""
        total = 0
        for claimed_type, asked_for, taken in await self.hands.polls(job_type, most, self.types):
            self.model.claimed(claimed_type, taken, asked_for)
            self._expired = [job for job in self._expired if job.instance.id not in taken]
            self.seen["kept back"] += bool(len(taken) < asked_for and self.model.waiting(claimed_type))
            total += len(taken)
        self.seen["taken"] += total
        return total

    async def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)
        await self.fire_timers()
        self.model.pass_time(round(seconds * SECOND))

    # -- starts

    def asked(self) -> dict[str, Any]:
        """A request: with a key and a priority, and with a rule, or none."""
        steps = self.source.choice((self.types, self.types[:1]))
        asked: dict[str, Any] = {"steps": steps, "variables": {"n": self.source.randrange(100)}}
        if self.source.random() < 0.7:
            asked["key"] = self.source.choice(KEYS)
        if self.source.random() < 0.3:
            asked["priority"] = self.source.randrange(10)
        rate = Rate(1, 1, self.source.choice((1, 2)))
        match self.source.randrange(8):
            case 0:
                asked["delay"] = self.source.choice((SECOND, 60 * SECOND))
            case 1:
                asked["dedupe"] = {"key": "d", "window": 60 * SECOND}
            case 2:
                asked["throttle"] = {"key": "t", "rate": rate, "delays": self.source.random() < 0.5}
            case 3:
                merges = self.source.random() < 0.5
                asked["variables"][f"m{self.source.randrange(3)}"] = 1
                asked["debounce"] = {"key": "e", "wait": 5 * SECOND, "max_wait": 8 * SECOND, "merges": merges}
            case _:
                pass
        # windows are those of a definition id, so all that share one are of one definition
        if asked.keys() & {"dedupe", "throttle", "debounce"}:
            asked["steps"] = self.types[:1]
        return asked

    def body(self, asked: dict[str, Any]) -> dict[str, Any]:
        """As REST has it."""
        name = "two" if len(asked["steps"]) == len(self.types) else "one"
        body: dict[str, Any] = {"definitionId": f"{name}-{self.seed}", "variables": asked["variables"]}
        if asked.get("key"):
            body["flowKey"] = asked["key"]
        if "priority" in asked:
            body["priority"] = asked["priority"]
        if "delay" in asked:
            body["delay"] = duration(asked["delay"])
        if rule := asked.get("dedupe"):
            body["dedupe"] = {"key": rule["key"], "window": duration(rule["window"])}
        if rule := asked.get("throttle"):
            rate: Rate = rule["rate"]
            excess = {"onExcess": "DELAY"} if rule["delays"] else {}
            body["throttle"] = {"key": rule["key"], **rate_body(rate), **excess}
        if rule := asked.get("debounce"):
            body["debounce"] = {
                "key": rule["key"], "wait": duration(rule["wait"]), "maxWait": duration(rule["max_wait"]),
                "keep": "MERGE" if rule["merges"] else "LAST",
            }  # fmt: skip
        return body

    async def start(self, asked: dict[str, Any]) -> None:
        foreseen = self.model.foresee(asked)
        id = await self.hands.start(self.body(asked))
        assert (id is None) == foreseen.throttled
        self.note(foreseen)
        if id is not None:
            self.model.start(foreseen, asked, id)

    def note(self, foreseen: Foreseen) -> None:
        self.seen["throttled"] += foreseen.throttled
        self.seen["put off"] += foreseen.begins is not None
        self.seen["the same"] += foreseen.same is not None

    async def cancel(self) -> None:
        instance = self.source.choice([*self.model.instances.values()])
        if instance.status != "ACTIVE":
            return
        await self.hands.cancel(instance.id)
        self.model.end(instance, "CANCELLED")

    async def prioritize(self) -> None:
        instance = self.source.choice([*self.model.instances.values()])
        if instance.status == "ACTIVE":
            instance.priority = self.source.randrange(10)
            await self.hands.prioritize(instance.id, instance.priority)

    # -- the queue

    async def put(self, types: tuple[str, ...] | None = None) -> None:
        """Another policy, of narrow limits; a pause stays."""
        paused = self.model.policy is not None and self.model.policy.paused
        if self.model.policy is None:
            self.generation += 1
        pick: Callable[..., Any] = self.source.choice
        policy = Policy(
            self.generation, types or pick((self.types, self.types, self.types[:1])), concurrency=pick((None, 1, 2, 4)),
            per_key=pick((None, None, 1, 2)),
            rate=pick((None, None, Rate(2, 1, 2), Rate(1, 1, 3), Rate(3, 1, 2, window=True))),
            rate_per_key=pick((None, None, Rate(1, 1, 1), Rate(4, 1, 2), Rate(2, 1, 1, window=True))),
            weights=pick(({}, {"gold": 2})), paused=paused,
        )  # fmt: skip
        body: dict[str, Any] = {"jobTypes": policy.types, "weights": policy.weights}
        if policy.concurrency is not None:
            body["concurrency"] = policy.concurrency
        if policy.per_key is not None:
            body["concurrencyPerKey"] = policy.per_key
        if policy.rate is not None:
            body["rate"] = rate_body(policy.rate)
        if policy.rate_per_key is not None:
            body["ratePerKey"] = rate_body(policy.rate_per_key)
        await self.hands.put_queue(body)
        self.model.policy = policy
        await self.notify()

    async def pause(self) -> None:
        assert self.model.policy is not None
        self.model.policy = replace(self.model.policy, paused=not self.model.policy.paused)
        await self.hands.pause_queue(paused=self.model.policy.paused)
        await self.notify()

    async def notify(self) -> None:
        """A second has passed: all engines know of the queue."""
        for driver in self.engines:
            await driver.engine.queues.run_once()

    # -- batches

    async def batch(self) -> None:
        """Of some starts, of which each shares its key with no other of the batch."""
        items: list[dict[str, Any]] = []
        rules: set[str] = set()
        for _ in range(self.source.randint(1, 4)):
            asked = self.asked()
            if not rules & asked.keys():
                items.append(asked)
            rules |= asked.keys() & {"dedupe", "throttle", "debounce"}
        key = f"batch {self.seed} {len(self.model.batches)}"
        asked_for = [self.body(item) for item in items], f"sum-{self.seed}", key
        id = await self.hands.create_batch(*asked_for)
        self.model.batches[id] = ModelBatch(items)
        assert await self.hands.create_batch(*asked_for) == id
        if self.source.random() < 0.2:  # before anything of it is started
            assert await self.hands.cancel_batch(id)
            self.model.batches[id].cancelled = True

    async def cancel_batch(self) -> None:
        id, batch = self.source.choice([*self.model.batches.items()])
        assert await self.hands.cancel_batch(id) == (batch.cancelled or not batch.is_over)
        if not batch.is_over and not batch.cancelled:
            batch.cancelled = True
            for instance in batch.own:
                if instance.status == "ACTIVE":
                    self.model.end(instance, "CANCELLED")

    async def work_on_batches(self) -> None:
        """All that their loop does until nothing is due, each looked at now."""
        self.engines[0].rows("UPDATE batch SET look_at = penstock_now() WHERE look_at IS NOT NULL RETURNING 1")
        while True:
            engine = self.source.choice(self.engines).engine
            async with engine.database.connection() as connection:
                work = await batch_store.claim(connection, engine.settings.start_batch_lease_seconds)
            if work is None:
                return
            await engine.batches.work_on(work)

    async def follow_batches(self) -> None:
        place = self.model.next_place()
        for id, batch in self.model.batches.items():
            if not batch.started and not batch.cancelled:
                await self.follow_starts(id, batch, place)
            if batch.is_over and not batch.cancelled and batch.completion is None:
                await self.follow_end(id, batch, place)

    async def follow_starts(self, id: str, batch: ModelBatch, place: int) -> None:
        results = await self.hands.results(id)
        batch.started = True
        for (state, instance, error), asked in zip(results, batch.items, strict=True):
            foreseen = self.model.foresee(asked)
            self.note(foreseen)
            assert (state == "REFUSED", error) == (foreseen.throttled, "throttled" if foreseen.throttled else None)
            if instance is not None:
                self.model.start(foreseen, asked, instance, place)
                if foreseen.same is None:
                    batch.own.append(self.model.instances[instance])
            batch.became.append(None if instance is None else self.model.instances[instance])

    async def follow_end(self, id: str, batch: ModelBatch, place: int) -> None:
        view, counts = await self.hands.batch(id), batch.counts()
        reported: dict[str, Any] = {name: counts[name.upper()] for name in COUNTED[2:]}
        variables = {"batch": {"id": id, "total": len(batch.items), **reported}}
        asked = {"steps": self.types[1:], "variables": variables}
        self.model.start(Foreseen(), asked, view["completionId"], place)
        batch.completion = self.model.instances[view["completionId"]]
        self.seen["batch over"] += 1

    # -- the schedule

    async def schedule_it(self) -> None:
        pick: Callable[..., Any] = self.source.choice
        schedule = ModelSchedule(60 * SECOND, pick(OVERLAPS), pick(CATCH_UPS), self.model.now)
        body = {
            "definitionId": f"one-{self.seed}", "every": "PT1M", "anchor": self.began.isoformat(), "flowKey": "gold",
            "priority": 3, "overlap": schedule.overlap, "catchUp": schedule.catch_up,
        }  # fmt: skip
        await self.hands.put_schedule(self.schedule, body)
        self.model.schedule = schedule
        await self.settle()

    async def trigger(self) -> None:
        schedule = self.model.schedule
        assert schedule is not None
        asked_for = schedule.free_time(self.model.now)
        starts = schedule.scan(self.model.now, asked_for)
        found = await self.hands.trigger(self.schedule)
        assert found == (self.time(asked_for), schedule.runs[asked_for])
        await self.follow_schedule(schedule, starts)

    async def hold(self) -> None:
        schedule = self.model.schedule
        assert schedule is not None
        await self.hands.hold_schedule(self.schedule, paused=not schedule.paused)
        if schedule.paused:
            schedule.resume(self.model.now)
        else:
            schedule.paused = True

    async def follow_schedule(self, schedule: ModelSchedule, starts: list[int]) -> None:
        """What it started now."""
        if schedule.cancels and schedule.last is not None:
            self.model.end(schedule.last, "CANCELLED")
        if not starts:
            return
        made = {at: instance for at, outcome, instance in await self.hands.runs(self.schedule) if outcome == "STARTED"}
        place = self.model.next_place()
        for at in starts:
            shown = self.time(at).isoformat().replace("+00:00", "Z")
            variables = {"schedule": {"id": self.schedule, "at": shown}}
            asked = {"steps": self.types[:1], "variables": variables, "key": "gold", "priority": 3}
            instance = made[self.time(at)]
            assert instance is not None
            self.model.start(Foreseen(), asked, instance, place)
            schedule.last = self.model.instances[instance]
            self.seen["fired"] += 1

    def time(self, microseconds: int) -> datetime:
        return self.began + timedelta(microseconds=microseconds)

    # -- what engines do by themselves, and looking

    async def settle(self) -> None:
        """All that is due now is done, in the engines and in the model."""
        await self.settle_batches()
        await self.fire_timers()
        schedule = self.model.schedule
        if schedule is not None:
            while await self.hands.one.engine.schedules.fire_once() or await self.fire_timers():
                pass
            while starts := schedule.scan(self.model.now):
                await self.follow_schedule(schedule, starts)
            await self.settle_batches()  # a run of the schedule that was cancelled may be the last of one

    async def fire_timers(self) -> int:
        fired = 0
        while self.engines[0].rows("SELECT FROM timer WHERE fire_at <= penstock_now() LIMIT 1"):
            fired += await self.hands.one.due()
        return fired

    async def settle_batches(self) -> None:
        if self.model.batches:
            await self.work_on_batches()
            await self.follow_batches()

    async def compare(self) -> None:
        model, rows = self.model, self.engines[0].rows
        waiting = rows(
            "SELECT t.instance_id, t.priority, coalesce(r.flow_key, '') FROM ("
            " SELECT job_type, token_id, NULL AS flow_key FROM ready UNION ALL"
            " SELECT job_type, token_id, flow_key FROM ready_flow) r"
            " JOIN token t ON t.id = r.token_id JOIN job_type j ON j.id = r.job_type WHERE j.name = ANY(%s)",
            list(self.types),
        )
        expected = [(job.instance.id, job.instance.priority, job.instance.key) for job in model.jobs(running=False)]
        assert Counter((f"{id:x}", priority, key) for id, priority, key in waiting) == Counter(expected)
        if model.policy is not None:
            counted = "SELECT flow_key, running FROM slot s JOIN queue q ON q.id = s.queue WHERE q.name = %s"
            found = {key: number for key, number in rows(counted, QUEUE) if number}
            assert found == model.running_in(model.policy.generation)
        instances = rows(
            "SELECT i.id, i.status, i.vars FROM instance i JOIN definition d ON d.key = i.definition"
            " WHERE d.id = ANY(%s)",
            [f"{name}-{self.seed}" for name in ("one", "two", "sum")],
        )
        assert {f"{id:x}": (STATUSES[status], variables) for id, status, variables in instances} == {
            one.id: (one.status, one.variables) for one in model.instances.values()
        }
        for id, batch in model.batches.items():
            await self.compare_batch(id, batch)
        if model.schedule is not None:
            await self.compare_schedule(model.schedule)

    async def compare_batch(self, id: str, batch: ModelBatch) -> None:
        view, counts = await self.hands.batch(id), batch.counts()
        assert [view.get(name, 0) for name in COUNTED] == [counts[name.upper()] for name in COUNTED]
        over = batch.is_over or batch.completion is not None
        running, ended = ("CANCELLING", "CANCELLED") if batch.cancelled else ("RUNNING", "DONE")
        assert view["state"] == (ended if over else running)
        assert view.get("completionId") == (batch.completion and batch.completion.id)

    async def compare_schedule(self, schedule: ModelSchedule) -> None:
        found = {at: outcome for at, outcome, _ in await self.hands.runs(self.schedule)}
        expected = {self.time(at): outcome for at, outcome in schedule.runs.items()}
        assert found.items() <= expected.items()
        assert len(found) == min(RUNS_SHOWN, len(expected))

    async def finish(self) -> None:
        """Without limits all that waits begins, and comes to its end."""
        if self.model.schedule is not None and not self.model.schedule.paused:
            await self.hold()
        if self.model.policy is not None:
            await self.make("drop")
        await self.wait(400)
        await self.settle()
        while any(one.begins is not None and one.status == "ACTIVE" for one in self.model.instances.values()):
            await self.wait(5)  # each in its turn
            await self.settle()
        while jobs := self.model.jobs(running=True) or self.model.jobs(running=False):
            for job in jobs:
                if job.running:
                    await self.end_attempt("complete", job)
                else:
                    assert await self.poll(job.job_type, 1), "a job is lost"
            await self.settle()
        await self.compare()
        assert all(one.status != "ACTIVE" for one in self.model.instances.values())


def rate_body(rate: Rate) -> dict[str, Any]:
    kind = {"window": True} if rate.window else {}
    return {"limit": rate.limit, "period": f"PT{rate.period_s}S", "burst": rate.burst, **kind}


def duration(microseconds: int) -> str:
    return f"PT{microseconds // SECOND}S"
