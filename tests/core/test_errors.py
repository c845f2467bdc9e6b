"""Errors with codes: who catches them, which are tried again, and what they leave behind."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.core.graph.fast_path import fast_plans
from penstock.core.rules.state import InstanceStatus
from penstock.testing.definitions import Json, definition, end, step, timer
from tests.core.machine import Machine
from tests.shapes import call, gateway, joining, task, user

ACTIVE, COMPLETED, FAILED, CANCELLED = InstanceStatus


def catch(target: str, *codes: str, variable: str | None = None) -> Json:
    named: Json = {"errorCodes": list(codes)} if codes else {}
    kept: Json = {} if variable is None else {"errorVariable": variable}
    return {"type": "ERROR", **named, **kept, "targetStepId": target}


def charging(*boundaries: Json, **fields: Any) -> Machine:
    """A step with these boundary events; `pay` and `ask` are where they may lead."""
    charge = task("charge", boundaryEvents=[*boundaries, timer("pay"), timer("ask")], **fields)
    return Machine(definition(charge, user("pay", "end"), user("ask", "end"), end()), {"n": 1})


def test_an_error_that_is_named_is_caught_at_once() -> None:
    machine = charging(catch("pay", "DECLINED", variable="error"), retryCount=3)
    machine.fail("charge", "no money", code="DECLINED", data={"limit": 5})
    assert (machine.status, machine.open) == (ACTIVE, ["pay"])
    assert machine.path == [("charge", "CAUGHT")]
    error = {"code": "DECLINED", "message": "no money", "stepId": "charge", "data": {"limit": 5}}
    assert machine.variables == {"n": 1, "error": error}
    [row] = machine.history
    assert (row.code, row.reason, row.worker, row.attempt) == ("DECLINED", "no money", "w", 1)


def test_another_error_is_caught_when_no_retry_is_left() -> None:
    machine = charging(catch("pay", "DECLINED"), catch("ask", variable="error"), retryCount=1)
    machine.fail("charge", code="TIMEOUT")
    assert machine.open == ["charge"]
    machine.fail("charge", code="TIMEOUT")
    assert machine.open == ["ask"]
    assert [(row.kind.name, row.code) for row in machine.history] == [
        ("ATTEMPT_FAILED", "TIMEOUT"),
        ("CAUGHT", "TIMEOUT"),
    ]
    assert machine.variables["error"]["data"] is None


@pytest.mark.parametrize(("retries", "retryable", "name"), [
    (0, True, "RetriesExhausted"), (0, False, "NotRetryable"), (2, False, "NotRetryable"),
])  # fmt: skip
def test_only_what_had_retries_has_exhausted_them(retries: int, retryable: bool, name: str) -> None:
    machine = Machine(definition(task("x", retryCount=retries), end()))
    machine.fail("x", retryable=retryable)
    assert machine.instance.failure_code == f"Penstock.{name}"
    machine = charging(catch("pay", "Penstock.RetriesExhausted"))
    machine.fail("charge", retryable=retryable)
    assert machine.open == ["pay"], "boundaries know both by one name"


def test_a_failure_without_a_code_has_the_engines() -> None:
    machine = charging(catch("pay", "Penstock.RetriesExhausted"), catch("ask"))
    machine.fail("charge")
    assert machine.open == ["pay"]
    machine = charging(catch("pay", "Penstock.RetriesExhausted"))
    machine.fail("charge", code="OTHER")
    assert (machine.status, machine.failure, machine.instance.failure_code) == (FAILED, "boom", "OTHER")


def test_a_worker_that_dies_again_and_again_is_caught() -> None:
    machine = charging(catch("pay", "Penstock.LeaseExpired"))
    machine.held("charge")
    machine.dead_letter("charge")
    assert machine.open == ["pay"]
    assert machine.history[-1].reason == "lease expired 10 times"


@pytest.mark.parametrize(
    ("fields", "code", "again"),
    [
        ({"retryOn": ["TIMEOUT"]}, "TIMEOUT", True),
        ({"retryOn": ["TIMEOUT"]}, "OTHER", False),
        ({"retryOn": ["TIMEOUT"]}, None, False),
        ({"noRetryOn": ["TIMEOUT"]}, "TIMEOUT", False),
        ({"noRetryOn": ["TIMEOUT"]}, "OTHER", True),
        ({"noRetryOn": ["TIMEOUT"]}, None, True),
    ],
)
def test_retries_go_by_the_code(fields: dict[str, Any], code: str | None, again: bool) -> None:
    machine = Machine(definition(task("x", retryCount=1, **fields), end()))
    machine.fail("x", code=code)
    assert (machine.status is ACTIVE) is again
    assert machine.instance.failure_code == (None if again else code or "Penstock.NotRetryable")


def test_what_catches_disarms_timers_and_the_join_still_fires() -> None:
    machine = Machine(
        definition(
            gateway("fork", "a", "b"),
            task("a", "join", boundaryEvents=[timer("b", "PT1H"), catch("mend")]),
            task("b", "join"),
            task("mend", "join"),
            joining("join", "end"),
            end(),
        )
    )
    machine.fail("a")
    assert machine.open == ["b", "mend"]
    assert not machine.timers
    machine.complete("mend")
    machine.complete("b")
    assert machine.status is COMPLETED


def test_an_end_with_a_code_fails_the_instance() -> None:
    body = definition(
        gateway("fork", "a", "b"),
        task("a", "sold-out"),
        task("b", "join"),
        joining("join", "end"),
        end(),
        step("sold-out", "END", errorCode="OUT_OF_STOCK"),
    )
    machine = Machine(body)
    machine.complete("a")
    assert (machine.status, machine.instance.failure_code) == (FAILED, "OUT_OF_STOCK")
    assert machine.failure == "step 'sold-out' ended it with the error OUT_OF_STOCK"
    assert machine.path[1:] == [("a", "COMPLETED"), ("sold-out", "FAILED"), ("b", "SKIPPED")]
    machine.retry()
    assert (machine.status, machine.instance.failure_code) == (FAILED, "OUT_OF_STOCK")


def test_an_end_gives_the_result_and_leaves_the_variables() -> None:
    output = {"total": "${n + 1}", "twice": "${total * 2}", "fixed": [1]}
    machine = Machine(definition(task("x", "end"), step("end", "END", output=output)), {"n": 1})
    machine.complete("x", {"n": 4})
    assert machine.status is COMPLETED
    assert machine.instance.result == b'{"total":5,"twice":10,"fixed":[1]}'
    assert machine.variables == {"n": 4}
    assert fast_plans(machine.definition)[0] is None


def test_a_result_that_can_not_be_told_fails_the_instance() -> None:
    machine = Machine(definition(task("x", "end"), step("end", "END", output={"total": "${missing}"})))
    machine.complete("x")
    assert (machine.status, machine.instance.result) == (FAILED, None)
    assert "missing is not defined" in (machine.failure or "")


def test_a_call_caught_by_itself_ends() -> None:
    body = definition(call("ship", "missing", boundaryEvents=[catch("ship")]), end())
    machine = Machine(body, uncallable={("missing", 0)}, max_automatic_steps=10)
    assert (machine.status, machine.instance.failure_code) == (FAILED, "Penstock.DefinitionNotFound")
    assert machine.path == [("ship", "CAUGHT")] * 10 + [("ship", "FAILED")]


def test_steps_with_codes_keep_off_the_fast_path() -> None:
    body = definition(
        task("x", "y", boundaryEvents=[catch("y")]), task("y", "bad"), step("bad", "END", errorCode="SOLD_OUT")
    )
    assert fast_plans(Machine(body).definition) == (None, None, None)
