"""Who may call what, on which wire, is what it was when each permission stood in a table by hand.

A new operation gets its line in ``callers.json``; a line that changes is a change of who may call.
"""

from __future__ import annotations

import json
from pathlib import Path

from penstock.access import table
from penstock.access.roles import ALLOWED, Role
from penstock.api.permission import Permission
from penstock.rest.operations import OPERATIONS

BEFORE = json.loads(Path(__file__).with_name("callers.json").read_text())


def callers(needed: Permission) -> str:
    if needed is Permission.NONE:
        return "everybody"
    if needed is Permission.PROVED:
        return "whoever is known"
    return " ".join(role for role in Role if needed in ALLOWED[role])


def test_who_may_call_over_rest() -> None:
    assert {f"{row.method} {row.path}": callers(row.needs) for row in OPERATIONS} == BEFORE["rest"]


def test_who_may_call_over_grpc() -> None:
    assert {path: callers(needed) for path, needed in table.RPC.items()} == BEFORE["grpc"]
