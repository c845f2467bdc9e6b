"""What a job that no queue concerns pays for there being queues: the statements that claim and complete it, as they are
and without what they ask because of queues, in turn.

    PYTHONPATH=src python -m benchmarks.unlimited [--blocks 60] [--jobs 64]

CPU of PostgreSQL's process alone, one connection, embedded PostgreSQL with its defaults. A block is eight rounds of one
claim and two completions of so many jobs each, four with the one texts and four with the others, and gives one ratio;
their middle and its interval of 95 % are by Wilcoxon's signed ranks (`benchmarks.pair`). Starts say nothing of queues.
Linux only.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, cast
from unittest import mock

import trio

from benchmarks.batch_cost import FILL_INSTANCES, FILL_QUEUE, FILL_TOKENS, JOB_TYPE, OUTPUT, Clocks
from benchmarks.pair import BLOCKS_MIN, Estimate, estimate
from penstock.store.db.connection import TrioConnection
from penstock.store.db.database import Database
from penstock.store.db.schema import ensure_schema
from penstock.store.db.statements import SQL
from penstock.store.embedded.embedded import embedded
from penstock.store.rows import jobs

STATEMENTS: Final = (
    "claim", "claim_and_clear", "claim_known",
    "complete_fast", "complete_moves", "complete_ends", "complete_lone_move", "complete_lone_end",
)  # fmt: skip
ASKED: Final = (
    b"t.held IS NULL AND t.flow_key IS NULL",
    b"NOT coalesce((SELECT j.keyed FROM job_type j WHERE j.id = w.job_type), false)",
)
"""Whether a token or its type is for other statements than these."""
ORDER: Final = "ABBABAAB"
WARM_UP_BLOCKS: Final = 3
Texts = Mapping[str, bytes]


def without_queues(texts: Texts) -> Texts:
    """The statements as they would be if there were none."""
    found: dict[str, bytes] = {}
    for name in STATEMENTS:
        found[name] = texts[name]
        for asked in ASKED:
            found[name] = found[name].replace(asked, b"true")
        if found[name] == texts[name]:
            raise ValueError(f"{name}: asks nothing because of queues")
    return {**texts, **found}


async def round_of(connection: TrioConnection, clocks: Clocks, texts: Texts, size: int) -> float:
    """Claim so many jobs, complete them, and those that follow at once: microseconds of PostgreSQL's CPU."""
    with mock.patch.object(jobs, "SQL", texts):
        before = clocks.server()
        claimed = await jobs.claim(connection, [jobs.ClaimSlot(JOB_TYPE, n + 1, "worker", 60.0) for n in range(size)])
        goes_on = [
            jobs.FastItem(job.token, job.seq, None, "worker", False, 1, JOB_TYPE, "worker", 60.0, OUTPUT)
            for job in claimed
        ]
        moved = await jobs.complete_fast(connection, sorted(goes_on))
        ends = [
            jobs.FastItem(job.token, cast(Any, job.new_seq), None, "worker", True, 2, None, None, None, OUTPUT)
            for job in moved
        ]
        ended = await jobs.complete_fast(connection, sorted(ends))
        assert len(ended) == size, "the queue has run dry, or a completion was refused"
        return clocks.server() - before


async def measure(dsn: str, blocks: int, size: int) -> list[float]:
    """Of each block: as it is against without queues."""
    variants = {"A": SQL, "B": without_queues(SQL)}
    database = Database(dsn, max_connections=1)
    ratios: list[float] = []
    async with database.connection() as connection:
        await ensure_schema(connection)
        await connection.fetch(FILL_INSTANCES, ((blocks + WARM_UP_BLOCKS) * len(ORDER) * size,))
        await connection.fetch(FILL_TOKENS, ((blocks + WARM_UP_BLOCKS) * len(ORDER) * size,))
        await connection.fetch(FILL_QUEUE)
        await connection.fetch("INSERT INTO job_type (name) VALUES ('plain')")
        await connection.fetch("VACUUM (ANALYZE)")
        ((backend,),) = cast(Any, await connection.fetch("SELECT pg_backend_pid()"))
        clocks = Clocks(backend)
        for _ in range(blocks + WARM_UP_BLOCKS):
            cpu = dict.fromkeys(variants, 0.0)
            for variant in ORDER:
                cpu[variant] += await round_of(connection, clocks, variants[variant], size)
            ratios.append(cpu["A"] / cpu["B"])
    await database.close(5.0)
    return ratios[WARM_UP_BLOCKS:]


async def main(blocks: int, size: int) -> Estimate | None:
    """Print it."""
    directory = Path(tempfile.mkdtemp(dir="/var/tmp"))  # a real disk
    directory.chmod(0o755)
    try:
        async with embedded(directory) as dsn:
            found = estimate(await measure(dsn, blocks, size))
    finally:
        shutil.rmtree(directory)
    if found is not None:
        print(
            f"{size} jobs a batch, {blocks} blocks: {found.ratio:.4f} of the CPU without queues,"
            f" with 95 % between {found.low:.4f} and {found.high:.4f}"
        )
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=60, help=f"at least {BLOCKS_MIN}")
    parser.add_argument("--jobs", type=int, default=64)
    given = parser.parse_args()
    trio.run(main, given.blocks, given.jobs)
