"""A loan as a case that calls its parts: what comes back, what goes wrong in a part, and the end of all of it."""

from __future__ import annotations

from pathlib import Path

import loan_worker
import pytest

from penstock.testing import SyncRun, SyncTestEngine, fails

EXAMPLES = Path(loan_worker.__file__).parent
ANN = {"applicant": {"id": "c-1", "name": "Ann"}, "amount": 60_000, "termMonths": 60}


@pytest.fixture
def penstock(penstock_sync: SyncTestEngine) -> SyncTestEngine:
    penstock_sync.deploy(*loan_worker.WORKFLOWS, EXAMPLES / "loan-checks.json", EXAMPLES / "loan-case.json")
    penstock_sync.use(loan_worker.worker)
    return penstock_sync


def open_case(penstock: SyncTestEngine) -> SyncRun:
    return penstock.start("LOS::case", ANN).settle()


def test_a_case_goes_from_its_checks_to_the_payment(penstock: SyncTestEngine) -> None:
    case = open_case(penstock)
    case.assert_path("assess", "decide", "approve", "disburse")
    case.assert_at("disburse")
    checks, disbursement = case.children
    checks.assert_completed()
    assert (checks.instance.business_key, checks.instance.parent_instance_id) == ("c-1", case.id)
    disbursement.signal("contract-signed", {"signedBy": "Ann"})
    case.finish()
    case.assert_completed()
    case.assert_variables(status="paid")
    assert "transfer" not in case.variables  # only what is asked for comes back


def test_a_check_that_fails_for_good_is_decided_by_hand(penstock: SyncTestEngine) -> None:
    penstock.stub("loan.credit", fails("the bureau has no file"))
    case = open_case(penstock)
    case.assert_at("by-hand")
    assert case.variables["error"]["code"] == "Penstock.ChildFailed"
    case.complete_task("by-hand", {"approved": False})
    case.finish()
    case.assert_variables(status="nothing paid")


def test_checks_that_take_too_long_are_given_up(penstock: SyncTestEngine) -> None:
    penstock.stub("loan.credit", takes=3 * 86_400)
    case = open_case(penstock)
    case.assert_at("assess")
    penstock.advance(days=2)
    case.assert_at("by-hand")
    assert case.children[0].status == "CANCELLED"


def test_a_cancelled_case_ends_what_it_waits_for(penstock: SyncTestEngine) -> None:
    case = open_case(penstock)
    case.cancel("withdrawn")
    penstock.settle()
    assert [child.status for child in case.children] == ["COMPLETED", "CANCELLED"]


def test_a_withdrawn_case_undoes_its_checks(penstock: SyncTestEngine) -> None:
    withdraw = penstock.stub("loan.withdraw", RuntimeError("no line"), {})
    case = open_case(penstock)
    case.cancel("withdrawn", compensate=True)
    case.assert_at("assess/compensation")
    case.finish()
    assert case.status == "CANCELLED"
    assert [child.status for child in case.children] == ["COMPLETED", "CANCELLED"]
    assert withdraw.count == 2
    reported = withdraw.variables[-1]["compensating"]
    assert reported == {"stepId": "assess", "output": {"identityConfirmed": True, "debts": reported["output"]["debts"]}}


def test_a_part_can_be_stubbed(penstock: SyncTestEngine) -> None:
    penstock.stub_workflow("LOS::checks", {"identityConfirmed": True, "debts": 70_000})
    case = open_case(penstock)
    case.assert_passed("assess", "decide", "by-hand")
