"""The load's own side: starts, signals, user tasks, cancels and retries, each repeated until it is answered.

Everything has a key, so that a repeated call is the same call; what was answered goes into the load's journal. Which
instance is started as which number, and what becomes of it, depends on the seed alone.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import trio

from chaos.journal import Journal
from chaos.worker_process import outcome_of
from chaos.workflows import GO, LIMITS, MESSAGE, WORKFLOWS
from penstock.client import Client, ClientError, Conflict, NotFound, StartRequest, Unavailable

T = TypeVar("T")

CALL_TIMEOUT_S = 12.0
EXCHANGE_TIMEOUT_S = 6.0
PAUSE_S = 0.1
UNDER_WAY_MAX = 40
CANCEL_SHARE = 0.08
TWICE_SHARE = 0.1
BATCH_ITEMS = 5
BATCH_SHARE = 0.05
POLL_INTERVAL_S = 0.3
NAMES = sorted(WORKFLOWS)
WEIGHTS = [WORKFLOWS[name].weight for name in NAMES]


class Load:
    """Runs in the nursery of `run`; ``stop`` ends the starts, and `wait_finished` waits for what was begun."""

    def __init__(self, urls: Sequence[str], journal: Journal, seed: str, rate: float) -> None:
        self._clients = [Client(url, timeout_s=CALL_TIMEOUT_S, exchange_timeout_s=EXCHANGE_TIMEOUT_S) for url in urls]
        self._journal = journal
        self._seed = seed
        self._rate = rate
        self._stopped = trio.Event()
        self.under_way: dict[int, str] = {}
        """What was begun and has not ended: by a number of its own, in words."""
        self._changed = trio.lowlevel.ParkingLot()
        self._number = 0
        self._begun = 0
        self.started: set[str] = set()
        """Instances, by their ids."""
        self.latencies_s: list[float] = []
        """Of the last starts, for soaks."""

    async def upload(self) -> None:
        """All definitions, and the limits of the jobs of one type."""
        await self._clients[0].put_queue("limited", LIMITS)
        for workflow in WORKFLOWS.values():
            if workflow.stuck:  # for who migrates from the second version to the first
                await self._clients[0].upload_definition({**workflow.definition, "description": "as it was"})
            await self._clients[0].upload_definition(workflow.definition)

    async def run(self) -> None:
        """Start instances at the rate (per second), and retry what failed, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._retry_failed)
            while not self._stopped.is_set():
                if len(self.under_way) < UNDER_WAY_MAX:
                    self._begin(nursery)
                with trio.move_on_after(1 / self._rate):
                    await self._stopped.wait()

    def stop(self) -> None:
        """Begin nothing new."""
        self._stopped.set()

    async def wait_started(self, count: int) -> None:
        """Until so many instances were started."""
        while len(self.started) < count:
            await self._changed.park()

    async def wait_finished(self) -> None:
        """Until every start, signal, user task and cancel that was begun has its answer."""
        while self.under_way:
            await self._changed.park()

    async def aclose(self) -> None:
        """Close the clients' connections."""
        for client in self._clients:
            await client.aclose()

    def _begin(self, nursery: trio.Nursery) -> None:
        number = self._number
        rng = random.Random(f"{self._seed} instance {number}")
        if rng.random() < BATCH_SHARE:
            self._number += BATCH_ITEMS
            nursery.start_soon(self._counted, self._start_batch, range(number, number + BATCH_ITEMS))
        else:
            self._number += 1
            nursery.start_soon(self._counted, self._start, number)

    async def _counted(self, function: Callable[[T], Awaitable[None]], argument: T) -> None:
        key = self._begun = self._begun + 1
        self.under_way[key] = f"{function.__name__} {argument}"
        try:
            await function(argument)
        finally:
            del self.under_way[key]
            self._changed.unpark_all()

    def _client(self, number: int) -> Client:
        return self._clients[number % len(self._clients)]

    # -- starts

    def _request(self, number: int, workflow: str) -> StartRequest:
        key = f"{self._seed}-{number}"
        variables = {"number": number}
        flow_key = None if number % 5 == 4 else f"key-{number % 5}"
        return StartRequest(
            definition_id=workflow,
            variables=variables,
            business_key=key,
            idempotency_key=key,
            flow_key=flow_key,
        )

    def _workflow(self, number: int) -> str:
        return random.Random(f"{self._seed} workflow {number}").choices(NAMES, WEIGHTS)[0]

    async def _start(self, number: int) -> None:
        workflow = self._workflow(number)
        request = self._request(number, workflow)
        key = request.idempotency_key
        self._journal.note("starting", key=key)
        twice = random.Random(f"{self._seed} twice {number}").random() < TWICE_SHARE
        found: list[str] = []

        async def start(turn: int) -> None:
            while True:
                began = trio.current_time()
                try:
                    instance = await self._client(number + turn).start_instance(
                        workflow, request.variables, business_key=key, idempotency_key=key, flow_key=request.flow_key
                    )
                except ClientError as error:
                    if not isinstance(error, Unavailable):
                        self._journal.note("surprise", call="start", outcome=outcome_of(error))
                        return
                    turn += 1
                    await trio.sleep(PAUSE_S)
                    continue
                self.latencies_s.append(trio.current_time() - began)
                self._on_started(number, workflow, instance.id)
                found.append(instance.id)
                return

        async with trio.open_nursery() as nursery:
            for turn in range(1 + twice):
                nursery.start_soon(start, turn)
        if found:
            await self._follow(number, workflow, found[0])

    async def _start_batch(self, numbers: range) -> None:
        """All in one call, on whatever engine; each is then followed by itself."""
        workflows = {number: self._workflow(number) for number in numbers}
        left = dict(workflows)
        for number in numbers:
            self._journal.note("starting", key=self._request(number, workflows[number]).idempotency_key)
        followers: list[tuple[int, str, str]] = []
        turn = numbers[0]
        while left:
            results = await self._client(turn).start_instances([self._request(*item) for item in left.items()])
            for number, result in zip(list(left), results, strict=True):
                try:
                    instance = result.unwrap()
                except Unavailable:
                    continue
                except ClientError as error:
                    self._journal.note("surprise", call="start", outcome=outcome_of(error))
                    del left[number]
                    continue
                self._on_started(number, left[number], instance.id)
                followers.append((number, left.pop(number), instance.id))
            turn += 1
            if left:
                await trio.sleep(PAUSE_S)
        async with trio.open_nursery() as nursery:
            for follower in followers:
                nursery.start_soon(self._follow, *follower)

    def _on_started(self, number: int, workflow: str, instance: str) -> None:
        self.started.add(instance)
        self._journal.note("started", key=f"{self._seed}-{number}", workflow=workflow, instance=instance)

    # -- what comes after

    async def _follow(self, number: int, workflow: str, instance: str) -> None:
        rng = random.Random(f"{self._seed} fate {number}")
        about = WORKFLOWS[workflow]
        if rng.random() < CANCEL_SHARE and not about.fails:
            await trio.sleep(rng.uniform(0, 1))
            await self._cancel(number, instance, undo=bool(about.undoes))
        elif about.stuck:
            await trio.sleep(rng.uniform(0, 0.5))
            await self._repair_by_hand(number, instance, about.stuck)
        elif about.signal:
            await trio.sleep(rng.uniform(0, 0.5))
            await self._signal(number, instance, about.signal)
        elif about.message:  # before its wait is entered, with it, or after
            await trio.sleep(rng.uniform(0, 0.5))
            await self._publish(number, instance, about.message)
        elif about.user_task:
            await trio.sleep(rng.uniform(0, 0.5))
            await self._finish_task(number, instance, about.user_task)

    async def _cancel(self, number: int, instance: str, *, undo: bool) -> None:
        for turn in range(number, number + 1_000_000):
            self._journal.note("cancelling", instance=instance)
            try:
                await self._client(turn).cancel_instance(instance, reason="chaos", compensate=undo)
            except Unavailable:
                await trio.sleep(PAUSE_S)
                continue
            except Conflict:
                self._journal.note("too late to cancel", instance=instance)
            except ClientError as error:
                self._journal.note("surprise", call="cancel", outcome=outcome_of(error))
            else:
                self._journal.note("cancelled", instance=instance)
            return

    async def _repair_by_hand(self, number: int, instance: str, step: str) -> None:
        """Get it past the step, once it stands there, in another version now and then: as operators do, who look before
        they ask again."""
        skips, migrates = number % 2 == 0, number % 3 == 0
        for turn in range(number, number + 1_000_000):
            client = self._client(turn)
            try:
                history = await client.get_history(instance)
                if any(one.step_id == step and one.status == "SKIPPED" for one in history):
                    self._journal.note("mended", instance=instance, step=step)
                    return
                if migrates and (await client.get_instance(instance)).definition_version != 1:
                    await client.migrate_instance(instance, 1, note="chaos")
                elif skips:
                    await client.skip_step(instance, step, {step: "mended"})
                else:
                    await client.move_token(instance, step, GO)
            except (Unavailable, Conflict):  # it may be done, or not open yet
                await trio.sleep(PAUSE_S)
            except ClientError as error:
                self._journal.note("surprise", call="mend", outcome=outcome_of(error))
                return

    async def _signal(self, number: int, instance: str, step: str) -> None:
        for turn in range(number, number + 1_000_000):
            try:
                await self._client(turn).signal(
                    instance, step, {step: "signal"}, buffer=True, idempotency_key=f"{instance}-{step}"
                )
            except Unavailable:
                await trio.sleep(PAUSE_S)
                continue
            except ClientError as error:
                self._journal.note("surprise", call="signal", outcome=outcome_of(error))
            else:
                self._journal.note("signalled", instance=instance, step=step)
            return

    async def _publish(self, number: int, instance: str, step: str) -> None:
        for turn in range(number, number + 1_000_000):
            try:
                await self._client(turn).publish_message(
                    MESSAGE, str(number), {step: "signal"}, message_id=f"{instance}-{step}"
                )
            except Unavailable:
                await trio.sleep(PAUSE_S)
                continue
            except ClientError as error:
                self._journal.note("surprise", call="message", outcome=outcome_of(error))
            else:
                self._journal.note("signalled", instance=instance, step=step)
            return

    async def _finish_task(self, number: int, instance: str, step: str) -> None:
        asked_before = False
        for turn in range(number, number + 1_000_000):
            try:
                await self._client(turn).complete_user_task(instance, step, {step: "user"}, completed_by="chaos")
            except Unavailable:
                asked_before = True
                await trio.sleep(PAUSE_S)
                continue
            except (NotFound, Conflict) as error:
                # the client repeats by itself, so an earlier answer may have been lost inside the call, too
                self._journal.note("task found done", instance=instance, again=asked_before, outcome=outcome_of(error))
            except ClientError as error:
                self._journal.note("surprise", call="user task", outcome=outcome_of(error))
            else:
                self._journal.note("task finished", instance=instance, step=step)
            return

    async def _retry_failed(self) -> None:
        """Instances that failed as they were meant to go on; others stay failed, which the verdict sees."""
        turn = 0
        while True:
            turn += 1
            await trio.sleep(POLL_INTERVAL_S)
            try:
                page = await self._client(turn).list_instances(definition_id="doomed", status="FAILED", page_size=100)
                for instance in page.items:
                    if instance.failure_reason == "meant to fail":
                        step = "doomed" if turn % 2 else None  # from where it failed either way
                        await self._client(turn).retry_instance(instance.id, from_step=step)
                        self._journal.note("retried", instance=instance.id)
            except (Unavailable, Conflict):
                continue
            except ClientError as error:
                self._journal.note("surprise", call="retry", outcome=outcome_of(error))
