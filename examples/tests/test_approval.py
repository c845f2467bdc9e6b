"""Approval by people: the days pass as fast as the test wants."""

from __future__ import annotations

import datetime as dt

import approval_worker
import pytest

from penstock.testing import Stub, SyncRun, SyncTestEngine

MONDAY = dt.datetime(2030, 1, 7, 9, tzinfo=dt.UTC)


@pytest.fixture
def penstock(penstock_sync: SyncTestEngine) -> SyncTestEngine:
    penstock_sync.deploy(approval_worker.WORKFLOW)
    penstock_sync.use(approval_worker.worker)
    return penstock_sync


def hand_in(penstock: SyncTestEngine, amount: float = 200) -> SyncRun:
    run = penstock.start("expense-approval", {"employee": "Ann", "purpose": "a chair", "amount": amount})
    return run.settle()


def reminders(penstock: SyncTestEngine) -> Stub:
    return penstock.stubs["expense.remind"]


def test_a_small_expense_is_paid_at_once(penstock: SyncTestEngine) -> None:
    run = hand_in(penstock, 20)
    run.assert_path("is-small", "pay", "done")
    run.assert_variables(payment=f"P-{run.id}")


def test_the_team_lead_approves(penstock: SyncTestEngine) -> None:
    run = hand_in(penstock)
    run.assert_at("approval")
    run.complete_task("approval", {"approved": True}, by="lea")
    run.settle()
    run.assert_path("is-small", "ask-approver", "approval", "pay", "done")
    penstock.advance(days=30)
    assert reminders(penstock).count == 0


def test_the_team_lead_refuses_after_a_reminder(penstock: SyncTestEngine) -> None:
    run = hand_in(penstock)
    penstock.advance(days=2)
    assert reminders(penstock).count == 1
    run.assert_at("approval")
    run.complete_task("approval", {"approved": False, "comment": "buy a stool"})
    run.settle()
    run.assert_completed()
    run.assert_passed("remind", "refuse")


@pytest.mark.penstock(now=MONDAY)
def test_after_three_days_the_head_of_the_department_decides(penstock: SyncTestEngine) -> None:
    run = hand_in(penstock)
    penstock.advance(days=2, hours=23, minutes=59)
    run.assert_at("approval")
    penstock.advance(minutes=1)
    run.assert_at("second-approval")
    entered = {item.step_id: item.started_at for item in run.history}
    assert entered["remind"] == MONDAY + dt.timedelta(days=1)
    assert entered["escalate"] == MONDAY + dt.timedelta(days=3)

    async def press_the_button() -> bool:
        return await approval_worker.decide(penstock.engine.client, run.id, approved=True, by="harry")

    assert penstock.await_(press_the_button)
    run.finish()
    run.assert_completed()
    assert run.path[-2:] == ["pay", "done"]
    assert not penstock.await_(press_the_button)


@pytest.mark.penstock(now=MONDAY)
def test_when_nobody_decides_it_is_refused(penstock: SyncTestEngine, capsys: pytest.CaptureFixture[str]) -> None:
    run = hand_in(penstock).finish()
    run.assert_passed("remind", "escalate", "nobody-decided", "refuse")
    assert penstock.now == MONDAY + dt.timedelta(days=10)
    assert "mail to Ann: refused: nobody decided in time" in capsys.readouterr().out
