"""A definition is tried before it is uploaded: what somebody let happen so far happens again, and what can come next is
told. Nothing is stored, here or elsewhere: each request brings the definition and all moves.

The rules are those of `core.advance` (`core.advance.simulation`). Away from the event loop, within bounds of moves, of
CPU time and of the answer's size.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from penstock.core.advance.simulation import Simulation
from penstock.core.graph.definition import Definition
from penstock.core.rules.state import CLOSING_KINDS, RETRY_TIMER, WAIT_TIMER, InstanceStatus, Token, TokenState
from penstock.engine.definitions.definitions import Definitions
from penstock.engine.definitions.taken_path import taken_path
from penstock.engine.requests.payload import EMPTY_OBJECT, PayloadLimits, check_variables
from penstock.engine.simulation.saved_test import saved_test
from penstock.engine.simulation.simulated_moves import Deed, MoveRefused, OutOfBudget, Play, target_of
from penstock.errors import BadRequest, PayloadTooLarge
from penstock.loop.offload import run_long
from penstock.settings import Settings
from penstock.store.rows.diagnosis import Passage
from penstock.wire.model import ItemCounts
from penstock.wire.noun import Answer
from penstock.wire.simulation import Move, SimulationRequest
from penstock.wire.standing import Edge

MOVES_MAX: Final = 500
CPU_MAX_S: Final = 1.0
ANSWER_MAX_BYTES: Final = 1_048_576
BEGINS: Final = (1970, 3000)
"""The years in which the clock may start."""
SHOWN_MAX: Final = 200
"""Open steps, timers, and steps that one move entered."""
PATH_MAX: Final = 5_000
"""Executions whose ways are told."""
_KINDS: Final = {RETRY_TIMER: "retry", WAIT_TIMER: "wait"}


class Awaited(Answer, frozen=True):
    """The message that a wait waits for."""

    name: str
    correlation_key: str


class CalledInstance(Answer, frozen=True):
    """What a call would have started."""

    definition_id: str
    variables: msgspec.Raw


class SimulatedToken(Answer, frozen=True):
    """An open execution, with the name of the token's state. ``item``: of a forEach, whose whole has ``items``."""

    id: str
    step_id: str
    state: str
    since: datetime
    attempt: int = 0
    failures: int = 0
    side: bool = False
    item: int | None = None
    items: ItemCounts | None = None
    message: Awaited | None = None
    called: CalledInstance | None = None


class SimulatedTimer(Answer, frozen=True):
    """A timer that is armed, the next one first: ``kind`` is boundary, retry, wait or engine."""

    token_id: str
    step_id: str
    index: int
    kind: str
    fire_at: datetime
    target: str | None = None
    interrupting: bool = False


class SimulatedStep(Answer, frozen=True):
    """How often a step was done with, and how the last time."""

    step_id: str
    times: int
    status: str


class WrittenVariable(Answer, frozen=True):
    """A variable, and the step that wrote it."""

    name: str
    step_id: str


class Ended(Answer, frozen=True):
    """An execution that was closed, and why, unless it completed."""

    step_id: str
    status: str
    reason: str | None = None


class SimulatedMove(Answer, frozen=True):
    """What came of a move; without one it is the start. Of what it entered and ended the first 200."""

    at: datetime
    entered: list[str]
    ended: list[Ended]
    changed: list[WrittenVariable]
    move: Move | None = None


class SimulationView(Answer, frozen=True):
    """Where it stands after the moves. ``made``: how many of them were possible; ``stopped`` says why the next was not,
    or took too much. ``path``: the ways that were taken. ``next_workflow``: what would start now. ``dead_end``: nothing
    is open, and no END was reached."""

    started_at: datetime
    at: datetime
    status: str
    made: int
    tokens: list[SimulatedToken]
    timers: list[SimulatedTimer]
    variables: dict[str, Any]
    path: list[Edge]
    steps: list[SimulatedStep]
    trace: list[SimulatedMove]
    can: list[Move]
    stopped: str | None = None
    failure_reason: str | None = None
    failure_code: str | None = None
    result: msgspec.Raw | None = None
    next_workflow: str | None = None
    dead_end: bool = False
    test: str | None = None


