"""The loan process with its days of waiting, through to the payment by the workflow that it starts."""

from __future__ import annotations

import loan_worker
import pytest

from penstock.testing import SyncRun, SyncTestEngine

ANN = {"id": "c-1", "name": "Ann"}


@pytest.fixture
def penstock(penstock_sync: SyncTestEngine) -> SyncTestEngine:
    penstock_sync.deploy(*loan_worker.WORKFLOWS)
    penstock_sync.use(loan_worker.worker)
    return penstock_sync


def apply_for(penstock: SyncTestEngine, amount: float, months: int = 60, **applicant: str) -> SyncRun:
    variables = {"amount": amount, "termMonths": months, "applicant": ANN | applicant}
    return penstock.start("LOS::loan", variables, business_key="application-1").settle()


def disbursement(loan: SyncRun) -> SyncRun:
    assert loan.next is not None
    return loan.next


def test_a_large_loan_is_reviewed_escalated_and_paid_out(penstock: SyncTestEngine) -> None:
    loan = apply_for(penstock, 60_000)
    loan.assert_passed("prepare", "checks", "checks-done", "decide", "manual-review")
    loan.assert_at("manual-review")
    loan.assert_variables(identityConfirmed=True, collateral=48_000, isLarge=True)

    loan.complete_task("manual-review", {"decision": "ask"}, by="officer")
    penstock.settle()
    loan.signal("documents", {"documents": ["payslip"]})
    loan.assert_at("manual-review")
    penstock.advance(days=3)
    loan.assert_at("senior-review")
    assert penstock.stubs["loan.remind"].count == 1
    loan.complete_task("senior-review", {"decision": "approve"}, by="senior")
    penstock.settle()
    loan.assert_completed()
    assert [item.status for item in loan.history if item.step_id == "manual-review"] == ["COMPLETED", "FAILED"]

    payment = disbursement(loan)
    payment.assert_at("contract-signed")
    payment.signal("contract-signed", {"signedBy": "Ann"})
    penstock.advance(hours=23)
    payment.assert_at("cooling-off")
    payment.finish()
    payment.assert_completed()
    payment.assert_variables(status="paid", documents=["payslip"], loan={"product": "standard", "currency": "EUR"})


def test_a_small_loan_needs_nobody(penstock: SyncTestEngine) -> None:
    loan = apply_for(penstock, 1_000, 12)
    loan.assert_completed()
    loan.assert_variables(approved=True)
    assert "manual-review" not in loan.path


def test_who_can_not_be_identified_is_declined(penstock: SyncTestEngine) -> None:
    loan = apply_for(penstock, 1_000, 12, name="Mallory")
    loan.assert_passed("decide", "decline", "finished")
    disbursement(loan).assert_path("is-approved", "nothing-to-pay")


def test_operations_are_reported_when_the_bureau_is_slow(penstock: SyncTestEngine) -> None:
    penstock.stub("loan.credit", {"debts": 0}, takes=3 * 3600)
    loan = apply_for(penstock, 1_000, 12)
    penstock.advance(hours=1, minutes=59)
    assert penstock.stubs["loan.alert"].count == 0
    penstock.advance(minutes=1)
    assert penstock.stubs["loan.alert"].count == 1
    loan.finish()
    loan.assert_completed()


def test_documents_that_never_come_decline_the_loan(penstock: SyncTestEngine) -> None:
    loan = apply_for(penstock, 60_000)
    loan.complete_task("manual-review", {"decision": "ask"})
    loan.finish()
    loan.assert_passed("documents", "decline")


def test_an_offer_expires_after_thirty_days(penstock: SyncTestEngine) -> None:
    loan = apply_for(penstock, 1_000, 12)
    disbursement(loan).finish()
    disbursement(loan).assert_passed("contract-signed", "offer-expired", "nothing-to-pay")


def test_a_payment_goes_on_after_a_long_bank_outage(penstock: SyncTestEngine) -> None:
    bank = penstock.stub("loan.payout", *[ConnectionError("closed")] * 5, {"transfer": "T-1"})
    loan = apply_for(penstock, 1_000, 12)
    payment = disbursement(loan)
    payment.signal("contract-signed")
    before = penstock.now
    payment.finish()
    payment.assert_completed()
    assert bank.count == 6
    # a day of cooling off, then 5, 15, 45, 135 and 405 seconds of back-off
    assert (penstock.now - before).total_seconds() == 86_400 + 605
