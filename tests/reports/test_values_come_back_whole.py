"""What a step, a call or a run gives comes back to the next process as it was given, or is refused with its place.

By type and content, part by part: nothing is lost in silence, and no ``__eq__`` of a user is asked.
"""

from __future__ import annotations

import collections
import datetime as dt
import enum
import ipaddress
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cached_property
from typing import Any, Literal, NamedTuple, Required, TypedDict
from zoneinfo import ZoneInfo

import msgspec
import pydantic
import pytest

from penstock.durable import StepFailed, Unencodable, child, continue_as_new, start, step, workflow
from penstock.durable.codec import decode, decode_kept, encode
from penstock.durable.kept import loss
from penstock.kernel.record import JournalKind, Record
from penstock.testing import run_workflow
from penstock.testing.durable import Memory

# pyright: reportUnknownMemberType=false, reportUntypedBaseClass=false


class Size(enum.Enum):
    SMALL = 1


class Level(enum.IntEnum):
    HIGH = 1


class Name(enum.StrEnum):
    ANN = "ann"


class Right(enum.Flag):
    READ = 1
    WRITE = 2


@dataclass
class Base:
    number: int


@dataclass
class Derived(Base):
    more: str = "more"


@dataclass
class EqualsAll:
    number: int
    hidden: int = field(default=0, init=False)

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType] - as dataclasses have it


@dataclass
class Computes:
    number: int
    twice: int = field(init=False)

    def __post_init__(self) -> None:
        self.twice = 2 * self.number

    @cached_property
    def thrice(self) -> int:
        return 3 * self.number


@dataclass(slots=True)
class Slotted:
    number: int
    lock: Any = field(default=None, init=False)


class Plain(msgspec.Struct):
    number: int


class Longer(Plain):
    more: int = 0


class Pair(NamedTuple):
    one: int
    two: str


class Options(TypedDict, total=False):
    retries: Required[int]
    name: str


class Model(pydantic.BaseModel):
    number: int = 0


class Sub(Model):
    more: str = "more"


class Private(pydantic.BaseModel):
    number: int = 0
    _token: str = pydantic.PrivateAttr(default="")


class Locked(pydantic.BaseModel):
    _lock: Any = pydantic.PrivateAttr(default_factory=threading.Lock)


class Excluded(pydantic.BaseModel):
    number: int = 0
    card: str = pydantic.Field(default="", exclude=True)


class Aliased(pydantic.BaseModel):
    order_id: int = pydantic.Field(alias="orderId")
    customer: str = pydantic.Field(default="", validation_alias="cust", serialization_alias="who")


class Strict(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True, extra="forbid")
    at: dt.datetime
    id: uuid.UUID
    tags: set[str] = set()

    @pydantic.computed_field  # type: ignore[prop-decorator]  # as pydantic says
    @property
    def year(self) -> int:
        return self.at.year


class Nested(pydantic.BaseModel):
    inner: Aliased
    models: list[Model] = []
    pets: dict[str, Model] = {}


