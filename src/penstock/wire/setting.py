"""A setting, as people are told of it over REST."""

from __future__ import annotations

import msgspec


class SettingView(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One setting of this engine. Of a secret only whether it is ``set``; ``default`` is empty where there is none."""

    name: str
    env: str
    group: str
    description: str
    set: bool
    value: str = ""
    default: str = ""
    secret: bool = False
