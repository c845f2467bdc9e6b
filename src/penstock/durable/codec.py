"""Values of a journal as text: JSON, by type.

What msgspec knows (dataclasses, structs, TypedDicts, enums, dates, Decimal, UUID, sets, bytes) and pydantic's models.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable
from typing import Any, cast

import msgspec

from penstock.durable.errors import PayloadTooLarge, Unencodable
from penstock.durable.kept import ANNOTATE, is_model, loss
from penstock.durable.ordered import ordered
from penstock.kernel.unawaited import Unawaited
from penstock.log.masking import mask_text
from penstock.user_text import static_attribute, text_of

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


class NotKept(ValueError):
    """A value would come back as another one."""


def encode(value: object, what: str, max_bytes: int = PAYLOAD_MAX_BYTES) -> str:
    """JSON. ``what`` names the value in errors. Raises `Unencodable`, `PayloadTooLarge`."""
    try:
        text = _encoded(value)
        if b"[" in text and (sorted_ := ordered(value, _encoded)) is not value:
            text = _encoded(sorted_)
    except Exception as error:  # of a serializer that is the user's, too: whatever it raises
        raise Unencodable(f"{what} is {type(value).__name__}, which has no JSON form: {text_of(error)}") from None
    if b"null" in text:  # what msgspec makes of NaN and the infinities: a value would come back as another one
        try:
            json.dumps(msgspec.to_builtins(value, enc_hook=_to_json, str_keys=True), allow_nan=False)
        except ValueError:
            raise Unencodable(f"{what} holds a number that is not finite, which has no JSON form") from None
    if b"\\u0000" in text and _NUL.search(text) is not None:
        raise Unencodable(f"{what} has a NUL character, which PostgreSQL does not keep")
    if text.count(b"[") + text.count(b"{") > MAX_DEPTH and depth_of(text) > MAX_DEPTH:
        raise Unencodable(f"{what} has more than {MAX_DEPTH} objects and lists inside each other")
    if len(text) > MAX_DIGITS and _LONG_NUMBER.search(text) and _LONG_NUMBER.search(_STRING.sub(b"", text)):
        raise Unencodable(f"{what} holds a number of more than {MAX_DIGITS:,} digits")
    if len(text) > max_bytes:
        raise PayloadTooLarge(
            f"{what} is {len(text) / 1024:.0f} kB; at most {max_bytes / 1024:.0f} kB. Store it and return a key"
        )
    return text.decode()


def _encoded(value: object) -> bytes:
    return msgspec.json.encode(value, enc_hook=_to_json)


def decode(text: str, type_: Any) -> Any:
    """Return the value, checked against its type. Raises `ValueError` with the field and the reason."""
    try:
        return msgspec.json.decode(text, type=type_, dec_hook=_from_json)
    except Exception as error:  # of a type that can't be asked for; of a validator that is the user's, too
        raise ValueError(text_of(error)) from None


class Decoder:
    """`decode` for one type, which is read once, when the first value comes."""

    __slots__ = ("_decode", "type")

    def __init__(self, type_: Any) -> None:
        self.type = type_
        self._decode: Callable[[str | msgspec.Raw], Any] | None = None

    def __call__(self, text: str | msgspec.Raw) -> Any:
        """As `decode`."""
        try:
            if self._decode is None:
                self._decode = msgspec.json.Decoder(self.type, dec_hook=_from_json).decode
            return self._decode(text)
        except Exception as error:  # as above
            raise ValueError(text_of(error)) from None


def decode_kept(text: str, type_: Any, given: object) -> Any:
    """The value, as the next process will read it. Raises `ValueError` when it is not the one that was ``given``."""
    back = decode(text, type_)
    if (lost := loss(given, back)) is not None:
        raise NotKept(lost + (f"; {ANNOTATE} it" if type_ is Any else ""))
    return back


def depth_of(text: bytes) -> int:
    """Return how many objects and lists of JSON are inside each other; no further than one beyond what may be."""
    brackets, depth = _STRING.sub(b"", text).translate(_BRACKETS, _NO_BRACKETS), 0
    while brackets and depth <= MAX_DEPTH:
        brackets, depth = brackets.replace(b"[]", b""), depth + 1  # the innermost ones of each
    return depth


def shown(text: str) -> str:
    """A payload in a message, which goes into logs."""
    text = mask_text(text)
    return text if len(text) <= MAX_SHOWN_CHARS else text[:MAX_SHOWN_CHARS] + " …"


def digest_of(text: str) -> int:
    """Of arguments, to notice at replay that they differ; in whatever order their dictionaries are."""
    if text.count("{") > 1 or text.count(",") > 0:
        return zlib.crc32(msgspec.json.encode(msgspec.json.decode(text), order="sorted"))
    return zlib.crc32(text.encode())


def former_digest_of(text: str) -> int:
    """As it was before there were versions of rules: of the text as it is."""
    return zlib.crc32(text.encode())


def _to_json(value: object) -> Any:
    if isinstance(value, Unawaited):
        raise TypeError(value.why())
    if static_attribute(type(value), "model_dump") is None:  # pydantic's; a mock would answer with one mock more
        raise TypeError(f"{type(value).__name__} is not supported")
    model = cast("Any", value)
    if not is_model(type(value)):
        return model.model_dump(mode="json")
    return model.model_dump(mode="json", round_trip=True, warnings=False)  # a sorted list stands for a set


def _from_json(type_: type[Any], value: Any) -> Any:
    if static_attribute(type_, "model_validate") is None:
        raise TypeError(f"{type_.__name__} is not supported")
    class_ = cast("Any", type_)
    if not is_model(type_):
        return class_.model_validate(value)
    try:  # as JSON, where a strict model takes text for a date; by name, as it was written
        return class_.model_validate_json(msgspec.json.encode(value), by_name=True)
    except (ValueError, TypeError):  # TypeError: of pydantic before 2.11
        return class_.model_validate(value)
