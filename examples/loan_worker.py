"""The workers of the loan process: `loan-process.json`, and `loan-disbursement.json`, which it starts at its end.

    python examples/loan_worker.py --try     uploads both workflows, takes an application to its payment's eve
    python examples/loan_worker.py           only works, until Ctrl-C

Both need an engine, e.g. `penstock serve`; PENSTOCK_URL says where, by default http://127.0.0.1:8080. Start `LOS::loan`
with variables like {"applicant": {"id": "c-1", "name": "Ann"}, "amount": 60000, "termMonths": 60}. The whole way, with
its days of waiting, is in the test beside this file (tests/test_loans.py).
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import msgspec

from penstock.client import Client, Instance
from penstock.worker import JobContext, NonRetryable, Worker

ENGINE = os.environ.get("PENSTOCK_URL", "http://127.0.0.1:8080")
WORKFLOWS = [Path(__file__).with_name(name) for name in ("loan-disbursement.json", "loan-process.json")]

worker = Worker(ENGINE, concurrency=32)


class Applicant(msgspec.Struct):
    id: str
    name: str


class Application(msgspec.Struct, rename="camel"):
    """The part of the variables that these handlers read."""

    applicant: Applicant
    amount: float
    term_months: int
    debts: float = 0


class Decided(Application, rename="camel"):
    approved: bool = False


@worker.handler("loan.identity")
async def check_identity(application: Application) -> dict[str, bool]:
    return {"identityConfirmed": application.applicant.name != "Mallory"}


@worker.handler("loan.credit", concurrency=4, timeout_s=60)
async def ask_bureau(application: Application) -> dict[str, float]:
    """At most four at once, as the bureau's contract says; after two hours operations are told (`loan.alert`)."""
    known = int(hashlib.sha256(application.applicant.id.encode()).hexdigest(), 16) % 5
    return {"debts": 1000.0 * known}


@worker.handler("loan.score")
def score(application: Application) -> dict[str, int]:
    monthly = (application.amount + application.debts) / application.term_months
    return {"score": max(0, min(1000, 1000 - round(monthly / 4)))}


@worker.handler("loan.collateral")
async def value_collateral(application: Application) -> dict[str, float]:
    return {"collateral": round(application.amount * 0.8, 2)}


def mail(job_type: str, text: str) -> Callable[[Application, JobContext], None]:
    """A handler that tells somebody something: several steps of this process do no more."""

    def send(application: Application, job: JobContext) -> None:
        print(f"mail about {application.applicant.name}'s loan: {text} [{job.idempotency_key}]")

    return worker.handler(job_type)(send)


mail("loan.alert", "the credit bureau is slow")
mail("loan.remind", "the review is a day old")
mail("loan.ask", "please send us your last three payslips")
mail("loan.contract", "the contract is ready to be signed")
mail("loan.decline", "we are sorry")
mail("loan.withdraw", "what we asked the credit bureau is withdrawn")
mail("loan.expired", "our offer has expired")


@worker.handler("loan.payout")
async def pay_out(loan: Decided, job: JobContext) -> dict[str, str]:
    """The job's id is the key of the transfer: the bank does it once, however often this runs."""
    if not loan.approved:
        raise NonRetryable("a loan that was not approved is not paid out")
    return {"transfer": f"T-{job.idempotency_key}"}


async def wait_for(client: Client, instance_id: str, step: str) -> Instance:
    with anyio.fail_after(60):
        while step not in (instance := await client.get_instance(instance_id)).current_step_ids:
            await anyio.sleep(0.05)
    return instance


async def try_it() -> None:
    application: dict[str, Any] = {"applicant": {"id": "c-1", "name": "Ann"}, "amount": 60_000, "termMonths": 60}
    async with Client(ENGINE) as client, worker:
        for workflow in WORKFLOWS:
            await client.upload_definition(workflow)
        loan = await client.start_instance("LOS::loan", application, business_key="application-1")
        waiting = await wait_for(client, loan.id, "manual-review")
        print("waits for a credit officer, score", waiting.variables["score"])
        await client.complete_user_task(loan.id, "manual-review", {"decision": "approve"}, completed_by="officer")
        ended = await client.wait_until_ended(loan.id, timeout_s=60)
        print("application", ended.status, "approved:", ended.variables["approved"])
        page = await client.list_instances(definition_id="LOS::disbursement")
        [following] = [each for each in page.items if each.parent_instance_id == loan.id]
        await client.signal(following.id, "contract-signed", {"signedBy": "Ann"})
        resting = await wait_for(client, following.id, "cooling-off")
        print("disbursement", resting.status, "at", *resting.current_step_ids, "- paid out in a day")


if __name__ == "__main__":
    anyio.run(try_it) if "--try" in sys.argv else worker.main()
