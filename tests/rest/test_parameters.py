"""Parameters of the query: what a handler reads stands in the table of routes, and what stands nowhere is told."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import pytest

from penstock.api import ROUTED
from penstock.rest.operation import RestOperation
from penstock.rest.operations import OPERATIONS
from tests.rest.scripted import Rest, ScriptedEngine

ADDITIONS = [row for row in OPERATIONS if row.refuses_unknown_parameters]


def ignored(engine: ScriptedEngine) -> dict[str, float]:
    return {
        sample.labels["path"]: sample.value
        for family in engine.metrics.registry.collect()
        for sample in family.samples
        if sample.name == "penstock_http_ignored_parameters_total"
    }


def names_read(handler: Callable[..., Any]) -> set[str]:
    """The literal names in the source of a handler, and of what it calls in its own class and module."""
    text = inspect.getsource(handler)
    handler_class = vars(inspect.getmodule(handler)).get(handler.__qualname__.partition(".")[0])
    helpers = [
        getattr(handler_class, name) for name in re.findall(r"self\.(_\w+)\(", text) if hasattr(handler_class, name)
    ]
    module = vars(inspect.getmodule(handler))
    helpers += [
        found
        for name in re.findall(r"(?<![\w.])(_\w+)\(\)", text)
        if inspect.isfunction(found := module.get(name)) and found is not handler
    ]
    found = set(re.findall(r"query_(?:text|number|flag|time|family)\(\s*request, \"([\w.*]+)\"", text))
    return found.union(*map(names_read, helpers))


IGNORED = {"finishSignIn": {"session_state", "error", "error_description", "error_uri"}}
"""What issuers send along, and nobody reads."""
READ_BY_ROW = {row.name for row in ROUTED if row.rest.by_hand}
"""Their handlers read the query as the row of `penstock.api` has it."""


@pytest.mark.parametrize(
    "row",
    [row for row in OPERATIONS if row.handler is not None and row.id not in READ_BY_ROW],
    ids=lambda row: row.id,
)
def test_a_handler_reads_only_its_rows_parameters(row: RestOperation) -> None:
    assert row.handler is not None
    assert names_read(row.handler) == row.query_names - IGNORED.get(row.id, set())


async def test_a_handler_that_reads_what_its_row_lacks_fails(
    rest: Rest, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(RestOperation, "query_names", frozenset({"keyword", "page", "pageSize", "limit"}))
    assert (await rest.get("/v1/definitions")).status == 500
    assert "listDefinitions reads cursor, which its row" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("row", ADDITIONS, ids=lambda row: row.id)
async def test_an_addition_refuses_a_parameter_that_it_does_not_have(row: RestOperation) -> None:
    engine = ScriptedEngine()
    path = re.sub(r"\{\w+\}", "1", row.path)
    answer = await Rest(engine).send(row.method, f"{path}?statsu=FAILED", b"{}")
    there = ", ".join(sorted(row.query_names)) if row.query_names else "none"
    expected = f"statsu: {row.path} has no such parameter in its query; it has {there}"
    assert answer.error == (400, "bad-request", expected)
    assert not engine.calls
    assert ignored(engine) == {}


def test_lists_that_are_additions_and_all_batches_are_among_them() -> None:
    assert {"listJobs", "getAudit", "signalByKey", "completeJobs", "retryInstance"} <= {row.id for row in ADDITIONS}
    assert {"startInstance", "pollJobs", "live", "ready", "docs"} & {row.id for row in ADDITIONS} == set()


async def test_an_unknown_parameter_is_ignored_counted_and_reported_once(capsys: pytest.CaptureFixture[str]) -> None:
    engine = ScriptedEngine()
    rest = Rest(engine)
    engine.on_list([], total=0)
    for name in ("x", "y", "x=1&y"):
        assert (await rest.get(f"/v1/instances?definitionId=d&{name}=2")).status == 200
        assert (await rest.post(f"/v1/jobs/1f-1-0/complete?{name}", {"workerId": "w"})).status == 204
    for path in ("/healthz", "/readyz"):
        assert (await rest.get(f"{path}?probe=%00&t=1")).status == 200
    assert ignored(engine) == {"/v1/instances": 4, "/v1/jobs/{id}/complete": 4, "/healthz": 2, "/readyz": 2}
    assert capsys.readouterr().out.count("an unknown query parameter is ignored") == 4


@pytest.mark.parametrize(
    "query", ["instanceId=1&executionId=1-1-1", "instanceId=1&jobType=x", "executionId=1-1-1&unclaimed=true"]
)
async def test_tasks_are_asked_for_by_one_id_alone(rest: Rest, query: str) -> None:
    expected = "instanceId, executionId: can't be combined with each other, or with another filter"
    assert (await rest.get(f"/v1/tasks?{query}")).error == (400, "bad-request", expected)
