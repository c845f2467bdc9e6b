"""`penstock config show`: every value and where it comes from, and no secret."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from penstock.cli.app import app
from penstock.settings import SETTINGS


@pytest.fixture
def show(tmp_path, monkeypatch):
    config = tmp_path / "engine.yaml"
    config.write_text("db_max_conns: 20\n")
    monkeypatch.setenv("WE_POSTGRES_DSN", "postgresql://engine:hunter2@db/penstock")
    monkeypatch.setenv("WE_ENCRYPTION_KEYS", "a=c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LXNlY3I=")
    monkeypatch.setenv("WE_REST_PROT", "1")
    return lambda *more: CliRunner().invoke(app, ["config", "show", "--config", str(config), *more])


def test_each_value_has_its_source(show, tmp_path):
    result = show("--changed")
    assert result.exit_code == 0
    assert [line.split(maxsplit=2) for line in result.stdout.splitlines()] == [
        ["setting", "value", "from"],
        ["postgres_dsn", "postgresql://engine@db/penstock", "WE_POSTGRES_DSN"],
        ["db_max_conns", "20", f"{tmp_path}/engine.yaml:1: db_max_conns"],
        ["encryption_keys", "***", "WE_ENCRYPTION_KEYS"],
    ]
    assert result.stderr == "WE_REST_PROT: means nothing to the engine (did you mean WE_REST_PORT?)\n"


def test_all_settings_are_listed_and_no_secret(show):
    result = show()
    assert [line.split()[0] for line in result.stdout.splitlines()[1:]] == list(SETTINGS)
    for secret in ("hunter2", "c2VjcmV0"):
        assert secret not in result.output


def test_as_json(show):
    found = json.loads(show("--json").stdout)
    assert found["unknownEnvironment"] == {"WE_REST_PROT": "WE_REST_PORT"}
    port = next(each for each in found["settings"] if each["name"] == "rest_port")
    assert port == {"name": "rest_port", "value": 8080, "source": None, "environment": "WE_REST_PORT"}


def test_wrong_settings_are_all_reported(show, monkeypatch):
    monkeypatch.setenv("DB_MIN_CONNS", "x")
    monkeypatch.setenv("WE_GRPC_PORT", "99999")
    result = show()
    assert (result.exit_code, result.stdout) == (2, "")
    assert [line.split(":")[0].strip() for line in result.stderr.splitlines()] == [
        "penstock",
        "DB_MIN_CONNS",
        "WE_GRPC_PORT",
    ]
