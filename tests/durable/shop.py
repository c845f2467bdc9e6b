"""An order with payment, stock and parcel: the body that these tests run."""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal

from penstock.durable import (
    fail_after,
    first,
    move_on_after,
    now,
    open_nursery,
    receive,
    rng,
    set_view,
    sleep,
    step,
    uuid4,
    workflow,
)


class Declined(Exception):
    """The bank says no."""


@dataclass
class Line:
    sku: str
    count: int


@dataclass
class Order:
    id: str
    lines: list[Line]
    total: Decimal = Decimal("19.90")


@dataclass
class Receipt:
    order_id: str
    amount: Decimal
    tags: list[str] = field(default_factory=list)


@dataclass
class Payment:
    by: str


@step
async def reserve(order: Order) -> str:
    return f"stock-{order.id}"


@step(retries=3, first="1s", cap="3s", timeout="30s", raises=[Declined])
async def charge(order: Order) -> Receipt:
    return Receipt(order.id, order.total)


@step
def pack(line: Line) -> str:
    return f"{line.count}x{line.sku}"


@step
async def remind(order: Order) -> None: ...


@step
async def release(stock: str) -> None: ...


@workflow
async def order(o: Order) -> str:
    stock = await reserve(o)
    packed: list[str] = []

    async def pay() -> None:
        with move_on_after("1 day") as window:
            await receive("payment", Payment)
        if window.cancelled_caught:
            await remind(o)
        receipt = await charge(o)
        packed.append(str(receipt.amount))

    async def pack_line(line: Line) -> None:
        packed.append(await pack(line))

    try:
        with fail_after("3 days"):
            async with open_nursery() as nursery:
                nursery.start_soon(pay)
                for line in o.lines:
                    nursery.start_soon(pack_line, line, key=line.sku)
        won = await first(approved=receive("approved", bool), late=sleep("2h"))
        set_view({"stage": won.name, "at": now()})
        return f"{','.join(packed)} {won.name} {uuid4()} {rng().random():.3f}"
    except BaseException:
        with move_on_after("1h", shield=True):
            await release(stock)
        raise
