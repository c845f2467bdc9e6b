"""Starts and signals without a key, counted one by one: what was answered was done once, what was not at most once.

Each call is one exchange, which nobody repeats. The workflows are of this module (their ids begin with ``fault-``): one
that ends at once and one that does not start a job (both group-commit queues), and a loop that every signal takes round
once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path

import httpx
import psycopg
import trio

from chaos.journal import Journal, read_journals
from penstock.testing.definitions import Json, definition, end, service, step

RATE = 6.0
"""Calls per second, of all kinds."""
CALL_TIMEOUT_S = 15.0
WIDE, NARROW, LOOP = "fault-wide", "fault-narrow", "fault-loop"
LOOPS = 3
CANCEL_PAUSE_S = 0.1

_STARTS = "SELECT business_key, count(*) FROM instance WHERE business_key LIKE 'unkeyed-%' GROUP BY 1"
_SIGNALS = """
SELECT h.output ->> 'signal', count(*) FROM history h JOIN instance i ON i.id = h.instance_id
JOIN definition d ON d.key = i.definition WHERE d.id = 'fault-loop' AND h.step = 0 AND h.output ? 'signal' GROUP BY 1"""
_OPEN = """SELECT to_hex(i.id) FROM instance i JOIN definition d ON d.key = i.definition
WHERE i.status = 0 AND d.id = ANY(%s)"""

QUERIES = {"start": _STARTS, "signal": _SIGNALS}


def _definitions() -> list[Json]:
    choose = step("choose", "DECISION", conditionalNextSteps={"x < 0": "end", "x >= 0": "wait"})
    return [
        definition(step("choose", "DECISION", conditionalNextSteps={"x >= 0": "end"}), end(), definition_id=WIDE),
        definition(service("never", "end", job_type="never-polled"), end(), definition_id=NARROW),
        definition(step("wait", "WAIT", nextStep="choose"), choose, end(), definition_id=LOOP),
    ]


class Unkeyed:
    """Calls through all engines in turn until `stop`; then `end` cancels what is open."""

    def __init__(self, urls: Sequence[str], journal: Journal) -> None:
        self._journal = journal
        self._clients = [httpx.AsyncClient(base_url=url, timeout=CALL_TIMEOUT_S, trust_env=False) for url in urls]
        self._numbers = count()
        self._stopped = False
        self._loops: list[str] = []

    async def prepare(self) -> None:
        """The definitions, and the instances that are signalled."""
        client = self._clients[0]
        for body in _definitions():
            (await client.post("/v1/definitions", json=body)).raise_for_status()
        for _ in range(LOOPS):
            answer = await client.post("/v1/instances", json={"definitionId": LOOP, "variables": {"x": 1}})
            self._loops.append(answer.raise_for_status().json()["id"])

    async def run(self) -> None:
        """Call until stopped; calls do not wait for each other."""
        async with trio.open_nursery() as nursery:
            while not self._stopped:
                nursery.start_soon(self._call, next(self._numbers))
                await trio.sleep(1 / RATE)

    async def _call(self, number: int) -> None:
        client = self._clients[number % len(self._clients)]
        if number % 3 == 2:
            kind, name = "signal", str(number)
            path = f"/v1/instances/{self._loops[number % LOOPS]}/signals/wait"
            body: Json = {"signal": name}
        else:
            kind, name = "start", f"unkeyed-{number}"
            path = "/v1/instances"
            workflow = WIDE if number % 3 else NARROW
            body = {"definitionId": workflow, "businessKey": name, "variables": {"x": number}}
        self._journal.note("unkeyed", kind=kind, name=name)
        try:
            answer = await client.post(path, json=body)
        except httpx.HTTPError:
            return
        if answer.status_code < 300:
            self._journal.note("unkeyed done", kind=kind, name=name)
        elif answer.status_code not in (429, 503):
            self._journal.note("surprise", call=f"unkeyed {kind}", outcome=f"{answer.status_code} {answer.text[:200]}")

    def stop(self) -> None:
        """Call no more."""
        self._stopped = True

    async def end(self, dsn: str) -> None:
        """Cancel every instance that is left open; all must be well again."""
        while True:
            with psycopg.connect(dsn) as connection:
                left = connection.execute(_OPEN, ([NARROW, LOOP],)).fetchall()
            if not left:
                return
            for (instance,) in left:
                await self._clients[0].post(f"/v1/instances/{instance}/cancel", json={})
            await trio.sleep(CANCEL_PAUSE_S)

    async def aclose(self) -> None:
        """Close the connections."""
        for client in self._clients:
            await client.aclose()


def counted(dsn: str, journals: Path) -> tuple[list[str], dict[str, int]]:
    """What was done twice, or was answered and is not there; and how much was looked at."""
    events = read_journals(journals)
    asked = {kind: [e["name"] for e in events if e["event"] == "unkeyed" and e["kind"] == kind] for kind in QUERIES}
    done = {kind: {e["name"] for e in events if e["event"] == "unkeyed done" and e["kind"] == kind} for kind in QUERIES}
    broken: list[str] = []
    checked: Counter[str] = Counter()
    with psycopg.connect(dsn) as connection:
        for kind, query in QUERIES.items():
            found = dict(connection.execute(query.encode()).fetchall())
            broken += compare(kind, asked[kind], done[kind], found)
            checked[f"{kind}s without a key"] = len(done[kind])
            checked[f"{kind}s without a key, unanswered"] = len(asked[kind]) - len(done[kind])
    return broken, dict(checked)


def compare(kind: str, asked: Sequence[str], done: set[str], found: dict[str, int]) -> Iterator[str]:
    """What is wrong with ``found``, how often each of the ``asked`` was done; ``done`` are those that were answered."""
    for name in asked:
        times = found.pop(name, 0)
        if times > 1 or (times == 0 and name in done):
            yield f"{kind} {name} without a key, {'' if name in done else 'not '}answered, was done {times} times"
    for name, times in found.items():
        yield f"{kind} {name} was done {times} times, and nobody asked for it"
