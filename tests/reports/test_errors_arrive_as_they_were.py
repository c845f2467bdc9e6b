"""What a step raises arrives as its class, with what it held: arguments, attributes and text, whatever its constructor.

Which class arrives is decided when it is recorded: the raised one if it is built-in, listed in ``raises`` or of the
step's module, else the nearest listed base of it.
"""

from __future__ import annotations

import datetime as dt
import enum
import json
import sys
import types
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar

import pytest

from penstock.durable import App, StepFailed, step, workflow
from penstock.durable.recorded_error import decode_error, encode_error
from penstock.testing import run_workflow

HERE = __name__


class Code(enum.Enum):
    NO_MONEY = "no money"


class Declined(Exception):
    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"declined ({code}) {reason}")
        self.code, self.reason = code, reason


class Late(Exception):
    def __init__(self, *, days: int, at: dt.datetime) -> None:
        self.days, self.at = days, at

    def __str__(self) -> str:
        return f"{self.days} days late"


class Needs(Declined):
    """Its constructor does more than keep what it is given."""

    made = 0

    def __init__(self, code: int) -> None:
        type(self).made += 1
        super().__init__(code, "needs")
        self.args = ("something", "else")


class Slotted(Exception):
    __slots__ = ("code", "unset")

    def __init__(self, code: Decimal) -> None:
        self.code = code


@dataclass
class AsDataclass(Exception):
    order: uuid.UUID
    why: Code
    amounts: tuple[Decimal, ...] = ()


class Holds(Exception):
    def __init__(self, held: Any) -> None:
        super().__init__("it holds something")
        self.held, self.number = held, 7


class Answers(Exception):
    """Has attributes of its own making."""

    def __init__(self, held: Any = None) -> None:
        super().__init__()
        self.held = held

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return f"answer {name}"


class FileGone(OSError):
    def __init__(self, name: str) -> None:
        super().__init__(2, "gone", name)


class Locked(type):
    def __new__(cls, name: str, bases: Any, members: Any, **options: Any) -> Any:
        if any(isinstance(base, Locked) for base in bases):
            raise TypeError("no subclasses")
        return super().__new__(cls, name, bases, members)


class Final(Exception, metaclass=Locked):
    def __init__(self, held: Any) -> None:
        super().__init__("final")
        self.held = held


class Registered(Exception):
    names: ClassVar[list[str]] = []

    def __init_subclass__(cls, code: int) -> None:
        cls.names.append(cls.__name__)


def again(error: BaseException, raises: list[Any] | None = None, module: str = HERE) -> BaseException:
    """As it comes out of a journal."""
    listed = tuple(raises or ())
    return decode_error(encode_error(error, listed, module), listed, module)


ERRORS: list[Callable[[], BaseException]] = [
    lambda: Declined(51, "no money"),
    lambda: Late(days=3, at=dt.datetime(2030, 1, 1, tzinfo=dt.UTC)),
    lambda: Needs(7),
    lambda: Slotted(Decimal("1.50")),
    lambda: Holds((1, {"a": {1, 2}}, b"\0", {1: "a", "1": "b"}, float("inf"), {"$tuple": [1]}, dt.timedelta(1))),
    lambda: Holds([dt.date(2030, 1, 1), dt.time(1), frozenset({"x"}), None, -0.0, "\N{SNOWMAN}"]),
    lambda: FileGone("/etc/order"),
    lambda: Answers([1]),
]


@pytest.mark.parametrize("make", ERRORS)
def test_an_error_of_the_module_arrives_with_what_it_held(make: Callable[[], BaseException]):
    error, made = make(), Needs.made
    got = again(error)
    assert type(got) is type(error)
    assert str(got) == str(error)
    assert got.__dict__ == error.__dict__
    assert got.args == error.args
    for name in ("code", "held", "errno", "filename", "strerror"):
        assert repr(getattr(got, name, None)) == repr(getattr(error, name, None))
    assert Needs.made == made  # no constructor was called


class Refused(Exception):
    def __init__(self, *, why: Code, at: Decimal = Decimal(1)) -> None:
        super().__init__("refused")
        self.why, self.at = why, at


