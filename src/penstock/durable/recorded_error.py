"""Errors of steps in a journal: what is recorded of one, which class of it arrives, and how that one is made again.

A stored name is never imported: an error comes back as a built-in class, as one that its step lists in ``raises``, or
as one of the step's module; else as `StepFailed`. No constructor of a user runs: arguments, attributes and text are put
back.
"""

from __future__ import annotations

import builtins
import datetime as dt
import os
import sys
import uuid
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from decimal import Decimal
from functools import lru_cache
from math import isfinite
from types import FunctionType, GetSetDescriptorType, MemberDescriptorType, ModuleType
from typing import Any, Final, cast, get_type_hints

import msgspec

from penstock.durable.codec import MAX_DEPTH, PAYLOAD_MAX_BYTES, decode, decode_kept, encode
from penstock.durable.errors import PayloadTooLarge, StepFailed, StepLost, Unencodable
from penstock.durable.kept import class_of
from penstock.kernel.errors import TooSlow
from penstock.user_text import errors_of, repr_of, said, static_attribute, text_of, traceback_text

MAX_TRACEBACK_CHARS: Final = 8_000
MAX_MESSAGE_CHARS: Final = PAYLOAD_MAX_BYTES // 8
MAX_STATE_BYTES: Final = PAYLOAD_MAX_BYTES // 4
"""Of an error's arguments and attributes together; what is beyond it is left out, and says so when it is read."""
MAX_NOTES: Final = 10
MAX_GROUPS: Final = 5
"""Inside each other; a group of more, or of more errors in all than the next one, arrives as `StepFailed`."""
MAX_GROUP_ERRORS: Final = 50
_LOST: Final = "_penstock_lost"
_TEXT: Final = "_penstock_text"
_ARGS: Final = vars(BaseException)["args"]
_MESSAGE: Final = vars(BaseExceptionGroup)["message"]
_TEXTS: Final = {
    each.__name__: each for each in (Decimal, dt.datetime, dt.date, dt.time, dt.timedelta, uuid.UUID, bytes)
}
_LISTS: Final[dict[str, Callable[[list[Any]], Any]]] = {"tuple": tuple, "set": set, "frozenset": frozenset}
ErrorClass = type[BaseException]
OURS: Final[tuple[ErrorClass, ...]] = (StepLost, TooSlow)
"""What Penstock itself says of a step arrives as itself, too."""


class ClassName(msgspec.Struct, frozen=True):
    """A class, by its module's name and its own."""

    module: str
    name: str


