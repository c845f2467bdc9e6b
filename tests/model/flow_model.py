"""A second opinion on queues, starts, batches and schedules, written from docs/queues.md, starts.md and schedules.md.

Keeps no rows: instances with their jobs, how many attempts are under way and when they began, what windows of starts
are open. Times are microseconds, as the database's. Of a claim it does not say which jobs it takes, as each engine has
its own place in the round, but whether what it took was lawful (`claimed`); of all else what must come out.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

SECOND = 1_000_000
UNLIMITED = 1_000_000_000
ON_TIME = 10 * SECOND
"""A time of a schedule that is looked at so late is no late one."""


class Rate(NamedTuple):
    """``limit`` in ``period_s`` seconds, ``burst`` at once after a pause."""

    limit: int
    period_s: int
    burst: int
    window: bool = False

    @property
    def pace(self) -> float:
        """A window's is some millionths longer than its part of the period."""
        if self.window:
            return (self.period_s * SECOND + 1) / (self.limit + 1 - self.burst - 2e-6)
        return self.period_s * SECOND // self.limit

    def left(self, paid_until: int, now: int) -> int:
        return math.floor(self.burst - max(0, paid_until - now) / self.pace + 1e-6)

    @property
    def most(self) -> int:
        """How many may begin in any period, by the page."""
        return self.limit if self.window else self.limit + self.burst


@dataclass(frozen=True)
class Policy:
    """Of the one queue. ``generation``: of a queue that was deleted and made again."""

    generation: int
    types: tuple[str, ...]
    concurrency: int | None = None
    per_key: int | None = None
    rate: Rate | None = None
    rate_per_key: Rate | None = None
    weights: dict[str, int] = field(default_factory=dict)
    paused: bool = False


@dataclass(eq=False)
class ModelJob:
    """``place``: later ones are greater; some that came at once have the same. ``held``: what its attempt counts in."""

    instance: ModelInstance
    job_type: str
    place: int
    running: bool = False
    held: list[tuple[int, str]] = field(default_factory=list)


@dataclass(eq=False)
class ModelInstance:
    """``steps``: the job types that are still to come. ``begins``: when; None: it has begun. ``line``: the key and the
    rate that make it wait; ``told``: it was told its time when that came."""

    id: str
    steps: list[str]
    variables: dict[str, Any]
    key: str
    priority: int
    begins: int | None = None
    status: str = "ACTIVE"
    job: ModelJob | None = None
    batch: str | None = None
    line: tuple[str, Rate] | None = None
    reported: bool = False


class Foreseen(NamedTuple):
    """What a start will give: an instance that there is, or a new one that begins then, or nothing."""

    same: ModelInstance | None = None
    begins: int | None = None
    throttled: bool = False


