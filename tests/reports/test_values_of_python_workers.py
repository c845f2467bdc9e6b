"""What a Python worker returns is read by expressions, or refused with its path; a builder takes no text for a list."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from pathlib import PurePath
from typing import Any

import attrs
import msgspec
import pytest
from pydantic import BaseModel

from penstock.client import BadRequest
from penstock.client.builder import WorkflowBuilder, backoff, compensation
from penstock.client.encoding import to_json, to_json_object
from penstock.core.expression import parse
from tests.sdk.conftest import run
from tests.sdk.loops import Run
from tests.sdk.test_handlers import report_of

__all__ = ["run"]

NAIVE = datetime(2026, 3, 1, 12, 30)  # noqa: DTZ001 - the point of the test
NOW = datetime(2026, 11, 29, tzinfo=UTC)


@dataclasses.dataclass
class Dated:
    at: datetime


class Stamped(msgspec.Struct):
    at: datetime


class Model(BaseModel):
    at: datetime


@attrs.define
class Defined:
    at: object


@attrs.define(eq=False)
class Private:
    """msgspec leaves out fields that begin with _, whatever they hold."""

    note: str | None = None
    _at: object = NAIVE
    _share: float = float("nan")
    _parent: object = None


class Moment(Enum):
    NAIVE = NAIVE
    NOTHING = Decimal("NaN")


@pytest.mark.parametrize(
    ("value", "place"),
    [
        ({"a": [1, {"b": Fraction(1, 3)}]}, "value.a.1.b: objects of type Fraction"),
        ({"a": {"b": PurePath("x")}}, "value.a.b: objects of type Pure"),
        ({"a": {"\ud800": 1}, "b": 1}, "value.a: 'utf-8' codec can't encode"),
        ({"a": [1j]}, "value.a.0: objects of type complex"),
        ({"a": {"b": {None: 1}}}, "value.a.b: objects of type NoneType"),
    ],
)
def test_what_has_no_json_form_is_refused_with_the_path(value: object, place: str) -> None:
    for encode in (to_json, to_json_object):
        with pytest.raises(BadRequest) as refused:
            encode(value)
        assert refused.value.reason.startswith(f"not representable as JSON: {place}")


def test_a_value_that_holds_itself_is_refused() -> None:
    value: dict[str, Any] = {}
    value["again"] = value
    with pytest.raises(BadRequest, match="not representable as JSON"):
        to_json_object(value)


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"due": NAIVE}, "value.due"),
        ({"due": NAIVE.replace(microsecond=5)}, "value.due"),
        ({"a": [{"b": (1, NAIVE)}]}, "value.a.0.b.1"),
        ({"a": Dated(NAIVE)}, "value.a.at"),
        (Stamped(NAIVE), "value.at"),
        (Model(at=NAIVE), "value.at"),
        ({"a": [Defined({"b": NAIVE})]}, "value.a.0.at.b"),
        ({"a": {NAIVE: 1}}, f"value.a.{NAIVE}"),
        ({"a": [Moment.NAIVE]}, "value.a.0"),
    ],
)
def test_a_time_without_its_zone_is_refused_with_the_path(value: object, path: str) -> None:
    with pytest.raises(BadRequest) as refused:
        to_json_object(value)
    assert refused.value.reason.startswith(f"{path} is a datetime without a zone")


@pytest.mark.parametrize(
    "value",
    [Decimal("NaN"), Decimal("sNaN"), Decimal("Infinity"), float("nan"), float("-inf"), Moment.NOTHING],
)
def test_a_number_that_is_none_is_refused_with_the_path(value: object) -> None:
    for place, holder in (("1", value), (r"1\.at", Defined(value))):
        with pytest.raises(BadRequest, match=rf"value\.a\.{place} is not a finite number"):
            to_json_object({"a": [1, holder]})


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"a": {Decimal("1.10"): 1}}, r"value\.a\.1\.10 is a key that is a decimal"),
        ({"a": [{"b": "x", Decimal(-2): {}}]}, r"value\.a\.0\.-2 is a key that is a decimal"),
        ({"a": [Decimal("1E+400")]}, r"value\.a\.0 is a decimal beyond all numbers"),
        ({"a": Decimal("-" + "9" * 320)}, r"value\.a is a decimal beyond all numbers"),
    ],
)
def test_a_decimal_that_can_not_be_read_is_refused_with_the_path(value: object, words: str) -> None:
    """The key was written without quotes: no JSON at all."""
    with pytest.raises(BadRequest, match=words):
        to_json_object(value)


def test_what_looks_like_such_a_decimal_stays() -> None:
    value = {"a": "10,12:30", "b": [1, 2], "c": "1E+400", "d": {"1.10": "9" * 400}, "e": 10**320, "f": Decimal("1E+30")}
    assert msgspec.json.decode(to_json_object(value)) == value | {"f": 1e30}


@pytest.mark.parametrize(
    ("value", "expression", "expected"),
    [
        (Decimal("1.10"), "x + 1", 2.1),
        (Decimal("1E+3"), "x > 999", True),
        (Decimal("-0.5"), "x * 2", -1),
        (datetime(2026, 3, 1, 12, 30, tzinfo=UTC), "date(x).Year()", 2026),
        (datetime(2026, 3, 1, 12, 30, tzinfo=timezone(timedelta(hours=2))), "date(x).Month()", 3),
        (date(2026, 3, 1), "date(x).Day()", 1),
    ],
    ids=repr,
)
def test_what_is_written_expressions_read(value: object, expression: str, expected: object) -> None:
    read: dict[str, Any] = msgspec.json.decode(to_json_object({"x": value}))
    assert parse("${" + expression + "}").evaluate(read, NOW) == pytest.approx(expected)


def test_arguments_of_runs_of_code_stay_as_they_were() -> None:
    """Code reads them by its annotations: a decimal with its digits, a time as it was written."""
    assert to_json({"price": Decimal("1.10"), "at": NAIVE}) == b'{"price":"1.10","at":"2026-03-01T12:30:00"}'


def test_texts_that_look_like_times_stay_as_they_are() -> None:
    value = {"t": "2026-03-01T12:30:00", "n": None, "NaN": 1}
    assert msgspec.json.decode(to_json_object(value)) == value


@pytest.mark.parametrize("in_thread", [False, True])
def test_such_a_result_fails_the_job_for_good(run: Run, in_thread: bool) -> None:
    async def handle() -> dict[str, Any]:
        return {"due": NAIVE}

    def handle_in_thread() -> dict[str, Any]:
        return {"due": NAIVE}

    report = report_of(run, handle_in_thread if in_thread else handle)
    assert report.retryable is False
    assert "value.due is a datetime without a zone" in report.error_message


LISTS: Sequence[Callable[[WorkflowBuilder], object]] = [
    lambda flow: flow.service_task("a", "t", no_retry_on="GONE"),
    lambda flow: flow.service_task("a", "t", retry_on="GONE"),
    lambda flow: flow.service_task("a", "t", boundary={"type": "TIMER"}),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType] - the point of the test
    lambda flow: flow.parallel("a", "left", join="j"),
    lambda flow: flow.compensate("a", steps="book"),
    lambda flow: compensation("t", no_retry_on="GONE"),
]


@pytest.mark.parametrize("build", LISTS)
def test_a_text_is_no_list_of_a_builder(build: Callable[[WorkflowBuilder], object]) -> None:
    with pytest.raises(TypeError, match=r"^\w+: takes a list, not \w+: write \["):
        build(WorkflowBuilder("w"))


def test_a_back_off_has_the_defaults_of_json() -> None:
    assert backoff("PT1S") == {"initial": "PT1S", "multiplier": 2.0}
    assert backoff("PT1S", jitter=0.2)["jitter"] == 0.2


def test_private_fields_of_attrs_classes_are_left_out_and_not_looked_into() -> None:
    value = Private()
    value._parent = [value]
    assert to_json_object({"a": value}) == b'{"a":{"note":null}}'
