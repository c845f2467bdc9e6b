"""Approval by people, with a reminder and escalation: the worker of `expense-approval.json`.

    python examples/approval_worker.py --try     uploads the workflow, hands in two expenses, approves one of them
    python examples/approval_worker.py           only works, until Ctrl-C

Both need an engine, e.g. `penstock serve`; PENSTOCK_URL says where, by default http://127.0.0.1:8080. A person decides
through the API, here by hand:

    curl -H 'Content-Type: application/json' -d '{"variables": {"approved": true}, "completedBy": "lea"}' \\
      localhost:8080/v1/instances/ID/user-tasks/approval/complete

Whoever does nothing is reminded after a day; after three days the task is taken away and given to somebody else. The
test beside this file (tests/test_approval.py) lets these days pass.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import anyio
import msgspec

from penstock.client import Client, Conflict, NotFound
from penstock.worker import JobContext, Worker

ENGINE = os.environ.get("PENSTOCK_URL", "http://127.0.0.1:8080")
WORKFLOW = Path(__file__).with_name("expense-approval.json")

worker = Worker(ENGINE)


class Expense(msgspec.Struct):
    employee: str
    amount: float
    purpose: str = ""
    comment: str = ""


def send_mail(to: str, text: str, *, key: str) -> None:
    """Stands for the mail service; `key` is what keeps it from sending the same mail twice."""
    print(f"mail to {to}: {text} [{key}]")


@worker.handler("expense.ask")
def ask(expense: Expense, job: JobContext) -> dict[str, str]:
    send_mail(
        "the team lead",
        f"please approve {expense.amount:g} for {expense.purpose or 'an expense'}",
        key=job.idempotency_key,
    )
    return {"asked": "team-lead"}


@worker.handler("expense.remind")
def remind(expense: Expense, job: JobContext) -> None:
    send_mail("the team lead", f"{expense.employee} is still waiting", key=job.idempotency_key)


@worker.handler("expense.escalate")
def escalate(expense: Expense, job: JobContext) -> dict[str, str]:
    send_mail("the head of the department", f"nobody decided on {expense.amount:g}", key=job.idempotency_key)
    return {"asked": "department-head"}


@worker.handler("expense.pay")
def pay(expense: Expense, job: JobContext) -> dict[str, str]:
    return {"payment": f"P-{job.instance_id}"}


@worker.handler("expense.refuse")
def refuse(expense: Expense, job: JobContext) -> None:
    send_mail(expense.employee, f"refused{': ' if expense.comment else ''}{expense.comment}", key=job.idempotency_key)


async def decide(client: Client, instance_id: str, *, approved: bool, by: str) -> bool:
    """What the button in an approver's mail does: complete whichever task is open now. False when none is."""
    for step in ("approval", "second-approval"):
        try:
            await client.complete_user_task(instance_id, step, {"approved": approved}, completed_by=by)
        except (NotFound, Conflict):  # not open, or all is over
            continue
        return True
    return False


async def try_it() -> None:
    async with Client(ENGINE) as client, worker:
        await client.upload_definition(WORKFLOW)
        for amount in (20, 200):
            expense = {"employee": "Ann", "purpose": "a chair", "amount": amount}
            started = await client.start_instance("expense-approval", expense)
            with anyio.fail_after(60):
                while (instance := await client.get_instance(started.id)).status == "ACTIVE":
                    await anyio.sleep(0.05)
            if instance.status == "WAITING":
                print("waits at", *instance.current_step_ids)
                assert await decide(client, started.id, approved=True, by="lea")
            ended = await client.wait_until_ended(started.id, timeout_s=60)
            print(amount, ended.status, ended.variables.get("payment"))


if __name__ == "__main__":
    anyio.run(try_it) if "--try" in sys.argv else worker.main()
