"""Whether the headers of a request are well-formed (RFC 9113 8.2, 8.3): our own check, as h2's is switched off.

A client's requests have the same names in the same order, so lists of names that were found good are known again, and
only the values are looked at. Pure, and knows no frame layer: another one may replace h2 behind it. Space at either end
of a value passes: gRPC strips it. Which methods and content types are served is not decided here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

_PSEUDO: Final = (b":method", b":scheme", b":path", b":authority")
_REQUIRED: Final = frozenset({b":method", b":scheme", b":path"})
_OF_A_CONNECTION: Final = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"}
)
_NAME: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+")
_LISTS_KEPT: Final = 1_000
_KEPT_MAX_NAMES: Final = 32
_KEPT_MAX_BYTES: Final = 1_024
_good_lists: set[tuple[bytes, ...]] = set()


def flaw_of(headers: Sequence[tuple[bytes, bytes]]) -> str | None:
    """What is wrong with the headers of a request; None when they are well-formed."""
    names, values = zip(*headers, strict=True) if headers else ((), ())
    if names not in _good_lists:
        flaw = _flaw_of_names(names)
        if flaw is not None:
            return flaw
    text = b"".join(values)
    if b"\n" in text or b"\r" in text or b"\0" in text:
        return "a value with a line break or NUL"
    if values[names.index(b":path")][:1] != b"/":
        return "the path does not begin with a slash"
    if b"te" in names and values[names.index(b"te")] != b"trailers":
        return "te is not trailers"
    return None


def _flaw_of_names(names: tuple[bytes, ...]) -> str | None:
    pseudo = [name for name in names if name[:1] == b":"]
    if any(name not in _PSEUDO for name in pseudo):
        return "an unknown pseudo-header"
    if len(set(pseudo)) < len(pseudo):
        return "a pseudo-header stands twice"
    if not set(pseudo) >= _REQUIRED:
        return "a pseudo-header is missing"
    if list(names[: len(pseudo)]) != pseudo:
        return "a pseudo-header after a header"
    for name in names[len(pseudo) :]:
        if _NAME.fullmatch(name) is None:
            return "a name that is none, or has upper-case letters"
        if name in _OF_A_CONNECTION:
            return "a header that is of a connection"
    if names.count(b"te") > 1:
        return "te stands twice"
    if len(names) <= _KEPT_MAX_NAMES and sum(map(len, names)) <= _KEPT_MAX_BYTES and len(_good_lists) < _LISTS_KEPT:
        _good_lists.add(names)  # others are looked at each time
    return None
