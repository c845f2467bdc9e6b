"""`penstock lint`: file, line, rule; what the exit code says."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from penstock.cli.app import app

BAD = "import time\n\n@workflow\nasync def body(o):\n    time.time()\n"


@pytest.fixture
def lint(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "good.py").write_text("@workflow\nasync def body(o):\n    await charge(o)\n")
    return lambda *arguments: CliRunner().invoke(app, ["lint", *arguments])


def test_nothing_found_says_nothing(lint):
    result = lint("shop")
    assert (result.exit_code, result.output) == (0, "")


def test_each_finding_has_place_rule_and_what_to_write(lint, tmp_path):
    (tmp_path / "shop" / "bad.py").write_text(BAD)
    (tmp_path / "shop" / ".venv").mkdir()
    (tmp_path / "shop" / ".venv" / "theirs.py").write_text(BAD)
    result = lint("shop")
    said = "clock: time.time(): the time is different at replay: use penstock.durable.now()"
    assert (result.exit_code, result.output) == (1, f"shop/bad.py:5: {said}\n")


def test_as_json(lint, tmp_path):
    (tmp_path / "shop" / "bad.py").write_text(BAD)
    result = lint("--json", "shop/bad.py")
    [found] = json.loads(result.output)
    assert (result.exit_code, found["path"], found["line"], found["rule"]) == (1, "shop/bad.py", 5, "clock")
    assert json.loads(lint("--json", "shop/good.py").output) == []


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"def (:\n", "shop/broken.py:1: invalid syntax"),
        (b"\xff\n", "shop/broken.py: "),
        (b"x = '\0'\n", "shop/broken.py"),
        (b"(" * 2_000, "shop/broken.py"),
    ],
)
def test_what_is_no_python_is_reported_and_the_rest_checked(lint, tmp_path, content, said):
    (tmp_path / "shop" / "broken.py").write_bytes(content)
    (tmp_path / "shop" / "bad.py").write_text(BAD)
    result = lint("shop")
    assert result.exit_code == 2
    assert said in result.stderr
    assert "shop/bad.py:5: clock" in result.stdout


def test_a_file_that_is_not_there_is_reported(lint):
    result = lint("nowhere.py")
    assert result.exit_code == 2
    assert "nowhere.py" in result.stderr
