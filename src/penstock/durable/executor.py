"""The executor: claims runs under leases, keeps them in memory while something happens, gives them up while they wait.

One per process, on Trio. What is done for one run stands in `loaded_run`; here is what they share: taking, the one
sleep for all deadlines, heartbeats of the leases, news of mail, and the end.
"""

from __future__ import annotations

import heapq
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from contextvars import copy_context
from math import inf
from typing import Any, TypeVar

import trio

from penstock.durable.backend import Away, Backend, LeasedRun, RunLeaseLost
from penstock.durable.forbidden import watch_bodies
from penstock.durable.isolation import LoopWatch, mute_replayed_logs
from penstock.durable.loaded_run import RETRY_FIRST_S, RETRY_MAX_S, ExecutorLimits, LoadedRun
from penstock.durable.run_ends import UNSERVED_S, Unserved
from penstock.durable.step_host import StepHost
from penstock.durable.step_loop import StepLoop
from penstock.durable.workflow import Workflow
from penstock.loop.waking import TasklessQueue

T = TypeVar("T")

CLAIMERS = 2
"""Calls for runs at a time: what is started while one is answered goes to the other, not through the queue."""
CLAIM_MAX_RUNS = 100
CLAIM_WAIT_S = 30.0
CLAIM_PAUSE_S = 0.2
"""Who was answered with no run at once asks again after so long."""
ANSWER_MAX_S = 1.0
"""A lease is taken to be older than its answer by so much at most."""
BEAT_INTERVAL_S = 1.0
LEAVE_ALONE_S = 300.0
"""A run that this code could not go on with is not tried again by the same process for so long."""
EARLY_MAX_RUNS = 1_000
"""Runs that had mail and were not held here: they may just be taken, and what was read with them is old."""
CLOCK_SAMPLE_S = 10.0
ALONE_FROM = 3
"""A run that so many executors have ended with, without a record between, may be what ends them."""
ALONE_GRACE_S, ALONE_MAX_S = 5.0, 30.0
"""How long steps of others may take to end before it is activated, and how long nothing else is begun."""

log = logging.getLogger("penstock.durable")


