"""The model of a workflow definition: what an upload becomes and everything that advances instances reads.

Relies on `parsing.parse_definition` as the only maker: a Definition that exists has passed every rule of the
contract, so readers here and elsewhere don't check again. Steps point at each other by index, because an index is
what the store keeps and what graph sets are made of. Must not do I/O, and must not change once made: one object is
shared by all instances of a version.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from functools import cached_property
from types import MappingProxyType

import msgspec

from penstock.core.expression import Expression
from penstock.core.graph import graph
from penstock.core.rules.search_attributes import SearchAttributes
from penstock.core.rules.start_rules import StartOfDefinition
from penstock.errors import BadRequest
from penstock.wire.error_code import NOT_RETRYABLE, RETRIES_EXHAUSTED

BUSINESS_KEY_MAX_CHARS = 512
"""What a B-tree entry of PostgreSQL holds for certain (2,704 bytes, four to a character)."""


class StepType(enum.StrEnum):
    """The kinds of step. The value is the name on the wire."""

    SERVICE_TASK = "SERVICE_TASK"
    USER_TASK = "USER_TASK"
    CALL_ACTIVITY = "CALL_ACTIVITY"
    COMPENSATE = "COMPENSATE"
    DECISION = "DECISION"
    TRANSFORMATION = "TRANSFORMATION"
    WAIT = "WAIT"
    PARALLEL_GATEWAY = "PARALLEL_GATEWAY"
    JOIN_GATEWAY = "JOIN_GATEWAY"
    END = "END"


Assignments = tuple[tuple[str, object | Expression], ...]
"""(name, literal JSON value or compiled expression), in order."""


class Boundary(msgspec.Struct, frozen=True):
    """One boundary timer of a step."""

    duration: str
    """ISO 8601 text, or the text of an expression, as it was given."""
    seconds: float | Expression
    """The same in seconds, more than 0; or what gives it when the step is entered."""
    interrupting: bool
    target: int
    """Index of the target step."""


class Catch(msgspec.Struct, frozen=True):
    """One error boundary of a step: where it goes when it fails with one of these codes."""

    codes: tuple[str, ...]
    """Empty: any."""
    variable: str | None
    """Which is set to what is known of the error."""
    target: int


class Backoff(msgspec.Struct, frozen=True):
    """How long a failed attempt waits for its retry: ``min(max, initial * multiplier ** n)``, spread by ``jitter``."""

    initial_s: float
    multiplier: float
    max_s: float
    jitter: float
    """0 to 1: the share of the wait that is random."""


class LateBackoff(msgspec.Struct, frozen=True):
    """A back-off whose ``initial`` or ``longest`` is evaluated when the step is entered. ``longest`` is None for the
    default."""

    initial: float | Expression
    longest: float | Expression | None
    multiplier: float
    jitter: float


class Callee(msgspec.Struct, frozen=True):
    """The workflow that a CALL_ACTIVITY starts, and for whose end it waits."""

    definition_id: str
    version: int
    """0: the latest one when it is called."""
    input: Assignments | None
    """Its variables; None: all of the caller's."""
    output: Assignments
    """What comes back of `result`: its own, else the variables that it ended with. Empty: nothing."""
    business_key: Expression | str | None


class AwaitedMessage(msgspec.Struct, frozen=True):
    """The message that a WAIT waits for: one with this name, and the key that the instance gives."""

    name: str
    key: Expression | str


class ForEach(msgspec.Struct, frozen=True):
    """What makes a step be done once for each item of a list."""

    items: Expression
    """It gives the list."""
    name: str
    """`as`: the variable that is the item."""
    index: str | None
    """The variable that is its place in the list."""
    parallel: int
    """So many items are under way at once."""
    collect: Expression | None
    """Its value is kept of each item that is done."""
    into: str | None
    """The variable that becomes the list of them."""
    until: Expression | None
    """The step is done once this is true after an item."""
    collects_errors: bool
    """`onError` is COLLECT: an item that fails is kept as one, and the others go on."""


class Turn(msgspec.Struct, frozen=True):
    """In whose turn jobs come, and how early; None: as is said elsewhere."""

    key: Expression | str | None
    priority: Expression | int | None

    @property
    def is_evaluated(self) -> bool:
        """Return whether variables are needed for it."""
        return isinstance(self.key, Expression) or isinstance(self.priority, Expression)


