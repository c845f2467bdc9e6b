"""Values that a journal in PostgreSQL can't hold, or would give back as others: each comes back equal, or is refused
where it is given, with what is wrong. None of them blocks a run or ends a process."""

from __future__ import annotations

import datetime as dt
import enum
import math
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from typing import Any

import msgspec
import pytest
import trio

from penstock.client.errors import PayloadTooLarge as TooLargeToSend
from penstock.durable import (
    App,
    PayloadTooLarge,
    Run,
    RunFailed,
    StepFailed,
    Unencodable,
    receive,
    set_view,
    sleep,
    step,
    workflow,
)
from penstock.durable.codec import decode, encode
from penstock.durable.workflow import Workflow
from tests.waiting import wait_until

BOUND_S = 60.0


class Colour(enum.Enum):
    RED = 1


@dataclass(frozen=True)
class Box:
    size: int
    inner: Box | None = None


class Sealed(msgspec.Struct, frozen=True):
    text: str
    data: bytes = b""


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def cyclic() -> Any:
    value: list[Any] = []
    value.append(value)
    return value


NOON = dt.datetime(2030, 1, 1, 12, 0, 0, 1, dt.timezone(dt.timedelta(hours=3)))
EQUAL: list[tuple[Any, Any]] = [
    ("\\u0000 \u2028 \U0001f600 \x7f", str),
    ("", str),
    (2**63, int),
    (-(2**63) - 1, int),
    (10**999, int),
    (-0.0, float),
    (5e-324, float),
    (1.7e308, float),
    (Decimal("1E+400"), Decimal),
    (Decimal("1." + "3" * 2_000), Decimal),
    (NOON, dt.datetime),
    (NOON.replace(tzinfo=None), dt.datetime),
    (NOON.date(), dt.date),
    (NOON.timetz(), dt.time),
    (dt.timedelta(days=3, microseconds=1), dt.timedelta),
    (uuid.UUID(int=7), uuid.UUID),
    (Colour.RED, Colour),
    (b"\x00\xff", bytes),
    (Box(1, Box(2)), Box),
    (Sealed("a", b"\0"), Sealed),
    ({1: "a", 2: "b"}, dict[int, str]),
    ({dt.date(2030, 1, 1): 1.5}, dict[dt.date, float]),
    ({"": {"": None}}, dict[str, dict[str, None]]),
    ({1, 2}, set[int]),
    ((1, "a"), tuple[int, str]),
    (nested(100), Any),
    ("~base64:AAAA", str),
    ("null", str),
    (None, type(None)),
]
REFUSED: list[tuple[Any, Any, str]] = [
    ("a\0b", str, "has a NUL character"),
    ({"a\0": 1}, dict[str, int], "has a NUL character"),
    ("\ud800", str, "surrogates not allowed"),
    ({"\udc00": 1}, dict[str, int], "surrogates not allowed"),
    (math.nan, float, "not finite"),
    ({"a": [1.0, {"b": -math.inf}]}, Any, "not finite"),
    (10**1_000, int, "a number of more than 1,000 digits"),
    (nested(101), Any, "more than 100 objects and lists inside each other"),
    (nested(100_000), Any, "has no JSON form"),
    (cyclic(), Any, "has no JSON form"),
    ({(1, 2): 3}, Any, "has no JSON form"),
    ({None: 1}, Any, "has no JSON form"),
    (object(), Any, "has no JSON form"),
    (ValueError("x"), Any, "has no JSON form"),
    (1j, Any, "has no JSON form"),
]
WRONG: list[tuple[Any, Any, str]] = [
    (None, str, "Expected `str`, got `null`"),
    (True, int, "Expected `int`, got `bool`"),
    ({"size": "large"}, Box, "Expected `int`, got `str` - at `$.size`"),
]


@pytest.mark.parametrize(("value", "type_", "why"), REFUSED)
def test_what_can_not_be_kept_is_refused_with_its_reason(value: Any, type_: Any, why: str):
    with pytest.raises(Unencodable, match="^the thing .*" + why):
        encode(value, "the thing")


def giving(values: list[tuple[Any, Any]]) -> tuple[list[Callable[[], Any]], Workflow[..., Any]]:
    """A workflow with a step for each value, which tells for each whether the body got it, or what was raised."""

    def make(value: Any, type_: Any) -> Any:
        def gives() -> Any:
            return value

        gives.__annotations__["return"] = type_
        return step(gives)

    steps = [make(value, type_) for value, type_ in values]

    @workflow(name="takes")
    async def takes() -> list[str]:
        seen: list[str] = []
        for each, (value, _) in zip(steps, values, strict=True):
            try:
                got = await each()
                seen.append("equal" if got == value and type(got) is type(value) else f"{got!r}")
            except (Unencodable, StepFailed, PayloadTooLarge) as error:
                seen.append(str(error))
        await receive("go on", bool)
        return seen

    return steps, takes