def test_the_annotations_of_a_constructor_are_those_of_its_attributes():
    got = again(Refused(why=Code.NO_MONEY))
    assert isinstance(got, Refused)
    assert (got.why, got.at, str(got)) == (Code.NO_MONEY, Decimal(1), "refused")


class AnswersAll(Exception):
    def __getattr__(self, name: str) -> Any:
        return name


@pytest.mark.parametrize("notes", [[], ["one", "two"], ("no", "list"), "text"])
def test_notes_are_never_made_up(notes: Any):
    error = AnswersAll("x")
    if notes:
        error.__notes__ = notes
    kept = notes if isinstance(notes, list) else []
    assert vars(again(error)).get("__notes__", []) == kept


class Group(ExceptionGroup[Exception]):
    """One of the module."""


def found_in(error: BaseException) -> Any:
    """Its class, text and errors."""
    inner = [found_in(each) for each in error.exceptions] if isinstance(error, BaseExceptionGroup) else []
    return type(error), str(error), inner


GROUPS: list[tuple[BaseException, list[Any]]] = [
    (ExceptionGroup("two", [Declined(51, "no money"), OSError(2, "gone", "file")]), [ExceptionGroup]),
    (ExceptionGroup("nested", [ExceptionGroup("inner", [ValueError("x"), Declined(2, "late")])]), [Exception]),
    (Group("own", [Group("inner", [Declined(1, "a")])]), []),
]  # fmt: skip


@pytest.mark.parametrize(("group", "raises"), GROUPS)
def test_a_group_arrives_with_its_errors(group: BaseException, raises: list[Any]):
    group.add_note("noted")
    got = again(group, raises)
    assert found_in(got) == found_in(group)
    assert got.__notes__ == ["noted"]


def test_errors_of_a_group_that_may_not_arrive_are_reported():
    class Foreign(Exception): ...

    got = again(ExceptionGroup("g", [Foreign("from elsewhere")]), [ExceptionGroup])
    assert isinstance(got, ExceptionGroup)
    [inner] = got.exceptions
    assert isinstance(inner, StepFailed)
    assert str(inner) == f"{Foreign.__qualname__}: from elsewhere"
    assert isinstance(again(ExceptionGroup("g", [OSError(str(n)) for n in range(60)]), [ExceptionGroup]), StepFailed)
    assert "StepFailed('ExceptionGroup: deep (1 sub-exception)')" in repr(again(deep(7), [ExceptionGroup]))


def deep(count: int) -> Exception:
    return ExceptionGroup("deep", [deep(count - 1)]) if count else ValueError("x")


@pytest.mark.parametrize("error", [SystemExit(3), GeneratorExit("x"), KeyError("x")], ids=repr)
def test_no_error_of_a_step_ends_run_workflow(error: BaseException):
    @step
    async def fails() -> None:
        raise error

    @workflow
    async def body() -> str:
        try:
            await fails()
        except StepFailed as failed:
            return failed.type_name
        return "not reached"

    assert run_workflow(body).result() == type(error).__name__


def test_attributes_with_an_annotation_arrive_by_it():
    error = AsDataclass(uuid.UUID(int=7), Code.NO_MONEY, (Decimal(1), Decimal("2.0")))
    got = again(error)
    assert isinstance(got, AsDataclass)
    assert (got.order, got.why, got.amounts) == (error.order, error.why, error.amounts)
    assert str(got) == str(error)
    with pytest.raises(AttributeError, match=r"AsDataclass\.args is not in the journal: Code has no JSON form"):
        _ = got.args


BUILTIN: list[BaseException] = [
    ValueError("a", 1, Decimal(2)), KeyError("k"), OSError(2, "gone", "a.txt"), OSError("just text"),
    FileNotFoundError(2, "gone", "a", None, "b"), ConnectionResetError(104, "reset"), ZeroDivisionError(),
    UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"), ImportError("no", name="a", path="b"), StopIteration(3),
    ModuleNotFoundError("no", name="a"), NameError("n", name="x"), AttributeError("x", name="y"), SystemExit(3),
    json.JSONDecodeError("bad", "{", 1), SyntaxError("bad", ("f.py", 1, 2, "text")), TimeoutError(),
]  # fmt: skip


