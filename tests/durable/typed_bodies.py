"""What type checkers infer through the decorators and verbs; `test_types.py` has them check it. Never run."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, assert_type

from penstock.durable import (
    App,
    Run,
    Won,
    child,
    first,
    move_on_after,
    open_nursery,
    receive,
    sleep,
    start,
    step,
    workflow,
)
from penstock.testing import WorkflowRun, explore, run_workflow


@dataclass
class Order:
    id: str


@dataclass
class Receipt:
    amount: int


@step
async def charge(order: Order, *, times: int = 1) -> Receipt:
    return Receipt(times)


@step(retries=3, first="1s", timeout=timedelta(seconds=30), raises=[ValueError])
def render(order: Order) -> bytes:
    return order.id.encode()


@workflow
async def body(order: Order, note: str = "") -> int:
    assert_type(await charge(order, times=2), Receipt)
    assert_type(await render(order), bytes)
    assert_type(await charge.using(timeout="5s")(order), Receipt)
    assert_type(await receive("amount", int), int)
    assert_type(await receive("order", Order), Order)
    won = await first(paid=receive("paid", Receipt), late=sleep("1h"))
    assert_type(won, Won[Receipt | None])
    async with open_nursery() as nursery:
        nursery.start_soon(charge, order, key=order.id)
        nursery.start_soon(pack, order, 3)
        nursery.start_soon(body, order)
        nursery.start_soon(body, order, "note", key="body")
        nursery.start_soon(partial(charge, order, times=2), key="twice")
    with move_on_after("1h", shield=True) as window:
        await sleep(1)
    assert_type(window.cancelled_caught, bool)
    assert_type(await body(order), int)
    assert_type(await child(body, order), int)
    assert_type(await child(body, order, note="n"), int)
    assert_type(await child(body, order, "n", id="b"), int)
    assert_type(await child(partial(body, order, note="n"), id="b"), int)
    assert_type(await child("billing", order=17, id="b"), Any)
    assert_type(await start(body, order), str)
    assert_type(await start(body, order=order), str)
    assert_type(await start(body, order, id="b"), str)
    return 1


@workflow(version=2, name="named")
async def named(order: Order) -> str:
    return order.id


@workflow
async def options(order: Order, count: int = 1, *, gift: bool = False) -> str:
    return order.id


@workflow
async def nothing() -> None: ...


async def pack(order: Order, count: int) -> None: ...


async def outside(order: Order) -> None:
    assert_type(await charge(order), Receipt)  # a plain call
    assert_type(await render(order), bytes)
    assert_type(run_workflow(body, order), WorkflowRun[int])
    assert_type(run_workflow(named, order).result(), str)
    assert_type(run_workflow(options, order, gift=True), WorkflowRun[str])
    assert_type(run_workflow(options, order, 2, seed="o-1", backend="trio"), WorkflowRun[str])
    explore(options, order, count=2)
    explore(options, order, check=lambda run: None)


async def through_an_app(order: Order) -> None:
    async with App(body, named) as app:
        run = await app.start(body, order, id=order.id)
        assert_type(run, Run[int])
        assert_type(await run.result(), int)
        assert_type(await app.start(body, order), Run[int])
        assert_type(await app.start(body, order=order, note="n"), Run[int])
        assert_type(await app.start(body, order, "n", id="b", priority=2), Run[int])
        assert_type(await app.start(options, order, gift=True), Run[str])
        assert_type(await app.start(options, order, id="o"), Run[str])
        assert_type(await app.start(options, order, 3, delay="1h"), Run[str])
        assert_type(await app.start(partial(options, order, gift=True), id="o"), Run[str])
        assert_type(await app.start(nothing, id="n"), Run[None])
        assert_type(await (await app.get(order.id, named)).result(), str)
        assert_type(await app.get(order.id), Run[Any])
    with App(body).in_thread() as shop:
        assert_type(shop.start(named, order).result(), str)
        assert_type(shop.start(named, order, id=order.id, delay="1h").result(), str)
        assert_type(shop.start(options, order, gift=True).result(), str)
    assert_type(App(body).run(body, order, note="n"), int)
    assert_type(App(body).run(partial(body, order, note="n"), id=order.id), int)
    assert_type(App(nothing).run(nothing), None)
    assert_type(App(body).run(body, order, id=order.id), int)