class Step(msgspec.Struct, frozen=True):
    """One step. Fields that its type does not use are None or empty, whatever the upload said there."""

    index: int
    id: str
    name: str
    type: StepType
    description: str | None
    next: int | None
    """Index of `nextStep`."""
    conditions: tuple[tuple[Expression, int], ...]
    """`conditionalNextSteps` in the order of the JSON object."""
    transformations: Assignments
    branches: tuple[int, ...]
    """`parallelNextSteps`; the same step twice is two branches."""
    join: int | None
    job_type: str | None
    """SERVICE_TASK: as given. USER_TASK: the label, by default the step's id."""
    delegate_class: str | None
    retry_count: int
    boundaries: tuple[Boundary | Catch, ...]
    """In the order of `boundaryEvents`: a timer's index is its place here."""
    backoff: Backoff | LateBackoff | None
    timeout_s: float | Expression | None
    duration: float | Expression | None
    """WAIT: seconds, or an expression that gives ISO 8601 text."""
    until: Expression | str | None
    """WAIT: RFC 3339 text, or an expression that gives it."""
    buffer: bool = False
    """WAIT: a signal that comes before it is open is kept."""
    retry_on: tuple[str, ...] = ()
    """SERVICE_TASK: only failures with these codes are tried again; empty: any."""
    no_retry_on: tuple[str, ...] = ()
    error_code: str | None = None
    """END: it fails the instance with this code."""
    result: Assignments | None = None
    """END: what the instance's result becomes."""
    callee: Callee | None = None
    """CALL_ACTIVITY."""
    message: AwaitedMessage | None = None
    """WAIT."""
    for_each: ForEach | None = None
    """SERVICE_TASK, USER_TASK and CALL_ACTIVITY."""
    compensation: int | None = None
    """Index of the hidden step that undoes it."""
    compensates: int | None = None
    """Of such a hidden step: index of the one that it undoes."""
    undoes: tuple[int, ...] = ()
    """COMPENSATE: the steps whose executions it undoes."""
    turn: Turn | None = None
    """SERVICE_TASK: of its jobs."""

    @property
    def timers(self) -> list[tuple[int, Boundary]]:
        """Its boundary timers with their indexes."""
        return [(index, event) for index, event in enumerate(self.boundaries) if isinstance(event, Boundary)]

    @property
    def times_itself(self) -> bool:
        """Return whether boundary timers, the time limit or the back-off of its job are evaluated when it is
        entered."""
        timers = any(isinstance(timer.seconds, Expression) for _, timer in self.timers)
        return timers or isinstance(self.timeout_s, Expression) or isinstance(self.backoff, LateBackoff)

    def catch_named(self, code: str | None) -> Catch | None:
        """Return the error boundary that names the code."""
        return next((event for event in self.boundaries if isinstance(event, Catch) and code in event.codes), None)

    def catch(self, code: str) -> Catch | None:
        """The error boundary that takes the code: one that names it, else the one for any."""
        name = RETRIES_EXHAUSTED if code == NOT_RETRYABLE else code
        return next(
            (e for e in self.boundaries if isinstance(e, Catch) and (not e.codes or name in e.codes)),
            None,
        )

    def may_retry(self, code: str | None) -> bool:
        """Return whether a failure with this code is one that is tried again while retries are left."""
        return code not in self.no_retry_on and (not self.retry_on or code in self.retry_on)