class FlowModel:
    """All that a game does."""

    def __init__(self) -> None:
        self.now = 0
        self.policy: Policy | None = None
        self.instances: dict[str, ModelInstance] = {}
        self._places = 0
        self.counts: Counter[tuple[int, str]] = Counter()
        self.paid: defaultdict[tuple[int, str], int] = defaultdict(int)
        self.begun: defaultdict[tuple[int, str, Rate], list[int]] = defaultdict(list)
        """When attempts began under a rate."""
        self._deduped: dict[str, tuple[int, ModelInstance]] = {}
        self._throttled: dict[str, int] = {}
        self._lines: dict[str, int] = {}
        self._debounced: dict[str, tuple[ModelInstance, int]] = {}
        self.batches: dict[str, ModelBatch] = {}
        self.schedule: ModelSchedule | None = None

    # -- starts

    def foresee(self, asked: dict[str, Any]) -> Foreseen:
        """Of a request; nothing is changed yet."""
        if (rule := asked.get("dedupe")) and (known := self._deduped.get(rule["key"])) and known[0] > self.now:
            return Foreseen(same=known[1])
        begins = self.now + asked["delay"] if "delay" in asked else None
        if rule := asked.get("throttle"):
            rate: Rate = rule["rate"]
            wait = self._paid(rule) - self.now - rate.burst * int(rate.pace)
            if wait > 0 and not rule["delays"]:
                return Foreseen(throttled=True)
            begins = self.now + wait if wait > 0 else None
        if rule := asked.get("debounce"):
            known_one, latest = self._debounced.get(rule["key"], (None, 0))
            if known_one is not None and known_one.begins is not None and known_one.status == "ACTIVE":
                return Foreseen(same=known_one, begins=min(self.now + rule["wait"], latest))
            begins = self.now + rule["wait"]
        return Foreseen(begins=begins)

    def _paid(self, rule: dict[str, Any]) -> int:
        return max(self._throttled.get(rule["key"], 0), self.now) + int(rule["rate"].pace)

    def start(self, foreseen: Foreseen, asked: dict[str, Any], id: str, place: int | None = None) -> None:
        """It was answered with the instance ``id``."""
        debounce = asked.get("debounce")
        if foreseen.same is not None:
            assert foreseen.same.id == id
            if debounce is not None:
                kept = foreseen.same.variables if debounce["merges"] else {}
                foreseen.same.variables = kept | asked["variables"]
                foreseen.same.begins = foreseen.begins
            return
        assert id not in self.instances
        made = ModelInstance(
            id, list(asked["steps"]), dict(asked["variables"]), asked.get("key", ""), asked.get("priority", 5)
        )
        self.instances[id] = made
        if rule := asked.get("dedupe"):
            self._deduped[rule["key"]] = self.now + rule["window"], made
        if rule := asked.get("throttle"):
            self._throttled[rule["key"]] = self._paid(rule)
        if debounce is not None:
            self._debounced[debounce["key"]] = made, self.now + debounce["max_wait"]
        made.begins = foreseen.begins
        if rule and made.begins is not None and debounce is None:
            made.line = rule["key"], rule["rate"]
        if made.begins is None:
            self._enter(made, place)

    def pass_time(self, microseconds: int) -> None:
        """And what is to begin by then begins, in its order."""
        self.now += microseconds
        self._space_out()
        due = [one for one in self.instances.values() if one.begins is not None and one.begins <= self.now]
        place = self.next_place()
        for instance in due:
            instance.begins = None
            if instance.status == "ACTIVE":
                self._enter(instance, place)

    def _space_out(self) -> None:
        """Throttled starts whose time has come are told when they begin: late ones, and those behind them, later."""
        due = [one for one in self.instances.values() if one.begins is not None and one.begins <= self.now]
        for one in sorted(due, key=lambda one: one.begins or 0):
            if one.line is None or one.begins is None or one.status != "ACTIVE":
                continue
            key, rate = one.line
            pace = int(rate.pace)
            late = one.begins < self.now - max(pace, SECOND)
            if not late and one.reported:
                continue
            at = self.now if late else one.begins
            until = max(self._lines.get(key, 0), at) + pace
            one.begins, one.reported = max(until - rate.burst * pace, at), True
            self._lines[key] = until
            self._throttled[key] = max(self._throttled.get(key, 0), until)

    # -- jobs

    def next_place(self) -> int:
        self._places += 1
        return self._places

    def _enter(self, instance: ModelInstance, place: int | None = None) -> None:
        if not instance.steps:
            instance.status, instance.job = "COMPLETED", None
            return
        instance.job = ModelJob(instance, instance.steps.pop(0), self.next_place() if place is None else place)

    def jobs(self, *, running: bool) -> list[ModelJob]:
        found = [one.job for one in self.instances.values() if one.job is not None]
        return [job for job in found if job.running is running]

    def waiting(self, job_type: str) -> list[ModelJob]:
        jobs = [job for job in self.jobs(running=False) if job.job_type == job_type]
        return sorted(jobs, key=lambda job: (job.instance.priority, job.place))

    def _limits(self, job_type: str) -> Policy | None:
        return self.policy if self.policy is not None and job_type in self.policy.types else None

    def room(self, job_type: str, key: str = "") -> int:
        """For how many attempts: of the queue, or of a flow key in it."""
        policy = self._limits(job_type)
        if policy is None:
            return UNLIMITED
        most, rate = (policy.per_key, policy.rate_per_key) if key else (policy.concurrency, policy.rate)
        where = policy.generation, key
        room = 0 if policy.paused else UNLIMITED
        if most is not None:
            room = min(room, max(0, most - self.counts[where]))
        if rate is not None:
            room = min(room, max(0, rate.left(self.paid[where], self.now)))
        return room

    def key_room(self, job: ModelJob) -> int:
        return self.room(job.job_type, job.instance.key) if job.instance.key else UNLIMITED

    def may_begin(self, job_type: str) -> list[ModelJob]:
        """What waits and is kept back by nothing now."""
        if self.room(job_type) <= 0:
            return []
        return [job for job in self.waiting(job_type) if self.key_room(job) > 0]

    def claimed(self, job_type: str, ids: Sequence[str], most: int) -> None:
        """Jobs of these instances were taken at once, of ``most`` that were asked for."""
        assert len(set(ids)) == len(ids) <= most
        taken = [self.instances[id].job for id in ids]
        waiting = self.waiting(job_type)
        assert all(job in waiting for job in taken), "a job is begun that does not wait"
        jobs = [job for job in waiting if job in taken]
        left = [job for job in waiting if job not in taken]
        assert len(jobs) <= self.room(job_type), "the queue's limit is exceeded"
        for key, number in Counter(job.instance.key for job in jobs if job.instance.key).items():
            assert number <= self.room(job_type, key), f"the limit of {key} is exceeded"
        if most and self.may_begin(job_type):
            assert jobs, "nothing began though something might"
        for job in left:
            of_key = [one for one in jobs if one.instance.key == job.instance.key]
            same = [one for one in of_key if one.instance.priority == job.instance.priority]
            assert all(one.place <= job.place for one in same), "a later job of the key came first"
        self._check_turns(jobs, left)
        for job in jobs:
            self._begin(job)
        self._pay(jobs)
        self._check_rates()

    def _check_turns(self, jobs: list[ModelJob], left: list[ModelJob]) -> None:
        """Better priorities first; within one the keys take turns."""
        weights = {} if self.policy is None else self.policy.weights
        taken = Counter((job.instance.priority, job.instance.key) for job in jobs)
        of_key = Counter(job.instance.key for job in jobs)
        for job in left:
            key, priority = job.instance.key, job.instance.priority
            if self.key_room(job) <= of_key[key]:
                continue
            worse = [one for one in jobs if one.instance.priority > priority]
            assert not worse, "a worse priority began before a better one"
            turn = taken[priority, key] // weights.get(key, 1)
            for (other_priority, other), number in taken.items():
                if other_priority == priority and other != key:
                    assert (number - 1) // weights.get(other, 1) <= turn, f"{other} had more turns than {key}"

    def _begin(self, job: ModelJob) -> None:
        job.running = True
        policy = self._limits(job.job_type)
        if policy is not None:
            self._count(job, policy)

    def _pay(self, jobs: list[ModelJob]) -> None:
        """Of one type, which began at once."""
        policy = self._limits(jobs[0].job_type) if jobs else None
        if policy is None:
            return
        keys = Counter(job.instance.key for job in jobs if job.instance.key)
        of_keys = [(key, policy.rate_per_key, number) for key, number in keys.items()]
        for key, rate, number in [("", policy.rate, len(jobs)), *of_keys]:
            if rate is None:
                continue
            where = policy.generation, key
            self.paid[where] = max(self.paid[where], self.now) + math.ceil(number * rate.pace)
            self.begun[*where, rate] += [self.now] * number

    def _count(self, job: ModelJob, policy: Policy) -> None:
        if policy.concurrency is not None:
            job.held.append((policy.generation, ""))
        if policy.per_key is not None and job.instance.key:
            job.held.append((policy.generation, job.instance.key))
        self.counts.update(job.held)

    def _check_rates(self) -> None:
        """As the page says it: in any period, its last moment left out, begin so many at most."""
        for (_, _, rate), times in self.begun.items():
            for at in set(times):
                seen = sum(at <= other < at + rate.period_s * SECOND for other in times)
                assert seen <= rate.most, f"{seen} began in a period of {rate}"

    def _let_go(self, job: ModelJob) -> None:
        self.counts.subtract(job.held)
        job.held = []
        job.running = False

    def complete(self, job: ModelJob) -> None:
        self._let_go(job)
        self._enter(job.instance)

    def end(self, instance: ModelInstance, status: str) -> None:
        if instance.job is not None:
            self._let_go(instance.job)
        instance.status, instance.job, instance.begins = status, None, None

    def put_back(self, job: ModelJob) -> None:
        """Given back, failed with retries left, or its lease has ended: behind what waits."""
        self._let_go(job)
        job.place = self.next_place()

    def beat(self, job: ModelJob) -> None:
        """By its last holder, after its lease had ended: it does run, so it is counted, over a limit if need be."""
        job.running = True
        if (policy := self._limits(job.job_type)) is not None:
            self._count(job, policy)

    def running_in(self, generation: int) -> dict[str, int]:
        """What a queue counts, by flow key."""
        return {key: count for (of, key), count in self.counts.items() if of == generation and count}


