"""Arguments of steps and workflows, from JSON: as the function takes them, or told which one does not fit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pydantic
import pytest

from penstock.durable.codec import Decoder
from penstock.durable.signature import Parameters


@dataclass
class Order:
    number: int
    lines: list[str]


class Address(pydantic.BaseModel):
    city: str


def ship(order: Order, to: Address, note: str | None = None, *, fast: bool = False, tags: tuple[str, ...] = ()) -> int:
    return len((order, to, note, fast, tags))


SHIP = Parameters(ship)
ORDER, ADDRESS = '"order":{"number":7,"lines":["a"]}', '"to":{"city":"Bern"}'


@pytest.mark.parametrize(
    ("text", "positional", "named"),
    [
        (f"{{{ORDER},{ADDRESS}}}", [Order(7, ["a"]), Address(city="Bern")], {}),
        (f'{{{ADDRESS},{ORDER},"note":"x","other":[1]}}', [Order(7, ["a"]), Address(city="Bern"), "x"], {}),
        (f'{{{ORDER},"note":null}}', [Order(7, ["a"])], {"note": None}),
        (
            f'{{{ORDER},{ADDRESS},"fast":true,"tags":["t"]}}',
            [Order(7, ["a"]), Address(city="Bern")],
            {"fast": True, "tags": ("t",)},
        ),
        ("{}", [], {}),
    ],
)
def test_arguments_come_as_the_function_takes_them(text: str, positional: list[Any], named: dict[str, Any]):
    assert SHIP.arguments(text) == (positional, named)


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        (f'{{"order":{{"number":"7","lines":[]}},{ADDRESS}}}', "order: Expected `int`, got `str` - at `$.number`"),
        (f'{{{ORDER},"to":{{}}}}', "to: 1 validation error for Address"),
        (f'{{{ORDER},{ADDRESS},"tags":[1]}}', "tags: Expected `str`, got `int` - at `$[0]`"),
        ("[1]", "Expected `object`, got `array`"),
    ],
)
def test_the_one_that_does_not_fit_is_named(text: str, reported: str):
    with pytest.raises(ValueError) as caught:
        SHIP.arguments(text)
    assert str(caught.value).startswith(reported)


def test_no_argument_is_shared_by_two_calls():
    text = f"{{{ORDER},{ADDRESS}}}"
    (one, _), _ = SHIP.arguments(text)
    one.lines.append("b")
    assert SHIP.arguments(text)[0][0] == Order(7, ["a"])


def test_a_parameter_without_annotation_takes_any_json():
    def free(value, other=None):  # type: ignore[no-untyped-def]
        return value, other

    assert Parameters(free).arguments('{"value":{"a":[1,null]}}') == ([{"a": [1, None]}], {})
    assert Parameters(free).arguments('{"value":1,"other":2}') == ([1, 2], {})


def test_a_decoder_tells_of_a_type_that_has_no_json():
    with pytest.raises(ValueError, match="not supported"):
        Decoder(Parameters)("{}")
