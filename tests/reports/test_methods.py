"""Steps and workflows in classes: static methods work, others are refused when the class is made. So is what is no
function; a decorator below may hide that one is async.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
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


async def plain(order: str) -> str:
    return f"charged {order}"


def hidden(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return call


async def test_a_decorator_may_hide_that_a_step_is_async(database_dsn: str):
    charge = step(hidden(plain))

    @workflow
    async def order(id: str) -> str:
        result: str = await charge(id)
        return result

    assert run_workflow(order, "17").result() == "charged 17"
    assert await charge("18") == "charged 18"
    async with App(order, at=database_dsn) as app:
        assert await (await app.start(order, "17")).result(60) == "charged 17"


class Charges:
    async def __call__(self, order: str) -> str:
        return order


async def one_by_one():
    yield 1


def counted():
    yield 1


NO_FUNCTIONS = [
    (functools.partial(plain, "17"), "an object of partial"),
    (Charges(), "an object of Charges"),
    (Charges, "the class Charges"),
    (step(plain), "an object of Step"),
    (workflow(plain), "an object of Workflow"),
    (one_by_one, "one_by_one (test_methods.py:"),
    (counted, "counted (test_methods.py:"),
]


@pytest.mark.parametrize("decorate", [step, step(name="named"), step.transaction, workflow, workflow(name="named")])
@pytest.mark.parametrize(("given", "reported"), NO_FUNCTIONS, ids=[reported for _, reported in NO_FUNCTIONS])
def test_what_is_no_function_is_refused_with_its_kind(decorate: Any, given: Any, reported: str):
    with pytest.raises(TypeError) as caught:
        decorate(given)
    assert reported in str(caught.value)