class ErrorState(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an error holds, each value with its type. ``lost``: the names of what has no JSON form, with the reason."""

    args: list[Any] = []
    attributes: dict[str, Any] = {}
    lost: dict[str, str] = {}


class Failure(msgspec.Struct, frozen=True, omit_defaults=True):
    """An error in a journal.

    ``raised`` is its class, ``base`` the one of ``raises`` that it matched, ``arrives`` the one that the workflow
    function meets; without ``raised`` the record was delivered by the rules of before, which had ``args`` as JSON.
    ``errors`` are those of a group that arrives. ``not_awaited``: of a run's end, the calls that its function has
    dropped, in words.
    """

    type_name: str
    message: str
    args: list[Any] | None = None
    notes: list[str] = []
    cause: str | None = None
    traceback: str = ""
    raised: ClassName | None = None
    base: ClassName | None = None
    arrives: ClassName | None = None
    state: ErrorState | None = None
    errors: list[Failure] | None = None
    not_awaited: list[str] = []


def encode_error(error: BaseException, raises: Sequence[ErrorClass] = (), module: str = "", *, rules: int = 1) -> str:
    """Return an error for the journal. Never fails: what has no JSON form is left out, what is long is cut.

    ``raises`` and ``module`` are the step's; ``rules`` are those by which the record will be delivered.
    """
    return msgspec.json.encode(_failure(error, raises, module, rules=rules)).decode()


def encode_end(error: BaseException, not_awaited: Sequence[str]) -> str:
    """What ended a run, and the calls that its function has dropped, for the journal. Never fails."""
    failure = _failure(error, (), "")
    return msgspec.json.encode(msgspec.structs.replace(failure, not_awaited=list(not_awaited))).decode()


def _failure(
    error: BaseException, raises: Sequence[ErrorClass], module: str, *, rules: int = 1, among: int = 1, depth: int = 0
) -> Failure:
    """``among`` so many errors of a group, which is in ``depth`` others."""
    failure = Failure(
        type_name=type(error).__qualname__,
        message=text_of(error, MAX_MESSAGE_CHARS // among),
        notes=_notes(error, MAX_TRACEBACK_CHARS // among)[: MAX_NOTES if depth == 0 else 1],
        cause=None if error.__cause__ is None else repr_of(error.__cause__, MAX_TRACEBACK_CHARS // among),
        traceback=said(lambda: traceback_text(error)[-MAX_TRACEBACK_CHARS // among :]),
    )
    if not rules:
        return msgspec.structs.replace(failure, args=_plain_args(error))
    class_, base = _arriving(error, (*raises, *OURS), module)
    if depth and class_ is None and isinstance(error, Exception) and _is_builtin(type(error)):
        class_ = type(error)  # of a group that arrives
    errors: list[Failure] | None = None
    if class_ is not None and (inner := errors_of(error)):
        if depth >= MAX_GROUPS or among * len(inner) > MAX_GROUP_ERRORS:
            class_ = None
        else:
            among *= len(inner)
            errors = [_failure(each, raises, module, among=among, depth=depth + 1) for each in inner]
    return msgspec.structs.replace(
        failure,
        raised=_named(type(error)),
        base=None if base is None else _named(base),
        arrives=None if class_ is None else _named(class_),
        state=None if class_ is None else _state(error, class_, MAX_STATE_BYTES // among),
        errors=errors,
    )


def decode_error(text: str, raises: Sequence[ErrorClass], module: str) -> BaseException:
    """The error, as it was decided when it was written; `StepFailed` where its class is not to be had."""
    return _decoded(msgspec.json.decode(text, type=Failure), raises, module)


def _decoded(failure: Failure, raises: Sequence[ErrorClass], module: str) -> BaseException:
    error: BaseException | None
    if failure.raised is None:
        error = _as_before(failure, [*raises, StepLost, *_own_classes(module)])
    else:
        error = None
        for named in (failure.arrives, failure.base):
            if named is not None and (class_ := _found(named, (*raises, *OURS), module)) is not None:
                error = _restored(class_, failure, raises, module)
                break
    if error is None:
        error = StepFailed(failure.type_name, failure.message, failure.traceback)
    if failure.notes:  # `add_note` asks the class of the user
        object.__getattribute__(error, "__dict__")["__notes__"] = failure.notes
    return error


# -- which class arrives


def _arriving(
    error: BaseException, raises: Sequence[ErrorClass], module: str
) -> tuple[ErrorClass | None, ErrorClass | None]:
    """The class that arrives, and the listed one that the error matched, which may be one of its bases."""
    class_ = type(error)
    base = next((each for each in class_.__mro__ if each in raises), None)
    if base is None:
        base = next((each for each in raises if isinstance(error, each)), None)  # one that says so itself
    is_own = issubclass(class_, Exception) and _resolved(sys.modules.get(module), _named(class_), module) is class_
    if is_own or (base is not None and (class_ in raises or _is_builtin(class_))):
        return class_, base
    return base, base


def _is_builtin(class_: ErrorClass) -> bool:
    return vars(builtins).get(class_.__qualname__) is class_


def _found(named: ClassName, raises: Sequence[ErrorClass], module: str) -> ErrorClass | None:
    """The class of that name among those that may arrive. One that has moved to another module since is found, too."""
    for each in raises:
        if _named(each) == named:
            return each
    if named.module == "builtins":
        found = vars(builtins).get(named.name)
        return found if isinstance(found, type) and issubclass(found, BaseException) else None
    own = sys.modules.get(module)
    if (found := _resolved(own, named, module)) is not None:
        return found
    if (
        _resolved(sys.modules.get(named.module), named, named.module) is not None
    ):  # it is there: these are other classes
        return None
    for classes in (raises, _own_classes(module)):
        moved = {each for each in classes if each.__qualname__ == named.name}
        if moved:
            return moved.pop() if len(moved) == 1 else None
    return None


def _named(class_: type[Any]) -> ClassName:
    return ClassName(_name_of_module(class_.__module__), class_.__qualname__)


def _name_of_module(name: str) -> str:
    """Of a program that is run directly: the one by which others import it."""
    if name != "__main__":
        return name
    main = sys.modules.get("__main__")
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    if spec is not None:
        return str(spec.name).removesuffix(".__main__")
    return name if file is None else os.path.splitext(os.path.basename(file))[0]


def _resolved(module: ModuleType | None, named: ClassName, name: str) -> ErrorClass | None:
    """The exception class of that name in a module, which is called ``name``."""
    if module is None or _name_of_module(name) != named.module:
        return None
    found: Any = module
    for part in named.name.split("."):
        attributes = vars(found) if type(found) is ModuleType or issubclass(type(found), type) else {}
        found = attributes.get(part)
    return found if issubclass(type(found), type) and issubclass(found, BaseException) else None


def _own_classes(module: str) -> list[ErrorClass]:
    """Return the exception classes that a module defines."""
    return [
        value
        for value in vars(sys.modules.get(module) or object).values()
        if issubclass(type(value), type)  # of the object itself: what stands in for another says another class
        and issubclass(value, Exception)
        and value.__module__ == module
    ]


# -- what an error holds


def _plain_args(error: BaseException) -> list[Any] | None:
    try:
        args: list[Any] = list(_ARGS.__get__(error))
        encode(args, "args", MAX_STATE_BYTES)
    except (Unencodable, PayloadTooLarge):
        return None
    return args


def _state(error: BaseException, class_: ErrorClass, left: int) -> ErrorState:
    """In ``left`` bytes."""
    args: list[Any] = []
    attributes: dict[str, Any] = {}
    lost: dict[str, str] = {}
    given = (_MESSAGE.__get__(error),) if errors_of(error) else _ARGS.__get__(error)
    try:
        args = [_packed(each) for each in given]
        left -= len(encode(args, "args", left))
    except (Unencodable, PayloadTooLarge) as why:
        args, lost["args"] = [], str(why)
    hints = _hints(cast("Any", class_))
    for name, value in _attributes(error).items():
        try:
            packed = _packed_by(value, hints[name]) if name in hints else _packed(value)
            left -= len(encode(packed, f"attribute {name}", max(left, 0)))
        except (Unencodable, PayloadTooLarge) as why:
            lost[name] = str(why)
        else:
            attributes[name] = packed
    for name, value in _builtin_attributes(error).items():
        try:
            attributes[name] = _packed(value)
            encode(attributes[name], f"attribute {name}", 4_096)
        except (Unencodable, PayloadTooLarge):  # a built-in class gives None for what it does not have
            attributes.pop(name, None)
    return ErrorState(args, attributes, lost)


def _attributes(error: BaseException) -> dict[str, Any]:
    """Return those of the user: of the instance, and slots."""
    found = {name: value for name, value in object.__getattribute__(error, "__dict__").items() if name != "__notes__"}
    for base in type(error).__mro__:
        if base.__module__ == "builtins":
            continue
        for name, member in vars(base).items():
            if type(member) is MemberDescriptorType and name not in ("__dict__", "__weakref__"):
                try:
                    found[name] = member.__get__(error)
                except AttributeError:
                    continue
    return {name: value for name, value in found.items() if name not in (_LOST, _TEXT)}


def _builtin_attributes(error: BaseException) -> dict[str, Any]:
    """What built-in classes keep beside arguments: `OSError.filename`, `ImportError.name`."""
    found: dict[str, Any] = {}
    for base in type(error).__mro__:
        if base.__module__ != "builtins" or base in (BaseException, object):
            continue
        for name, member in vars(base).items():
            if type(member) in (MemberDescriptorType, GetSetDescriptorType):
                try:
                    found.setdefault(name, member.__get__(error))
                except AttributeError:
                    continue
    return {name: value for name, value in found.items() if value is not None}


@lru_cache(maxsize=1_000)
def _hints(class_: Any) -> dict[str, Any]:
    """Of attributes: as the class annotates them, or the constructor its parameter of that name."""
    found: dict[str, Any] = {}
    bases: tuple[type[Any], ...] = class_.__mro__
    constructors: list[Any] = [vars(base).get("__init__") for base in reversed(bases)]
    for annotated in [*constructors, class_]:
        if isinstance(annotated, FunctionType) or annotated is class_:
            with suppress(Exception):  # of a name that is not there at run time
                found |= get_type_hints(annotated)
    return {name: hint for name, hint in found.items() if hint not in (Any, object)}


def _packed_by(value: Any, hint: Any) -> Any:
    """By its type alone if that is enough, else by its annotation."""
    try:
        return _packed(value)
    except Unencodable:
        text = encode(value, "it")
        try:
            decode_kept(text, hint, value)
        except ValueError as error:
            raise Unencodable(f"it would not come back as it is: {error}") from None
        return {"$typed": msgspec.Raw(text.encode())}


def _packed(value: Any, depth: int = 0) -> Any:
    """JSON from which `_unpacked` makes the same value, with its type. Raises `Unencodable`."""
    class_ = class_of(value)
    if depth > MAX_DEPTH // 3:
        raise Unencodable("it has too many objects and lists inside each other")
    if value is None or class_ in (str, bool, int) or (class_ is float and isfinite(value)):
        return value
    if class_ is float:
        return {"$float": repr(value)}
    if class_ is list:
        return [_packed(each, depth + 1) for each in value]
    if class_ is dict:
        if all(type(key) is str and not key.startswith("$") for key in value):
            return {key: _packed(each, depth + 1) for key, each in value.items()}
        return {"$dict": [[_packed(key, depth + 1), _packed(each, depth + 1)] for key, each in value.items()]}
    if class_ in (tuple, set, frozenset):
        return {f"${class_.__name__}": [_packed(each, depth + 1) for each in value]}
    if _TEXTS.get(class_.__name__) is class_:
        packed = msgspec.to_builtins(value)
        if decode(encode(packed, "it"), class_) != value:
            raise Unencodable(f"{class_.__name__} has no JSON form")
        return {f"${class_.__name__}": packed}
    raise Unencodable(f"{class_.__qualname__} has no JSON form")


def _unpacked(value: Any, hint: Any = Any) -> Any:
    """Raises `ValueError` for a value that does not fit its annotation any more."""
    if isinstance(value, list):
        return list(map(_unpacked, cast("Iterable[Any]", value)))
    if not isinstance(value, dict):
        return value
    given = cast("dict[str, Any]", value)
    if len(given) != 1 or not (key := next(iter(given))).startswith("$"):
        return {name: _unpacked(each) for name, each in given.items()}
    kind, inner = key[1:], given[key]
    if kind == "float":
        return float(inner)
    if kind == "dict":
        return {_unpacked(one): _unpacked(other) for one, other in inner}
    if kind == "typed":
        return decode(msgspec.json.encode(inner).decode(), hint)
    if kind in _LISTS:
        return _LISTS[kind](_unpacked(inner))
    return decode(msgspec.json.encode(inner).decode(), _TEXTS[kind])


# -- the error, again


def _restored(class_: ErrorClass, failure: Failure, raises: Sequence[ErrorClass], module: str) -> BaseException | None:
    state = failure.state or ErrorState()
    lost, hints = dict(state.lost), _hints(cast("Any", class_))
    args: tuple[Any, ...] = tuple(_unpacked(each) for each in state.args)
    if failure.errors is not None:
        args = (*args, [_decoded(each, raises, module) for each in failure.errors])
    attributes: dict[str, Any] = {}
    for name, packed in state.attributes.items():
        try:
            attributes[name] = _unpacked(packed, hints.get(name, Any))
        except ValueError as unfit:
            lost[name] = text_of(unfit)
    plain = _made(class_, args, attributes)
    if plain is None or (not lost and text_of(plain, MAX_MESSAGE_CHARS) == failure.message):
        return plain
    more = attributes | {_LOST: lost, _TEXT: failure.message}
    return _made(_saying(cast("Any", class_)), args, more) or plain


def _made(class_: ErrorClass, args: tuple[Any, ...], attributes: dict[str, Any]) -> BaseException | None:
    """Without a constructor of the user: by that of the built-in class below."""
    below: Any = next(each for each in class_.__mro__ if each.__module__ == "builtins")
    try:
        error: BaseException = below.__new__(class_, *args)
        below.__init__(error, *args)
        _ARGS.__set__(error, args)
    except Exception:  # a group without its errors
        return None
    for name, value in attributes.items():
        try:
            object.__setattr__(error, name, value)
        except (AttributeError, TypeError):  # a built-in one that can't be set
            continue
    return error


@lru_cache(maxsize=1_000)
def _saying(class_: Any) -> ErrorClass:
    """Return the class, for errors that lack something: reading it says so, and the text is the recorded one."""
    asked = static_attribute(class_, "__getattr__")

    def getattr_(self: BaseException, name: str) -> Any:
        lost = object.__getattribute__(self, "__dict__").get(_LOST, {})
        if name in lost:
            raise AttributeError(
                f"{class_.__qualname__}.{name} is not in the journal: {lost[name]}", name=name, obj=self
            )
        if asked is not None:
            return asked(self, name)
        raise AttributeError(f"{class_.__qualname__!r} object has no attribute {name!r}", name=name, obj=self)

    def args_(self: BaseException) -> tuple[Any, ...]:
        return cast(
            "tuple[Any, ...]", getattr_(self, "args") if "args" in vars(self).get(_LOST, ()) else _ARGS.__get__(self)
        )

    def str_(self: BaseException) -> str:
        return str(object.__getattribute__(self, "__dict__").get(_TEXT, ""))

    members: dict[str, Any] = {
        "__module__": class_.__module__,
        "__qualname__": class_.__qualname__,
        "__doc__": class_.__doc__,
    }
    members |= {"__slots__": (), "__getattr__": getattr_, "__str__": str_, "args": property(args_)}
    try:
        made = type(class_)(class_.__name__, (class_,), members)
    except Exception:  # a class that others can't be made of
        return cast("ErrorClass", class_)
    return cast("ErrorClass", made)


def _as_before(failure: Failure, known: Iterable[ErrorClass]) -> BaseException | None:
    """By the rules of before: of a class with that name, made anew, if its arguments were kept."""
    for class_ in known:
        if class_.__qualname__ == failure.type_name and failure.args is not None:
            try:
                before: BaseException = class_(*failure.args)
            except Exception:  # its constructor takes something else: then it can't come back as itself
                return None
            return before
    return None


def _notes(error: BaseException, max_chars: int) -> list[str]:
    found: Any = object.__getattribute__(error, "__dict__").get("__notes__")  # the user's class may make one up
    notes: list[Any] = found[:MAX_NOTES] if class_of(found) is list else []
    return [text_of(note, max_chars) for note in notes]
