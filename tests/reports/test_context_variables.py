"""Context variables of a workflow function are its own: across awaits, in each branch, and never a step's."""

from __future__ import annotations

import contextvars
import decimal
from decimal import Decimal

import pytest

from penstock.durable import App, each, first, open_nursery, receive, sleep, step, workflow
from penstock.testing import Message, run_workflow

tenant: contextvars.ContextVar[str] = contextvars.ContextVar("tenant", default="none")
BOUND_S = 60.0


@step
async def reads_and_sets(value: str) -> str:
    before = tenant.get()
    tenant.set(value)
    return before


@step
def plain_reads_and_sets(value: str) -> str:
    before = tenant.get()
    tenant.set(value)
    return before


@workflow
async def variables() -> list[str]:
    seen = [tenant.get()]
    token = tenant.set("body")
    seen.append(await reads_and_sets("step"))
    seen.append(tenant.get())
    seen.append(await plain_reads_and_sets("step"))
    seen.append(tenant.get())

    async def branch(name: str) -> None:
        seen.append(tenant.get())
        mine = tenant.set(name)
        await sleep("10 ms")
        assert tenant.get() == name
        tenant.reset(mine)

    async with open_nursery() as nursery:
        nursery.start_soon(branch, "a")
        tenant.set("later")
        nursery.start_soon(branch, "b")
    await each(branch, ["c"])
    await first(a=sleep("1 ms"), b=receive("never", str))
    seen.append(tenant.get())
    tenant.reset(token)
    await sleep("10 ms")
    seen.append(tenant.get())
    seen.append(await reads_and_sets("again"))
    return seen


def expected(outside: str) -> list[str]:
    return ["none", outside, "body", outside, "body", "body", "later", "later", "later", "none", outside]


def test_variables_hold_across_awaits_and_stay_inside() -> None:
    token = tenant.set("program")
    try:
        assert run_workflow(variables).result() == expected("program")
        assert tenant.get() == "program"
    finally:
        tenant.reset(token)


@workflow
async def precise() -> list[str]:
    seen: list[str] = []
    with decimal.localcontext() as context:
        context.prec = 5
        seen.append(str(Decimal(1) / Decimal(3)))
        await sleep("10 ms")
        seen.append(str(Decimal(1) / Decimal(3)))
        seen.append(await reads_and_sets("x"))
        await receive("go", int)
        seen.append(str(Decimal(1) / Decimal(3)))
    seen.append(str(Decimal(1) / Decimal(7))[:8])
    return seen


def test_a_local_context_of_decimal_holds() -> None:
    decimal.getcontext().prec = 28
    found = run_workflow(precise, messages=[Message("go", 1, after="1 s")]).result()
    assert found == ["0.33333", "0.33333", "none", "0.33333", "0.142857"]


@pytest.mark.slow(reason="an engine of its own")
def test_it_is_so_on_an_engine_too(database_dsn: str) -> None:
    token = tenant.set("program")
    try:
        with App(variables, precise, at=database_dsn, name="context").in_thread() as client:
            assert client.start(variables, id="v").result(BOUND_S) == expected("program")
            run = client.start(precise, id="p")
            run.send("go", 1)
            assert run.result(BOUND_S) == ["0.33333", "0.33333", "program", "0.33333", "0.142857"]
    finally:
        tenant.reset(token)
