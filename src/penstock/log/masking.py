"""Takes secrets out of what people and machines are shown: values under telling names, at any depth, and in texts.

A leaf. Relies on names, so it can't know a secret that is called nothing of the kind: what the engine holds itself is a
``Secret`` (`settings.secret`), which never shows its value. Must not change what a value means otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, cast

MASK: Final = "***"
DEPTH_MAX: Final = 12
"""What lies deeper is left out, not shown."""

_WORDS: Final = (
    r"pass(?:wor[dt]|wd|phrase|code)|pwd|secret|credential|authorization|cookie|conninfo|private[_-]?key|signing[_-]?key"
    r"|encryption[_-]?keys?|api[_-]?keys?|access[_-]?keys?|client[_-]?key"
    r"|(?:api|access|auth|refresh|bearer|session|csrf|secret|(?<![a-z])id)[_-]?tokens?"
)
_FIRST: Final = "abceiprs"
"""What the words begin with: a search that looks at one letter first takes a fifth of the time."""
_NAME: Final = re.compile(
    rf"(?=[{_FIRST}dj_-])(?:{_WORDS}|(?:^|[_-])(?:dsn|jwt|bearer|session[_-]?id)$|^(?:pw|auth)$)", re.IGNORECASE
)
# In texts: a URL's password, a scheme with its credentials, tokens of our own, and name = value in its usual forms.
# What is quoted goes to its quote, or to the end where the text was cut off before that.
# What repeats gives nothing back (`+` behind it), as what follows can't be of it: time is in line with the length.
_USER_INFO: Final = re.compile(r"(://[^:/@\s]*+:)[^/\s]*(@)")
_SCHEME: Final = re.compile(r"\b(Bearer|Basic)(\s+)[A-Za-z0-9._~+/=-]{6,}", re.IGNORECASE)
_OWN_TOKEN: Final = re.compile(r"\b(pst_[0-9a-f]{12}_|pss_(?=[A-Za-z0-9_-]{40}))[A-Za-z0-9_-]+")
_PAIR: Final = re.compile(
    rf"((?=[{_FIRST}])(?:{_WORDS})[\w.-]{{0,40}}+[\"']?\s{{0,8}}+[=:]\s{{0,8}}+)"
    r"(\"(?:[^\"\\]++|\\.)*+\"?|'(?:[^'\\]++|\\.)*+'?|[^\s&,;\"'})\]]+)",
    re.IGNORECASE | re.DOTALL,
)
_QUERY_TOKEN: Final = re.compile(r"([?&](?:token|key|sig|signature|code|auth)=)[^&\s\"'#]+", re.IGNORECASE)


def is_secret_name(name: str) -> bool:
    """Return whether what is called so is a secret."""
    return _NAME.search(name) is not None


def mask_text(text: str) -> str:
    """Return the text without what looks like a secret in it."""
    if "://" in text:
        text = _USER_INFO.sub(rf"\1{MASK}\2", text)
        text = _QUERY_TOKEN.sub(rf"\1{MASK}", text)
    text = _SCHEME.sub(rf"\1\2{MASK}", text)
    text = _OWN_TOKEN.sub(rf"\1{MASK}", text)
    return _PAIR.sub(rf"\1{MASK}", text)


def mask(name: str, value: object, depth: int = 0) -> object:
    """The value as it may be shown under a name."""
    if is_secret_name(name):
        return value if value is None or isinstance(value, bool) else MASK
    if isinstance(value, str):
        return mask_text(value)
    if value is None or isinstance(value, int | float):
        return value
    if depth >= DEPTH_MAX:
        return "…"
    if isinstance(value, Mapping):
        items = cast("Mapping[Any, object]", value).items()
        return {mask_text(str(key)): mask(str(key), each, depth + 1) for key, each in items}
    if isinstance(value, list | tuple | set | frozenset):
        return [mask("", each, depth + 1) for each in cast("list[object]", value)]
    if isinstance(value, bytes | bytearray):
        return mask_text(bytes(value).decode(errors="replace"))
    return mask_text(str(value)) if isinstance(value, BaseException) else _Shown(value)


class _Shown:
    """Anything else: masked when it is written, and only then."""

    def __init__(self, value: object) -> None:
        self._value = value

    def __str__(self) -> str:
        return mask_text(str(self._value))

    def __repr__(self) -> str:
        return mask_text(repr(self._value))