@pytest.mark.parametrize("error", BUILTIN, ids=lambda error: type(error).__name__)
def test_built_in_errors_that_are_listed_arrive_as_they_were(error: BaseException):
    got = again(error, [BaseException] if not isinstance(error, json.JSONDecodeError) else [type(error)])
    assert type(got) is type(error)
    assert (str(got), repr(got), got.args) == (str(error), repr(error), error.args)
    for name in (
        "errno",
        "filename",
        "filename2",
        "name",
        "path",
        "code",
        "value",
        "reason",
        "object",
        "lineno",
        "pos",
    ):
        assert getattr(got, name, None) == getattr(error, name, None)


def test_what_has_no_json_form_is_absent_and_says_so():
    got = again(Holds(object()))
    assert isinstance(got, Holds)
    assert str(got) == "it holds something"
    assert (got.number, got.args) == (7, ("it holds something",))
    with pytest.raises(AttributeError, match=r"^Holds.held is not in the journal: object has no JSON form$"):
        _ = got.held
    with pytest.raises(AttributeError, match="object has no attribute 'other'"):
        _ = vars(type(got))["__getattr__"](got, "other")
    assert not hasattr(got, "held")
    assert repr(got) == "Holds('it holds something')"

    got = again(ValueError(object(), 1), [ValueError])
    assert isinstance(got, ValueError)
    assert str(got).startswith("(<object object at ")
    with pytest.raises(AttributeError, match=r"ValueError.args is not in the journal: object has no JSON form"):
        _ = got.args

    got = again(Answers(object()))
    assert isinstance(got, Answers)
    assert got.anything == "answer anything"
    with pytest.raises(AttributeError, match=r"Answers.held is not in the journal"):
        _ = got.held


def test_what_is_too_large_is_absent_and_says_so():
    got = again(Holds("x" * 200_000))
    assert isinstance(got, Holds)
    with pytest.raises(AttributeError, match=r"Holds.held is not in the journal: attribute held is 195 kB"):
        _ = got.held
    assert got.number == 7


def test_classes_without_subclasses_arrive_all_the_same():
    got = again(Final(object()))
    assert type(got) is Final
    assert not hasattr(got, "held")

    class Own(Registered, code=1):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    got = again(Own("why"), [Own])
    assert type(got) is Own
    assert got.args == ("why",)
    assert Registered.names == ["Own"]


def test_a_subclass_arrives_where_its_base_is_listed():
    class Other(Declined):
        """Of no module: only its base is known."""

    got = again(FileNotFoundError(2, "gone", "a"), [OSError])
    assert type(got) is FileNotFoundError
    got = again(Needs(7), [Declined])
    assert type(got) is Needs  # of the step's module
    got = again(Other(51, "no money"), [Exception, Declined], "elsewhere")
    assert isinstance(got, Declined)  # the nearest one
    assert not isinstance(got, Needs)
    assert str(got) == "declined (51) no money"
    assert (got.code, got.reason) == (51, "no money")
    got = again(ZeroDivisionError(), [LookupError, ArithmeticError])
    assert type(got) is ZeroDivisionError
    assert isinstance(again(KeyError(1), [OSError]), StepFailed)
    assert isinstance(again(KeyError(1)), StepFailed)
    assert isinstance(again(Other(1, "x"), [OSError], "elsewhere"), StepFailed)


def test_two_classes_of_one_name_are_two_classes(monkeypatch: pytest.MonkeyPatch):
    modules = [types.ModuleType(name) for name in ("one_shop", "other_shop")]
    for module in modules:
        exec("class Declined(Exception): pass", vars(module))
        monkeypatch.setitem(sys.modules, module.__name__, module)
    one, other = (vars(module)["Declined"] for module in modules)
    assert type(again(one("x"), [one, other])) is one
    assert type(again(other("x"), [one, other])) is other
    assert isinstance(again(one("x"), [other]), StepFailed)
    assert isinstance(again(one("x"), [Declined]), StepFailed)
    text = encode_error(one("x"), (one,), HERE)
    assert isinstance(decode_error(text, (other,), HERE), StepFailed)
    assert json.loads(text)["raised"] == {"module": "one_shop", "name": "Declined"}
    assert json.loads(text)["base"] == {"module": "one_shop", "name": "Declined"}

    monkeypatch.delitem(sys.modules, "one_shop")  # the class was moved since
    assert type(decode_error(text, (other,), HERE)) is other