class Definition(msgspec.Struct, frozen=True, dict=True):
    """One valid definition. ``dict=True`` holds the lookups below, made at first use and not part of equality."""

    id: str
    name: str
    description: str | None
    auto_start_next: bool
    next_workflow_id: str | None
    steps: tuple[Step, ...]
    """``steps[0]`` is the entry; ``steps[i].index == i``. Hidden ones come last: nothing leads to them."""
    metadata: object | None
    content: str
    """Canonical JSON text: the given fields in a fixed order, without `version`. Two uploads are the same content
    when this is equal, and parsing it gives an equal Definition."""
    search_attributes: SearchAttributes | None
    record_attempts: bool
    """What its jobs are given is kept, attempt by attempt."""
    """Variables by which its instances are found; None when it declares none."""
    single_token: bool
    """No parallel gateway, no forEach and no non-interrupting boundary event: an instance never has two open steps."""
    memory_bytes: int
    """What it takes in memory, estimated from above."""
    undo_step: int | None = None
    """Index of the hidden COMPENSATE that comes before the end of an instance that is to be undone; None where no step
    can be."""
    undoes_failures: bool = False
    """`onFailure`: an instance is undone before it is FAILED."""
    turn: Turn | None = None
    """Of the jobs of instances whose start says nothing of it."""
    start: StartOfDefinition | None = None
    """What each of its starts asks for."""

    def step(self, step_id: str) -> Step | None:
        """Return the step with this id, or None."""
        return self._steps_by_id.get(step_id)

    @cached_property
    def maps(self) -> bool:
        """Return whether a step has a forEach."""
        return any(step.for_each is not None for step in self.steps)

    @cached_property
    def has_templates(self) -> bool:
        """Return whether a value of it is a template."""
        values: list[object] = []
        for step in self.steps:
            values += [value for _, value in (*step.transformations, *(step.result or ()))]
            values.append(None if step.message is None else step.message.key)
            if step.callee is not None:
                values += [value for _, value in (*(step.callee.input or ()), *step.callee.output)]
                values.append(step.callee.business_key)
        return any(isinstance(value, Expression) and value.is_template for value in values)

    @cached_property
    def has_flow_keys(self) -> bool:
        """Return whether it gives its jobs flow keys."""
        turns = [self.turn, *(step.turn for step in self.steps)]
        return any(turn is not None and turn.key is not None for turn in turns)

    def is_inside(self, gateway: int, step: int) -> bool:
        """Return whether the step is inside the block of the parallel gateway at this index (see `graph.Blocks`). A
        branch token that enters a step which is neither that nor the join has left the block."""
        return bool(self.blocks.insides[step] & self.blocks.bits[gateway])

    @cached_property
    def _steps_by_id(self) -> dict[str, Step]:
        return {step.id: step for step in self.steps}

    @cached_property
    def blocks(self) -> graph.Blocks:
        """Return the blocks of all gateways."""
        gateways = {
            step.index: graph.Gateway(heads=step.branches, join=step.join)
            for step in self.steps
            if step.type is StepType.PARALLEL_GATEWAY
        }
        return graph.find_blocks([step_successors(step) for step in self.steps], gateways)


def step_successors(step: Step) -> list[int]:
    """Indexes of every step that this one can lead to, each once."""
    found = [step.next, step.join, *step.branches]
    found += [target for _, target in step.conditions]
    found += [boundary.target for boundary in step.boundaries]
    return list(dict.fromkeys(target for target in found if target is not None))


class DefinitionLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What one definition may cost. Far above what people write; they keep a hostile upload cheap."""

    body_max_bytes: int = 4 * 1024 * 1024
    """Of the upload, and of the canonical text made of it. 10,000 steps of 400 bytes."""
    nesting_max_levels: int = 100
    """Arrays and objects within each other, in the whole body."""
    number_max_digits: int = 1_000
    """Of a whole number. Decimals are IEEE doubles."""
    steps_max_count: int = 10_000
    gateways_max_count: int = 1_000
    """Parallel gateways: bounds the analysis of their blocks."""
    id_max_chars: int = 256
    """Of definition, step and next workflow ids, job types and names of transformations."""
    name_max_chars: int = 1_000
    """Of names and `delegateClass`."""
    description_max_chars: int = 10_000
    expression_max_chars: int = 10_000
    expressions_max_chars: int = 500_000
    """Of all expressions together, each different one counted once. Compiling takes 1 to 7 µs a character."""
    expression_nodes_max_count: int = 100_000
    """Of all of them together: names, literals, operators and calls. 35 MB, and 0.8 s to compile."""
    patterns_max_steps: int = 1_000_000
    """Of their regular expressions together: 100 each and 4 for each instruction. 4 MB, and 0.1 s to compile; 20,000
    patterns of 20 characters took 37 s."""
    conditions_max_count: int = 1_000
    """Per step, like the next three."""
    transformations_max_count: int = 1_000
    branches_max_count: int = 1_000
    boundary_events_max_count: int = 100
    error_codes_max_count: int = 100
    """Of one list of codes."""
    search_attributes_max_count: int = 20
    parallel_max_count: int = 1_000
    """Items of a forEach that are under way at once."""
    metadata_max_bytes: int = 256 * 1024
    """Of its JSON text without white space."""
    retry_max_count: int = 2_147_483_647
    """int32, which is what gRPC clients can hold."""
    problems_max_count: int = 1_000
    """Problems in one answer; how many more there are is said in the last one."""


class Problem(msgspec.Struct, frozen=True):
    """One thing wrong with an upload."""

    path: str
    """Such as ``steps[3].boundaryEvents[0].duration``; empty for the body as a whole."""
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}" if self.path else self.reason


class InvalidDefinition(BadRequest):
    """The upload breaks rules. ``problems`` holds every one that was found, ``reason`` tells all of them, ``places``
    of expressions that can't be read the character at which, counted from 0."""

    def __init__(self, problems: Sequence[Problem], places: Mapping[Problem, int] = MappingProxyType({})) -> None:
        assert problems
        self.problems = list(problems)
        self.places = places
        super().__init__("invalid definition: " + "; ".join(map(str, problems)))
