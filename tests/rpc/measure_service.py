"""What the services cost on a real engine process: ``python -m tests.rpc.measure_service`` (half a minute). No test.

Unary CompleteJob by 32 callers, and a Work stream with 128 jobs in flight, on instances of three steps. The load
generator is this process, on our own messages and h2; it shares the machine's cores. CPU is that of the engine.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import trio

from penstock.testing.definitions import linear
from penstock.wire import penstock_v1 as w
from penstock.wire import workflow_v1 as m
from penstock.wire.codec import decode_message, encode_message
from penstock.wire.model import Completion, PollRequest, StartRequest
from tests import postgres
from tests.rpc.raw import RawClient, client_on, framed
from tests.rpc.served import WORKER, WORKFLOW, Work
from tests.runtime.engine_process import EngineProcess

STEPS = 3
OUTPUT = b'{"result":"some forty-five bytes of output here"}'


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def postgres_cpu_s(pid: int) -> float:
    """Of the server and its sessions; those that have ended are counted in the server's."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(int(field) for field in fields[11:15]) / 100 + sum(cpu_s(int(child)) for child in children)


async def start(client: RawClient, count: int) -> None:
    for begin in range(0, count, 500):
        items = [StartRequest("linear", variables=b'{"order":7}') for _ in range(min(500, count - begin))]
        answer = await client.call(WORKER + "StartInstances", encode_message(w.StartInstancesRequest(items)))
        assert answer.status == 0, answer.reason


async def unary(client: RawClient, instances: int, callers: int) -> int:
    """Every caller polls ten jobs and completes them one by one."""
    left = instances * STEPS
    poll = encode_message(PollRequest("w", ["work"], 10))

    async def caller() -> None:
        nonlocal left
        while left > 0:
            answer = await client.call(WORKFLOW + "PollJobs", poll)
            for job in decode_message(answer.messages[0], m.PollJobsResponse).jobs:
                done = await client.call(
                    WORKFLOW + "CompleteJob",
                    encode_message(Completion(job.id, worker_id="w", variables=OUTPUT), m.PACKAGE),
                )
                assert done.status == 0, done.reason
                left -= 1

    async with trio.open_nursery() as nursery:
        for _ in range(callers):
            nursery.start_soon(caller)
    return instances * STEPS


async def stream(client: RawClient, instances: int, credit: int) -> int:
    """Whatever comes in one message is completed in one, with as much new credit."""
    work = await Work.open(client, work=credit)
    answer = client.answers[work.stream_id]
    left = instances * STEPS
    outcomes = 0
    while outcomes < left:
        while len(answer.data) < 5 or len(answer.data) < 5 + int.from_bytes(answer.data[1:5], "big"):
            await answer.changes.wait()
        size = int.from_bytes(answer.data[1:5], "big")
        found = decode_message(bytes(answer.data[5 : 5 + size]), w.WorkResponse)
        del answer.data[: 5 + size]
        assert all(outcome.outcome == "ok" for outcome in found.outcomes)
        outcomes += len(found.outcomes)
        if found.jobs:
            done = [w.Completion(job.id, job.attempt, OUTPUT) for job in found.jobs]
            request = w.WorkRequest(completions=done, credits=[w.Credit("work", len(done))])
            await client.send(work.stream_id, framed(encode_message(request)))
    await client.send(work.stream_id, b"", end=True)
    await client.finished(work.stream_id)
    return left


async def main() -> None:
    directory = postgres.run_directory(durable=True)
    with (
        postgres.shared_server(directory, durable=True) as server,
        server.database(postgres.apply_schema) as dsn,
        EngineProcess(dsn, db_max_conns=8) as engine,
    ):
        engine.wait_ready()
        engine.call("POST", "/v1/definitions", linear(STEPS))
        (pid_file,) = directory.rglob("postmaster.pid")
        postmaster = int(pid_file.read_text().split()[0])
        for name, run, instances, size in (
            ("warm up", stream, 500, 128), ("unary c=32", unary, 1_500, 32),
            ("Work stream, 128 in flight", stream, 8_000, 128),
            ("Work stream, 32 in flight", stream, 4_000, 32),
        ):  # fmt: skip
            runs: list[Any] = [name, run, instances, size]
            channel = await trio.open_tcp_stream("127.0.0.1", engine.grpc_port)
            async with client_on(channel, window=1_000_000) as client:
                await start(client, instances)
                began, cpu, pg = time.perf_counter(), cpu_s(engine.process.pid), postgres_cpu_s(postmaster)
                jobs = await runs[1](client, instances, size)
                took_s = time.perf_counter() - began
                cpu, pg = cpu_s(engine.process.pid) - cpu, postgres_cpu_s(postmaster) - pg
                print(
                    f"{name}: {jobs / took_s:.0f} jobs/s; per 1,000 jobs: engine {cpu / jobs * 1000:.3f} CPU-s, "
                    f"PostgreSQL {pg / jobs * 1000:.3f} CPU-s",
                    flush=True,
                )


if __name__ == "__main__":
    trio.run(main)
