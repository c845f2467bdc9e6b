"""An engine with something in it: what the console's pictures show, made as users would make it, over REST."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psycopg

from examples import durable_order
from penstock.durable import App
from penstock.testing.definitions import step
from tests.runtime.engine_process import EngineProcess

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
GATEWAY_AWAY = "card gateway: 503 service unavailable"
DECLINED = "card declined: 51 insufficient funds"
UNKNOWN_TEMPLATE = "template 'loan-contract-v9' is unknown to the document service"
ORDERS = 36
GATEWAY_AWAY_FROM = 20
UNSENT = 6
EXPENSES = {
    "E-1180": ("Ada Young", "Travel to Kraków", 1240),
    "E-1184": ("Jan Kowal", "Two screens", 899),
    "E-1187": ("Ines Duarte", "Conference", 640),
    "E-1190": ("Piotr Nowak", "Taxi", 88),
}
QUEUES = {
    "letters": {"jobTypes": ["customer.notify"], "concurrency": 40},
    "crm": {"jobTypes": ["crm.read"], "concurrencyPerKey": 2, "rate": {"limit": 600, "period": "PT1M"}},
}
SCHEDULES: dict[str, dict[str, Any]] = {
    "nightly-expenses": {
        "definitionId": "expense-approval",
        "cron": ["0 2 * * *"],
        "timeZone": "Europe/Warsaw",
        "businessKey": "E-1200",
        "variables": {"employee": "Ada Young", "purpose": "Telephone", "amount": 39, "costCentre": "4711"},
        "note": "What is charged each month, asked for once a night",
        "pauseOnFailure": True,
    },
    "stock-sync": {"definitionId": "order-fulfilment", "every": "PT15M", "jitter": "PT1M", "paused": True},
    "crm-export": {"definitionId": "crm-export", "cron": ["30 6 * * MON-FRI"], "timeZone": "Europe/Warsaw"},
}
Answer = Callable[[dict[str, Any]], dict[str, Any] | str]
"""What a worker does with a job: its variables, or the reason for which it fails for good."""

# Fifteen minutes of one engine, so that the chart has a past.
PAST = """INSERT INTO sample (span_s, at, engine, counts, workers)
    SELECT 10, now() - make_interval(secs => 10 * n), 0, jsonb_build_object(
      'started', started, 'failed', CASE WHEN n BETWEEN 22 AND 40 THEN 420 + n % 7 * 15 ELSE n % 3 END,
      'completed', CASE WHEN n BETWEEN 22 AND 40 THEN started - 950 ELSE started + (n % 5 - 2) * 60 END), '{}'
    FROM (SELECT n, 4000 + (600 * sin(n / 7.0) + 200 * cos(n / 2.0))::int AS started
          FROM generate_series(0, 92) n) past"""


@dataclass(frozen=True)
class Furnished:
    """Instances that pictures show."""

    loan: str
    order: str
    run: str


@contextmanager
def furnish(engine: EngineProcess) -> Generator[Furnished]:
    """Definitions, instances in every state, tasks for people, a bulk operation, a durable run that waits."""
    loan, order = _furnish(engine)
    before = durable_order.world
    with TemporaryDirectory() as directory:
        durable_order.world = durable_order.World(Path(directory, "world.sqlite3"))
        try:
            with App(durable_order.order, at=engine.dsn).in_thread() as shop:
                desks = durable_order.Order("B-17", [durable_order.Line("desk", 1, Decimal(900))])
                shop.start(durable_order.order, desks, id="B-17")
                found = _expect(200, engine.call("GET", "/v1/instances?businessKey=B-17"))["items"]
                yield Furnished(loan=loan, order=order, run=found[0]["id"])
        finally:
            durable_order.world = before


def _furnish(engine: EngineProcess) -> tuple[str, str]:
    for name in ("order-fulfilment", "loan-disbursement", "loan-process", "expense-approval"):
        _upload(engine, json.loads((EXAMPLES / f"{name}.json").read_text()))
    for name, policy in QUEUES.items():
        _expect(200, engine.call("PUT", f"/v1/queues/{name}", policy))
    orders = [_start(engine, "order-fulfilment", f"A-{88_200 + n}", _order(n)) for n in range(ORDERS)]
    _work(engine, "order.validate", lambda _: {"valid": True})
    _work(engine, "stock.reserve", lambda order: {"shelf": f"A-{order['quantity']:02}"})
    _work(engine, "payment.charge", _charge)
    _work(engine, "parcel.ship", lambda order: {"parcel": f"P{order['orderId']}"})
    _work(engine, "customer.notify", lambda _: {}, at_most=GATEWAY_AWAY_FROM - UNSENT)
    for n in range(ORDERS, ORDERS + UNSENT):
        _start(engine, "order-fulfilment", f"A-{88_200 + n}", _order(n))
    _upload(engine, _with_fraud_check())
    for key, (employee, purpose, amount) in EXPENSES.items():
        variables = {"employee": employee, "purpose": purpose, "amount": amount, "costCentre": "4711"}
        _start(engine, "expense-approval", key, variables)
    _schedule(engine)
    _work(engine, "expense.ask", lambda _: {})
    loan = _failed_loan(engine)
    spare = _start(engine, "order-fulfilment", "A-88300", _order(0))
    body = {"action": "cancel", "ids": [spare], "note": "made while trying the shop"}
    _expect(202, engine.call("POST", "/v1/instances/bulk", body))
    with psycopg.connect(engine.dsn) as connection:
        connection.execute(PAST)
    return loan, orders[GATEWAY_AWAY_FROM]


def _schedule(engine: EngineProcess) -> None:
    """By the clock: one that has run, one that is paused, one whose definition is gone."""
    for name, spec in SCHEDULES.items():
        _expect(200, engine.call("PUT", f"/v1/schedules/{name}", spec))
    for name in ("nightly-expenses", "crm-export"):
        _expect(200, engine.call("POST", f"/v1/schedules/{name}/trigger", {}))
    note = {"note": "the warehouse is counting"}
    _expect(200, engine.call("POST", "/v1/schedules/stock-sync/pause", note))


def _order(number: int) -> dict[str, Any]:
    return {"orderId": f"A-{88_200 + number}", "quantity": 1 + number % 4, "price": 25.5, "items": ["book", "lamp"]}


def _charge(order: dict[str, Any]) -> dict[str, Any] | str:
    number = int(order["orderId"].removeprefix("A-")) - 88_200
    if number < GATEWAY_AWAY_FROM:
        return {"paid": order["quantity"] * order["price"]}
    return DECLINED if number % 5 == 0 else GATEWAY_AWAY


def _with_fraud_check() -> dict[str, Any]:
    """A second version: two steps are new, one has other fields."""
    definition = json.loads((EXAMPLES / "order-fulfilment.json").read_text())
    steps = definition["steps"]
    steps[1]["nextStep"] = "is-risky"
    steps[2]["retryCount"] = 9
    conditions = {"price * quantity > 5000": "fraud-check", "true": "charge-payment"}
    steps[2:2] = [
        step("is-risky", "DECISION", name="Is it risky?", conditionalNextSteps=conditions),
        step("fraud-check", "USER_TASK", name="Check for fraud", jobType="fraud-desk", nextStep="charge-payment"),
    ]
    return dict(definition)


def _failed_loan(engine: EngineProcess) -> str:
    """Through checks, two reviews and a wait for documents, to a contract that can't be sent."""
    applicant = {"id": "C-114", "name": "Nadia Fiore"}
    variables = {"applicant": applicant, "amount": 92_000, "termMonths": 60}
    loan = _start(engine, "LOS::loan", "A-20931", variables)
    _work(engine, "loan.identity", lambda _: {"identityConfirmed": True})
    _fail_once(engine, "loan.credit", "the bureau did not answer")
    _work(engine, "loan.credit", lambda _: {"debts": 2000})
    _work(engine, "loan.collateral", lambda _: {"collateral": 73_600})
    _work(engine, "loan.score", lambda _: {"score": 668})
    review = f"/v1/instances/{loan}/user-tasks/manual-review/complete"
    _expect(204, engine.call("POST", review, {"variables": {"decision": "ask"}}))
    _work(engine, "loan.ask", lambda _: {})
    documents = {"documents": ["payslip-1.pdf", "payslip-2.pdf"]}
    _expect(204, engine.call("POST", f"/v1/instances/{loan}/signals/documents", documents))
    _expect(204, engine.call("POST", review, {"variables": {"decision": "approve"}}))
    _fail_once(engine, "loan.contract", "the document service did not answer")
    _work(engine, "loan.contract", lambda _: UNKNOWN_TEMPLATE)
    return loan


