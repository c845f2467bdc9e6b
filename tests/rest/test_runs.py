"""The routes of durable runs: what they ask of the engine, and what they refuse themselves."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from penstock.errors import Conflict, NotFound, TooManyRequests
from penstock.wire.model import Branch, JournalRecord, RunTree
from penstock.wire.page import Page
from tests.rest.scripted import NOON, Rest, ScriptedEngine, instance

RECORD = JournalRecord(
    pos="7", at=NOON, kind="done", path="/0", name="charge", attempt=2, payload=msgspec.Raw(b'{"a":1}')
)


async def test_a_journal_is_read_in_slices(rest: Rest, engine: ScriptedEngine) -> None:
    engine.on("runs.journal", Page(items=[RECORD], next="7"))
    answer = await rest.get("/v1/instances/1f/journal?limit=1&cursor=6")
    assert (answer.status, answer.json["next"]) == (200, "7")
    assert answer.json["items"][0] == {
        "pos": "7", "at": "2026-01-02T12:00:00Z", "kind": "done", "path": "/0", "name": "charge", "attempt": 2,
        "payload": {"a": 1},
    }  # fmt: skip
    assert engine.one("runs.journal") == ("1f", "6", 1)


@pytest.mark.parametrize(("query", "limit"), [("", 1000), ("?limit=0", 1), ("?limit=-3", 1), ("?limit=99999", 1000)])
async def test_a_slice_is_bounded(rest: Rest, engine: ScriptedEngine, query: str, limit: int) -> None:
    engine.on("runs.journal", Page(items=[]))
    assert (await rest.get(f"/v1/instances/1f/journal{query}")).json == {"items": []}
    assert engine.one("runs.journal") == ("1f", None, limit)


async def test_a_limit_that_is_no_number_is_refused(rest: Rest, engine: ScriptedEngine) -> None:
    answer = await rest.get("/v1/instances/1f/journal?limit=many")
    assert answer.error == (400, "bad-request", "limit: must be a whole number")
    assert not engine.calls


async def test_a_tree_shows_what_is_open(rest: Rest, engine: ScriptedEngine) -> None:
    branch = Branch(path="/0", status="waiting", name="approval", kind="receive", where="order.py:41")
    engine.on("runs.tree", RunTree(id="1f", status="WAITING", workflow="order", version=1, branches=[branch]))
    answer = await rest.get("/v1/instances/1f/tree")
    assert answer.status == 200
    assert answer.json["branches"] == [
        {"path": "/0", "status": "waiting", "name": "approval", "kind": "receive", "where": "order.py:41"}
    ]


@pytest.mark.parametrize(
    ("body", "payload"),
    [({"name": "n"}, b"null"), ({"name": "n", "payload": None}, b"null"), ({"name": "n", "payload": [1]}, b"[1]")],
)
async def test_a_message_is_handed_on_with_its_key(
    rest: Rest, engine: ScriptedEngine, body: dict[str, Any], payload: bytes
) -> None:
    answer = await rest.post("/v1/instances/1f/messages", body, idempotency_key="mail-1")
    assert (answer.status, answer.body) == (204, b"")
    assert engine.one("runs.send") == ("1f", "n", payload, {"dedup": "mail-1", "force": False})


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "body: is required"),
        ({}, "name: is required"),
        ({"name": ""}, "name: is required"),
        ({"name": 3}, "name: expected str | null, got int"),
        ({"name": "n" * 257}, "name: has 257 characters, more than 256"),
        ({"name": "a\0"}, "name: has a NUL character"),
        (b'{"name":"n","payload":"\\u0000"}', "payload: "),
    ],
)
async def test_a_message_that_can_not_be_kept_is_refused(
    rest: Rest, engine: ScriptedEngine, body: Any, reason: str
) -> None:
    answer = await rest.post("/v1/instances/1f/messages", body)
    assert answer.error[:2] == (400, "bad-request")
    assert answer.error[2].startswith(reason)
    assert not engine.calls


async def test_a_payload_that_is_too_large_is_refused(rest: Rest, engine: ScriptedEngine) -> None:
    answer = await rest.post("/v1/instances/1f/messages", {"name": "n", "payload": "x" * 300_000})
    assert answer.error[:2] == (413, "payload-too-large")
    assert not engine.calls


@pytest.mark.parametrize(("method", "path"), [("get", "journal"), ("get", "tree")])
@pytest.mark.parametrize(
    ("error", "status"), [(NotFound("no such instance"), 404), (Conflict("it is not a durable run"), 409)]
)
async def test_what_is_no_run_is_reported(
    rest: Rest, engine: ScriptedEngine, method: str, path: str, error: Exception, status: int
) -> None:
    engine.on(f"runs.{path}", error)
    assert (await getattr(rest, method)(f"/v1/instances/1f/{path}")).status == status


async def test_a_full_mailbox_asks_to_come_back(rest: Rest, engine: ScriptedEngine) -> None:
    engine.on("runs.send", TooManyRequests("1f has 10,000 unread messages"))
    assert (await rest.post("/v1/instances/1f/messages", {"name": "n"})).status == 429


async def test_a_cancel_by_force_is_handed_on(rest: Rest, engine: ScriptedEngine) -> None:
    engine.on("instances.cancel", instance(status="CANCELLED"))
    await rest.post("/v1/instances/1f/cancel", {"force": True})
    assert engine.one("instances.cancel") == ("1f", None, {"force": True, "compensate": False})
