"""Clients that cancel and break off at random on both services: ``python -m tests.rpc.stress --calls 50000 --seed 7``.

Every call of both services, valid, each with a fate of its own: answered, reset at any moment (before, within or after
its message), out of time, its connection dropped (closed, reset, or in the middle of a frame). What a client does
follows from the seed and its number; how that meets the engine's own timing does not. `settle` finds what is left
behind, `finish` lets an honest worker do the rest and compares the end with what was acknowledged.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import random
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import trio
from h2.errors import ErrorCodes
from h2.exceptions import H2Error
from hyperframe.frame import GoAwayFrame

from penstock.rpc.limits import RpcLimits
from penstock.testing.invariants import assert_invariants
from penstock.wire import penstock_v1 as w
from penstock.wire import workflow_v1 as m
from penstock.wire.codec import decode_message, encode_message, package_at
from penstock.wire.model import StartRequest
from tests import postgres
from tests.engine.driver import Driver
from tests.rpc.raw import RawClient, client_on, framed
from tests.rpc.served import WORKER, Served, Work, served
from tests.rpc.stress_requests import METHODS, POLL_LEASE_S, Place, Requests
from tests.runtime.local_engine import LocalEngine
from tests.waiting import wait_until

STREAM_LEASE_S = 3_600
"""A stream's jobs are given back when it breaks: this one must never be waited for."""
SETTINGS: dict[str, Any] = {"lease_min_seconds": POLL_LEASE_S, "lease_expiry_limit": 32_767}
STEPS = ["task-1", "task-2", "task-3"]
CHOICES = [*METHODS, "PollJobs", "CompleteJob", "CompleteJob", "CompleteJobs", "CompleteJobs", *["Work"] * 4]
RESETS = [ErrorCodes.CANCEL, ErrorCodes.NO_ERROR, ErrorCodes.INTERNAL_ERROR]
GONE = (H2Error, trio.BrokenResourceError, trio.ClosedResourceError)