class Extra(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    number: int = 0


class Loses(pydantic.BaseModel):
    number: int = 0

    @pydantic.field_serializer("number")
    def rounds(self, number: int) -> int:
        return number // 10 * 10


def with_attribute(value: Any, **attributes: Any) -> Any:
    for name, attribute in attributes.items():
        setattr(value, name, attribute)
    return value


NOON = dt.datetime(2030, 7, 1, 12, 0, 0, 1, dt.UTC)
computed = Computes(2)
assert computed.thrice == 6

WHOLE: list[tuple[Any, Any]] = [
    (1, float),
    (10**15, float),
    (-0.0, float),
    ("x", str),
    (b"\0", bytes),
    (None, Base | None),
    ([1, [2, {}]], list[Any]),
    ({"a": [1.5, None, True]}, Any),
    (Derived(1), Derived),
    ([Derived(1)], list[Derived]),
    (computed, Computes),
    (with_attribute(Slotted(1), lock=[1]), Slotted),
    (with_attribute(EqualsAll(1), hidden=2), EqualsAll),
    (Longer(1, 2), Longer),
    (Pair(1, "a"), Pair),
    ((1, "a"), tuple[int, str]),
    ({"retries": 1}, Options),
    ({1: "a", 2: "b"}, dict[int, str]),
    ({Size.SMALL: {Level.HIGH}}, dict[Size, set[Level]]),
    (Right.READ | Right.WRITE, Right),
    (frozenset({Decimal("1.0"), Decimal(2)}), frozenset[Decimal]),
    (Name.ANN, Name),
    ("a", Literal["a", "b"]),
    (NOON, dt.datetime),
    (NOON.astimezone(ZoneInfo("Europe/Berlin")), dt.datetime),
    (dt.time(1, tzinfo=dt.UTC), dt.time),
    (Model(number=7), Model),
    (Sub(number=7), Sub),
    (Private(number=7), Private),
    (Excluded(number=7), Excluded),
    (Aliased(orderId=7, cust="ann"), Aliased),  # pyright: ignore[reportCallIssue] - an alias
    (Strict(at=NOON, id=uuid.uuid4(), tags={"a", "b"}), Strict),
    (Extra(number=1, more=[1]), Extra),  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue] - an extra one
    (Nested(inner=Aliased(orderId=7), models=[Model(number=1)], pets={"a": Model()}), Nested),
    ({1, 2, 3}, set[int]),
]
LOST: list[tuple[Any, Any, str]] = [
    ({1: "a", "1": "b"}, Any, "the key 1 of $ is int and comes back as str"),
    ({1: "a"}, Any, "the key 1 of $ is int and comes back as str"),
    ({1: "a", "1": "b"}, dict[str, str], "the key 1 of $ is int and comes back as str"),
    ((1, 2), Any, "$ is tuple and comes back as list"),
    ({"a": [(1,)]}, dict[str, Any], "$['a'][0] is tuple and comes back as list"),
    ((1, 2), Sequence[int], "$ is tuple and comes back as list"),
    ([1], tuple[int, ...], "$ is list and comes back as tuple"),
    ({1}, list[int], "$ is set and comes back as list"),
    (Base(1), Any, "$ is Base and comes back as dict"),
    (Size.SMALL, Any, "$ is Size and comes back as int"),
    (Decimal(1), Any, "$ is Decimal and comes back as str"),
    (Name.ANN, str, "$ is Name and comes back as str"),
    (Level.HIGH, int, "$ is Level and comes back as int"),
    (2**53 + 1, float, "$ is int and comes back as float"),
    (Derived(1), Base, "$ is Derived and comes back as Base"),
    ([Base(1), Derived(2)], list[Base], "$[1] is Derived and comes back as Base"),
    (Longer(1, 2), Plain, "$ is Longer and comes back as Plain"),
    (Sub(number=1), Model, "$ is Sub and comes back as Model"),
    (Nested(inner=Aliased(orderId=7), models=[Sub()]), Nested, "$.models[0] is Sub and comes back as Model"),
    (with_attribute(EqualsAll(1), hidden=2, note="x"), EqualsAll, "$.note is lost"),
    (with_attribute(Base(1), note="x"), Base, "$.note is lost"),
    (with_attribute(Slotted(1), lock=(1,)), Slotted, "$.lock is tuple and comes back as list"),
    (with_attribute(Private(), _token="secret"), Private, "$.__pydantic_private__['_token'] comes back as another str"),
    (Locked(), Locked, "$.__pydantic_private__['_lock'] is lock, which does not show whether it comes back as it is"),
    (Excluded(card="4111"), Excluded, "$.card comes back as another str"),
    (Loses(number=17), Loses, "$.number comes back as another int"),
    ({"retries": 1, "other": 2}, Options, "$ has 2 items and comes back with 1"),
    (collections.OrderedDict(a=1), dict[str, int], "$ is OrderedDict and comes back as dict"),
    (collections.defaultdict(int, a=1), dict[str, int], "$ is defaultdict and comes back as dict"),
    (NOON.replace(tzinfo=None, fold=1), dt.datetime, "$ comes back as another datetime"),
]


@dataclass
class Board:
    stones: dict[Pair, str]


@dataclass
class Sheet:
    cells: dict[tuple[int, int], str] = field(default_factory=dict[tuple[int, int], str])