def _expect(status: int, answer: tuple[int, Any]) -> Any:
    assert answer[0] == status, answer
    return answer[1]


def _upload(engine: EngineProcess, definition: object) -> None:
    _expect(201, engine.call("POST", "/v1/definitions", definition))


def _start(engine: EngineProcess, definition: str, key: str, variables: dict[str, Any]) -> str:
    body = {"definitionId": definition, "businessKey": key, "variables": variables}
    return str(_expect(201, engine.call("POST", "/v1/instances", body))["id"])


def _take(engine: EngineProcess, job_type: str, at_most: int) -> list[dict[str, Any]]:
    body = {"workerId": _worker_of(job_type), "jobTypes": [job_type], "maxJobs": at_most, "waitSeconds": 20}
    return list(_expect(200, engine.call("POST", "/v1/jobs/poll", body))["jobs"])


def _work(engine: EngineProcess, job_type: str, answer: Answer, at_most: int = 100) -> None:
    """All jobs of a type that are there, at least one."""
    for job in _take(engine, job_type, at_most):
        done = answer(job["variables"])
        body: dict[str, Any] = {"workerId": _worker_of(job_type), "attempt": job["attempt"]}
        if isinstance(done, str):
            body |= {"errorMessage": done, "retryable": False}
            assert engine.call("POST", f"/v1/jobs/{job['id']}/fail", body)[0] in (200, 204)
        else:
            _expect(204, engine.call("POST", f"/v1/jobs/{job['id']}/complete", body | {"variables": done}))


def _fail_once(engine: EngineProcess, job_type: str, reason: str) -> None:
    (job,) = _take(engine, job_type, 1)
    body = {
        "workerId": _worker_of(job_type),
        "attempt": job["attempt"],
        "retryAfterSeconds": 1,
        "errorMessage": reason,
        "retryable": True,
    }
    assert engine.call("POST", f"/v1/jobs/{job['id']}/fail", body)[0] in (200, 204)


def _worker_of(job_type: str) -> str:
    return f"{job_type.partition('.')[0]}-{1 + len(job_type) % 3}"
