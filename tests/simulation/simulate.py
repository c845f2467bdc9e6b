"""Simulations by the seed: some instances of random workflows at a time, until nothing more happens."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

from penstock.testing.definitions import Json
from penstock.testing.random_definitions import random_definition, with_turns
from tests.simulation.actors import Crowd, Engine
from tests.simulation.history import History
from tests.simulation.queue import Queue
from tests.simulation.schedule import Schedule
from tests.simulation.world import World

HISTORIES = 12
"""In one world: they share its engines, and so their batches."""
ENGINES = 2
SCHEDULES = 4
STEPS_MAX = 50_000
PAUSES = 2


def simulate(seed: int) -> Counter[str]:
    """Run one world; what happened how often. Raises AssertionError, with the seed to run again as a note."""
    try:
        return _simulate(seed)
    except BaseException as error:
        error.add_note(f"again: python -m tests.simulation --seed {seed} --worlds 1")
        raise


def simulate_schedules(seed: int) -> Counter[str]:
    """As `simulate`, of some schedules."""
    try:
        return _simulate_schedules(seed)
    except BaseException as error:
        error.add_note(f"again: python -m tests.simulation --seed {seed} --worlds 1")
        raise


def _simulate_schedules(seed: int) -> Counter[str]:
    world = World(seed)
    seen: Counter[str] = Counter()
    engines = [Engine(world, seen) for _ in range(ENGINES)]
    schedules = [Schedule(world, engines, seen) for _ in range(SCHEDULES)]
    for schedule in schedules:
        schedule.begin()
    assert world.run(STEPS_MAX), f"no end within {STEPS_MAX} steps"
    for schedule in schedules:
        schedule.check_end()
    seen["schedules"] += len(schedules)
    return seen


def _patient(body: Json, source: random.Random) -> Json:
    """Half of the jobs are retried after a back-off, which random definitions seldom have."""
    steps: Any = body["steps"]
    for step in steps:
        if step["type"] == "SERVICE_TASK" and source.random() < 0.5:
            step |= {"retryCount": 3, "retryBackoff": {"initial": "PT1S", "max": "PT1M"}}
    return body


def _simulate(seed: int) -> Counter[str]:
    world = World(seed)
    seen: Counter[str] = Counter()
    queue = Queue(world)
    engines = [Engine(world, seen) for _ in range(ENGINES)]
    histories: list[History] = []
    for number in range(HISTORIES):
        source = random.Random(f"{seed} {number}")
        body = random_definition(source, failing=source.random() < 0.25, max_steps=16, calls=False)
        delay_s = world.between(1, 50_000) if world.one_in(6) else None
        history = History(with_turns(_patient(body, source), source), queue, delay_s)
        histories.append(history)
        world.after(world.between(0, 5), Crowd(world, engines, queue, history, seen).begin)
    for _ in range(PAUSES):
        world.after(world.between(0, 500), queue.pause)
    assert world.run(STEPS_MAX), f"no end within {STEPS_MAX} steps"
    for history in histories:
        history.check_end()
        seen["begun later"] += history.begun and history.delayed
        seen[f"ended {history.status.name}"] += 1
        seen["events"] += history.events
    assert not any(queue.counts.values()), "places are taken for ever"
    seen["histories"] += len(histories)
    seen["kept back"] += queue.kept_back
    seen["overruns"] += queue.overruns
    seen["steps of the scheduler"] += world.steps
    return seen
