"""The loan process of `examples/`, through REST from upload to end: parallel checks, manual review with escalation,
a request for documents, and the disbursement that it chains into, with its cooling-off day."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from penstock.testing.clock import DatabaseClock
from tests.runtime.conftest import StartEngine, start_engine
from tests.runtime.engine_process import EngineProcess
from tests.runtime.waiting import wait_until

__all__ = ["start_engine"]

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


class Bank:
    """Everybody around the process: workers, officers, the applicant."""

    def __init__(self, engine: EngineProcess) -> None:
        self.engine = engine

    def call(self, method: str, path: str, body: Any = None, expect: int = 200) -> Any:
        status, answer = self.engine.call(method, path, body)
        assert status == expect, (path, status, answer)
        return answer

    def upload(self, name: str) -> None:
        self.call("POST", "/v1/definitions", json.loads((EXAMPLES / name).read_text()), 201)

    def view(self, instance: str) -> Any:
        return self.call("GET", f"/v1/instances/{instance}")

    def work(self, job_type: str, variables: Any = None) -> Any:
        poll = {"workerId": "bank", "jobTypes": [job_type], "maxJobs": 1, "waitSeconds": 20}
        jobs = self.call("POST", "/v1/jobs/poll", poll)["jobs"]
        assert len(jobs) == 1, job_type
        body = {"workerId": "bank", "attempt": jobs[0]["attempt"], "variables": variables or {}}
        self.call("POST", f"/v1/jobs/{jobs[0]['id']}/complete", body, 204)
        return jobs[0]

    def apply(self, **variables: Any) -> str:
        body = {"definitionId": "LOS::loan", "variables": variables, "businessKey": "application-1"}
        return self.call("POST", "/v1/instances", body, 201)["id"]


@pytest.mark.slow(reason="the whole example with its escalations")
def test_a_large_loan_is_reviewed_escalated_and_paid_out(start_engine: StartEngine, database_dsn: str) -> None:
    bank = Bank(start_engine().wait_ready())
    bank.upload("loan-disbursement.json")
    bank.upload("loan-process.json")
    loan = bank.apply(amount=60_000, termMonths=60, applicant={"name": "Ann"})
    assert sorted(bank.view(loan)["currentStepIds"]) == ["collateral", "credit", "identity"]

    bank.work("loan.identity", {"identityConfirmed": True})
    bank.work("loan.credit", {"bureau": "clean"})
    bank.work("loan.collateral", {"collateral": "house"})
    assert bank.view(loan)["currentStepIds"] == ["score"]
    bank.work("loan.score", {"score": 720})
    view = bank.view(loan)
    assert (view["status"], view["currentStepIds"]) == ("WAITING", ["manual-review"])

    review = f"/v1/instances/{loan}/user-tasks/manual-review/complete"
    bank.call("POST", review, {"result": {"decision": "ask"}, "completedBy": "officer"}, 204)
    bank.work("loan.ask")
    bank.call("POST", f"/v1/instances/{loan}/signals/documents", {"documents": ["payslip"]}, 204)
    assert bank.view(loan)["currentStepIds"] == ["manual-review"]

    clock = DatabaseClock(database_dsn)
    clock.advance(timedelta(days=1, minutes=1).total_seconds())
    reminded = bank.work("loan.remind")
    assert reminded["variables"]["documents"] == ["payslip"]
    clock.advance(timedelta(days=2).total_seconds())
    wait_until(lambda: bank.view(loan)["currentStepIds"] == ["senior-review"])
    bank.call("POST", review, {"result": {"decision": "approve"}}, 404)  # interrupted: nobody can complete it
    senior = f"/v1/instances/{loan}/user-tasks/senior-review/complete"
    bank.call("POST", senior, {"variables": {"decision": "approve"}, "completedBy": "senior"}, 204)
    contract = bank.work("loan.contract")
    assert contract["variables"]["approved"] is True
    assert bank.view(loan)["status"] == "COMPLETED"

    page = bank.call("GET", "/v1/instances?definitionId=LOS%3A%3Adisbursement")
    child = page["items"][0]
    assert child["parentInstanceId"] == loan
    assert child["variables"]["loan"] == {"product": "standard", "currency": "EUR"}
    bank.call("POST", f"/v1/instances/{child['id']}/signals/contract-signed", None, 204)
    assert bank.view(child["id"])["currentStepIds"] == ["cooling-off"]
    clock.advance(timedelta(days=1, minutes=1).total_seconds())
    bank.work("loan.payout", {"transfer": "T-1"})
    done = bank.view(child["id"])
    assert (done["status"], done["variables"]["status"]) == ("COMPLETED", "paid")

    history = bank.call("GET", f"/v1/instances/{loan}/history")["items"]
    entered = [item["stepId"] for item in history]
    assert entered.count("manual-review") == 2
    assert [item["status"] for item in history if item["stepId"] == "manual-review"] == ["COMPLETED", "FAILED"]
    assert entered.count("checks-done") == entered.count("remind-officer") == 1
    audit = bank.call("GET", f"/v1/instances/{loan}/audit")["items"]
    assert {"STARTED", "SIGNALLED", "USER_TASK_COMPLETED", "TIMER_FIRED"} <= {record["kind"] for record in audit}


@pytest.mark.slow(reason="the whole example with its escalations")
def test_a_small_loan_with_a_good_score_needs_nobody(start_engine: StartEngine) -> None:
    bank = Bank(start_engine().wait_ready())
    bank.upload("loan-process.json")
    bank.upload("loan-disbursement.json")
    loan = bank.apply(amount=1_000, termMonths=12)
    bank.work("loan.credit")
    bank.work("loan.score", {"score": 800})
    bank.work("loan.identity", {"identityConfirmed": True})
    bank.work("loan.contract")
    assert bank.view(loan)["status"] == "COMPLETED"


@pytest.mark.slow(reason="the whole example with its escalations")
def test_a_declined_loan_pays_nothing(start_engine: StartEngine) -> None:
    bank = Bank(start_engine().wait_ready())
    bank.upload("loan-disbursement.json")
    bank.upload("loan-process.json")
    loan = bank.apply(amount=1_000, termMonths=12)
    bank.work("loan.credit")
    bank.work("loan.score", {"score": 100})
    bank.work("loan.identity", {"identityConfirmed": True})
    bank.work("loan.decline")
    child = bank.call("GET", "/v1/instances?definitionId=LOS%3A%3Adisbursement")["items"][0]
    assert (child["parentInstanceId"], child["status"]) == (loan, "COMPLETED")
