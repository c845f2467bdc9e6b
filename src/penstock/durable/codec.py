"""Values of a journal as text: JSON, by type. Errors too.

What msgspec knows (dataclasses, structs, TypedDicts, enums, dates, Decimal, UUID, sets, bytes) and pydantic's models.
A stored name is never imported: an error comes back as a class that the step declares, or as `StepFailed`.
"""

from __future__ import annotations

import json
import re
import traceback
import zlib
from collections.abc import Callable, Iterable
from typing import Any, cast

import msgspec

from penstock.durable.errors import PayloadTooLarge, StepFailed, Unencodable
from penstock.masking import mask_text
from penstock.user_text import repr_of, said, static_attribute, text_of

PAYLOAD_MAX_BYTES = 256 * 1024
MAX_SHOWN_CHARS = 120
MAX_DEPTH = 100
"""Of objects and lists inside each other; so many the database keeps, too."""
MAX_DIGITS = 1_000
_NUL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"')
_LONG_NUMBER = re.compile(rb"[0-9]{%d}" % (MAX_DIGITS + 1))
_BRACKETS = bytes.maketrans(b"{}", b"[]")
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
MAX_TRACEBACK_CHARS = 8_000
MAX_NOTES = 10
_ARGS: Callable[[BaseException], tuple[Any, ...]] = vars(BaseException)["args"].__get__
"""What an error was made with, also where its class has an ``args`` of its own."""


class Failure(msgspec.Struct, frozen=True, omit_defaults=True):
    """An error in a journal. ``args`` is there when they have a JSON form."""

    type_name: str
    message: str
    args: list[Any] | None = None
    notes: list[str] = []
    cause: str | None = None
    traceback: str = ""


def encode(value: object, what: str, max_bytes: int = PAYLOAD_MAX_BYTES) -> str:
    """JSON. ``what`` names the value in errors. Raises `Unencodable`, `PayloadTooLarge`."""
    try:
        text = msgspec.json.encode(value, enc_hook=_to_json)
    except Exception as error:  # of a serializer that is the user's, too: whatever it raises
        raise Unencodable(f"{what} is {type(value).__name__}, which has no JSON form: {text_of(error)}") from None
    if b"null" in text:  # what msgspec makes of NaN and the infinities: a value would come back as another one
        try:
            json.dumps(msgspec.to_builtins(value, enc_hook=_to_json, str_keys=True), allow_nan=False)
        except ValueError:
            raise Unencodable(f"{what} holds a number that is not finite, which has no JSON form") from None
    if b"\\u0000" in text and _NUL.search(text) is not None:
        raise Unencodable(f"{what} has a NUL character, which PostgreSQL does not keep")
    if text.count(b"[") + text.count(b"{") > MAX_DEPTH and _depth(text) > MAX_DEPTH:
        raise Unencodable(f"{what} has more than {MAX_DEPTH} objects and lists inside each other")
    if len(text) > MAX_DIGITS and _LONG_NUMBER.search(text) and _LONG_NUMBER.search(_STRING.sub(b"", text)):
        raise Unencodable(f"{what} holds a number of more than {MAX_DIGITS:,} digits")
    if len(text) > max_bytes:
        raise PayloadTooLarge(
            f"{what} is {len(text) / 1024:.0f} kB; at most {max_bytes / 1024:.0f} kB. Store it and return a key"
        )
    return text.decode()


def decode(text: str, type_: Any) -> Any:
    """The value, checked against its type. Raises `ValueError` with the field and the reason."""
    try:
        return msgspec.json.decode(text, type=type_, dec_hook=_from_json)
    except Exception as error:  # of a type that can't be asked for; of a validator that is the user's, too
        raise ValueError(text_of(error)) from None


def _depth(text: bytes) -> int:
    """Of JSON; no further than one beyond what may be."""
    brackets, depth = _STRING.sub(b"", text).translate(_BRACKETS, _NO_BRACKETS), 0
    while brackets and depth <= MAX_DEPTH:
        brackets, depth = brackets.replace(b"[]", b""), depth + 1  # the innermost ones of each
    return depth


def shown(text: str) -> str:
    """A payload in a message, which goes into logs."""
    text = mask_text(text)
    return text if len(text) <= MAX_SHOWN_CHARS else text[:MAX_SHOWN_CHARS] + " …"


def digest_of(text: str) -> int:
    """Of arguments, to notice at replay that they differ."""
    return zlib.crc32(text.encode())


def encode_error(error: BaseException) -> str:
    """An error for the journal. Never fails: what has no JSON form is left out, what is long is cut."""
    args: list[Any] | None = list(_ARGS(error))
    try:
        encode(args, "args", PAYLOAD_MAX_BYTES // 4)
    except (Unencodable, PayloadTooLarge):
        args = None
    failure = Failure(
        type_name=type(error).__qualname__,
        message=text_of(error, PAYLOAD_MAX_BYTES // 8),
        args=args,
        notes=_notes(error),
        cause=None if error.__cause__ is None else repr_of(error.__cause__, MAX_TRACEBACK_CHARS),
        traceback=said(lambda: "".join(traceback.format_exception(error))[-MAX_TRACEBACK_CHARS:]),
    )
    return msgspec.json.encode(failure).decode()


def _notes(error: BaseException) -> list[str]:
    try:
        found = list(getattr(error, "__notes__", ()))[:MAX_NOTES]
    except Exception:  # an attribute that the user's class makes up, or no list
        return []
    return [text_of(note, MAX_TRACEBACK_CHARS) for note in found]


def decode_error(text: str, known: Iterable[type[BaseException]]) -> BaseException:
    """The error: of a class in ``known`` with that name if its arguments were kept, else `StepFailed`."""
    failure = msgspec.json.decode(text, type=Failure)
    error: BaseException | None = None
    for class_ in known:
        if class_.__qualname__ == failure.type_name and failure.args is not None:
            try:
                error = class_(*failure.args)
            except Exception:  # its constructor takes something else: then it can't come back as itself
                error = None
            break
    if error is None:
        error = StepFailed(failure.type_name, failure.message, failure.traceback)
    for note in failure.notes:
        error.add_note(note)
    return error


def _to_json(value: object) -> Any:
    if static_attribute(type(value), "model_dump") is None:  # pydantic's; a mock would answer with one mock more
        raise TypeError(f"{type(value).__name__} is not supported")
    return cast("Any", value).model_dump(mode="json")


def _from_json(type_: type[Any], value: Any) -> Any:
    if static_attribute(type_, "model_validate") is None:
        raise TypeError(f"{type_.__name__} is not supported")
    return cast("Any", type_).model_validate(value)
