"""The database goes away while an app and the engine inside begin: whatever they were about, they begin."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from types import FrameType

import pytest

from penstock.durable import App, workflow
from penstock.durable import local as local_module
from penstock.runtime import database_start, node
from penstock.store.db.connection import TrioConnection

BEGINNINGS = {node.Node._serve.__code__, local_module.open_local.__wrapped__.__code__}  # type: ignore[attr-defined]


@workflow(queue="jobs")
async def nothing() -> None: ...


def place() -> tuple[tuple[str, int], ...]:
    """Where in the start a statement is sent, by the calls that lead there; nothing where it is a service's own."""
    frame: FrameType | None = sys._getframe(2)
    calls: list[tuple[str, int]] = []
    while frame is not None:
        calls.append((frame.f_code.co_filename, frame.f_lineno))
        if frame.f_code in BEGINNINGS:
            return tuple(calls)
        frame = frame.f_back
    return ()


@pytest.mark.slow(reason="starts an app for each statement it sends")
async def test_an_app_begins_though_each_statement_loses_its_connection(
    database_dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "queues.yaml"
    file.write_text("orders: {jobTypes: [order], concurrency: 3}\n")
    monkeypatch.setenv("WE_QUEUES_FILE", str(file))
    monkeypatch.setenv("WE_AUTHENTICATION", "true")
    monkeypatch.setenv("WE_OUTAGE_WAIT_SECONDS", "60")
    monkeypatch.setattr(database_start, "PAUSE_S", 0)
    wait, lost = TrioConnection.wait, set[tuple[tuple[str, int], ...]]()

    async def wait_and_lose(connection: TrioConnection, *args: object, **kwargs: object) -> object:
        if (where := place()) and where not in lost:
            lost.add(where)
            with socket.socket(fileno=os.dup(connection.pgconn.socket)) as end:
                end.shutdown(socket.SHUT_RDWR)
        return await wait(connection, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(TrioConnection, "wait", wait_and_lose)
    async with App(nothing, at=database_dsn, migrate=True, rest_port=0):
        pass
    assert {Path(file).stem for where in lost for file, _ in where} >= {"membership", "queues_file", "access", "code"}
