"""What failures of one cause have in common."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from penstock.wire.error_code import BETWEEN, CODE_MAX_CHARS

_READ_MAX_CHARS: Final = 400
_CAUSE_MAX_CHARS: Final = 200
_REMEMBERED_MAX: Final = 2_048
_CODE: Final = re.compile(rf"[A-Za-z0-9_.-]{{1,{CODE_MAX_CHARS}}}{BETWEEN}")
_KEPT: Final = "¦"
"""Stands before the digits of a status, which tell causes apart."""
_MASKED: Final = "…"
_MASKS: Final = (
    (
        (
            r"""(?<![A-Za-z0-9])''[^']*''|(?<![A-Za-z0-9])'[^']*'|"[^"]*"|`[^`]*`|“[^”]*”|„[^“”]*[“”]"""
            r"""|«[^»]*»|»[^«]*«|‘[^’]*’|‹[^›]*›|›[^‹]*‹|「[^」]*」|『[^』]*』"""
        ),
        _MASKED,
    ),
    (r"""[A-Za-z][A-Za-z0-9+.-]{1,15}://[^ \t\r\n"'<>]*""", _MASKED),
    (r"[A-Za-z0-9._%+-]{1,64}@[A-Za-z0-9.-]{1,255}", _MASKED),
    (
        (
            r"""(?<![A-Za-z0-9/.~…])[.~]{0,2}/[^ \t\r\n:;,"'()<>]+"""
            r"""|(?<![A-Za-z0-9])[A-Za-z]:\\[^ \t\r\n:;,"'()<>]+"""
            r"""|(?<![A-Za-z0-9\\])\\\\[^ \t\r\n:;,"'()<>]+"""
            r"""|(?<![A-Za-z0-9/.~…_-])[A-Za-z0-9_-][A-Za-z0-9_.-]*(?:/[A-Za-z0-9_.-]+)+[.][A-Za-z][A-Za-z0-9]{0,4}(?![A-Za-z0-9])"""
        ),
        _MASKED,
    ),
    (r"[0-9A-Fa-f]{8}-(?:[0-9A-Fa-f]{4}-){3}[0-9A-Fa-f]{12}", _MASKED),
    (r"(?<![A-Za-z0-9-])[0-9A-Fa-f]{2}(?:-[0-9A-Fa-f]{2}){5}(?![A-Za-z0-9-])", _MASKED),
    (r"(?<=[a-z0-9])-[b-df-hj-np-tv-xz2-9]{6,10}-[b-df-hj-np-tv-xz2-9]{5}(?![A-Za-z0-9])", _MASKED),
    (r"(?<![A-Za-z0-9:])[0-9A-Fa-f]*:[0-9A-Fa-f]*:[0-9A-Fa-f:.]*(?![A-Za-z0-9])", _MASKED),
    (r"[0-9]{1,3}(?:[.][0-9]{1,3}){3}(?::[0-9]{1,5})?", _MASKED),
    (
        (
            r"((?:HTTP(?:/[0-9.]{1,3})?|http|[Ss]tatus|[Ee]rrno|SQLSTATE|sqlstate|[Ss]ignal|[Ss]uccess|<Response"
            r"|(?<![A-Za-z])rc|TLS alert|[Ee]xited with"
            r"|(?:[Ss]tatus|[Ee]rror|[Ee]xit|[Rr]esponse|[Rr]eturn)[ _-]?[Cc]ode)(?: |:|=|\[){1,3}"
            r"|ORA-|PLS-|TNS-|AADSTS|HTTP/|[Ee]rror |(?<![A-Za-z])[Cc]ode ?= ?)"
            r"([0-9]{1,6})(?![0-9A-Za-z])"
        ),
        rf"\1{_KEPT}\2",
    ),
    (r"((?:[Rr]eturned|[Rr]esponse|[Gg]ot|[Ee]rror):? |[(])([45][0-9]{2})(?![0-9A-Za-z.,])", rf"\1{_KEPT}\2"),
    (r"(HRESULT:? )(0x)([0-9A-Fa-f]{8})(?![0-9A-Za-z])", rf"\1{_KEPT}\2{_KEPT}\3"),
    (
        r"(?<!¦)0x[0-9A-Fa-f]+|(?<![A-Za-z0-9¦])(?=[A-Fa-f]*[0-9])(?:[0-9a-f]{4,}|[0-9A-Fa-f]{6,})(?![A-Za-z0-9])",
        _MASKED,
    ),
    (
        (
            r"(?<![A-Za-z0-9¦+/_-])(?=[A-Za-z+/_-]*[0-9]+[A-Za-z+/_-]*[A-Za-z][A-Za-z+/_-]*[0-9])"
            r"[A-Za-z0-9+/_-]{20,}={0,2}(?![A-Za-z0-9+/_=-])"
        ),
        _MASKED,
    ),
    (r"(?<![A-Za-z0-9¦])(?=[A-Za-z]*[0-9]+[A-Za-z]+[0-9])[A-Za-z0-9]{12,}(?![A-Za-z0-9])", _MASKED),
    (r"(?<![0-9¦])[0-9]+(?:[.,][0-9]+)*", _MASKED),
)
"""Quoted parts, URLs, mail addresses, paths, UUIDs, hardware addresses, the end of a pod's name, IPv6 and IPv4
addresses, status numbers (which stay), hexadecimal runs, other long ids, numbers. `failure_words` in schema.sql has
the same, in this order."""
_COMPILED: Final = tuple((re.compile(pattern), replacement) for pattern, replacement in _MASKS)


@lru_cache(_REMEMBERED_MAX)
def cause_of(text: str) -> str:
    """Return the text of a failure without the parts that differ between failures of one cause.

    Quoted parts, URLs, addresses, paths, UUIDs, hexadecimal runs and numbers are masked. An error code before the text
    and the number of a status stay. `failure_cause` in schema.sql is a hash of the result.
    """
    code = _CODE.match(text)
    head = code[0] if code is not None else ""
    cause = text[len(head) : len(head) + _READ_MAX_CHARS]
    for mask, replacement in _COMPILED:
        cause = mask.sub(replacement, cause)
    return (head + cause.replace(_KEPT, ""))[:_CAUSE_MAX_CHARS]
