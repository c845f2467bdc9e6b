"""10,000 schedules that are due at one moment: how long until all have started their instance, and none two."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

from benchmarks.bench import Bench, ScenarioFailed
from benchmarks.result import Bound, Run
from benchmarks.scenarios.scenario import Scenario
from benchmarks.workflows import linear

SCHEDULES, QUICK = 10_000, 500
TIMEOUT_S = 300.0
AHEAD_S = 3
ROW = "10,000 schedules due in one minute: all started within 10 s, none doubled"

_COPY = """
INSERT INTO schedule (name, spec, variables, definition_id, done_until, fire_at)
SELECT s.name || '-' || k, s.spec, s.variables, s.definition_id, s.done_until, s.fire_at
FROM schedule s, generate_series(2, %s) AS k WHERE s.name = %s"""
_STARTED = "SELECT count(*), count(DISTINCT schedule) FROM scheduled WHERE starts_with(schedule, %s)"
_LAST = """
SELECT extract(epoch FROM max(i.started_at) - min(s.at))::float8 FROM instance i
JOIN scheduled s ON s.instance_id = i.id WHERE starts_with(s.schedule, %s)"""


def run(bench: Bench) -> Run:
    began = time.monotonic()
    database = bench.need_database()
    number = bench.size(SCHEDULES, QUICK)
    workflow = linear(bench.new_tag(), 1)
    bench.upload(workflow)
    at = datetime.now(UTC) + timedelta(seconds=AHEAD_S)
    spec = {"definitionId": workflow.id, "every": "P1D", "anchor": at.isoformat(), "endAt": at.isoformat()}
    status, answer = bench.call("PUT", f"/v1/schedules/{workflow.id}", spec)
    if status != 200:
        raise ScenarioFailed(f"the schedule was answered {status}: {answer}")
    time.sleep(1)  # the engine finds its time
    database.execute(_COPY, (number, workflow.id))
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        ((count, distinct),) = database.fetch(_STARTED, (workflow.id,))
        if distinct >= number:
            break
        if time.monotonic() > deadline:
            raise ScenarioFailed(f"{distinct} of {number} schedules have started their instance")
        time.sleep(0.2)
    ((took_s,),) = database.fetch(_LAST, (workflow.id,))
    figures = {"all_started_s": float(took_s), "doubled": float(count - distinct), "schedules": float(number)}
    return bench.run_of(figures, began)


SCENARIOS = [
    Scenario(
        "schedules-10k",
        "10,000 schedules due at once",
        run,
        (Bound(figure="all_started_s", row=ROW, at_most=10), Bound(figure="doubled", row=ROW, at_most=0)),
        {"schedules": SCHEDULES},
    ),
]
