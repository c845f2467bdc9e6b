"""What a batch costs by its size: the claim and the completion of 1 to 32 jobs, without HTTP and without an engine.

    PYTHONPATH=src python -m benchmarks.batch_cost

Prints the median CPU in microseconds of PostgreSQL's process and of this one (statement, psycopg and Trio; the
group-commit queue is not in it), and the line through them: what a batch costs that is empty but for its statement, and
each job in it. Then the same with commits that don't wait for the disk, and without the CHECKs of `token`. Linux only.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from collections.abc import Awaitable
from pathlib import Path
from typing import TypeVar

import trio

from benchmarks.calibration import print_line
from penstock.store.db.connection import TrioConnection
from penstock.store.db.database import Database
from penstock.store.db.schema import ensure_schema
from penstock.store.embedded.embedded import embedded
from penstock.store.rows import jobs

SIZES = (1, 2, 4, 6, 8, 13, 16, 32)
ROUNDS = 120
WARM_UP = 6
LENGTH = 3
JOB_TYPE = 1
OUTPUT = b'{"result":"0123456789012345678901234567890"}'

FILL_INSTANCES = (
    "INSERT INTO instance (id, started_at, definition, vars)"
    " SELECT id, now(), 1, jsonb_build_object('text', repeat('x', 185)) FROM generate_series(1, $1::int) id"
)
FILL_TOKENS = (
    "INSERT INTO token (id, instance_id, step, job_type, seq, entered_at, state)"
    " SELECT id, id, 0, 1, nextval('step_seq'), now(), 0 FROM generate_series(1, $1::int) id"
)
FILL_QUEUE = "INSERT INTO ready (job_type, seq, token_id) SELECT job_type, seq, id FROM token ORDER BY seq"
CHECKS = "SELECT conname FROM pg_constraint WHERE conrelid = 'token'::regclass AND contype = 'c'"

KINDS = ("claim", "claim, remembered", "complete")
Costs = dict[str, list[float]]
T = TypeVar("T")


class Clocks:
    """CPU so far in microseconds, of the backend and of this thread."""

    def __init__(self, backend: int) -> None:
        self._backend = Path(f"/proc/{backend}/schedstat")

    def server(self) -> float:
        return int(self._backend.read_text().split()[0]) / 1e3

    def client(self) -> float:
        return time.thread_time_ns() / 1e3


async def note(clocks: Clocks, name: str, call: Awaitable[list[T]], costs: Costs) -> list[T]:
    """The call's answer; its CPU goes to ``costs``. Reading the server's clock is not in the client's."""
    server, client = clocks.server(), clocks.client()
    answer = await call
    costs[f"{name}, client"].append(clocks.client() - client)
    costs[f"{name}, PostgreSQL"].append(clocks.server() - server)
    return answer


async def round_of(connection: TrioConnection, clocks: Clocks, size: int, costs: Costs, *, known: bool) -> None:
    """Claim so many jobs and complete them; those of the last step end their instance. ``known``: as an engine does
    that remembers the jobs."""
    slots = [jobs.ClaimSlot(JOB_TYPE, ordinal, "worker", 60.0) for ordinal in range(1, size + 1)]
    name = "claim, remembered" if known else "claim"
    claimed = await note(clocks, name, jobs.claim(connection, slots, known=known), costs)
    assert len(claimed) == size, "the queue has run dry"
    items = sorted(
        jobs.FastItem(
            job.token, job.seq, None, "worker", job.step + 1 == LENGTH, job.step + 1, JOB_TYPE, None, None, OUTPUT
        )
        for job in claimed
    )
    moved = await note(clocks, "complete", jobs.complete_fast(connection, items), costs)
    assert len(moved) == size, "a completion was refused"


async def measure(connection: TrioConnection, clocks: Clocks, title: str) -> None:
    """All sizes in turn, so that a busy moment of the machine meets each alike."""
    costs: dict[int, Costs] = {}
    for number in range(ROUNDS + WARM_UP):
        for size in SIZES:
            kept = costs.setdefault(size, _empty()) if number >= WARM_UP else _empty()
            await round_of(connection, clocks, size, kept, known=number % 2 == 1)
    print(f"\n{title}\n{'jobs in the batch':30}" + "".join(f"{size:7}" for size in SIZES))
    for name in _empty():
        medians = [statistics.median(costs[size][name]) for size in SIZES]
        per_job, fixed = statistics.linear_regression(SIZES, medians)
        print(f"{name:30}" + "".join(f"{cost:7.0f}" for cost in medians) + f"   = {fixed:.0f} + {per_job:.1f} a job")


def _empty() -> Costs:
    return {f"{what}, {whose}": [] for what in KINDS for whose in ("PostgreSQL", "client")}


async def run(dsn: str) -> None:
    database = Database(dsn, max_connections=1)
    async with database.connection() as connection:
        await ensure_schema(connection)
        instances = 3 * (ROUNDS + WARM_UP) * sum(SIZES) // LENGTH + max(SIZES)
        await connection.fetch(FILL_INSTANCES, (instances,))
        await connection.fetch(FILL_TOKENS, (instances,))
        await connection.fetch(FILL_QUEUE)
        await connection.fetch("VACUUM (ANALYZE)")
        ((backend,),) = await connection.fetch("SELECT pg_backend_pid()")
        assert isinstance(backend, int)
        clocks = Clocks(backend)
        await measure(connection, clocks, "as it is, microseconds of CPU")
        await connection.fetch("SET synchronous_commit = off")
        await measure(connection, clocks, "synchronous_commit = off")
        await connection.fetch("SET synchronous_commit = on")
        for (name,) in await connection.fetch(CHECKS):
            await connection.fetch(f'ALTER TABLE token DROP CONSTRAINT "{name}"'.encode())
        await measure(connection, clocks, "without the CHECKs of token")
    await database.close(5.0)


async def main() -> None:
    directory = Path(tempfile.mkdtemp(dir="/var/tmp"))  # a real disk
    directory.chmod(0o755)
    try:
        async with embedded(directory) as dsn:
            print_line(dsn)
            await run(dsn)
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    trio.run(main)