class StressRun:
    """``calls`` calls on a served engine, up to fifteen to a connection, ``at_once`` connections at a time."""

    def __init__(self, run: Served, driver: Driver, seed: int, calls: int, at_once: int = 12) -> None:
        self._run = run
        self._driver = driver
        self._seed = seed
        self._calls = calls
        self._at_once = at_once
        self._requests = Requests()
        self.fates: Counter[str] = Counter()
        self.methods: Counter[str] = Counter()
        self.statuses: Counter[int] = Counter()

    async def begin(self) -> None:
        """Definitions and the first instances."""
        kinds = m.StepType
        tasks = [
            m.WorkflowStep(
                id=id, name=id, type=kinds.SERVICE_TASK, job_type="work", retry_count=1_000, next_step=following
            )
            for id, following in itertools.pairwise([*STEPS, "end"])
        ]
        ask = m.WorkflowStep(id="ask", name="ask", type=kinds.USER_TASK, next_step="hold")
        hold = m.WorkflowStep(id="hold", name="hold", type=kinds.WAIT, next_step="end")
        last = m.WorkflowStep(id="end", name="end", type=kinds.END)
        for id, steps, known in (
            ("storm", [*tasks, last], self._requests.instances), ("tasks", [ask, hold, last], self._requests.tasks),
        ):  # fmt: skip
            upload = m.UploadDefinitionRequest(m.WorkflowDefinition(id=id, name=id, steps=steps))
            await self._run.call("UploadDefinition", upload, m.UploadDefinitionResponse)
            start = w.StartInstancesRequest([StartRequest(id) for _ in range(100)])
            answer = await self._run.call(WORKER + "StartInstances", start, w.StartInstancesResponse)
            known += [result.instance.id for result in answer.results if result.instance is not None]

    async def rage(self, progress: Callable[[int], None] = lambda _: None) -> None:
        """All calls, to their bitter ends. One more connection lives through it all and resets its calls."""
        done = 0
        numbers = itertools.count()

        async def clients() -> None:
            nonlocal done
            while done < self._calls:
                rng = random.Random(f"{self._seed}/{next(numbers)}")
                count = rng.randint(1, 15)
                done += count
                await self._connection(rng, count)
                progress(done)

        async def steady() -> None:
            rng = random.Random(f"{self._seed}/steady")
            while done < self._calls:
                with trio.fail_after(60):
                    await self._call(self._run.client, rng, rng.choice(["reset", "torn"]))
                    await self._burst(self._run.client, rng)
                await trio.sleep(rng.random() * 0.06)  # slower than what is taken for an attack (Limits.resets_per_s)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(steady)
            for _ in range(self._at_once):
                nursery.start_soon(clients)

    # -- one connection

    async def _connection(self, rng: random.Random, count: int) -> None:
        end = rng.choice(["leave", "close", "abort", "half a frame", "goaway"])
        timeout_s = 20.0 if end == "leave" else rng.random() * 0.3
        fates = [rng.choice(["answered", "answered", "reset", "reset", "torn", "late"]) for _ in range(count)]
        seeds = [rng.random() for _ in fates]
        self.fates[f"connection: {end}"] += 1
        stream = await trio.open_tcp_stream("127.0.0.1", self._run.port)
        try:
            async with client_on(stream) as client:
                with trio.move_on_after(timeout_s) as scope:
                    async with trio.open_nursery() as nursery:
                        for fate, seed in zip(fates, seeds, strict=True):
                            nursery.start_soon(self._call, client, random.Random(seed), fate)
                assert end != "leave" or not scope.cancelled_caught, "a call never ended"
                with contextlib.suppress(*GONE):
                    await self._say_goodbye(client, rng, end)
                if end == "abort":  # RST in place of FIN
                    with contextlib.suppress(OSError):
                        stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        finally:
            await trio.aclose_forcefully(stream)

    async def _say_goodbye(self, client: RawClient, rng: random.Random, end: str) -> None:
        if end not in ("half a frame", "goaway"):
            return
        data = GoAwayFrame(0).serialize()
        with trio.move_on_after(0.5):
            async with client.lock:
                if end == "half a frame":
                    client.h2.send_headers(client.h2.get_next_available_stream_id(), [(":path", "/x" * 50)])
                    data = client.h2.data_to_send()
                    data = data[: rng.randrange(1, len(data))]
                await client.stream.send_all(data)
        with trio.move_on_after(rng.random() * 0.1):
            await client.closed.wait()

    async def _call(self, client: RawClient, rng: random.Random, fate: str) -> None:
        method = rng.choice(CHOICES)
        self.methods[method] += 1
        self.fates[f"call: {fate}"] += 1
        with contextlib.suppress(*GONE):
            if method == "Work":
                await self._work(client, rng, fate)
                return
            path, request, learn = self._requests.draw(method, rng)
            late: dict[str, Any] = {"grpc_timeout": f"{rng.randint(1, 20)}m"} if fate == "late" else {}
            stream_id = await client.open(path, **late)
            data = framed(encode_message(request, package_at(path)))
            cut = rng.randrange(len(data)) if fate == "torn" else len(data)
            await client.send(stream_id, data[:cut], end=cut == len(data))
            if fate in ("reset", "torn"):
                await trio.sleep(rng.choice([0, rng.random() * 0.02]))
                await client.reset(stream_id, rng.choice(RESETS))
                return
            answer = await client.finished(stream_id)
            if "grpc-status" in answer.trailers | answer.headers:
                self.statuses[answer.status] += 1
                if answer.status == 0:
                    learn(answer.messages[0])

    async def _burst(self, client: RawClient, rng: random.Random) -> None:
        """Messages that nobody takes any more, in one send: the stream is reset behind them, or there is no call."""
        stream_id = client.h2.get_next_available_stream_id()
        path = rng.choice([WORKER + "Work", WORKER + "Nothing", WORKER + "CompleteJobs"])
        headers = [(":method", "POST"), (":path", path), (":scheme", "http"), (":authority", "storm")]
        client.h2.send_headers(stream_id, [*headers, ("content-type", "application/grpc")])
        for _ in range(rng.randint(1, 10)):
            client.h2.send_data(stream_id, framed(encode_message(w.WorkRequest(worker_id="burst"))))
        await client.reset(stream_id)

    async def _work(self, client: RawClient, rng: random.Random, fate: str) -> None:
        work = await Work.open(
            client, f"stream-{next(self._requests.values)}", lease=STREAM_LEASE_S, work=rng.randint(1, 20)
        )
        sent: dict[str, tuple[Place, int]] = {}
        read = 0
        with trio.move_on_after(rng.random() * 0.1):
            while len(found := await client.messages(work.stream_id, read + 1)) > read:
                answer = decode_message(found[read], w.WorkResponse)
                read += 1
                self._requests.settle(sent, answer.outcomes)
                jobs = [job for job in answer.jobs if rng.random() < 0.7]
                await work.send(
                    completions=[w.Completion(job.id, job.attempt, self._output(job, sent)) for job in jobs[::2]],
                    releases=[w.JobRef(job.id, job.attempt) for job in jobs[1::4]],
                    failures=[w.Failure(job.id, job.attempt, True, "storm") for job in jobs[3::4]],
                    credits=[w.Credit("work", rng.randint(-5, 10))],
                )
        if fate in ("reset", "late"):
            await client.reset(work.stream_id)
        elif fate == "torn":
            data = framed(encode_message(w.WorkRequest(credits=[w.Credit("work", 1_000)])))
            await client.send(work.stream_id, data[: rng.randrange(len(data))], end=rng.random() < 0.5)
            await client.reset(work.stream_id)
        else:
            await client.send(work.stream_id, b"", end=True)
            await client.finished(work.stream_id)
        for data in client.answers[work.stream_id].messages[read:]:
            self._requests.settle(sent, decode_message(data, w.WorkResponse).outcomes)

    def _output(self, job: w.Job, sent: dict[str, tuple[Place, int]]) -> bytes:
        value = next(self._requests.values)
        sent[job.id] = ((job.instance_id, job.step_id), value)
        return json.dumps({job.step_id: value}).encode()

    # -- what is left

    async def settle(self, tasks_before: int) -> float:
        """Nothing but the one client's connection: no call, task, lease, parked poll, busy connection, transaction.

        Returns the seconds until the last lease was given back.
        """
        server, engine, rows = self._run.server, self._run.engine, self._driver.rows

        async def quiet() -> bool:
            now = server.statistics()
            return (now.connections, now.calls_running, now.held_request_bytes) == (1, 0, 0)

        await wait_until(quiet)
        began = time.monotonic()

        async def free() -> bool:
            return rows("SELECT count(*) FROM token WHERE state = 1") == [(0,)]

        await wait_until(free)
        took_s = time.monotonic() - began

        async def idle() -> bool:
            pool = engine.database.pool.statistics()
            flushed = all(batcher.statistics().idle for batcher in engine.batchers())
            return flushed and (pool.busy, pool.waiting) == (0, 0)

        await wait_until(idle)

        async def forgotten() -> bool:  # a lease that ended is looked at for some seconds more (lease_sweeper)
            return (len(engine.polls.waiters), len(engine.polls.leases)) == (0, 0)

        await wait_until(forgotten, lambda: f"parked for {engine.polls.waiters.types()}, {engine.polls.leases.all()}")
        (connection,) = server._connections

        def left() -> tuple[object, ...]:
            window_bytes = connection.h2.receive_window_bytes + connection._unopened
            return connection.calls, connection._windows, window_bytes

        async def given_back() -> bool:  # bytes of torn calls, too
            return left() == ({}, {}, RpcLimits().connection_window_bytes)

        await wait_until(given_back, lambda: str(left()))
        others = "FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        others += " AND backend_type = 'client backend'"  # autovacuum comes when it likes

        async def no_statement() -> bool:  # the engine's loops have theirs, now and then
            return rows(f"SELECT query {others} AND state <> 'idle'") == []

        await wait_until(no_statement, lambda: str(rows(f"SELECT query, state {others} AND state <> 'idle'")))

        async def no_more_tasks() -> bool:
            return trio.lowlevel.current_statistics().tasks_living <= tasks_before

        await wait_until(no_more_tasks)
        return took_s

    async def finish(self) -> int:
        """Everything ends, once, as acknowledged. Returns how many completions were acknowledged in the storm."""
        stormy = len(self._requests.acknowledged)
        active = m.ListInstancesRequest("storm", m.InstanceStatus.ACTIVE, page_size=1)
        while (await self._run.call("ListInstances", active, m.ListInstancesResponse)).total:
            jobs = await self._run.poll("work", worker="honest", n=500)
            sent = {job.id: ((job.instance_id, job.step_id), next(self._requests.values)) for job in jobs}
            done = [
                w.Completion(job.id, job.attempt, json.dumps({job.step_id: sent[job.id][1]}).encode()) for job in jobs
            ]
            answer = await self._run.call(
                WORKER + "CompleteJobs", w.CompleteJobsRequest("honest", done), w.CompleteJobsResponse
            )
            assert {result.outcome for result in answer.results} <= {"ok"}
            self._requests.settle(sent, answer.results)
        for (id,) in self._driver.rows("SELECT id FROM instance WHERE status <> 0 ORDER BY id"):
            await self._check(f"{id:x}")
        return stormy

    async def _check(self, id: str) -> None:
        view = (await self._run.call("GetInstance", m.GetInstanceRequest(id), m.GetInstanceResponse)).instance
        assert view is not None
        answer = await self._run.call(
            "GetInstanceHistory", m.GetInstanceHistoryRequest(id), m.GetInstanceHistoryResponse
        )
        path = [(item.step_id, item.attempt_number) for item in answer.executions]
        whole = [(name, 1) for name in (["ask", "hold", "end"] if view.definition_id == "tasks" else [*STEPS, "end"])]
        if view.definition_id == "again":
            return
        assert path == whole[: len(path)]
        assert view.status == "CANCELLED" or path == whole, view
        variables = json.loads(view.variables)  # pyright: ignore[reportArgumentType] - a stand-in
        for name, _ in path:
            value = self._requests.acknowledged.get((id, name))
            assert value is None or variables[name] == value, (id, name, value, variables)


