"""Starts in programs' own transactions under `kill -9`: engines on one database, of which one dies after the other, and
PostgreSQL now and then.

    python -m chaos.transactions [--engines 2] [--seconds 60] [--seed transactions-1]

Programs insert an order, start its instance and signal it, in one transaction; half of the transactions are rolled
back. It goes on for 10,000 of them at least. In the end each order must have its instance, each instance its order, and
each instance the signal that came after its start; no request may be left, or have failed.
Exit code 1 otherwise.
"""

from __future__ import annotations

import random
import sys
from contextlib import suppress
from typing import Final

import msgspec
import psycopg
import trio

from chaos.fleet import POLL_INTERVAL_S, Fleet, fault_own_server, read_options
from penstock.store.db.connection import TrioConnection
from penstock.store.rows import sql_requests

WRITERS: Final = 8
TRANSACTIONS: Final = 10_000
TOGETHER: Final = 5
"""Orders of one transaction, at most."""
DEFINITION: Final = msgspec.json.encode(
    {
        "id": "order",
        "name": "order",
        "steps": [
            {"id": "go", "name": "go", "type": "WAIT", "nextStep": "end"},
            {"id": "end", "name": "end", "type": "END"},
        ],
    }
)
ORDER: Final = b"INSERT INTO shop.orders (id, instance) VALUES ($1::int, $2)"
START: Final = b"SELECT start('order', jsonb_build_object('n', $1::int), instance_key => $2)"
SIGNAL: Final = b"SELECT signal($1, 'go', jsonb_build_object('signal', $2::int))"
LEFT: Final = (
    "SELECT (SELECT count(*) FROM sql_request) + (SELECT count(*) FROM instance WHERE status = 0 AND NOT EXISTS ("
    "SELECT FROM sql_request WHERE failed_at IS NOT NULL))"
)
COMPLAINTS: Final = {
    "orders without an instance": """
      SELECT o.id, o.instance FROM shop.orders o LEFT JOIN instance i ON i.id = penstock_number(o.instance)
      WHERE i.id IS NULL OR (i.vars ->> 'n')::int <> o.id""",
    "instances without an order": """
      SELECT i.id FROM instance i LEFT JOIN shop.orders o ON penstock_number(o.instance) = i.id WHERE o.id IS NULL""",
    "instances that did not complete": "SELECT id, status FROM instance WHERE status <> 1",
    "instances without their signal": """
      SELECT i.id FROM instance i WHERE (SELECT count(*) FROM history h WHERE h.instance_id = i.id
        AND h.output ->> 'signal' = i.vars ->> 'n') <> 1""",
    "requests that failed": "SELECT id, operation, error, reason FROM sql_request",
}
"""What may not be when all is done."""


class Verdict(msgspec.Struct):
    """What was seen."""

    committed: int = 0
    rolled_back: int = 0
    orders: int = 0
    complaints: list[str] = []


class RolledBack(Exception):
    """A program changed its mind."""


class Attack:
    """One of them."""

    def __init__(self, fleet: Fleet, seed: str, transactions: int = TRANSACTIONS) -> None:
        self._fleet = fleet
        self._random = random.Random(seed)
        self._transactions = transactions
        self._verdict = Verdict()
        self._number = 0
        self._over = False

    async def run(self) -> Verdict:
        """What was seen."""
        async with self._fleet.running():
            async with self._fleet.client(0) as client:
                await client.upload_definition(DEFINITION)
            async with await TrioConnection.connect(self._fleet.eyes) as connection:
                await connection.fetch(b"CREATE SCHEMA shop")
                await connection.fetch(b"CREATE TABLE shop.orders (id int PRIMARY KEY, instance text NOT NULL)")
                await sql_requests.allow(connection, connection.info.user)
            async with trio.open_nursery() as nursery:
                for _ in range(WRITERS):
                    nursery.start_soon(self._write)
                await self._fleet.strike()
                self._over = True
            self._verdict.complaints += await self._fleet.ended(LEFT)
            await self._account()
        self._verdict.complaints += await self._fleet.find_broken()
        return self._verdict

    async def _write(self) -> None:
        """One transaction after the other, on a connection for as long as it lives."""
        while not self._is_done():
            with suppress(psycopg.OperationalError, psycopg.InterfaceError):  # the server was killed
                async with await TrioConnection.connect(self._fleet.eyes) as connection:
                    while not self._is_done():
                        await self._write_once(connection)
            await trio.sleep(POLL_INTERVAL_S)

    def _is_done(self) -> bool:
        return self._over and self._verdict.committed + self._verdict.rolled_back >= self._transactions

    async def _write_once(self, connection: TrioConnection) -> None:
        count = self._random.randint(1, TOGETHER)
        first, self._number = self._number, self._number + count
        keeps = self._random.random() < 0.5
        with suppress(RolledBack):
            async with connection.transaction():
                started: list[tuple[int, str]] = []
                for number in range(first, first + count):
                    ((instance,),) = await connection.fetch(START, (number, f"o-{number}"))
                    await connection.fetch(ORDER, (number, instance))
                    started.append((number, str(instance)))
                for number, instance in started:
                    await connection.fetch(SIGNAL, (instance, number))
                if not keeps:
                    raise RolledBack
        if keeps:
            self._verdict.committed += 1
        else:
            self._verdict.rolled_back += 1

    async def _account(self) -> None:
        ((self._verdict.orders,),) = await self._fleet.ask("SELECT count(*)::int FROM shop.orders")
        for what, question in COMPLAINTS.items():
            for row in await self._fleet.ask(question):
                self._verdict.complaints.append(f"{what}: {row}")


async def attack(fleet: Fleet, seed: str = "") -> int:
    """The exit code."""
    verdict = await Attack(fleet, seed).run()
    complaints = verdict.complaints + fleet.untried(committed=verdict.committed, rolled_back=verdict.rolled_back)
    print(
        f"{fleet}: {verdict.committed:,} transactions committed, {verdict.rolled_back:,} rolled back;"
        f" {verdict.orders:,} orders"
    )
    for complaint in complaints:
        print(complaint)
    print("broken" if complaints else "held: each order has its instance, each instance its order and its signal")
    return int(bool(complaints))


if __name__ == "__main__":
    options = read_options(__doc__, engines=2, seed="transactions-1")
    sys.exit(trio.run(fault_own_server, options, dict[str, int](), attack))
