"""Several PostgreSQLs as one installation: what docs/scaling.md plans, tried with the engine as it is.

    python -m benchmarks.shards [--shards 1 2 4] [--seconds 5] [--clients 8]

Each shard is an engine with a PostgreSQL of its own. Engines take their numbers within the shard's range, so the upper
3 bits of the number in every id name the shard; nothing else is changed. In front of them stands a router, as a gateway
would: starts go by a hash of the business key, what has an id by the id's bits, polls to one shard after the other,
lists to all, merged by id. Prints jobs a second, CPU, and what a page of a list takes; it fails when an id leads to the
wrong shard, a list leaves something out, or a message does not reach an instance on another shard.
"""

from __future__ import annotations

import argparse
import heapq
import os
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from statistics import median
from typing import Final
from zlib import crc32

import msgspec
import psycopg
import trio

from benchmarks.calibration import print_line
from benchmarks.database import Database
from benchmarks.deployment import Deployment, engine, work_directory
from benchmarks.processes import all_processes, tree_cpu_s
from penstock.client import Client
from penstock.store.db.schema import SCHEMA_VERSION
from penstock.wire.model import Completion, Instance, Job, StartRequest

SHARDS_MAX: Final = 8
NUMBERS_PER_SHARD: Final = 1024 // SHARDS_MAX
SHARD_SHIFT: Final = 12 + NUMBERS_PER_SHARD.bit_length() - 1
"""Below are 12 bits of a count and 7 of the engine's number within its shard."""
BATCH: Final = 8
OPEN_MAX: Final = 128
"""Jobs that wait: starts don't run ahead of the work."""
PAGE: Final = 50
STEPS: Final = {
    "shard-work": [
        {"id": "a", "name": "a", "type": "SERVICE_TASK", "jobType": "shard-work", "nextStep": "end"},
        {"id": "end", "name": "end", "type": "END"},
    ],
    "shard-wait": [
        {
            "id": "w", "name": "w", "type": "WAIT", "nextStep": "end",
            "message": {"name": "go", "correlationKey": "${key}"},
        },
        {"id": "end", "name": "end", "type": "END"},
    ],
}  # fmt: skip
NUMBERS: Final = """
INSERT INTO penstock.engine (number, holder, leased_until, dispatch_mode, description, schema_version)
SELECT n, gen_random_uuid(), 'infinity', 'polling', 'of another shard', %s FROM generate_series(0, 1023) n
WHERE n / %s <> %s"""


def shard_of(id: str) -> int:
    """Which shard an instance, or a job by its instance, belongs to: by its bits alone."""
    return (int(id.partition("-")[0], 16) >> SHARD_SHIFT) & (SHARDS_MAX - 1)


class Wrong(Exception):
    """The router or the plan is wrong."""


class Router:
    """One installation of several: what a gateway would do, and no more."""

    def __init__(self, shards: Sequence[Client]) -> None:
        self._shards = shards

    def home(self, key: str) -> int:
        """Where what has this key begins, and is looked for."""
        return crc32(key.encode()) % len(self._shards)

    async def upload(self) -> None:
        """A definition goes to all."""
        for id, steps in STEPS.items():
            for shard in self._shards:
                await shard.upload_definition({"id": id, "name": id, "steps": steps})

    async def start(self, definition: str, key: str, count: int = 1) -> list[Instance]:
        """Instances with this business key, at its home. Raises Wrong when their ids name another shard."""
        home = self.home(key)
        request = StartRequest(definition, variables={"key": key}, business_key=key)
        found = [one.instance for one in await self._shards[home].start_instances([request] * count)]
        made = [one for one in found if one is not None]
        if len(made) < count or any(shard_of(one.id) != home for one in made):
            raise Wrong(f"{len(made)} of {count} instances began at shard {home}: {[one.id for one in made]}")
        return made

    async def get(self, id: str) -> Instance:
        """By the id's bits."""
        return await self._shards[shard_of(id)].get_instance(id)

    async def complete(self, worker: str, jobs: Sequence[Job]) -> int:
        """By the bits of each job's id; how many were taken."""
        done = 0
        for number, shard in enumerate(self._shards):
            mine = [Completion(job_id=job.id, attempt=job.attempt) for job in jobs if shard_of(job.id) == number]
            outcomes = await shard.complete_jobs(worker, mine) if mine else []
            done += sum(one.outcome in ("ok", "already-completed") for one in outcomes)
        return done

    async def poll(self, worker: str, turn: int) -> list[Job]:
        """Of one shard after the other, another one first each time; parked in that where none has any."""
        for place, wait_s in [*((each, 0) for each in range(len(self._shards))), (0, 1)]:
            shard = self._shards[(turn + place) % len(self._shards)]
            if jobs := await shard.poll_jobs(worker, ["shard-work"], max_jobs=BATCH, lease_s=60, wait_s=wait_s):
                return jobs
        return []

    async def page(self, before: str | None) -> tuple[list[Instance], str | None]:
        """The newest of all shards, merged by id: each gives a page, most of which is thrown away."""
        parts: list[list[Instance]] = []

        async def ask(shard: Client) -> None:
            parts.append((await shard.list_instances(limit=PAGE, cursor=before)).items)

        async with trio.open_nursery() as nursery:
            for shard in self._shards:
                nursery.start_soon(ask, shard)
        merged = heapq.merge(*parts, key=lambda one: int(one.id, 16), reverse=True)
        page = [one for one, _ in zip(merged, range(PAGE), strict=False)]
        return page, page[-1].id if len(page) == PAGE else None

    async def publish(self, key: str) -> None:
        """To the home of the key: a wait for it began there, when instances go by the same key."""
        await self._shards[self.home(key)].publish_message("go", key)


