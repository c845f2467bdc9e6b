"""A program that attacks with a fleet does not pass when it attacked nothing, or looked at nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chaos import limits, spacing, starts
from chaos.fleet import Fleet

SEEN: dict[Any, Callable[[], Any]] = {
    limits: lambda: limits.Verdict(started=9, polls=9, most=(3, 1)),
    starts: lambda: starts.Verdict(fired=9, delayed=9, deduplicated=9, batches=9),
    spacing: lambda: spacing.Verdict(paced=9, debounced=9, longest_s=9.0),
}
LACKING: list[tuple[Any, str, Any]] = [
    (limits, "polls", 0), (limits, "started", 0), (limits, "most", (0, 0)),
    (starts, "fired", 0), (starts, "delayed", 0), (starts, "deduplicated", 0), (starts, "batches", 0),
    (spacing, "paced", 0), (spacing, "debounced", 0), (spacing, "longest_s", 1.0),
]  # fmt: skip


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    made = Fleet("", tmp_path, {}, engines=1, seconds=1, seed="s")
    made.kills = 1
    return made


async def code(module: Any, verdict: Any, fleet: Fleet, patch: pytest.MonkeyPatch) -> int:
    async def run(_attack: Any) -> Any:
        return verdict

    patch.setattr(module.Attack, "run", run)
    return int(await module.attack(fleet))


@pytest.mark.parametrize("module", SEEN, ids=lambda module: module.__name__)
async def test_an_attack_that_held_passes(
    module: Any, fleet: Fleet, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await code(module, SEEN[module](), fleet, monkeypatch) == 0
    assert "held" in capsys.readouterr().out
    fleet.kills = 0
    assert await code(module, SEEN[module](), fleet, monkeypatch) == 1
    assert "without kills" in capsys.readouterr().out


@pytest.mark.parametrize(("module", "field", "nothing"), LACKING, ids=lambda each: getattr(each, "__name__", str(each)))
async def test_an_attack_without_something_fails(
    module: Any,
    field: str,
    nothing: Any,
    fleet: Fleet,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    verdict = SEEN[module]()
    setattr(verdict, field, nothing)
    assert await code(module, verdict, fleet, monkeypatch) == 1
    assert "broken" in capsys.readouterr().out