REFUSED: list[tuple[Any, str]] = [
    (Base | Plain | Longer, "is not supported"),
    (Base | Derived, "Type unions may not contain more than one"),
    (list[Model | Sub], "Type unions may not contain more than one"),
    (str | dt.datetime, "Type unions may not contain more than one"),
    (complex, "complex has no JSON form"),
    (dict[str, threading.Thread], "Thread has no JSON form"),
    (Iterator[int], "Iterator has no JSON form"),
    (Callable[[], int], "Callable has no JSON form"),
    (pydantic.create_model("Login", password=(pydantic.SecretStr, ...)), "Login.password is SecretStr, whose JSON is"),
    (pydantic.create_model("Keys", keys=(list[pydantic.SecretBytes], ...)), "Keys.keys is SecretBytes"),
    (pydantic.create_model("Card", number=(str, pydantic.Field(exclude=True))), "Card.number is excluded from JSON"),
    (dict[tuple[int, int], str], "tuple can't be the key of a JSON object. Give a list of pairs, or keys of text"),
    (list[dict[frozenset[str], int]], "frozenset can't be the key"),
    (dict[bool, int], "bool can't be the key"),
    (dict[Pair | None, int], "Pair can't be the key"),
    (dict[Slotted, int], "Slotted can't be the key"),
    (dict[ipaddress.IPv4Address, int], "IPv4Address can't be the key"),
    (Board, "Pair can't be the key"),
    (pydantic.create_model("Grid", cells=(dict[tuple[int, int], str], ...)), "(Grid.cells)"),
    (pydantic.create_model("Maps", maps=(list[dict[Pair, str]], ...)), "Pair can't be the key"),
]


def test_keys_that_have_a_text_and_fields_that_may_stay_empty_are_allowed():
    grid = pydantic.create_model("Grid", cells=(dict[tuple[int, int], str], pydantic.Field(default_factory=dict)))
    for type_ in (dict[int, str], dict[str | None, int], dict[dt.date, int], dict[Any, int], Sheet, grid):
        step(giving_nothing(type_))
    assert run_workflow(workflow(giving(Sheet(), Sheet).function)).result() == Sheet()


def giving_nothing(type_: Any) -> Any:
    async def gives() -> Any:
        return None

    gives.__annotations__["return"] = type_
    return gives


def giving(value: Any, type_: Any) -> Any:
    async def gives() -> Any:
        return value

    gives.__annotations__["return"] = type_
    return step(retries=3)(gives)


def taking(type_: Any) -> Any:
    async def takes(value: Any) -> None:
        return None

    takes.__annotations__["value"] = type_
    return step(takes)


@pytest.mark.parametrize(("value", "type_"), WHOLE)
def test_what_is_kept_comes_back_by_type_and_content(value: Any, type_: Any):
    text = encode(value, "the value")
    assert loss(value, decode_kept(text, type_, value)) is None
    gives, takes = giving(value, type_), taking(type_)

    @workflow
    async def passes() -> bool:
        got = await gives()
        await takes(got)
        return loss(value, got) is None

    assert run_workflow(passes).result()


@pytest.mark.parametrize(("value", "type_", "why"), LOST)
def test_a_result_that_is_not_kept_fails_its_step(value: Any, type_: Any, why: str):
    gives = giving(value, type_)

    @workflow
    async def passes() -> str:
        try:
            await gives()
        except StepFailed as error:
            return f"{error.type_name}: {error.message}"
        return "nothing"

    run = run_workflow(passes)
    assert run.result() == f"Unencodable: gives at /0 returned a value that would not come back as it is: {why}" + (
        "; without an annotation a value is plain JSON: annotate it" if type_ is Any else ""
    )
    assert [call.attempt for call in run.calls] == [1]


