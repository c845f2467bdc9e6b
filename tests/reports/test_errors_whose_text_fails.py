"""An error whose ``__str__`` or ``__repr__`` fails ends its step and its run as every other error does.

Nobody's text is asked for without a guard: not of the error, of what caused it, its notes, its arguments, of a value
that has no JSON form, or of a key in a message of ours.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import trio

from penstock.client.tracing import calling
from penstock.durable import App, Run, RunCancelled, RunFailed, StepFailed, Unencodable, receive, step, workflow
from penstock.durable.duration import BadDuration, seconds_of
from penstock.durable.workflow import check_workflow
from penstock.testing import run_workflow
from penstock.user_text import repr_of, text_of

BOUND_S = 60.0


class Stops(BaseException):
    pass


class Odd(str):
    """A text that is none of our own."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    def __getitem__(self, key: Any) -> Any:
        raise RuntimeError("no part")

    def encode(self, *args: Any, **kwargs: Any) -> bytes:
        raise RuntimeError("no bytes")


def raising(error: BaseException) -> Callable[[Any], Any]:
    def fails(self: object) -> Any:
        raise error

    return fails


FAILING: list[Callable[[Any], Any]] = [
    raising(RuntimeError("no text")),
    raising(AttributeError("code")),
    raising(SystemExit(3)),
    raising(Stops()),
    raising(trio.TooSlowError()),
    lambda self: None,
    lambda self: b"bytes",
    str,  # for ever
    lambda self: "\udcff \ud800",
    lambda self: "long " * 100_000,
    lambda self: Odd("odd"),
]


def classes(says: Callable[[Any], Any]) -> list[type[Exception]]:
    return [
        type("Unreadable", (Exception,), {"__str__": says}),
        type("Unreadable", (Exception,), {"__repr__": says}),
        type("Unreadable", (Exception,), {"__str__": says, "__repr__": says, "args": property(says)}),
        type("Unreadable", (ExceptionGroup,), {"__str__": says, "__repr__": says}),
    ]


def made(class_: type[Exception]) -> Exception:
    if issubclass(class_, ExceptionGroup):
        return class_("group", [ValueError("inner")])
    return class_("why")


def ways(class_: type[Exception]) -> list[Callable[[], None]]:
    """How such an error is met."""

    def itself() -> None:
        raise made(class_)

    def as_cause() -> None:
        raise ValueError("outer") from made(class_)

    def as_argument() -> None:
        raise ValueError(made(class_))

    def in_a_group() -> None:
        raise ExceptionGroup("group", [made(class_), KeyError(made(class_))])

    def with_notes() -> None:
        error = made(class_)
        error.__notes__ = [made(class_), Odd("odd")]  # type: ignore[list-item]  # as users do it
        raise error

    def with_notes_that_are_none() -> None:
        error = ValueError("x")
        error.__notes__ = 5  # type: ignore[assignment]  # as users do it
        raise error

    return [itself, as_cause, as_argument, in_a_group, with_notes, with_notes_that_are_none]


@pytest.mark.parametrize("says", FAILING)
def test_a_step_with_such_an_error_fails_as_others_do(says: Callable[[Any], Any]):
    for class_ in classes(says):
        for way in ways(class_):

            @step(retries=1)
            async def breaks() -> None:
                way()  # noqa: B023 - called within the iteration

            @workflow
            async def caught() -> str:
                try:
                    await breaks()
                except Exception:
                    return "caught"
                return "went on"

            @workflow
            async def uncaught() -> None:
                await breaks()

            @workflow
            async def own() -> None:
                way()  # noqa: B023 - called within the iteration

            run = run_workflow(caught)
            assert run.result() == "caught"
            assert len(run.calls) == 2
            assert run_workflow(uncaught).error is not None
            assert run_workflow(own).error is not None


async def test_runs_with_such_errors_end_and_can_be_cancelled(database_dsn: str, caplog: pytest.LogCaptureFixture):
    [error_class, *_] = classes(raising(RuntimeError("no text")))

    @step(retries=1, first=0.01)
    async def breaks() -> None:
        raise error_class("why")

    @workflow
    async def uncaught() -> None:
        await breaks()

    @workflow
    async def own() -> None:
        raise error_class("why")

    @workflow
    async def result() -> Any:
        return error_class("why")

    @workflow
    async def waits() -> None:
        try:
            await breaks()
        except StepFailed:
            await receive("go on", bool)

    caplog.set_level(logging.WARNING)
    with trio.fail_after(BOUND_S):
        async with App(uncaught, own, result, waits, at=database_dsn) as app:
            for each in (uncaught, own, result):
                run: Run[Any] = await app.start(each)
                with pytest.raises(RunFailed, match="Unreadable"):
                    await run.result()
                assert await run.status() == "FAILED"
            run = await app.start(waits)
            await run.cancel()
            with pytest.raises(RunCancelled):
                await run.result()
    assert "can't go on" not in caplog.text


def test_values_in_our_messages_are_asked_with_a_guard():
    class Silent:
        def __repr__(self) -> str:
            raise RuntimeError("no text")

        __str__ = __repr__

        def __float__(self) -> float:
            raise RuntimeError("no number")

    @step
    async def gives() -> Any:
        return Silent()

    @workflow
    async def takes() -> None:
        await gives()

    with pytest.raises(TypeError, match=r"not <not told: RuntimeError>"):
        check_workflow(Silent())
    with pytest.raises(BadDuration, match="<not told: RuntimeError> is not a duration"):
        seconds_of(Silent())  # type: ignore[arg-type]  # as users do it
    assert "Silent, which has no JSON form" in str(run_workflow(takes).error)


def test_serializers_and_validators_that_fail_refuse_the_value():
    pydantic = pytest.importorskip("pydantic")
    [error_class, *_] = classes(raising(RuntimeError("no text")))

    class Order(pydantic.BaseModel):  # type: ignore[misc, name-defined]  # imported if it is there
        number: int

        @pydantic.field_validator("number")
        @classmethod
        def probes(cls, number: int) -> int:
            if number < 0:
                raise error_class("why")
            return number

        @pydantic.field_serializer("number")
        def writes(self, number: int) -> int:
            if number == 0:
                raise error_class("why")
            return -number

    async def place(number: int) -> Any:
        return Order(number=number)

    place.__annotations__["return"] = Order
    placing = step(place)

    @workflow
    async def orders(number: int) -> str:
        try:
            return str(await placing(number))
        except StepFailed as error:
            return error.message

    for number in (0, 1):
        assert "place at /0 returned" in run_workflow(orders, number).result()
    assert run_workflow(orders, 0).calls[0].attempt == 1


def test_the_guard_lets_only_the_keyboard_through():
    class Ctrl:
        def __repr__(self) -> str:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        repr_of(Ctrl())
    assert text_of("x" * 100_000, 10) == "x" * 10
    assert type(text_of(Odd("odd"))) is str


def test_a_traced_call_keeps_its_error():
    [error_class, *_] = classes(raising(RuntimeError("no text")))
    with pytest.raises(error_class), calling("start", begins=True):
        raise error_class("why")


def test_unencodable_is_what_a_failing_serializer_gives():
    class Model:
        def model_dump(self, mode: str) -> Any:
            raise SystemError(self)

    @workflow
    async def takes(model: Any) -> None:
        return None

    with pytest.raises(Unencodable, match="the arguments of takes"):
        run_workflow(takes, Model())
