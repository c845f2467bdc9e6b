"""The scenarios, in the order in which they run. Each module gives `SCENARIOS`; one scenario is one `Scenario`."""

from __future__ import annotations

from benchmarks.scenarios import (
    backlog,
    blocked_keys,
    calls,
    decisions,
    durable,
    durable_waits,
    flow,
    for_each,
    fork_join,
    grpc,
    held_transaction,
    idle_fleet,
    kafka,
    large_variables,
    latency,
    linear,
    long_loop,
    queues,
    schedules,
    start,
    start_up,
    timers,
    two_engines,
)
from benchmarks.scenarios.scenario import Scenario

__all__ = ["SCENARIOS", "Scenario"]

SCENARIOS: dict[str, Scenario] = {
    scenario.name: scenario
    for module in (
        start_up,
        start,
        linear,
        grpc,
        flow,
        queues,
        blocked_keys,
        latency,
        idle_fleet,
        fork_join,
        for_each,
        calls,
        decisions,
        large_variables,
        two_engines,
        kafka,
        timers,
        schedules,
        backlog,
        long_loop,
        held_transaction,
        durable,
        durable_waits,
    )
    for scenario in module.SCENARIOS
}
