"""Steps and workflows in classes: static methods work, others are refused when the class is made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg
import pytest

from penstock.durable import App, step, workflow
from penstock.testing import run_workflow


class Shop:
    @step
    @staticmethod
    async def reserve(order: str) -> str:
        return f"stock {order}"

    @staticmethod
    @step(retries=2)
    async def charge(order: str, *, amount: int = 1) -> str:
        return f"{order}: {amount}"

    @step(name="pack it")
    @staticmethod
    def pack(order: str) -> str:
        return f"packed {order}"

    @step.transaction
    @staticmethod
    def keep(tx: psycopg.Connection, order: str) -> str:
        return f"{order} {tx.execute('SELECT 1').fetchone()}"

    @workflow
    @staticmethod
    async def order(id: str) -> list[str]:
        return [await Shop.reserve(id), await Shop().charge(id, amount=3), await Shop.pack(id), await Shop.keep(id)]

    @staticmethod
    @workflow(name="second-order", version=2)
    async def again(id: str) -> str:
        return await Shop.charge.using(retries=0)(id)


async def test_static_methods_are_steps_and_workflows(database_dsn: str):
    async with App(Shop.order, Shop.again, at=database_dsn) as app:
        run = await app.start(Shop.order, "17")
        assert await run.result(60) == ["stock 17", "17: 3", "packed 17", "17 (1,)"]
        assert await (await app.start(Shop.again, "18")).result(60) == "18: 1"
        names = [record["name"] async for record in run.history()]
    assert names == ["reserve", "charge", "pack it", "keep"]
    assert Shop.order.name == "order"


def test_a_class_may_name_steps_that_it_does_not_define():
    @step
    async def of_module(order: str) -> str:
        return f"charged {order}"

    @workflow
    async def order(id: str) -> str:
        return await Steps.charge(id)

    @dataclass
    class Steps:
        charge = of_module
        gently = of_module.using(retries=3)
        body = order

    assert run_workflow(Steps.body, "17").result() == "charged 17"


def instance(decorate: Any) -> None:
    class Shop:
        @decorate
        async def charge(self, order: str) -> str:
            return order

    del Shop


def odd_name(decorate: Any) -> None:
    class Shop:
        @decorate
        async def charge(this, order: str) -> str:  # noqa: N805 - it is not called self
            return order

    del Shop


def class_below(decorate: Any) -> None:
    class Shop:
        @decorate
        @classmethod
        async def charge(cls, order: str) -> str:
            return order

    del Shop


def class_above(decorate: Any) -> None:
    class Shop:
        @classmethod
        @decorate
        async def charge(cls, order: str) -> str:
            return order

    del Shop


@pytest.mark.parametrize("kind", [instance, odd_name, class_below, class_above])
@pytest.mark.parametrize("decorate", [step, step(retries=3), workflow, workflow(version=2)])
def test_other_methods_are_refused_when_the_class_is_made(kind: Any, decorate: Any):
    with pytest.raises((TypeError, RuntimeError)) as caught:  # Python 3.11 puts it into a RuntimeError
        kind(decorate)
    error = caught.value if isinstance(caught.value, TypeError) else caught.value.__cause__
    what = "a class method" if kind in (class_below, class_above) else "an instance method"
    assert isinstance(error, TypeError)
    assert f"{kind.__name__}.<locals>.Shop.charge (test_methods.py:" in str(error)
    assert what in str(error)
    assert "Write @staticmethod above @" in str(error)


def test_a_transaction_is_no_method_either():
    with pytest.raises((TypeError, RuntimeError)) as caught:

        class Shop:
            @step.transaction
            def keep(self, tx: Any) -> None: ...

        del Shop
    assert "instance method" in str(caught.value) + str(caught.value.__cause__)
