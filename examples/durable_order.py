"""An order as a durable workflow: stock, approval, payment and parcel, and what undoes them when it ends early.

Its branches, time limits and clean-up survive crashes: what was done is in the run's journal, and a body that is run
again gets from there what its steps gave before. A step that was running when the process died is run again, so each
gives the outside world `step_info().key`, which is the same in all attempts.

    python examples/durable_order.py --try               two orders in memory, on a virtual clock
    python examples/durable_order.py                     serves orders, until Ctrl-C; kill it, start it again, start two

and from another terminal, meanwhile:

    python examples/durable_order.py place A-1 900       an order for one desk at 900; more than 500 needs an approval
    python examples/durable_order.py approve A-1 ann     or: refuse A-1 ann
    python examples/durable_order.py pay A-1 visa        the card "stolen" is declined
    python examples/durable_order.py cancel A-1          undone in order
    python examples/durable_order.py show A-1

`penstock runs list`, `show A-1`, `journal A-1` and `send A-1 payment '{"card": "visa"}'` know these orders, too.

Orders are in the embedded PostgreSQL, or in the one that PENSTOCK_AT names (`postgresql://…`); what is done in the
world is in the file that WORLD names.
"""

from __future__ import annotations

import os
import sqlite3
import sys
from contextlib import closing
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory

from penstock.durable import (
    App,
    fail_after,
    first,
    move_on_after,
    now,
    open_nursery,
    receive,
    set_view,
    sleep,
    step,
    step_info,
    workflow,
)

APPROVED_UP_TO = Decimal(500)


@dataclass(frozen=True)
class Line:
    sku: str
    count: int
    price: Decimal


@dataclass(frozen=True)
class Order:
    id: str
    lines: list[Line]

    @property
    def total(self) -> Decimal:
        return sum((line.count * line.price for line in self.lines), Decimal(0))


@dataclass(frozen=True)
class Approval:
    """The message `approval`: somebody decided."""

    by: str
    granted: bool


@dataclass(frozen=True)
class Payment:
    """The message `payment`: which card the customer pays with."""

    card: str


@dataclass(frozen=True)
class Shipped:
    tracking: str
    amount: Decimal


class OutOfStock(Exception):
    """There is less in stock than was ordered."""


class Declined(Exception):
    """The bank says no."""


class Refused(Exception):
    """Nobody approved the order, or somebody refused it."""


# -- the world outside: stock, bank and carrier, here a table in a file


class World:
    """What was done, once for each key: asked again with the same key it answers the same and does nothing."""

    def __init__(self, path: Path | str) -> None:
        self.path = path

    def do(self, key: str, what: str, order: str, detail: str = "") -> str:
        with closing(sqlite3.connect(self.path, timeout=60)) as file, file:
            file.execute("CREATE TABLE IF NOT EXISTS deed (key TEXT PRIMARY KEY, what TEXT, ordered TEXT, detail TEXT)")
            file.execute("INSERT INTO deed VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING", (key, what, order, detail))
            [number] = file.execute("SELECT rowid FROM deed WHERE key = ?", (key,)).fetchone()
        return f"{what}-{number}"


world = World(os.environ.get("WORLD", "world.sqlite3"))


@step(raises=[OutOfStock])
def reserve(order: Order) -> str:
    if any(line.count > 100 for line in order.lines):
        raise OutOfStock(order.id)
    return world.do(step_info().key, "reserve", order.id)


@step
def ask_for_approval(order: Order) -> None:
    world.do(step_info().key, "ask", order.id, str(order.total))


@step(retries=5, first="1s", cap="1m", timeout="30s", raises=[Declined])
def charge(order: Order, card: str) -> str:
    if card == "stolen":
        raise Declined(card)
    return world.do(step_info().key, "charge", order.id, str(order.total))


@step
def remind(order: Order) -> None:
    world.do(step_info().key, "remind", order.id)


@step(retries=5)
def pack(order_id: str, line: Line) -> str:
    return world.do(step_info().key, "pack", order_id, line.sku)