class Figures(msgspec.Struct, kw_only=True):
    """What was seen with so many shards."""

    shards: int
    jobs_per_s: float
    engine_cpu_s_per_1000: float
    postgres_cpu_s_per_1000: float
    page_p50_ms: float
    listed: int


async def play(deployments: Sequence[Deployment], options: argparse.Namespace) -> Figures:
    """Load, lists and a message."""
    done = 0
    ids: set[str] = set()
    until = trio.current_time() + options.seconds
    async with AsyncExitStack() as stack:
        urls = [f"http://{each.host}:{each.port}" for each in deployments]
        router = Router([await stack.enter_async_context(Client(url)) for url in urls])
        await router.upload()

        async def work(number: int) -> None:
            nonlocal done
            turn = number
            while trio.current_time() < until:
                turn += 1
                if len(ids) - done < OPEN_MAX:
                    ids.update(one.id for one in await router.start("shard-work", f"order-{turn}-{number}", BATCH))
                taken = await router.complete(f"w{number}", await router.poll(f"w{number}", turn))
                done += taken  # after the wait: others count meanwhile

        before = cpu_s(deployments)
        async with trio.open_nursery() as nursery:
            for number in range(options.clients):
                nursery.start_soon(work, number)
        engines, servers = (after - then for after, then in zip(cpu_s(deployments), before, strict=True))
        took_ms, listed = await list_all(router, ids)
        await message(router)
    return Figures(
        shards=len(deployments),
        jobs_per_s=done / options.seconds,
        engine_cpu_s_per_1000=engines / max(done, 1) * 1000,
        postgres_cpu_s_per_1000=servers / max(done, 1) * 1000,
        page_p50_ms=took_ms,
        listed=listed,
    )


async def list_all(router: Router, ids: set[str]) -> tuple[float, int]:
    """All pages, newest first: the median time of one, and how many instances. Raises Wrong when one is missing."""
    cursor: str | None = None
    seen: list[str] = []
    took_s: list[float] = []
    while True:
        began = time.monotonic()
        page, cursor = await router.page(cursor)
        took_s.append(time.monotonic() - began)
        seen += [one.id for one in page]
        if cursor is None:
            break
    if sorted(seen, key=lambda id: int(id, 16), reverse=True) != seen or set(seen) != ids or len(seen) != len(ids):
        raise Wrong(f"lists gave {len(seen)} instances ({len(set(seen))} different ones) of {len(ids)}")
    return median(took_s) * 1e3, len(seen)


async def message(router: Router) -> None:
    """Instances that wait on each shard are reached by their key. Raises Wrong."""
    for number in range(SHARDS_MAX):
        key = f"customer-{number}"
        (waits,) = await router.start("shard-wait", key)
        await router.publish(key)
        with trio.fail_after(30):
            while (await router.get(waits.id)).status != "COMPLETED":
                await trio.sleep(0.02)


def cpu_s(deployments: Sequence[Deployment]) -> tuple[float, float]:
    """Of all engines, and of all PostgreSQLs."""
    processes = all_processes()
    engines = servers = 0.0
    for each in deployments:
        assert each.engine_pid is not None
        assert each.dsn is not None
        database = Database(each.dsn)
        server = database.server_pid()
        database.close()
        engines += tree_cpu_s(processes, each.engine_pid, without=server)
        servers += 0.0 if server is None else tree_cpu_s(processes, server)
    return engines, servers


def open_shards(stack: ExitStack, count: int) -> list[Deployment]:
    """Engines whose numbers are of their shard, each on a PostgreSQL of its own."""
    found: list[Deployment] = []
    for shard in range(count):
        directory = stack.enter_context(work_directory(Path("/var/tmp")))
        with engine(directory, {}) as first:  # it makes the schema, and goes
            assert first.dsn is not None
            with psycopg.connect(first.dsn, autocommit=True) as connection:
                connection.execute(b"DELETE FROM penstock.engine")
                connection.execute(NUMBERS.encode(), (SCHEMA_VERSION, NUMBERS_PER_SHARD, shard))
        found.append(stack.enter_context(engine(directory, {})))
    return found


def main(options: argparse.Namespace) -> None:
    """Measure and print."""
    print_line()
    print(f"{options.clients} clients, {options.seconds} s, {os.cpu_count()} cores for all; CPU in s per 1,000 jobs")
    for count in options.shards:
        with ExitStack() as stack:
            figures = trio.run(play, open_shards(stack, count), options)
        print(msgspec.json.encode(figures).decode())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", type=int, nargs="+", default=[1, 2, 4], choices=range(1, SHARDS_MAX + 1))
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--clients", type=int, default=8)
    main(parser.parse_args())
