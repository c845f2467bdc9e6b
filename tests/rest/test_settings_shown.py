"""`GET /v1/settings` tells how an engine runs, and nothing that would let somebody in."""

from __future__ import annotations

from typing import Any

from penstock.engine.status.settings_shown import settings_of
from penstock.settings import SETTINGS, Secret, Settings

HIDDEN = "hunter2"


def test_no_secret_is_shown_only_that_it_is_set() -> None:
    secrets: dict[str, Any] = {name: Secret(f"{HIDDEN}-{name}") for name, info in SETTINGS.items() if info.secret}
    shown = {one.name: one for one in settings_of(Settings(**secrets))}
    assert len(secrets) >= 3
    for name in secrets:
        assert (shown[name].secret, shown[name].set, shown[name].value, shown[name].default) == (True, True, "", "")
    assert HIDDEN not in repr(shown)


def test_every_setting_is_shown_with_its_default() -> None:
    shown = settings_of(Settings(rest_port=1234, audit_log_enabled=False))
    assert [one.name for one in shown] == list(SETTINGS)
    changed = {one.name: (one.value, one.default) for one in shown if one.set}
    assert changed == {"rest_port": ("1234", "8080"), "audit_log_enabled": ("false", "true")}
    assert all(one.description and one.env for one in shown)


def test_tokens_are_not_shown_either() -> None:
    shown = {one.name: one for one in settings_of(Settings(api_tokens=(f"a:b:{HIDDEN}:viewer",)))}
    assert (shown["api_tokens"].set, shown["api_tokens"].value) == (True, "")
    assert HIDDEN not in repr(shown)