def test_a_program_and_the_module_it_is_are_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    def shop(name: str) -> types.ModuleType:
        module = types.ModuleType(name)
        module.__file__ = str(tmp_path / "shop_errors.py")
        exec("class Declined(Exception): pass", vars(module))
        return module

    program, imported = shop("__main__"), shop("shop_errors")
    monkeypatch.setitem(sys.modules, "__main__", program)
    text = encode_error(vars(program)["Declined"]("x"), (), "__main__")
    monkeypatch.setitem(sys.modules, "shop_errors", imported)
    assert type(decode_error(text, (), "shop_errors")) is vars(imported)["Declined"]


def test_records_of_before_are_delivered_as_before():
    old = '{"type_name":"FileNotFoundError","message":"[Errno 2] gone","args":[2,"gone"]}'
    assert isinstance(decode_error(old, (OSError,), HERE), StepFailed)
    mangled = decode_error('{"type_name":"Declined","message":"x","args":["declined (51) no money","x"]}', (), HERE)
    assert isinstance(mangled, Declined)
    assert mangled.code == "declined (51) no money"
    assert json.loads(encode_error(Declined(1, "x"), (), HERE, rules=0)).keys() == {
        "type_name", "message", "args", "traceback",
    }  # fmt: skip


@step(raises=[OSError])
async def opens(number: int) -> None:
    if number == 0:
        raise FileNotFoundError(2, "gone", "a.txt")
    if number == 1:
        raise Declined(51, "no money")
    if number == 2:
        raise Late(days=3, at=dt.datetime(2030, 1, 1, tzinfo=dt.UTC))
    raise KeyError(number)


@workflow
async def meets(number: int) -> list[Any]:
    try:
        await opens(number)
    except FileNotFoundError as error:
        return ["gone", error.errno, error.filename]
    except Declined as error:
        return ["declined", error.code, error.reason, str(error)]
    except Late as error:
        return ["late", error.days, error.at.isoformat(), str(error)]
    except StepFailed as error:
        return ["failed", error.type_name]
    return []


MET = [
    ["gone", 2, "a.txt"],
    ["declined", 51, "no money", "declined (51) no money"],
    ["late", 3, "2030-01-01T00:00:00+00:00", "3 days late"],
    ["failed", "KeyError"],
]


def test_the_clause_of_the_class_is_taken():
    assert [run_workflow(meets, number).result() for number in range(4)] == MET
    assert [len(run_workflow(meets, number).calls) for number in range(4)] == [1] * 4


async def test_the_clause_of_the_class_is_taken_over_postgres(database_dsn: str):
    async with App(meets, at=database_dsn) as app:
        assert [await (await app.start(meets, number)).result() for number in range(4)] == MET


class Thrown:
    pass


NO_LISTS: list[Any] = [
    ValueError, "ValueError", ["ValueError"], [ValueError("x")], [Thrown], [int], [(OSError, KeyError)], [None], 7,
    [Exception | OSError],
]  # fmt: skip


@pytest.mark.parametrize("raises", NO_LISTS)
def test_what_is_no_exception_class_is_refused_at_decoration(raises: Any):
    async def charges() -> None:
        return None

    for decorate in (
        lambda: step(raises=raises),
        lambda: step.transaction(raises=raises),
        lambda: step(charges).using(raises=raises),
    ):
        with pytest.raises(TypeError, match=r"^raises(\[0\])? is .*: (give a list of|an) exception class") as refused:
            decorate()
        shown = raises[0] if isinstance(raises, list) else raises
        assert repr(shown) in str(refused.value) or getattr(shown, "__name__", "?") in str(refused.value)