class Simulations:
    """Tries definitions."""

    def __init__(self, definitions: Definitions, limits: PayloadLimits, settings: Settings) -> None:
        self._definitions = definitions
        self._limits = limits
        self._bounds: dict[str, int] = {
            "max_work": settings.advance_max_work_steps,
            "max_automatic_steps": settings.max_automatic_steps,
            "max_written_bytes": settings.instance_variables_max_bytes,
        }

    async def simulate(self, asked: SimulationRequest) -> bytes:
        """Return a `SimulationView` as JSON. Raises InvalidDefinition, BadRequest and PayloadTooLarge."""
        if len(asked.moves) > MOVES_MAX:
            raise BadRequest(f"moves: has {len(asked.moves)} items, more than {MOVES_MAX}")
        body = bytes(asked.definition)
        started_at = asked.started_at or datetime.now(UTC).replace(microsecond=0)
        if started_at.tzinfo is None:
            raise BadRequest("startedAt: needs a time zone")
        if not BEGINS[0] <= started_at.year <= BEGINS[1]:
            raise BadRequest(f"startedAt: must be of the years {BEGINS[0]} to {BEGINS[1]}")
        started_at = started_at.astimezone(UTC)  # as the engine's clock, of which expressions take hours and days
        definition = await self._definitions.parse(lambda: body, len(body))
        self._definitions.check_upload(definition)
        return await run_long(self._simulate, asked, definition, started_at, line="simulations")

    def _simulate(self, asked: SimulationRequest, definition: Definition, started_at: datetime) -> bytes:
        """In a thread."""
        given = bytes(asked.variables)
        variables = EMPTY_OBJECT if given in (b"", b"null") else check_variables(given, self._limits)
        for at, move in enumerate(asked.moves):
            if move.variables is not None:
                check_variables(msgspec.json.encode(move.variables), self._limits, f"moves[{at}].variables")
        document = bytes(asked.definition) if asked.test else None
        return simulate(definition, variables, asked.moves, started_at, self._bounds, document)


class _Budget:
    """CPU time of this thread."""

    def __init__(self, seconds: float) -> None:
        self._until = time.thread_time() + seconds
        self._seconds = seconds

    def spend(self) -> None:
        if time.thread_time() > self._until:
            raise OutOfBudget(f"it takes more than {self._seconds:g} s of computing")


def simulate(
    definition: Definition,
    variables: bytes,
    moves: Sequence[Move],
    started_at: datetime,
    bounds: dict[str, int],
    document: bytes | None,
) -> bytes:
    """Return a `SimulationView` as JSON. ``document``: what was read, where a test is to be made of it. Raises
    PayloadTooLarge."""
    given: dict[str, Any] = msgspec.json.decode(variables)
    simulation = Simulation(definition, given, started_at, **bounds)
    play = Play(simulation, _Budget(CPU_MAX_S).spend)
    trace, deeds, stopped, whole = _Trace(simulation), list[Deed](), None, True
    try:
        play.begin()
        trace.note(None)
        for move in moves:
            deeds.append(play.make(move))
            trace.note(move)
    except MoveRefused as refused:
        stopped = f"moves[{len(deeds)}].{refused}" if ": " in str(refused) else f"moves[{len(deeds)}]: {refused}"
        if not trace.moves:  # the start is
            stopped, whole = str(refused), False
    except OutOfBudget as error:
        stopped, whole = f"moves[{len(deeds)}]: {error}", False
        trace.note(moves[len(deeds)] if trace.moves else None)
    instance = simulation.instance
    view = SimulationView(
        started_at=started_at,
        at=simulation.now,
        status=_status(simulation),
        made=len(deeds),
        stopped=stopped,
        tokens=[_token(simulation, token) for token in _open(simulation)[:SHOWN_MAX]],
        timers=_timers(simulation),
        variables=simulation.variables,
        path=_path(simulation),
        steps=_steps(simulation),
        trace=trace.moves,
        can=play.possible(SHOWN_MAX) if whole else [],
        failure_reason=instance.failure,
        failure_code=instance.failure_code,
        result=None if instance.result is None else msgspec.Raw(instance.result),
        next_workflow=simulation.chained,
        dead_end=simulation.dead_end and simulation.status is InstanceStatus.ACTIVE,
    )
    answer = _bounded(msgspec.json.encode(view))
    if document is None or not whole:
        return answer
    _bounded(document)
    try:
        spend = _Budget(CPU_MAX_S).spend
        test = saved_test(msgspec.json.decode(document), started_at, given, simulation, deeds, trace.path, spend)
    except OutOfBudget as error:
        raise PayloadTooLarge(f"test: {error}") from None
    except RecursionError:
        raise PayloadTooLarge("test: what is written in it is nested too deeply") from None
    return _bounded(msgspec.json.encode(msgspec.structs.replace(view, test=test)))


def _bounded(answer: bytes) -> bytes:
    if len(answer) > ANSWER_MAX_BYTES:
        raise PayloadTooLarge(f"the answer would have {len(answer)} bytes, more than {ANSWER_MAX_BYTES}")
    return answer