@step(retries=5, raises=[OutOfStock])
def ship(order: Order, parcels: list[str]) -> str:
    return world.do(step_info().key, "ship", order.id, ",".join(sorted(parcels)))


@step(retries=100)
def refund(order_id: str) -> None:
    """All that was charged for the order; nothing if nothing was."""
    world.do(step_info().key, "refund", order_id)


@step(retries=100)
def release(order_id: str) -> None:
    """All that was reserved for the order; nothing if nothing was."""
    world.do(step_info().key, "release", order_id)


# -- the body


@workflow
async def order(o: Order) -> Shipped:
    """Ends shipped and paid, or with nothing reserved and nothing charged."""
    parcels: list[str] = []

    async def pack_line(line: Line) -> None:
        parcels.append(await pack(o.id, line))

    try:
        await reserve(o)  # inside: a cancel may come when the stock is reserved and nobody knows of it yet
        if o.total > APPROVED_UP_TO:
            await approval(o)
        set_view({"stage": "packing", "since": now()})
        with fail_after("3 days"):  # holds across restarts
            async with open_nursery() as nursery:  # one that fails cancels the others, and all have ended after it
                nursery.start_soon(pay, o)
                for line in o.lines:
                    nursery.start_soon(pack_line, line, key=line.sku)  # its identity, whatever the order of the lines
        tracking = await ship(o, parcels)
        set_view({"stage": "shipped", "tracking": tracking})
        return Shipped(tracking, o.total)
    except BaseException:  # an error, a time limit, a cancel from outside
        set_view({"stage": "undoing", "since": now()})
        with move_on_after("1h", shield=True):  # what cancelled the order does not cancel its clean-up
            await refund(o.id)
            await release(o.id)
        raise


async def approval(o: Order) -> None:
    """Waits two days for the message `approval`."""
    await ask_for_approval(o)
    set_view({"stage": "approval", "total": o.total})
    won = await first(decided=receive("approval", Approval), late=sleep("2 days"))
    if won.value is None or not won.value.granted:
        raise Refused("nobody decided" if won.value is None else f"refused by {won.value.by}")


async def pay(o: Order) -> str:
    """Waits for the message `payment`, with a reminder after a day."""
    payment: Payment | None = None
    with move_on_after("1 day"):  # around the waiting only: what the bank has been asked for is not given up
        payment = await receive("payment", Payment)
    if payment is None:
        await remind(o)
        payment = await receive("payment", Payment)
    return await charge(o, payment.card)


# -- from the command line

app = App(order)


def rehearse() -> None:
    from penstock.testing import Message, run_workflow

    small = Order("A-1", [Line("pen", 2, Decimal(3)), Line("book", 1, Decimal(25))])
    large = Order("A-2", [Line("desk", 1, Decimal(900))])
    with TemporaryDirectory() as folder:
        world.path = Path(folder, "world.sqlite3")
        run = run_workflow(order, small, messages=[Message("payment", Payment("visa"), after="2 days")])
        print(small.id, "shipped", run.result().tracking, "after", run.took)
        run = run_workflow(order, large, messages=[Message("approval", Approval("ann", granted=False))])
        print(large.id, "undone:", run.error, "-", ", ".join(call.step for call in run.calls))


def tell(what: str, id: str, detail: str = "") -> None:
    """What a clerk does in another terminal."""
    with App().in_thread() as client:
        if what == "place":
            client.start(order, Order(id, [Line("desk", 1, Decimal(detail))]), id=id)
            return
        run = client.get(id, order)
        match what:
            case "approve" | "refuse":
                run.send("approval", Approval(detail, granted=what == "approve"), dedup=f"{what} by {detail}")
            case "pay":
                run.send("payment", Payment(detail), dedup=f"card {detail}")
            case "cancel":
                run.cancel(detail or None)
            case "show":
                print(run.status(), run.view())
            case _:
                sys.exit(f"{what}? place, approve, refuse, pay, cancel or show")


if __name__ == "__main__":
    match sys.argv[1:]:
        case []:
            app.main()
        case ["--try"]:
            rehearse()
        case [what, id, *detail]:
            tell(what, id, *detail[:1])
        case _:
            sys.exit(__doc__)