@pytest.mark.parametrize(("value", "type_", "why"), LOST)
def test_an_argument_that_is_not_kept_is_refused_there(value: Any, type_: Any, why: str):
    takes = taking(type_)

    async def served(value: Any) -> Any:
        return value

    served.__annotations__.update(value=type_, **{"return": type_})
    serves = workflow(served)
    said: list[str] = []

    @workflow
    async def calls() -> None:
        for call in (lambda: takes(value), lambda: child(serves, value), lambda: start(serves, value)):
            try:
                await call()
            except Unencodable as error:
                said.append(str(error))

    run = run_workflow(calls)
    run.result()
    assert run.journal == []
    assert len(said) == 6  # at first, and at replay
    assert all(
        text.partition(" would not get these arguments as they are: value: ")[2].startswith(why) for text in said
    )
    with pytest.raises(TypeError) as refused:
        run_workflow(serves, value)
    assert why in str(refused.value)


@pytest.mark.parametrize(("value", "type_", "why"), LOST)
def test_a_result_that_is_not_kept_fails_its_run(value: Any, type_: Any, why: str):
    async def gives() -> Any:
        return value

    gives.__annotations__["return"] = type_
    error = run_workflow(workflow(gives)).error
    assert isinstance(error, Unencodable)
    assert str(error).startswith(f"the result of gives would not come back as it is: {why}")


@pytest.mark.parametrize(("type_", "why"), REFUSED)
def test_a_type_without_kept_values_is_refused_at_decoration(type_: Any, why: str):
    async def gives() -> Any:
        return None

    async def takes(value: Any, other: Any = None) -> None:
        return None

    gives.__annotations__["return"] = type_
    takes.__annotations__["other"] = type_  # may be left out
    step(takes)
    for make in (step, workflow):
        with pytest.raises(TypeError, match="gives: its result is annotated as a type that can't be kept: ") as refused:
            make(gives)
        assert why in str(refused.value)
    takes.__annotations__["value"] = type_
    with pytest.raises(TypeError, match="takes: its parameter value is annotated as a type that can't be kept: "):
        step(takes)


def test_names_that_a_module_has_later_may_be_annotated():
    @step
    async def gives() -> Later:
        return Later(1)

    class Later(msgspec.Struct):
        number: int

    assert gives.name == "gives"


def test_what_continues_a_run_is_checked_as_other_arguments_are():
    @workflow
    async def goes_on(value: Any = None) -> None:
        if value is None:
            continue_as_new((1, 2))

    assert "would not get these arguments as they are: value: $ is tuple" in str(run_workflow(goes_on).error)


def test_a_call_of_an_old_journal_goes_on():
    takes = taking(Any)

    @workflow
    async def calls() -> str:
        await takes((1, 2))  # recorded by the rules of before
        try:
            await takes((3, 4))
        except Unencodable:
            return "refused"
        return "taken"

    def played(rules: int) -> Any:
        memory = Memory(calls, "{}", {}, "test", dt.datetime(2030, 1, 1, tzinfo=dt.UTC), None)
        memory.activation.kernel.rules = memory.activation.kernel.newest = 0
        memory.activation.start()
        memory.activation.issue_commands()
        memory.deliver(Record(0, JournalKind.DONE, "/0", "takes", "null", rules=rules))
        return memory

    old = played(0)
    assert old.activation.result is None  # it waits for the second call, as it did before
    new = played(1)
    assert new.activation.result.value == "refused"


def test_values_recorded_before_stay_readable():
    assert decode('{"number":7,"card":"4111"}', Excluded) == Excluded(number=7, card="4111")
    assert decode('{"number":"7"}', Model) == Model(number=7)
    assert decode("[1,2]", Any) == [1, 2]
    assert decode('{"number":1,"more":"x"}', Base) == Base(1)
    assert decode("1", float) == 1.0


@dataclass(init=False)
class Usage:
    """As pydantic-ai's: what was not counted stands in the class."""

    tokens: int = 0
    cached: int | None = None

    def __init__(self, **counted: int) -> None:
        vars(self).update(counted)


def test_a_default_of_the_class_and_the_same_value_of_its_own_are_one():
    whole = Usage(tokens=7)
    whole.cached = None
    assert "cached" not in vars(Usage(tokens=7))
    assert loss(Usage(tokens=7), whole) is None
    assert loss(whole, Usage(tokens=7)) is None
    whole.cached = 3
    assert loss(Usage(tokens=7), whole) == "$.cached is NoneType and comes back as int"
    slotted = loss(Base(1), Base.__new__(Base))
    assert slotted == "$.number is lost", "a slot without a value has no default"
