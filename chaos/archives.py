"""A fault against retention: what it archives and removes is retried meanwhile, through another engine.

The instances are of a workflow of this module, of which alone the engines keep nothing for long (`rig.AGED`); the
verdict leaves it out, so what is lost goes into ``rig.complaints``.
"""

from __future__ import annotations

import random
from contextlib import suppress
from typing import Final

import psycopg
import trio

from chaos.rig import AGED, Rig
from penstock.client import Client, ClientError, NotFound
from penstock.testing.definitions import linear

COUNT: Final = 40
WORKER: Final = "aged"


async def retry_while_archiving(rig: Rig, rng: random.Random) -> str:
    """Failures of two days ago are archived and removed by an engine that starts, and retried through the other one."""
    starting, other = rng.sample(rig.engines, 2)
    async with Client(f"http://127.0.0.1:{other.port}", timeout_s=30) as client:
        await client.upload_definition(linear(1, definition_id=AGED, job_type=AGED))
        ids = [(await client.start_instance(AGED)).id for _ in range(COUNT)]
        for job in await client.poll_jobs(WORKER, [AGED], max_jobs=COUNT):
            await client.fail_job(job.id, WORKER, "old", retryable=False)
        with psycopg.connect(rig.dsn, autocommit=True) as connection:
            connection.execute(
                b"UPDATE instance SET ended_at = ended_at - interval '2 days' WHERE to_hex(id) = ANY(%s)", [ids]
            )
        await starting.stop()
        starting.spawn()
        retried: list[str] = []
        for id in rng.sample(ids, COUNT):
            with suppress(NotFound):
                await client.retry_instance(id)
                retried.append(id)
            await trio.sleep(rng.uniform(0, 0.1))
        await starting.wait_ready()
        for job in await client.poll_jobs(WORKER, [AGED], max_jobs=COUNT):
            await client.complete_job(job.id, WORKER)
        for id in retried:
            try:
                instance = await client.get_instance(id)
            except ClientError as error:
                rig.complaints.append(f"an instance that was retried while others were archived: {error}")
            else:
                if instance.status != "COMPLETED":
                    rig.complaints.append(f"an instance that was retried and completed is {instance.status}")
    rig.counts["instances retried while others were archived"] += len(retried)
    rig.counts["instances archived meanwhile"] += COUNT - len(retried)
    return f"{starting.name} archived {COUNT - len(retried)}, {len(retried)} were retried"