class _Trace:
    """What each move did."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._seen: set[tuple[int, int]] = set()
        self._rows = 0
        self.moves: list[SimulatedMove] = []
        self.path: list[str] = []
        """Every step that was entered."""

    def note(self, move: Move | None) -> None:
        """It was made."""
        simulation, steps = self._simulation, self._simulation.definition.steps
        rows, self._rows = simulation.history[self._rows :], len(simulation.history)
        found = {(row.token_id, row.seq): row.step for row in rows if row.kind in CLOSING_KINDS}
        found |= {(token.id, token.seq): token.step for token in _open(simulation)}
        entered = sorted((key[1], steps[step].id) for key, step in found.items() if key not in self._seen)
        self._seen |= found.keys()
        self.path += [step for _, step in entered]
        ended = [row for row in rows if row.kind in CLOSING_KINDS]
        changed: dict[str, str] = {}
        for row in rows:
            if row.output is not None:
                changed |= dict.fromkeys(msgspec.json.decode(row.output), steps[row.step].id)
        self.moves.append(
            SimulatedMove(
                at=simulation.now,
                move=move,
                entered=[step for _, step in entered[:SHOWN_MAX]],
                ended=[
                    Ended(step_id=steps[row.step].id, status=row.kind.name, reason=row.reason)
                    for row in ended[:SHOWN_MAX]
                ],
                changed=[WrittenVariable(name=name, step_id=step) for name, step in changed.items()],
            )
        )


def _open(simulation: Simulation) -> list[Token]:
    """What is open, a forEach that is under way before its items."""
    return sorted((*simulation.open_tokens, *simulation.wholes), key=lambda token: token.seq)


def _status(simulation: Simulation) -> str:
    """As the engine tells it."""
    parked = any(token.state is TokenState.PARKED for token in simulation.open_tokens)
    return "WAITING" if simulation.status is InstanceStatus.ACTIVE and parked else simulation.status.name


def _token(simulation: Simulation, token: Token) -> SimulatedToken:
    step, key = simulation.definition.steps[token.step], (token.id, token.seq)
    address, call = simulation.waits.get(key), simulation.calls.get(key)
    state = simulation.maps.get(token.id)
    called = None
    if call is not None:
        called = CalledInstance(definition_id=call.definition_id, variables=msgspec.Raw(call.variables))
    return SimulatedToken(
        id=f"{token.id:x}",
        step_id=step.id,
        state=token.state.name,
        since=token.entered_at,
        attempt=token.attempt,
        failures=token.failures,
        side=token.side,
        item=token.item,
        items=None
        if state is None
        else ItemCounts(
            total=state.total, completed=state.done, failed=state.failed, running=token.pending - token.arrived
        ),
        message=None if address is None else Awaited(name=address[0], correlation_key=address[1]),
        called=called,
    )


def _timers(simulation: Simulation) -> list[SimulatedTimer]:
    steps = simulation.definition.steps
    found: list[SimulatedTimer] = []
    for timer in sorted(simulation.timers.values(), key=lambda one: (one.fire_at, one.seq, one.index))[:SHOWN_MAX]:
        target, interrupting = target_of(simulation, timer) or (None, False)
        found.append(
            SimulatedTimer(
                token_id=f"{timer.token_id:x}",
                step_id=steps[simulation.tokens[timer.token_id].step].id,
                index=timer.index,
                kind="boundary" if timer.index >= 0 else _KINDS.get(timer.index, "engine"),
                fire_at=timer.fire_at,
                target=target,
                interrupting=interrupting,
            )
        )
    return found


def _path(simulation: Simulation) -> list[Edge]:
    """Of the newest executions."""
    closed = [row for row in simulation.history if row.kind in CLOSING_KINDS and row.item is None]
    newest = closed[-PATH_MAX:]
    passages = [Passage(row.token_id, row.seq, row.step, row.kind, row.position) for row in newest]
    passages += [
        Passage(token.id, token.seq, token.step, None, None) for token in _open(simulation) if token.item is None
    ]
    whole = len(newest) == len(closed)
    return taken_path(simulation.definition.steps, passages, simulation.instance.id, whole=whole)


def _steps(simulation: Simulation) -> list[SimulatedStep]:
    """Without items of a forEach, whose whole counts."""
    steps = simulation.definition.steps
    rows = [row for row in simulation.history if row.kind in CLOSING_KINDS and row.item is None]
    times: dict[int, int] = {}
    for row in rows:
        times[row.step] = times.get(row.step, 0) + 1
    last = {row.step: row.kind.name for row in rows}
    return [SimulatedStep(step_id=steps[step].id, times=count, status=last[step]) for step, count in times.items()]