async def taken(dsn: str, takes: Workflow[..., Any]) -> list[str]:
    """What it tells; its second half runs in another program, so that all of the first is replayed there."""
    with trio.fail_after(BOUND_S):
        async with App(takes, at=dsn) as app:
            run = await app.start(takes, id="t-1")
            await wait_until(partial(waits, run))
        async with App(takes, at=dsn) as app:
            run = await app.get("t-1", takes)
            await run.send("go on", True)
            result: list[str] = await run.result()
            return result


async def waits(run: Run[Any]) -> bool:
    return await run.status() == "WAITING"


async def test_what_can_be_kept_comes_back_equal_over_postgres(database_dsn: str):
    _, takes = giving(EQUAL)
    assert await taken(database_dsn, takes) == ["equal"] * len(EQUAL)


async def test_a_value_that_can_not_be_kept_fails_its_step(database_dsn: str):
    wrong = [*REFUSED, *WRONG]
    _, takes = giving([(value, type_) for value, type_, _ in wrong])
    said = await taken(database_dsn, takes)
    assert len(said) == len(wrong)
    for text, (_, _, why) in zip(said, wrong, strict=True):
        assert text.startswith("Unencodable: gives at /"), text
        assert why in text


async def test_a_result_that_can_not_be_kept_fails_its_run(database_dsn: str):
    @workflow(name="gives")
    async def gives(number: int) -> str:
        value, _, _ = [*REFUSED, *WRONG][number]
        result: str = value
        return result

    with trio.fail_after(BOUND_S):
        async with App(gives, at=database_dsn) as app:
            for number in range(len(REFUSED) + 1):
                run = await app.start(gives, number)
                with pytest.raises(RunFailed, match="Unencodable: the result of gives "):
                    await run.result()


async def test_arguments_messages_and_views_are_refused_at_their_line(database_dsn: str):
    said: list[str] = []

    @workflow(name="takes")
    async def takes(box: Box) -> list[str]:
        for value, _, _ in REFUSED:
            try:
                set_view({"value": value})
            except Unencodable as error:
                said.append(str(error))
        await sleep(0)
        return said

    with trio.fail_after(BOUND_S):
        async with App(takes, at=database_dsn) as app:
            for value, _, why in REFUSED:
                with pytest.raises(Unencodable, match=f"the arguments of takes .*{why}"):
                    await app.start(takes, value)
            with pytest.raises(TypeError, match="takes does not take these arguments: box: Expected `object`"):
                await app.start(takes, 1)
            run = await app.start(takes, Box(1), id="t-1")
            for value, _, why in REFUSED:
                with pytest.raises(Unencodable, match=f"message 'm' .*{why}"):
                    await run.send("m", value)
            assert len(await run.result()) == len(REFUSED)
    assert all(text.startswith("the view ") for text in said)


async def test_the_size_of_payloads_is_the_setting(database_dsn: str, monkeypatch: pytest.MonkeyPatch):
    @step
    async def gives(size: int) -> str:
        return "x" * size

    @workflow(name="sizes")
    async def sizes(size: int, text: str) -> str:
        try:
            return await gives(size)
        except StepFailed as error:
            return str(error)

    for limit, good, bad in [("2048", 2_000, 2_100), ("1000000", 900_000, 1_100_000)]:
        monkeypatch.setenv("WE_PAYLOAD_MAX_BYTES", limit)
        with trio.fail_after(BOUND_S):
            async with App(sizes, at=database_dsn) as app:
                assert len(await (await app.start(sizes, good, "")).result()) == good
                run = await app.start(sizes, bad, "")
                assert "gives at /0 returned a value that is " in await run.result()
                with pytest.raises((PayloadTooLarge, TooLargeToSend)):
                    await app.start(sizes, 1, "x" * bad)
                with pytest.raises((PayloadTooLarge, TooLargeToSend)):
                    await run.send("m", "x" * bad)


@pytest.mark.parametrize(("value", "type_"), EQUAL)
def test_what_can_be_kept_comes_back_equal(value: Any, type_: Any):
    found = decode(encode(value, "it"), type_)
    assert (found, type(found)) == (value, type(value))
