"""Runs of a program over REST: an engine beside it on the same PostgreSQL, and the client."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from decimal import Decimal
from pathlib import Path

import pytest

from examples import durable_order
from examples.durable_order import Approval, Line, Order, Payment, World, order
from penstock.client import Conflict, IdempotencyConflict, NotFound, SyncClient
from penstock.durable import App, RunCancelled
from penstock.durable.blocking import BlockingApp
from tests.sdk.running_engine import RunningEngine

LARGE = Order("A-1", [Line("desk", 1, Decimal(900))])
BOUND_S = 60.0
pytestmark = pytest.mark.slow(reason="an engine process and programs beside it")


@pytest.fixture
def shop(database_dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[BlockingApp]:
    monkeypatch.setattr(durable_order, "world", World(tmp_path / "world.sqlite3"))
    with App(order, at=database_dsn).in_thread() as blocking:
        yield blocking


@pytest.fixture
def client(database_dsn: str, shop: BlockingApp, tmp_path: Path) -> Generator[SyncClient]:
    engine = RunningEngine(database_dsn, tmp_path / "log")
    try:
        engine.start()
        with SyncClient(engine.url) as client:
            yield client
    finally:
        engine.close()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + BOUND_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_run_is_listed_looked_into_and_reported(shop: BlockingApp, client: SyncClient) -> None:
    run = shop.start(order, LARGE, id="A-1")
    id = run.instance_id
    assert [item.id for item in client.list_instances(business_key="A-1").items] == [id]
    until(lambda: [record.name for record in client.iterate_journal(id)] == ["reserve", "ask_for_approval"])
    first = client.get_journal(id, limit=1)
    assert [(record.kind, record.path, record.attempt) for record in first.items] == [("done", "/0", 1)]
    assert first.next is not None
    assert client.get_journal(id, cursor=first.next).next is None

    until(lambda: client.get_tree(id).view is not None)
    tree = client.get_tree(id)
    assert (tree.id, tree.workflow, tree.version) == (id, "order", 1)
    assert tree.view["stage"] == "approval"

    client.send_message(id, "approval", Approval("ann", granted=True), dedup="mail-1")
    client.send_message(id, "approval", Approval("ann", granted=True), dedup="mail-1")
    with pytest.raises(IdempotencyConflict):
        client.send_message(id, "approval", Approval("bob", granted=True), dedup="mail-1")
    client.send_message(id, "payment", Payment("visa"))
    assert run.result(BOUND_S).amount == Decimal(900)

    *records, view = client.iterate_journal(id)
    assert sorted(str(record.name) for record in records) == sorted(
        ["reserve", "ask_for_approval", "approval", "payment", "pack", "charge", "ship"]
    )
    assert (view.kind, view.payload) == ("view", client.get_tree(id).view), "it is seen after the end, too"
    assert view.payload["stage"] == "shipped"
    ended = client.get_instance(id)
    assert (ended.status, ended.variables["result"]["amount"]) == ("COMPLETED", "900")
    assert [step.status for step in client.get_history(id)][:1] == ["COMPLETED"]
    with pytest.raises(Conflict, match="ended"):
        client.send_message(id, "approval", 1)
    with pytest.raises(Conflict):
        client.cancel_instance(id)


def test_a_cancel_over_rest_lets_the_run_clean_up(shop: BlockingApp, client: SyncClient) -> None:
    run = shop.start(order, LARGE, id="A-1")
    until(lambda: len(list(client.iterate_journal(run.instance_id))) == 2)
    client.cancel_instance(run.instance_id, reason="changed my mind")
    with pytest.raises(RunCancelled):
        run.result(BOUND_S)
    records = list(client.iterate_journal(run.instance_id))
    assert [record.name for record in records if record.kind == "done"][-2:] == ["refund", "release"]
    [cancel] = [record for record in records if record.kind == "cancel"]
    assert cancel.payload["reason"] == "changed my mind"
    assert client.get_instance(run.instance_id).status == "CANCELLED"


def test_a_cancel_by_force_ends_it_without(shop: BlockingApp, client: SyncClient) -> None:
    run = shop.start(order, LARGE, id="A-1")
    until(lambda: len(list(client.iterate_journal(run.instance_id))) == 2)
    assert client.cancel_instance(run.instance_id, force=True).status == "CANCELLED"
    with pytest.raises(RunCancelled):
        run.result(BOUND_S)
    assert [record.name for record in client.iterate_journal(run.instance_id)] == ["reserve", "ask_for_approval"]


def test_what_is_no_run_is_reported(client: SyncClient) -> None:
    client.upload_definition(
        {
            "id": "plain",
            "name": "plain",
            "steps": [
                {"id": "w", "name": "w", "type": "WAIT", "nextStep": "e"},
                {"id": "e", "name": "e", "type": "END"},
            ],
        }
    )
    plain = client.start_instance("plain").id
    for call in (client.get_journal, lambda id: client.send_message(id, "n")):
        with pytest.raises(Conflict, match="is not a durable run"):
            call(plain)
    for call in (client.get_journal, client.get_tree, lambda id: client.send_message(id, "n")):
        with pytest.raises(NotFound):
            call("1f")
