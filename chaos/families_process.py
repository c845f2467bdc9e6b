"""An executor of families: `python -m chaos.families_process DSN`.

Each family is runs and instances that wait for each other: code that calls code, a graph that calls code, many children
at once, a run that continues as a new one, and one that is started beside. What a run does is a transaction on the same
database, so that it is there exactly as often as it counts.
"""

from __future__ import annotations

import sys
from typing import Any, Final

import psycopg

from penstock import durable
from penstock.durable import App, child, continue_as_new, each, move_on_after, sleep, start, step_info, workflow
from penstock.testing.definitions import Json, definition, end, step

GRAPH: Final[Json] = definition(
    step(
        "call",
        "CALL_ACTIVITY",
        nextStep="end",
        definitionId="leaf",
        input={"n": "${n}"},
        output={"doubled": "${result.result}"},
    ),
    end(),
    definition_id="family-graph",
)
MAKE_DEEDS: Final = "CREATE TABLE deed (key text, run text, what text, PRIMARY KEY (run, what))"
"""Twice the same is an error."""
EACH, ROUNDS = 3, 2


@durable.step.transaction
def deed(tx: psycopg.Connection, what: str) -> None:
    key = step_info().key
    tx.execute("INSERT INTO deed VALUES (%s, %s, %s)", (key, key.partition("/")[0], what))


@workflow
async def leaf(n: int) -> int:
    try:
        await deed("begun")
        await sleep("50 ms")
        await deed("done")
    except BaseException:
        with move_on_after("1h", shield=True):
            await deed("undone")
        raise
    return 2 * n


@workflow
async def rounds(n: int, left: int, total: int) -> int:
    total += await child(leaf, n)
    if left:
        continue_as_new(n, left - 1, total)
    return total


@workflow
async def family(n: int) -> int:
    own = await child(leaf, n)
    graph: dict[str, Any] = await child(str(GRAPH["id"]), n=n)
    many = sum(await each(lambda k: child(leaf, k), range(EACH), limit=2))
    again = await child(rounds, n, ROUNDS, 0)
    await start(leaf, n, id=f"beside-{n}")
    return own + int(graph["doubled"]) + many + again


def expected(n: int) -> int:
    """What a family gives that nobody disturbed."""
    return 2 * n + 2 * n + sum(range(EACH)) * 2 + (ROUNDS + 1) * 2 * n


if __name__ == "__main__":
    App(family, rounds, leaf, at=sys.argv[1], migrate=True).main()