async def weather(driver: Driver, seed: int, calls: int, progress: Callable[[int], None] = lambda _: None) -> StressRun:
    """A storm from its begin to its end."""
    async with served(driver.engine) as run:
        stress = StressRun(run, driver, seed, calls)
        await stress.begin()
        await run.poll("nothing")  # every part has run once
        files = len(os.listdir("/proc/self/fd"))
        tasks = trio.lowlevel.current_statistics().tasks_living
        await stress.rage(progress)
        lease_s = await stress.settle(tasks)
        assert lease_s < POLL_LEASE_S + 15, f"the last lease came back after {lease_s:.1f} s"
        assert len(os.listdir("/proc/self/fd")) <= files + driver.engine.database.pool.statistics().max_size
        acknowledged = await stress.finish()
        print(
            f"seed {seed}: {acknowledged} completions acknowledged, last lease back after {lease_s:.1f} s",
            dict(stress.fates),
        )
        return stress


async def main(calls: int, seed: int) -> None:
    directory = postgres.run_directory(durable=False)
    shown = 0

    def progress(done: int) -> None:
        nonlocal shown
        if done - shown >= 1_000:
            shown = done
            print(f"{done} of {calls} calls", flush=True)

    with postgres.shared_server(directory, durable=False) as server, server.database(postgres.apply_schema) as dsn:
        async with trio.open_nursery() as nursery:
            engine = LocalEngine(dsn, **SETTINGS)
            await nursery.start(partial(engine.serve, services=True))
            await weather(engine, seed, calls, progress)
            nursery.cancel_scope.cancel()
        assert_invariants(dsn)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--calls", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4), "big"))
    options = parser.parse_args()
    print(f"seed {options.seed}")
    trio.run(main, options.calls, options.seed)
