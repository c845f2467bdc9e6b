"""What claims and completions of jobs that wait for turns cost, in blocks: with many keys, most of them full."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from typing import Any

import psycopg
import pytest

from penstock.core.effect import Slots
from penstock.store import flow
from penstock.store.connection import TrioConnection
from penstock.store.flow import Waits
from penstock.store.jobs import Slot
from penstock.store.statements import SQL
from tests.postgres import Server, apply_schema
from tests.store.test_plans import connect, counted, last_completion

pytestmark = pytest.mark.slow

KEYS, EACH = 5_000, 4
FULL, FREE = 1, 2
"""Job types: all but ten keys of the first have no room; of the second each has for two."""
FILL = """
INSERT INTO queue (name, policy, revision) VALUES ('full', '{"concurrencyPerKey": 2}', 1),
  ('free', '{"concurrency": 100000, "concurrencyPerKey": 2}', 1);
INSERT INTO job_type (name, queue, keyed) VALUES ('full', 1, true), ('free', 2, true);
INSERT INTO definition (id, version, name, content, uploaded_at) VALUES ('d', 1, 'd', '{}', now());
INSERT INTO instance (id, started_at, definition, vars, flow_key)
  SELECT n, now(), 1, '{}', 'k' || lpad((n % %(keys)s)::text, 6, '0') FROM generate_series(1, 2 * %(rows)s) n;
INSERT INTO token (id, instance_id, seq, step, state, job_type, entered_at, flow_key)
  SELECT id, id, id, 0, 0, 1 + (id > %(rows)s)::int, now(), flow_key FROM instance;
INSERT INTO ready_flow SELECT job_type, priority, flow_key, seq, id FROM token;
INSERT INTO slot (queue, flow_key, running) SELECT q, '', 0 FROM (VALUES (1), (2)) v(q)
  UNION ALL SELECT 1, 'k' || lpad(n::text, 6, '0'), 2 FROM generate_series(0, %(keys)s - 11) n;
SELECT setval('step_seq', 10000000)"""


@pytest.fixture(scope="module", params=["analyzed when empty", "analyzed when full"])
def full_dsn(postgres_server: Server, request: pytest.FixtureRequest) -> Generator[str]:
    with postgres_server.database(apply_schema) as dsn:
        with psycopg.connect(dsn, autocommit=True) as connection:
            fill = FILL.replace("%(rows)s", str(KEYS * EACH)).replace("%(keys)s", str(KEYS))
            if request.param == "analyzed when empty":
                connection.execute("ANALYZE")
            psycopg.ClientCursor(connection).execute(fill.encode())
            if request.param == "analyzed when full":
                connection.execute("ANALYZE")
        yield dsn


@pytest.fixture
async def connection(full_dsn: str) -> AsyncGenerator[TrioConnection]:
    """In a transaction that nothing is left of."""
    made = await connect(full_dsn)
    await made.fetch(SQL["begin"])
    yield made
    await made.close()


async def cost(connection: TrioConnection, call: Any) -> tuple[int, Any]:
    before, _ = await counted(connection)
    result = await call()
    after, _ = await counted(connection)
    return after - before, result


def slots(job_type: int, n: int) -> list[Slot]:
    return [Slot(job_type, ordinal, "w", 30) for ordinal in range(1, n + 1)]


async def test_a_claim_passes_over_full_keys_in_a_few_blocks(connection: TrioConnection) -> None:
    blocks, (look, jobs) = await cost(connection, lambda: flow.claim(connection, slots(FULL, 64), "", 256))
    assert (look.visited, look.blocked, len(jobs)) == (256, 256, 0)
    assert blocks < 256 * 16
    blocks, (look, jobs) = await cost(
        connection, lambda: flow.claim(connection, slots(FULL, 64), f"k{KEYS - 20:06}", 256)
    )
    assert len(jobs) == 20
    assert blocks < 256 * 16 + 20 * 60


async def test_what_ends_gives_back_by_the_key(connection: TrioConnection) -> None:
    blocks, (_, jobs) = await cost(connection, lambda: flow.claim(connection, slots(FREE, 64), "", 256))
    assert len(jobs) == 64
    assert blocks < 64 * 80
    items = [last_completion(job) for job in jobs]
    blocks, moved = await cost(
        connection, lambda: flow.complete(connection, items, [Waits.KEYED] * 64, to_outbox=False)
    )
    assert len(moved) == 64
    assert blocks < 64 * 60
    released = [Slots("full", FULL * 4 + flow.COUNTED_BY_KEY, f"k{n:06}") for n in range(50)]
    blocks, _ = await cost(connection, lambda: connection.roundtrip(flow.give_back(released)))
    assert blocks < 50 * 15
