"""Definitions written in Python are those that the engine reads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.client.builder import WorkflowBuilder, backoff, compensation, for_each, timer
from penstock.core.parsing.parsing import parse_definition

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_a_builder_writes_what_an_author_writes_by_hand() -> None:
    flow = WorkflowBuilder(
        "order-fulfilment",
        "Order fulfilment",
        description="From an order to its parcel: five jobs in a row, each done by a worker.",
        metadata={
            "owner": "fulfilment",
            "tags": ["example", "orders"],
            "exampleVariables": {"orderId": "A-7", "quantity": 2, "price": 25.5, "items": ["book"]},
        },
    )
    flow.service_task("validate-order", "order.validate", name="Validate the order")
    flow.service_task("reserve-stock", "stock.reserve", retries=5, name="Reserve stock")
    flow.service_task("charge-payment", "payment.charge", retries=3, name="Charge the payment")
    flow.service_task("ship-parcel", "parcel.ship", retries=3, name="Ship the parcel")
    flow.service_task("notify-customer", "customer.notify", retries=10, name="Notify the customer")
    flow.end("done", name="Order fulfilled")
    by_hand = json.loads((EXAMPLES / "order-fulfilment.json").read_text())
    assert flow.document() == by_hand


def test_every_kind_of_step_is_accepted_by_the_engines_parser() -> None:
    flow = WorkflowBuilder("loan", next_workflow="payout")
    flow.transformation("prepare", {"limit": 1000, "double": "${amount * 2}"})
    flow.parallel("checks", ["score", "identity"], join="checked")
    flow.service_task(
        "score",
        "loan.score",
        retries=2,
        retry_backoff=backoff("PT1S", maximum="PT1M"),
        timeout="PT10M",
        conditions={"amount > limit": "identity-again", "true": "checked"},
        then=None,
    )
    flow.service_task("identity-again", "loan.identity", then="checked")
    flow.user_task("identity", label="identity-desk", boundary=[timer("P1D", "remind", interrupting=False)])
    flow.join("checked")
    flow.decision("large", {"amount > limit": "pause", "true": "done"})
    flow.wait("pause", buffer=True, boundary=[timer("P7D", "done")])
    flow.wait("cool-off", duration="PT1H", message=("paid", "${claim}"), then="done")
    flow.service_task("remind", "mail.send", then=None)
    flow.end("done")
    document = flow.document()
    definition = parse_definition(json.dumps(document).encode())
    assert [step.id for step in definition.steps] == [step["id"] for step in document["steps"]]
    assert [step.id for step in definition.steps if step.buffer] == ["pause"]
    assert [(step.id, step.message.name) for step in definition.steps if step.message] == [("cool-off", "paid")]
    followers = {step["id"]: step.get("nextStep") for step in document["steps"]}
    assert followers == {
        "prepare": "checks",
        "checks": None,
        "score": None,
        "identity-again": "checked",
        "identity": "checked",
        "checked": "large",
        "large": None,
        "pause": "cool-off",
        "cool-off": "done",
        "remind": None,
        "done": None,
    }


def test_a_step_is_done_for_each_item() -> None:
    each = for_each("${lines}", name="line", index="i", parallel=5, collect="${result.price}", into="prices")
    flow = WorkflowBuilder("quotes")
    flow.service_task("ask", "carrier.ask", for_each=each)
    flow.user_task("sign", for_each=for_each("${people}", until="${result.no}", collect_errors=True))
    flow.call("book", "booking", for_each=for_each("${lines}"))
    flow.end()
    document = flow.document()
    steps = parse_definition(json.dumps(document).encode()).steps
    assert document["steps"][0]["forEach"] == {
        "items": "${lines}", "as": "line", "index": "i", "parallel": 5, "collect": "${result.price}", "into": "prices",
    }  # fmt: skip
    found = [step.for_each for step in steps if step.for_each is not None]
    assert [(one.name, one.parallel, one.collects_errors) for one in found] == [
        ("line", 5, False), ("item", 100, True), ("item", 100, False),
    ]  # fmt: skip


def test_what_a_step_did_may_be_undone() -> None:
    flow = WorkflowBuilder("travel", compensate_failures=True)
    cancel = compensation(
        "hotel.cancel", retries=5, retry_backoff=backoff("PT1S"), timeout="PT1M", no_retry_on=["GONE"]
    )
    flow.service_task("hotel", "hotel.book", compensation=cancel)
    flow.call("flight", "booking", compensation=compensation("flight.cancel"), conditions={"full": "undo"}, then="end")
    flow.compensate("undo", steps=["hotel"])
    flow.end()
    parsed = parse_definition(json.dumps(flow.document()).encode())
    hotel, flight, undo, _, cancels, *_ = parsed.steps
    assert (hotel.compensation, flight.compensation, undo.undoes) == (4, 5, (0,))
    assert (cancels.job_type, cancels.retry_count, cancels.timeout_s) == ("hotel.cancel", 5, 60)
    assert parsed.undoes_failures


def test_a_step_that_leads_nowhere_unsaid_is_a_mistake() -> None:
    flow = WorkflowBuilder("order").service_task("charge", "payment.charge")
    with pytest.raises(ValueError, match="no step follows 'charge'"):
        flow.document()


def test_then_is_where_a_step_goes_without_true_conditions() -> None:
    flow = WorkflowBuilder("order")
    flow.service_task("a", "t", conditions={"x": "end"}, then="c")
    flow.user_task("b", conditions={"x": "end"})
    flow.service_task("c", "t", conditions={"x": "end"}, then=None)
    flow.wait("d", conditions={"true": "c"}, then="end")
    flow.end()
    document = flow.document()
    conditions = {step["id"]: step.get("conditionalNextSteps") for step in document["steps"]}
    assert conditions == {
        "a": {"x": "end", "true": "c"},
        "b": {"x": "end", "true": "c"},
        "c": {"x": "end"},
        "d": {"true": "c"},
        "end": None,
    }
    assert [step["id"] for step in document["steps"] if "nextStep" in step] == []
