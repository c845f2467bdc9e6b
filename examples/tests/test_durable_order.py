"""The durable order in memory, on a virtual clock: no database, and a week takes milliseconds."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import timedelta
from decimal import Decimal
from pathlib import Path

import durable_order
import pytest
from durable_order import Approval, Declined, Line, Order, Payment, Refused, World, order

from penstock.durable import Cancelled, TooSlow
from penstock.testing import Message, Takes, run_workflow

SMALL = Order("A-1", [Line("pen", 2, Decimal(3)), Line("book", 1, Decimal(25))])
LARGE = Order("A-2", [Line("desk", 1, Decimal(900))])
PAID = Message("payment", Payment("visa"), after="2h")
GRANTED = Message("approval", Approval("ann", granted=True), after="1h")


@pytest.fixture(autouse=True)
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    world = World(tmp_path / "world.sqlite3")
    monkeypatch.setattr(durable_order, "world", world)
    return world


def deeds(world: World) -> list[str]:
    with closing(sqlite3.connect(world.path)) as file:
        return [what for (what,) in file.execute("SELECT what FROM deed ORDER BY rowid")]


def test_an_order_that_is_paid_is_shipped(world: World) -> None:
    run = run_workflow(order, SMALL, messages=[PAID])
    assert run.result().amount == Decimal(31)
    assert run.took == timedelta(hours=2)
    assert deeds(world) == ["reserve", "pack", "pack", "charge", "ship"]


def test_a_large_order_waits_for_its_approval(world: World) -> None:
    run = run_workflow(order, LARGE, messages=[GRANTED, PAID])
    assert run.result().amount == Decimal(900)
    assert deeds(world)[:2] == ["reserve", "ask"]


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ([Message("approval", Approval("bob", granted=False))], "refused by bob"),
        ([], "nobody decided"),
    ],
)
def test_what_is_not_approved_is_undone(world: World, messages: list[Message], said: str) -> None:
    with pytest.raises(Refused, match=said):
        run_workflow(order, LARGE, messages=messages).result()
    assert deeds(world) == ["reserve", "ask", "refund", "release"]


def test_a_forgetful_customer_is_reminded_and_then_given_up(world: World) -> None:
    run = run_workflow(order, SMALL)
    assert isinstance(run.error, TooSlow)
    assert run.took == timedelta(days=3)
    assert deeds(world) == ["reserve", "pack", "pack", "remind", "refund", "release"]


def test_a_declined_card_undoes_the_order(world: World) -> None:
    run = run_workflow(order, SMALL, messages=[Message("payment", Payment("stolen"))])
    with pytest.RaisesGroup(Declined):
        run.result()
    assert deeds(world)[-2:] == ["refund", "release"]


def test_a_payment_under_way_outlasts_the_day(world: World) -> None:
    late = Message("payment", Payment("visa"), after=86_390)
    run = run_workflow(order, SMALL, messages=[late], steps={durable_order.charge: Takes("20s")})
    assert run.error is None
    assert "remind" not in deeds(world)


def test_a_cancelled_order_is_undone_before_it_ends(world: World) -> None:
    run = run_workflow(order, SMALL, cancel_after="1h")
    with pytest.raises(Cancelled):
        run.result()
    assert deeds(world)[-2:] == ["refund", "release"]


def test_a_step_that_is_asked_twice_does_it_once(world: World) -> None:
    assert world.do("A-1/4", "charge", "A-1") == world.do("A-1/4", "charge", "A-1")
    assert deeds(world) == ["charge"]
