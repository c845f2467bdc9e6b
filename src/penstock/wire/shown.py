"""What a run shows: one value, and values by key. Together they are one JSON text, which engines keep.

A run that shows nothing by key has its value as it is, so what older programs wrote is read the same way.
"""

from __future__ import annotations

from typing import Final

import msgspec

KEYED: Final = "~keyed"
"""The field of the JSON text that has the values by key. No value has it."""
_VIEW: Final = "view"


def with_value(text: str | None, value: str, key: str | None) -> str:
    """Return the JSON text of a run that has shown ``text``, when it shows ``value`` (JSON), under a key or none.
    Raises ValueError for a value that can't be told from such a text."""
    if key is None and _fields(value) is not None:
        raise ValueError(f"a view has no field {KEYED!r}: it is Penstock's")
    plain, keyed = parts(text)
    if key is None:
        plain = value
    else:
        keyed[key] = value
    if not keyed:
        return value
    fields: dict[str, object] = {KEYED: {name: msgspec.Raw(each.encode()) for name, each in keyed.items()}}
    if plain is not None:
        fields[_VIEW] = msgspec.Raw(plain.encode())
    return msgspec.json.encode(fields).decode()


def parts(text: str | None) -> tuple[str | None, dict[str, str]]:
    """Return the value without a key (JSON), and those by key."""
    fields = None if text is None else _fields(text)
    if fields is None:
        return text, {}
    keyed = msgspec.json.decode(fields[KEYED], type=dict[str, msgspec.Raw])
    plain = fields.get(_VIEW)
    return None if plain is None else _text(plain), {name: _text(each) for name, each in keyed.items()}


def _fields(text: str) -> dict[str, msgspec.Raw] | None:
    """Return those of a text that has values by key; None for any other."""
    if f'"{KEYED}"' not in text or not text.startswith("{"):
        return None
    fields = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    return fields if KEYED in fields else None


def _text(raw: msgspec.Raw) -> str:
    return bytes(raw).decode()