class Executor:
    """Runs the workflows of a backend. ``on_event`` hears of what a person may want to know of a run: taken, resumed,
    parked, blocked, lost, ended; with a detail. ``on_result`` hears before what a run has completed with, as JSON."""

    def __init__(
        self,
        backend: Backend,
        workflows: Mapping[tuple[str, int], Workflow[..., Any]],
        limits: ExecutorLimits | None = None,
        on_event: Callable[[str, LeasedRun, str], None] = lambda event, leased, detail: None,
        on_result: Callable[[LeasedRun, str], None] = lambda leased, result: None,
        loop: StepLoop | None = None,
    ) -> None:
        """``loop``: see `StepHost`."""
        self.backend, self._workflows = backend, workflows
        self.limits = limits or ExecutorLimits()
        self.steps = StepHost(self.limits.step_threads, self.limits.step_tasks, loop)
        self._loop = loop
        self.nursery: trio.Nursery
        self.context = copy_context()
        self.loop_context = self.context.copy()
        self.loops = TasklessQueue()
        self._on_event, self.on_result = on_event, on_result
        self._runs: dict[str, LoadedRun] = {}
        self._left_alone: dict[str, tuple[float, str]] = {}
        self._alarms: list[tuple[float, int, LoadedRun]] = []
        self._alarm_count = 0
        self._rearmed = trio.Event()
        self._changed = trio.lowlevel.ParkingLot()
        self._offset, self._sampled_at = time.time() - trio.current_time(), -inf
        self._claiming = trio.CancelScope()
        self._asking: dict[trio.CancelScope, int] = {}  # for how many runs
        self._has_suspect = False
        self._early: dict[str, None] = {}
        self._unserved = Unserved()

    def __len__(self) -> int:
        return len(self._runs)

    # -- its life

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled. What is held then is held until its lease ends: call `drain` before."""
        mute_replayed_logs()
        watch_bodies()
        with LoopWatch():
            async with trio.open_nursery() as self.nursery:
                for service in (self._run_timers, self._beat, self._listen, self.loops.run):
                    self.nursery.start_soon(service)
                if self._loop is not None:
                    self.nursery.start_soon(self._loop.watch, lambda: self.steps.is_loop_used)
                task_status.started()
                try:
                    with self._claiming:
                        async with trio.open_nursery() as claimers:
                            for _ in range(CLAIMERS):
                                claimers.start_soon(self._claim_on)
                    await trio.sleep_forever()
                finally:
                    for run in list(self._runs.values()):
                        run.drop()
                        run.stop_loop()
                    self._runs.clear()

    def spawn(self, function: Callable[..., Awaitable[object]], *args: object) -> None:
        """Start a task. It sees the program's variables, not those of the run loop that asks for it."""
        self.context.run(self.nursery.start_soon, function, *args)

    async def drain(self, grace_s: float) -> None:
        """Take no more runs; let steps end for so long; give all runs back."""
        self._claiming.cancel()
        with trio.move_on_after(grace_s):
            while any(run.activation.is_busy for run in self._runs.values()):
                await self._wait_change()
        if self.steps.threads:
            log.warning("waiting for %d steps that run in threads: these can't be cancelled", self.steps.threads)
        async with trio.open_nursery() as nursery:
            for run in list(self._runs.values()):
                nursery.start_soon(self._unload, run)

    def abandon(self, run: LoadedRun) -> None:
        """Give the run back for others: this program stops."""
        if not run.is_gone:
            self.spawn(self._unload, run)

    async def _unload(self, run: LoadedRun) -> None:
        """A run that waits is parked; another one goes to whoever takes it."""
        with suppress(RunLeaseLost, Away), trio.move_on_after(RETRY_MAX_S):
            if run.is_quiet:
                run.park_soon()
                # a message may have come before it was parked, and a step has begun: it is not cut off here
                while (run.is_looping or run.activation.is_busy) and not run.is_gone:
                    await self._wait_change()
            if not run.is_gone:
                run.drop()
                self.left(run, "given back", "")
                await self.backend.release(run.leased)

    async def _wait_change(self) -> None:
        await self._changed.park()

    def _on_change(self) -> None:
        if self._changed:
            self._changed.unpark_all()

    # -- claiming runs

    async def _claim_on(self) -> None:
        while True:
            free_slots = min(self.limits.max_in_memory - len(self._runs) - sum(self._asking.values()), CLAIM_MAX_RUNS)
            if free_slots <= 0 or self._has_suspect:
                await self._wait_change()
            else:
                await self._claim(free_slots)

    async def _claim(self, free_slots: int) -> None:
        before = trio.current_time()
        found: list[LeasedRun] = []
        scope = trio.CancelScope()
        self._asking[scope] = free_slots
        try:
            with scope:
                found = await self._ask(lambda: self.backend.take(free_slots, CLAIM_WAIT_S))
            leased_at = max(before, trio.current_time() - ANSWER_MAX_S)
            for leased in found:
                self.sample(leased.now)
            if self._has_suspect:  # which waits for this: what is not back yet would go with it
                await self._give_all_back(found)
                return
        finally:
            del self._asking[scope]
            self._on_change()
        if not found and trio.current_time() - before < CLAIM_PAUSE_S:  # of an engine that stops, say
            await trio.sleep(CLAIM_PAUSE_S)
        suspect = next((leased for leased in found if leased.expiries >= ALONE_FROM), None)
        if suspect is not None:
            self._has_suspect = True
            others = [leased for leased in found if leased is not suspect]
            self.spawn(self._activate_alone, suspect, leased_at + suspect.lease_s, others)
        else:
            for leased in found:
                self._activate(leased, leased_at + leased.lease_s)

    async def _activate_alone(self, leased: LeasedRun, lease_ends: float, others: Sequence[LeasedRun]) -> None:
        """If it ends this process, too, nothing goes with it but what could not be put down in time: also ``others``,
        taken with it, go back before, and nobody asks for more. Runs are taken again when it has written a record, or
        is gone."""
        try:
            log.warning(
                "run %s: %d executors ended while they ran it: it is activated when nothing else is",
                leased,
                leased.expiries,
            )
            for scope in self._asking:
                scope.cancel()
            while self._asking:
                await self._wait_change()
            await self._give_all_back(others)
            with trio.move_on_after(ALONE_GRACE_S):
                while any(run.activation.is_busy for run in self._runs.values()):
                    await self._wait_change()
            async with trio.open_nursery() as nursery:
                for run in list(self._runs.values()):
                    if not run.activation.is_busy:
                        nursery.start_soon(self._unload, run)
            if self._claiming.cancel_called or trio.current_time() >= lease_ends - leased.lease_s / 2:
                await self._release(leased)  # after others like it: it has its turn again
                return
            self._activate(leased, lease_ends)
            suspect = self._runs.get(leased.key)
            with trio.move_on_after(ALONE_MAX_S):
                while suspect is not None and not (suspect.is_gone or suspect.has_written):
                    await self._wait_change()
        finally:
            self._has_suspect = False
            self._on_change()

    async def _give_all_back(self, runs: Sequence[LeasedRun]) -> None:
        async with trio.open_nursery() as nursery:
            for leased in runs:
                nursery.start_soon(self._release, leased)

    async def _release(self, leased: LeasedRun) -> None:
        with suppress(RunLeaseLost, Away):
            await self.backend.release(leased)

    def _activate(self, leased: LeasedRun, lease_ends: float) -> None:
        if (before := self._runs.get(leased.key)) is not None:  # its lease has ended, and nobody else was quicker
            self._lose(before)
        workflow = self._workflows.get((leased.workflow, leased.version))
        until, reason = self._left_alone.get(leased.key, (0.0, ""))
        if workflow is None:
            self.spawn(self._block, leased, f"no code for {leased.workflow}@{leased.version} here")
        elif trio.current_time() < until:
            self.spawn(self._block, leased, reason)
        else:
            run = self._runs[leased.key] = LoadedRun(self, leased, workflow, lease_ends)
            if self._early.pop(leased.key, 0) is None:
                run.poll_again()
            self._on_event("taken" if leased.fresh else "resumed", leased, "")
            run.wake_loop()
            self._on_change()

    def left(self, run: LoadedRun, event: str, detail: str) -> None:
        """The run is not leased any more."""
        if self._runs.get(run.leased.key) is run:
            del self._runs[run.leased.key]
        if event == "lost":
            log.info("run %s is lost here: another executor has it, or it has ended", run.leased)
        if event == "blocked":
            self._leave_alone(run.leased.key, detail)
            self.spawn(self._leave_blocked, run.leased, detail)
        else:
            self._on_event(event, run.leased, detail)
        self._on_change()

    async def _leave_blocked(self, leased: LeasedRun, reason: str) -> None:
        """Who waits for it is told once others see it, too: a program may end with that."""
        await self._block(leased, reason)
        self._on_event("blocked", leased, reason)

    async def _block(self, leased: LeasedRun, reason: str) -> None:
        with suppress(RunLeaseLost, Away):
            pause_s = await self.backend.block(leased, reason)
            log.error("run %s is blocked on code: %s. It is tried again in %.0f s", leased, reason, pause_s)

    def _leave_alone(self, key: str, reason: str) -> None:
        now = trio.current_time()
        if len(self._left_alone) >= self.limits.max_in_memory:
            self._left_alone = {name: entry for name, entry in self._left_alone.items() if entry[0] > now}
        if len(self._left_alone) < self.limits.max_in_memory:
            self._left_alone[key] = (now + LEAVE_ALONE_S, reason)

    async def _ask(self, call: Callable[[], Awaitable[T]]) -> T:
        """Ask again while the backend is away."""
        pause_s = RETRY_FIRST_S
        while True:
            try:
                return await call()
            except Away as error:
                log.debug("the journals can't be reached: %s", error)
            await trio.sleep(pause_s)
            pause_s = min(2 * pause_s, RETRY_MAX_S)

    def watch_child(self, run: LoadedRun, target: Workflow[..., Any]) -> None:
        """A run waits for a child: if nobody serves that, it is told."""
        if (target.name, target.version) not in self._workflows:
            self.spawn(self._warn_unserved, f"run {run.leased}: child {target.name!r}", target.name)

    async def _warn_unserved(self, who: str, workflow: str) -> None:
        await trio.sleep(UNSERVED_S)
        await self._unserved.notify(who, workflow, lambda: self.backend.waits_for(workflow))

    # -- time

    def now(self) -> float:
        """The journal's clock, as far as is known: never later than it is."""
        return trio.current_time() + self._offset

    def sample(self, at: float, asked_at: float = -inf) -> None:
        """A time that the journal's clock has just shown, and has not passed before ``asked_at``."""
        now = trio.current_time()
        if at - now > self._offset or now - self._sampled_at > CLOCK_SAMPLE_S:
            self._offset, self._sampled_at = at - now, now
        elif at - asked_at < self._offset:  # it was set back: what is due by this clock is not due by that one
            self._offset, self._sampled_at = at - asked_at, now

    def arm(self, run: LoadedRun) -> None:
        """See to it that the run is looked at when its time comes."""
        self._on_change()
        if run.is_gone or run.is_looping:  # the run loop arms it when it stops
            return
        at = run.activation.next_due() - self._offset
        if run.is_quiet:
            if run.quiet_since is None:
                run.quiet_since = trio.current_time()
            at = min(at, run.quiet_since + self._park_after_s())
        else:
            run.quiet_since = None
        if at < run.alarm_at:
            run.alarm_at = at
            self._alarm_count += 1
            heapq.heappush(self._alarms, (at, self._alarm_count, run))
            self._rearmed.set()

    def _park_after_s(self) -> float:
        return self.limits.park_after_s if len(self._runs) < self.limits.max_in_memory else 0.0

    async def _run_timers(self) -> None:
        """The one sleep for all deadlines."""
        while True:
            self._rearmed = trio.Event()
            with trio.move_on_at(self._alarms[0][0] if self._alarms else inf):
                await self._rearmed.wait()
            for run in self._take_due():  # those that are armed again meanwhile have their turn after others
                self._alarm(run)

    def _take_due(self) -> list[LoadedRun]:
        due: list[LoadedRun] = []
        now = trio.current_time()
        while self._alarms and self._alarms[0][0] <= now:
            at, _, run = heapq.heappop(self._alarms)
            if run.alarm_at == at:
                run.alarm_at = inf
                due.append(run)
        return due

    def _alarm(self, run: LoadedRun) -> None:
        if run.is_gone or run.is_looping:
            return
        if run.activation.next_due() <= self.now():
            run.quiet_since = None
            run.activation.wake()
        elif (
            run.quiet_since is not None
            and run.is_quiet
            and trio.current_time() >= run.quiet_since + self._park_after_s()
        ):
            run.wants_park = True
            run.wake_loop()
        self.arm(run)

    # -- leases and mail

    async def _beat(self) -> None:
        while True:
            if not self._runs:
                await self._wait_change()
            now = trio.current_time()
            async with trio.open_nursery() as nursery:
                for run in list(self._runs.values()):
                    if now >= run.lease_ends:
                        self._lose(run)
                    elif run.lease_ends - now < run.leased.lease_s / 2 or run.is_unshown:
                        nursery.start_soon(self._extend, run)
            await trio.sleep(BEAT_INTERVAL_S)

    async def _extend(self, run: LoadedRun) -> None:
        before, shown, seen = trio.current_time(), run.shown, run.seen
        try:
            beat = await self.backend.extend(run.leased, shown)
        except RunLeaseLost:
            self._lose(run)
            return
        except Away:
            return
        run.lease_ends, run.shown_before = before + beat.lease_s, seen
        if beat.mail != run.mail and not run.is_gone:
            run.poll_again()

    async def show(self, run: LoadedRun) -> None:
        """Write down what the run shows, as often as that changes while somebody waits for it."""
        try:
            while run.is_unshown and run.is_watched and not run.is_gone:
                before = run.shown_before
                await self._extend(run)
                if run.shown_before == before:  # the engine is away: the next heartbeat tells it
                    break
        finally:
            run.is_showing = False

    def _lose(self, run: LoadedRun) -> None:
        if not run.is_gone:
            run.drop()
            self.left(run, "lost", "")

    async def _listen(self) -> None:
        while True:
            for key in await self._ask(self.backend.wait_mailbox):
                run = self._runs.get(key)
                if run is not None:
                    if self.backend.was_watch(key):
                        run.watch()
                    else:
                        run.poll_again()
                    continue
                if len(self._early) >= EARLY_MAX_RUNS:
                    del self._early[next(iter(self._early))]
                self._early[key] = None