@dataclass(eq=False)
class ModelBatch:
    """``items``: requests; ``became``: what each is, an instance or nothing. ``own``: what it started itself."""

    items: list[dict[str, Any]]
    became: list[ModelInstance | None] = field(default_factory=list)
    own: list[ModelInstance] = field(default_factory=list)
    started: bool = False
    cancelled: bool = False
    completion: ModelInstance | None = None

    def counts(self) -> Counter[str]:
        if not self.started:
            return Counter(PENDING=len(self.items))
        return Counter("REFUSED" if one is None else one.status for one in self.became)

    @property
    def is_over(self) -> bool:
        return (self.started or self.cancelled) and not self.counts()["ACTIVE"]


@dataclass(eq=False)
class ModelSchedule:
    """Every ``every`` microseconds since ``done``. ``runs``: what became of each time."""

    every: int
    overlap: str
    catch_up: str
    done: int
    paused: bool = False
    waits: list[int] = field(default_factory=list)
    last: ModelInstance | None = None
    runs: dict[int, str] = field(default_factory=dict)
    cancels: bool = False

    @property
    def is_open(self) -> bool:
        return self.last is not None and self.last.status == "ACTIVE"

    def free_time(self, now: int) -> int:
        """Of a run that somebody asks for now."""
        while now in self.runs or now % self.every == 0:
            now += 1
        return now

    def scan(self, now: int, *asked_for: int) -> list[int]:
        """The times that are started now."""
        starts: list[int] = []
        self.cancels = False
        for at in asked_for:
            self._take(at, starts)
        if self.paused:
            return starts
        if self.waits and not self.is_open and not starts:
            starts.append(self.waits.pop(0))
            self.runs[starts[-1]] = "STARTED"
        due = range(self.done + self.every, now + 1, self.every)
        on_time = [at for at in due if now - at <= ON_TIME]
        wanted: Iterable[int] = due if self.catch_up == "ALL" else on_time
        if self.catch_up == "LAST" and not on_time:
            wanted = due[-1:]
        for at in due:
            if at in wanted:
                self._take(at, starts)
            else:
                self.runs[at] = "MISSED"
            self.done = at
        return starts

    def _take(self, at: int, starts: list[int]) -> None:
        is_open = self.is_open or bool(starts)
        self.runs[at] = "STARTED"
        if self.overlap == "ALLOW" or not is_open:
            starts.append(at)
        elif self.overlap == "CANCEL_OTHER":
            self.cancels = self.cancels or not starts
            for other in starts:
                self.runs[other] = "SKIPPED"
            starts[:] = [at]
        elif self.overlap == "SKIP" or (self.overlap == "BUFFER_ONE" and self.waits):
            self.runs[at] = "SKIPPED"
        else:
            self.waits.append(at)
            self.runs[at] = "BUFFERED"

    def resume(self, now: int) -> None:
        """What passed meanwhile is not caught up."""
        if self.paused:
            self.done += math.floor((now - self.done) / self.every) * self.every
        self.paused = False
