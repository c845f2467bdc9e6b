"""Journals that e75dc088 wrote (``journals/``) replay to the end that they had, whatever holds today."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from penstock.durable.activation import Activation, Still
from penstock.durable.check import SavedRun
from penstock.kernel.record import RULES
from penstock.testing import assert_replays
from tests.reports.journals import programs

FOLDER = Path(programs.__file__).parent
NAMES = sorted(path.stem for path in FOLDER.glob("*.json") if not path.stem.endswith(".end"))
FLOWS = {name: flow for name, (flow, _, _) in programs.RUNS.items()} | {"approval": programs.approval}


def replay(name: str, saved: SavedRun, rules: int) -> object:
    activation = Activation(FLOWS[name], saved.run_id, saved.arguments, saved.started_at, Still(), rules=rules)
    activation.replay(saved.records)
    if activation.result is None:
        activation.discard()
        return "open"
    assert activation.result.error is None
    return activation.result.value


@pytest.mark.parametrize("name", NAMES)
def test_an_old_journal_ends_as_it_did(name: str) -> None:
    saved = msgspec.json.decode((FOLDER / f"{name}.json").read_bytes(), type=SavedRun)
    assert saved.rules == 0
    assert all(record.rules is None for record in saved.records)
    assert replay(name, saved, saved.rules) == json.loads((FOLDER / f"{name}.end.json").read_text())
    assert assert_replays(FLOWS[name], FOLDER / f"{name}.json") == 1


def test_old_journals_are_of_each_kind() -> None:
    assert set(NAMES) == set(FLOWS)
    assert RULES >= 1


def test_the_same_records_end_otherwise_by_todays_rules() -> None:
    saved = {
        name: msgspec.json.decode((FOLDER / f"{name}.json").read_bytes(), type=SavedRun)
        for name in ("two_names", "approval", "items_and_permits")
    }
    assert replay("two_names", saved["two_names"], RULES) == "a 1, then 2"
    assert replay("approval", saved["approval"], RULES) == "t, then yes"
    found = replay("items_and_permits", saved["items_and_permits"], RULES)
    assert found == ["a one", "two", "a 1"]
