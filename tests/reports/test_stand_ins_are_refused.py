"""A mock, a proxy or a lazy object where a value is expected: refused with its class, and never asked without an end.

Such an object answers every question that an instance is asked, so its type is asked instead.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any
from unittest.mock import AsyncMock, MagicMock, Mock, NonCallableMock, create_autospec

import pytest

from penstock.durable import StepFailed, Unencodable, child, set_view, step, workflow
from penstock.testing import Message, run_workflow


class Answers:
    """Has every attribute, as a proxy of an RPC library has."""

    def __getattr__(self, name: str) -> Any:
        return self

    def __call__(self, *args: object, **kwargs: object) -> Any:
        return self


class AnswersWithAnother:
    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: AnswersWithAnother()


class Meta(type):
    def __getattr__(cls, name: str) -> Any:
        return lambda *args, **kwargs: cls


class OfSuchAClass(metaclass=Meta):
    pass


class Lazy:
    """What it stands for is not there: being asked for its class fails."""

    @property
    def __class__(self) -> Any:
        raise RuntimeError("working outside of request context")


STAND_INS: list[Callable[[], Any]] = [
    Mock, MagicMock, NonCallableMock, Answers, AnswersWithAnother, OfSuchAClass, Lazy,
    lambda: Mock(spec=dict), lambda: MagicMock(spec=list), lambda: create_autospec(int), lambda: [Mock()],
    lambda: {"order": MagicMock()}, lambda: (1, Answers()),
]  # fmt: skip


@step
async def charge(amount: int) -> Any:
    return amount


@workflow
async def order(amount: int) -> str:
    try:
        return repr(await charge(amount))
    except StepFailed as error:
        return f"{error.type_name}: {error.message}"


@workflow
async def billing(amount: int) -> Any:
    return amount


@workflow
async def parent() -> Any:
    return await child(billing, 1)


@pytest.mark.parametrize("make", STAND_INS)
def test_a_stand_in_that_a_step_returns_fails_the_step(make: Callable[[], Any]):
    reported = run_workflow(order, 1, steps={charge: lambda amount: make()}).result()
    assert reported.startswith("Unencodable: charge at /0 returned a value that is ")
    assert "which has no JSON form" in reported


@pytest.mark.parametrize("fake", [Mock(), MagicMock(), Answers()])
def test_a_mock_as_a_step_ends_and_names_the_mock(fake: Any):
    assert type(fake).__name__ in run_workflow(order, 1, steps={charge: fake}).result()


@pytest.mark.parametrize("fake", [Mock(return_value=7), MagicMock(return_value=7), AsyncMock(return_value=7)])
def test_a_mock_with_a_return_value_stands_in(fake: Any):
    assert run_workflow(order, 1, steps={charge: fake}).result() == "7"
    fake.assert_called_once_with(1)


def test_a_stand_in_that_is_false_is_called():
    class Empty:
        def __len__(self) -> int:
            return 0

        def __call__(self, amount: int) -> int:
            return -amount

    assert run_workflow(order, 1, steps={charge: Empty()}).result() == "-1"


@pytest.mark.parametrize("make", STAND_INS)
def test_a_stand_in_as_an_argument_is_refused_there(make: Callable[[], Any]):
    said: list[str] = []

    @workflow
    async def gives() -> None:
        for use in (lambda: charge(make()), lambda: set_view(make()), lambda: charge(amount=make())):
            try:
                waits: Any = use()
                await waits
            except Unencodable as error:
                said.append(str(error))

    run_workflow(gives).result()
    assert len(said) in (3, 6)  # once when it ran, and once when it was replayed
    assert all("no JSON form" in text for text in said)
    with pytest.raises(TypeError, match="no JSON form"):
        run_workflow(order, make())
    with pytest.raises(TypeError, match="no JSON form"):
        run_workflow(order, 1, messages=[Message("m", make())])


def test_a_mock_as_a_child_fails_the_child():
    run = run_workflow(parent, steps={billing: Mock()})
    assert "no JSON form" in str(run.error)


def test_lazy_objects_in_a_module_are_left_alone():
    module = types.ModuleType("lazy_module")
    sys.modules["lazy_module"] = module
    try:
        exec("class Declined(Exception): pass\nasync def pay() -> int: raise Declined('no money')\n", vars(module))
        vars(module).update(request=Lazy(), mock=Mock(spec=type), proxy=Answers())
        pay = step(vars(module)["pay"])

        @workflow
        async def pays() -> str:
            try:
                return str(await pay())
            except vars(module)["Declined"] as error:
                return f"declined: {error}"

        assert run_workflow(pays).result() == "declined: no money"
    finally:
        del sys.modules["lazy_module"]
