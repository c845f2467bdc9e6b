"""Tasks that a script hands over and a worker's process runs, on a real database."""

from __future__ import annotations

import durable_tasks
import pytest


def test_a_script_gets_what_a_worker_made(monkeypatch: pytest.MonkeyPatch, penstock_dsn: str) -> None:
    monkeypatch.setenv("PENSTOCK_AT", penstock_dsn)
    with durable_tasks.worker.in_thread():
        assert durable_tasks.send([3, 5, 8], detach=False) == "98"
        later = durable_tasks.send([1, 2], detach=True)
        assert durable_tasks.result(later) == "5"
