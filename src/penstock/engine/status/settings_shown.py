"""The settings of an engine as they may be shown: no secret, and no password in an address. Pure."""

from __future__ import annotations

from typing import cast

from penstock.log.masking import mask_text
from penstock.settings import SETTINGS, Secret, SettingInfo, Settings
from penstock.wire.setting import SettingView


def settings_of(settings: Settings) -> list[SettingView]:
    """Return them as they may be shown: no secret, and no password in an address."""
    return [
        SettingView(
            name=info.name,
            env=info.env,
            group=info.group,
            description=info.description,
            set=(value := getattr(settings, info.name)) != info.default,
            value="" if _is_secret(info) else _text(value),
            default="" if _is_secret(info) else _text(info.default),
            secret=_is_secret(info),
        )
        for info in SETTINGS.values()
    ]


def _is_secret(info: SettingInfo) -> bool:
    return info.secret or info.name == "api_tokens"  # their digests are no secrets, and nobody's business


def _text(value: object) -> str:
    if value is None or isinstance(value, Secret):
        return ""
    if isinstance(value, tuple):
        return ", ".join(map(_text, cast("tuple[object, ...]", value)))
    if isinstance(value, bool):
        return "true" if value else "false"
    return mask_text(str(value))
