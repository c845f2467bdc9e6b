"""The hash of the OpenAPI document without its words: of what the console's types are made.

console/build.mjs writes it into build.json, tests/console compares it: types that are stale are found without Node.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, cast

from penstock.rest.openapi import openapi_json

_WORDS = {"description", "summary", "title"}


def openapi_hash() -> str:
    document = _without_words(json.loads(openapi_json()))
    document.pop("info")
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def _without_words(value: Any) -> Any:
    if isinstance(value, dict):
        named = cast("dict[str, Any]", value)
        kept = {name: one for name, one in named.items() if not (name in _WORDS and isinstance(one, str))}
        return {name: _without_words(one) for name, one in kept.items()}
    return [_without_words(one) for one in cast("list[Any]", value)] if isinstance(value, list) else value


if __name__ == "__main__":
    print(openapi_hash())
