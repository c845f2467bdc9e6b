"""Errors as clients see them: one status each, one form, and nothing from the inside."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from penstock import errors
from penstock.errors import PenstockError, Throttled
from penstock.rest.problems import STATUS_BY_CODE
from penstock.settings import DispatchMode
from tests.rest.scripted import Rest, ScriptedEngine

EXPECTED = {
    errors.BadRequest: 400,
    errors.Unauthenticated: 401,
    errors.Forbidden: 403,
    errors.NotFound: 404,
    errors.Conflict: 409,
    errors.LeaseLost: 409,
    errors.JobCancelled: 409,
    errors.IdempotencyConflict: 409,
    errors.DispatchModeConflict: 410,
    errors.PayloadTooLarge: 413,
    errors.JournalTooLong: 413,
    errors.UnsupportedFormat: 415,
    errors.TooManyRequests: 429,
    errors.MailboxFull: 429,
    errors.Throttled: 429,
    errors.PenstockError: 500,
    errors.Unavailable: 503,
    errors.Overloaded: 503,
    errors.BrokerUnavailable: 503,
}


def test_every_error_has_a_status() -> None:
    found = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, PenstockError)]
    assert set(found) == set(EXPECTED)
    assert {kind.code: status for kind, status in EXPECTED.items()}.items() <= STATUS_BY_CODE.items()


@pytest.mark.parametrize(("kind", "status"), EXPECTED.items())
async def test_both_kinds_of_route_answer_errors_with_their_code(
    rest: Rest, engine: ScriptedEngine, kind: type[PenstockError], status: int
) -> None:
    error = Throttled("because", 0.5) if kind is Throttled else kind("because")
    engine.on("jobs.complete", error)
    engine.on("instances.get", error)
    for answer in (await rest.post("/v1/jobs/j/complete", {"workerId": "w"}), await rest.get("/v1/instances/1f")):
        assert answer.error == (status, kind.code, "because")
        assert ("retry-after" in answer.headers) == (status in (429, 503))


@pytest.mark.parametrize(
    "error", [RuntimeError("SELECT secret FROM token"), KeyError("dsn"), ExceptionGroup("g", [OSError(1)])]
)
async def test_a_bug_is_500_without_a_word_of_it(
    rest: Rest, engine: ScriptedEngine, error: Exception, capsys: pytest.CaptureFixture[str]
) -> None:
    engine.on("jobs.complete", error)
    engine.on("instances.get", error)
    for answer in (await rest.post("/v1/jobs/j/complete", {"workerId": "w"}), await rest.get("/v1/instances/1f")):
        status, code, reason = answer.error
        assert (status, code) == (500, "internal-error")
        assert set(answer.json) == {"error", "reason", "message"}
        assert "secret" not in reason
        assert "Traceback" not in reason


async def test_an_invalid_definition_names_every_problem(rest: Rest, engine: ScriptedEngine) -> None:
    body = {"id": "bad id", "name": "", "steps": [{"id": "a", "name": "A", "type": "END", "colour": "red"}]}
    answer = await rest.post("/v1/definitions", body)
    status, code, reason = answer.error
    assert (status, code) == (400, "bad-request")
    paths = [problem["path"] for problem in answer.json["problems"]]
    assert {"id", "name", "steps[0].colour"} <= set(paths)
    assert all(path in reason for path in paths)
    assert set(engine.calls) == {"definitions.parse"}  # and nothing was uploaded


async def test_polling_is_gone_while_kafka_dispatches() -> None:
    engine = ScriptedEngine(dispatch_mode=DispatchMode.KAFKA_OUTBOX)
    bodies: list[Any] = [{"workerId": "w", "jobTypes": ["a"]}, {}]
    for body in bodies:
        answer = await Rest(engine).post("/v1/jobs/poll", body)
        assert answer.status == 410
        assert answer.json["error"] == "gone"
        assert answer.json["dispatch_mode"] == "kafka_outbox"
        assert "workflow.jobs." in answer.json["hint"]
    assert not engine.calls
    assert (await Rest(engine).post("/v1/jobs/j/complete", {"workerId": "w"})).status == 204
