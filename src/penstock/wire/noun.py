"""What the classes of `penstock.wire.model` are made of: their bases, and types that are not the same to all.

One class serves who writes a message and who reads it, so two types have two faces. A request's texts and numbers may
be null in JSON, which counts as absent, and whoever decodes one looks (``rest.codec.required`` and its like); to the
type checker they are what they are afterwards. And JSON values inside a message are text where they only pass through
(``bytes`` or ``msgspec.Raw``: a Python object would cost a decode and an encode, 3 µs at 200 bytes, 150 µs at 16 kB),
Python values in the SDK.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import msgspec

Variables = dict[str, Any]
TERMINAL_STATUSES = frozenset({"COMPLETED", "FAILED", "CANCELLED"})

if TYPE_CHECKING:
    Text = str
    Flag = bool
    Whole = int
    Seconds = float | None
    Texts = list[str]
    JsonText = Any
else:
    Text = str | None
    Flag = bool | None
    Whole = int | float | None
    Seconds = int | float | None
    Texts = list[str] | None
    JsonText = msgspec.Raw


class Answer(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """Base of what the engine says: a field that is None is left out of the JSON, all others are there."""


class HasStatus(Protocol):
    """An instance."""

    @property
    def status(self) -> str: ...


class InstanceMethods(Answer, frozen=True):
    """What an instance is asked beside its fields."""

    @property
    def ended(self: HasStatus) -> bool:
        """Return whether the instance is completed, failed or cancelled."""
        return self.status in TERMINAL_STATUSES


class Request(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Base of what the engine is told. What is empty counts as not given."""


def raw(value: Any) -> Any:
    """``value`` (text or bytes of JSON) as it goes into an answer."""
    return msgspec.Raw(value if isinstance(value, bytes) else str(value).encode())


def text_bytes(text: Any) -> int:
    """The size of a JSON value that is held as text."""
    return 0 if text is None else memoryview(text).nbytes
