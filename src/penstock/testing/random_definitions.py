"""Hypothesis strategies for random valid workflow definitions and for what workers return to them.

Needs Hypothesis, which only tests have; nothing else in the package imports this. Graphs are built by structure
(sequences, decisions, loops, blocks, timers), so nothing is filtered out; `wild` then turns some references
elsewhere and keeps what is still valid. Must not hold rules of its own: what is valid is what `parse_definition` says.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Sequence
from typing import Final, Protocol, TypeVar, cast

import msgspec
from hypothesis import strategies as st

from penstock.core.graph.definition import InvalidDefinition
from penstock.core.parsing.parsing import parse_definition
from penstock.testing.definitions import Json, definition, end, service, step, timer

_T = TypeVar("_T")

START_VARIABLES: Final[Json] = {"n": 0, "flag": False, "word": "a", "numbers": [1, 2, 3]}
"""What the expressions of random definitions refer to: start their instances with it."""

_CONDITIONS: Final = (
    "flag",
    "not flag",
    "n > 2",
    "n % 2 == 0",
    "${word == 'a'}",
    "any(numbers, # > 2) && n < 5",
    "len(numbers) > n",
)
_FAILING_CONDITIONS: Final = ("missing > 1", "n + word == 2", "n")
_ASSIGNMENTS: Final[tuple[tuple[str, object], ...]] = (
    ("n", "${n + 1}"),
    ("flag", "${!flag}"),
    ("word", "b"),
    ("extra", None),
    ("extra", {"deep": [1.5, "${not an expression", 10**30]}),
    ("moment", "${now()}"),
    ("numbers", "${map(numbers, # + n)}"),
    ("many", "${count(1..4000, # > n)}"),
)
FOR_EACH_TYPES: Final = ("SERVICE_TASK", "USER_TASK", "CALL_ACTIVITY")
MESSAGE: Final = "told"
"""The name of the messages that waits of random definitions wait for."""
MESSAGE_KEYS: Final = ("fixed", "of-a", "of-b", "of-")
"""The keys that they may have."""
ERROR_CODES: Final = ("DECLINED", "TIME.OUT")
_DURATIONS: Final = ("PT30S", "PT1H30M", "P7D", "P1W", "PT0.5H")
_TURNS: Final[tuple[Json, ...]] = (
    {},
    {"flowKey": "own"},
    {"priority": 2},
    {"flowKey": "${'own-' + word}", "priority": "${1 + 1}"},
)
_TURNS_OF_ALL: Final[tuple[Json, ...]] = ({}, {}, {"flowKey": "all"}, {"flowKey": "${'of-' + word}", "priority": 7})
_START_TIMES: Final[tuple[Json, ...]] = (
    {},
    {"delay": "PT30S"},
    {"delay": "${'PT' + string(n + 5) + 'S'}"},
    {"startAt": "2031-05-05T08:00:00+02:00"},
)
_START_RULES: Final[tuple[Json, ...]] = (
    {"dedupe": {"key": "${word}", "window": "PT1H"}},
    {"dedupe": {"key": "all", "window": "P7D"}, "delay": "PT0.5H"},
    {"throttle": {"key": "${word}", "limit": 2, "period": "PT1M", "burst": 1, "onExcess": "DELAY"}},
    {"throttle": {"key": "${'of-' + word}", "limit": 1}},
    {"debounce": {"key": "${word}", "wait": "PT30S", "maxWait": "PT5M", "keep": "MERGE"}},
    {"debounce": {"key": "k", "wait": "PT1S"}},
)
CHILD: Final = "child"
"""The definition that calls of random definitions name."""
_INPUTS: Final[tuple[Json, ...]] = ({}, {"n": "${n}", "word": "c"}, {"n": "${n - 1}", "flag": True})
_FAILING_INPUT: Final[Json] = {"n": "${missing + 1}"}
_OUTPUTS: Final[tuple[Json, ...]] = (
    {},
    {"result": "${result.n}"},
    {"flag": "${result.n != nil && result.n > 2}", "extra": "${[result.n, 1]}"},
)
_FAILING_OUTPUT: Final[Json] = {"n": "${result.word + 1}"}
_LISTS: Final = ("${numbers}", "${filter(numbers, # > n)}", "${map(1..7, # * n)}", "${[word, flag, n]}")
_FAILING_LISTS: Final = ("${n}", "${missing}", "${map(1..10001, #)}")
_COLLECTED: Final = ("${result.n}", "${[item, result.word ?? 'none']}", "${numbers}")
_FAILING_COLLECTED: Final = "${result.word + 1}"
_ENOUGH: Final = ("${result.n == 5}", "${items.completed + items.failed > 1}")
_FAILING_ENOUGH: Final = "${result.flag}"
_ATTEMPTS_TO_REWIRE: Final = 3


def outputs() -> st.SearchStrategy[Json]:
    """Variables that a worker or a user may return to an instance of a random definition."""
    return st.fixed_dictionaries(
        {},
        optional={
            "n": st.integers(-3, 9),
            "flag": st.booleans(),
            "word": st.sampled_from(["a", "b", ""]),
            "result": st.none() | st.integers() | st.text("äb\U0001f6b0", max_size=5),
        },
    )


@st.composite
def definitions(
    draw: st.DrawFn,
    *,
    max_steps: int = 25,
    failing: bool = True,
    additions: bool = True,
    wild: bool = True,
    calls: bool = True,
) -> Json:
    """The JSON of valid definitions with every type of step: gateways with branches of any length, decisions, loops,
    waits, boundary timers, dead ends and branches that leave their block. Start instances with START_VARIABLES.

    ``max_steps``: about so many at most. ``failing``: some conditions fail, or none matches. ``additions``:
    retryBackoff, timeout, duration and until, messages, forEach, error boundaries and codes, compensation. ``wild``:
    some references are turned elsewhere, as far as the definition stays valid (jumps into blocks, joins without their
    gateway, endless loops). ``calls``: some steps call the definition `CHILD`.
    """

    def pick(choices: Sequence[_T]) -> _T:
        return draw(st.sampled_from(choices))

    return _build(pick, max_steps=max_steps, failing=failing, additions=additions, wild=wild, calls=calls)


def random_definition(
    source: random.Random,
    *,
    max_steps: int = 25,
    failing: bool = True,
    additions: bool = True,
    wild: bool = True,
    calls: bool = True,
) -> Json:
    """Return one of `definitions`, by a seed instead of Hypothesis: 20 times as fast, as a rule larger, and never
    shrunk."""
    return _build(source.choice, max_steps=max_steps, failing=failing, additions=additions, wild=wild, calls=calls)


def with_turns(body: Json, source: random.Random) -> Json:
    """Return the same with flow keys and priorities of some of its jobs, and in half of the cases of all others."""
    steps = [
        {**one, **source.choice(_TURNS)} if one["type"] == "SERVICE_TASK" else one
        for one in cast("list[Json]", body["steps"])
    ]
    return {**body, "steps": steps, **source.choice(_TURNS_OF_ALL)}


def with_start(body: Json, source: random.Random) -> Json:
    """Return the same with what all of its starts ask for, in most cases."""
    times, rules = source.choice(_START_TIMES), source.choice(_START_RULES)
    return {**body, "start": times if source.random() < 0.3 else rules}


def random_output(source: random.Random) -> Json:
    """Return one of `outputs`, by a seed."""
    choices: Json = {
        "n": source.randint(-3, 9),
        "flag": source.random() < 0.5,
        "word": source.choice(["a", "b", ""]),
        "result": source.choice([None, source.randint(-9, 9), "äb\U0001f6b0"]),
    }
    return {name: value for name, value in choices.items() if source.random() < 0.5}


def _build(pick: _Pick, *, max_steps: int, failing: bool, additions: bool, wild: bool, calls: bool) -> Json:
    made = _Builder(pick, max_steps=max_steps, failing=failing, additions=additions, calls=calls).build()
    made = _rewire(made, pick) if wild and pick((True, False)) else made
    made = _with_for_each(made, pick, failing=failing) if additions and pick((False, False, True)) else made
    made = _with_errors(made, pick) if additions and pick((False, True)) else made
    return _with_compensation(made, pick) if additions and pick((False, False, True)) else made


class _Pick(Protocol):
    """Draws one of the choices; the first is what shrinking prefers."""

    def __call__(self, choices: Sequence[_T], /) -> _T: ...


class _Place(msgspec.Struct, frozen=True):
    """Where in the graph something is being built."""

    exits: tuple[str, ...]
    """Steps that a path may jump to from here; none of them leads back to here."""
    in_branch: bool = False
    in_loop: bool = False
    depth: int = 0


class _Builder:
    """Builds from the end to the start: every part knows the id of the step that comes after it (``after``), adds its
    own steps and returns the id of its first one."""

    def __init__(self, pick: _Pick, *, max_steps: int, failing: bool, additions: bool, calls: bool) -> None:
        self._pick = pick
        self._max_steps = max_steps
        self._failing = failing
        self._additions = additions
        self._task_kinds = ("SERVICE_TASK", "USER_TASK", "WAIT", *(("CALL_ACTIVITY",) if calls else ()))
        self._steps: dict[str, Json] = {}
        self._count = 0

    def build(self) -> Json:
        self._add(end("end"))
        first = self._sequence("end", _Place(exits=("end",)), longest=5)
        entry = self._steps.pop(first)
        others = list(self._steps.values())
        if self._pick((False, True)):
            others.reverse()
        fields: Json = {"metadata": {"seed": [1, {"ä": None}]}} if self._pick((False, True)) else {}
        return definition(entry, *others, definition_id="random::1", **fields)

    def _add(self, made: Json) -> str:
        step_id = cast("str", made["id"])
        self._steps[step_id] = made
        return step_id

    def _new_id(self, kind: str) -> str:
        self._count += 1
        return f"{kind}-{self._count}"

    def _sequence(self, after: str, place: _Place, *, longest: int = 3) -> str:
        """Up to ``longest`` parts, one after another."""
        for _ in range(self._pick(range(longest + 1))):
            after = self._part(after, place)
        return after

    def _part(self, after: str, place: _Place) -> str:
        """Return one part of any kind; none any more when the definition is big enough."""
        if self._count >= self._max_steps:
            return after
        kinds: list[Callable[[str, _Place], str]] = [self._task, self._task, self._transformation]
        if place.depth < 3:
            kinds += [self._decision, self._loop]
            if not place.in_branch:
                kinds += [self._gateway, self._gateway]
        return self._pick(kinds)(after, place)

    def _task(self, after: str, place: _Place) -> str:
        kind = self._pick(self._task_kinds)
        made = step(self._new_id(kind.split("_")[0].lower()), kind, nextStep=after)
        if kind == "SERVICE_TASK":
            made["jobType"] = self._pick(("work", "other"))
            made["retryCount"] = self._pick((0, 1, 3))
        if kind == "CALL_ACTIVITY":
            made.update(self._call())
        if self._additions and self._pick((False, False, True)):
            made.update(self._addition(kind))
        if place.depth < 3 and self._pick((False, False, True)):
            made["conditionalNextSteps"] = self._arms(after, place)
            if kind != "WAIT" and self._pick((False, True)):
                del made["nextStep"]
        if place.depth < 3 and self._pick((False, False, True)):
            made["boundaryEvents"] = [self._timer(after, place) for _ in range(self._pick((1, 2)))]
        return self._add(made)

    def _call(self) -> Json:
        failing = self._failing and self._pick((False, False, False, True))
        given = self._pick((None, *_INPUTS, _FAILING_INPUT) if failing else (None, *_INPUTS))
        output = self._pick((*_OUTPUTS, _FAILING_OUTPUT) if failing else _OUTPUTS)
        made: Json = {"definitionId": CHILD, "output": output}
        return made if given is None else {**made, "input": given}

    def _addition(self, kind: str) -> Json:
        if kind == "SERVICE_TASK":
            backoff: Json = {"initial": "PT1S", "multiplier": self._pick((1, 2.5)), "max": "PT1M", "jitter": 0.5}
            return self._pick(({"retryBackoff": backoff}, {"timeout": "PT5M"}))
        if kind == "WAIT":
            durations: tuple[Json, ...] = ({"duration": "PT1H"}, {"duration": "${'PT' + string(len(numbers)) + 'M'}"})
            untils: tuple[Json, ...] = ({"until": "2031-05-04T12:00:00Z"}, {"until": "${string(now())}"})
            messages: tuple[Json, ...] = tuple(
                {"message": {"name": MESSAGE, "correlationKey": key}} for key in ("fixed", "${'of-' + word}")
            )
            return self._pick((*durations, *untils, *messages, {**messages[1], **durations[0]}))
        return {}

    def _timer(self, after: str, place: _Place) -> Json:
        """A boundary event whose path meets the main one again, leaves, or just ends."""
        inner = msgspec.structs.replace(place, depth=place.depth + 1)
        if self._pick((True, False)):
            target = self._sequence(self._exit(after, place), inner, longest=1)
        else:
            target = self._add(service(self._new_id("dead-end")))
        durations = (*_DURATIONS, "${1 + len(numbers)}") if self._additions else _DURATIONS
        return timer(target, self._pick(durations), interrupting=self._pick((True, False)))

    def _exit(self, after: str, place: _Place) -> str:
        """Where a side path goes on: mostly ``after``, else out of here, or to an END of its own."""
        target = self._pick((after, after, *place.exits, None))
        return self._add(end(self._new_id("end"))) if target is None else target

    def _transformation(self, after: str, place: _Place) -> str:
        chosen = dict(self._pick(_ASSIGNMENTS) for _ in range(self._pick((1, 2, 3))))
        return self._add(step(self._new_id("set"), "TRANSFORMATION", transformations=chosen, nextStep=after))

    def _decision(self, after: str, place: _Place) -> str:
        arms = self._arms(after, place)
        return self._add(step(self._new_id("decision"), "DECISION", conditionalNextSteps=arms))

    def _arms(self, after: str, place: _Place) -> Json:
        """Conditions and where they lead. One leads to ``after``, which would else be out of reach."""
        inner = msgspec.structs.replace(place, depth=place.depth + 1)
        conditions = _CONDITIONS + _FAILING_CONDITIONS if self._failing else _CONDITIONS
        arms: Json = {}
        for _ in range(self._pick((0, 1, 2))):
            condition = self._pick(conditions)
            if condition not in arms:
                arms[condition] = self._sequence(self._exit(after, place), inner, longest=2)
        last = "false" if self._failing and self._pick((False, False, False, True)) else "true"
        arms[last] = after
        return arms

    def _loop(self, after: str, place: _Place) -> str:
        """A body that is entered again while ``n`` is small; the body counts."""
        decision = self._new_id("again")
        count = self._add(
            step(self._new_id("count"), "TRANSFORMATION", transformations={"n": "${n + 1}"}, nextStep=decision)
        )
        inner = _Place(exits=place.exits, in_branch=place.in_branch, in_loop=True, depth=place.depth + 1)
        body = self._sequence(count, inner)
        self._add(step(decision, "DECISION", conditionalNextSteps={"n < 4": body, "true": after}))
        return body

    def _gateway(self, after: str, place: _Place) -> str:
        join = self._add(step(self._new_id("join"), "JOIN_GATEWAY", nextStep=after))
        # In a loop, what comes after the join leads back to the gateway: a branch may not jump there.
        exits = place.exits if place.in_loop else (*place.exits, after)
        inner = _Place(exits=exits, in_branch=True, in_loop=place.in_loop, depth=place.depth + 1)
        heads = [self._branch(join, inner) for _ in range(self._pick((2, 3)))]
        return self._add(step(self._new_id("fork"), "PARALLEL_GATEWAY", parallelNextSteps=heads, joinStep=join))

    def _branch(self, join: str, place: _Place) -> str:
        last = join
        ending = self._pick(("join", "join", "join", "dead end", "exit"))
        if ending == "dead end":
            last = self._add(service(self._new_id("dead-end")))
        elif ending == "exit":
            last = self._exit(self._pick(place.exits), place)
        return self._sequence(last, place, longest=3)


def _rewire(made: Json, pick: _Pick) -> Json:
    """The definition with a reference or two turned to another step, where that is still valid."""
    for _ in range(_ATTEMPTS_TO_REWIRE):
        turned = copy.deepcopy(made)
        steps = cast("list[Json]", turned["steps"])
        references = _references(steps)
        if not references:
            break
        holder, key = pick(references)
        holder[key] = pick([one["id"] for one in steps])
        try:
            parse_definition(turned)
        except InvalidDefinition:
            continue
        made = turned
    return made


def _with_for_each(made: Json, pick: _Pick, *, failing: bool) -> Json:
    """Return the definition with a forEach on a task or two."""
    turned = copy.deepcopy(made)
    tasks = [one for one in cast("list[Json]", turned["steps"]) if one["type"] in FOR_EACH_TYPES]
    for _ in range(pick((1, 2)) if tasks else 0):
        task = pick(tasks)
        task.pop("output", None)
        each: Json = {"items": pick((*_LISTS, *_FAILING_LISTS) if failing else _LISTS)}
        each["parallel"] = pick((1, 2, 100))
        if pick((True, False)):
            each["index"] = "index"
        if pick((True, False)):
            each["collect"] = pick((*_COLLECTED, _FAILING_COLLECTED) if failing else _COLLECTED)
            each["into"] = "gathered"
        if pick((False, False, True)):
            each["until"] = pick((*_ENOUGH, _FAILING_ENOUGH) if failing else _ENOUGH)
        if pick((False, True)):
            each["onError"] = "COLLECT"
        if task["type"] == "CALL_ACTIVITY" and "input" in task and pick((False, True)):
            task["input"] = {"n": "${item}", "word": "${word}"}
        task["forEach"] = each
    return turned


def _with_errors(made: Json, pick: _Pick) -> Json:
    """The definition with error boundaries and codes on a few steps, where that is valid."""
    for _ in range(_ATTEMPTS_TO_REWIRE):
        turned = copy.deepcopy(made)
        steps = cast("list[Json]", turned["steps"])
        tasks = [one for one in steps if one["type"] in ("SERVICE_TASK", "CALL_ACTIVITY")]
        ends = [one for one in steps if one["type"] == "END"]
        if pick((False, False, False, True)) and len(ends) > 1:
            pick(ends)["errorCode"] = pick(ERROR_CODES)
        elif pick((False, False, True)) and ends:
            pick(ends)["output"] = dict(pick(_ASSIGNMENTS) for _ in range(pick((1, 2))))
        elif tasks:
            _with_codes(pick(tasks), [cast("str", one["id"]) for one in steps], pick)
        try:
            parse_definition(turned)
        except InvalidDefinition:
            continue
        made = turned
    return made


def _with_codes(task: Json, targets: Sequence[str], pick: _Pick) -> None:
    if pick((False, False, True)):
        task[pick(("retryOn", "noRetryOn"))] = [pick(ERROR_CODES)]
        return
    caught: Json = {"type": "ERROR", "targetStepId": pick(targets)}
    if codes := pick(((), (ERROR_CODES[0],), ERROR_CODES, ("Penstock.RetriesExhausted",), ("Penstock.ChildFailed",))):
        caught["errorCodes"] = list(codes)
    if pick((True, False)):
        caught["errorVariable"] = "error"
    task["boundaryEvents"] = [*cast("list[Json]", task.get("boundaryEvents", [])), caught]


def _with_compensation(made: Json, pick: _Pick) -> Json:
    """The definition with handlers on a few steps, and with what makes them run."""
    turned = copy.deepcopy(made)
    steps = cast("list[Json]", turned["steps"])
    tasks = [one for one in steps if one["type"] in ("SERVICE_TASK", "CALL_ACTIVITY")]
    if not tasks:
        return made
    for _ in range(pick((1, 2, 4))):
        retries: Json = pick(({}, {"retryCount": 1}, {"retryCount": 1, "retryBackoff": {"initial": "PT1S"}}))
        pick(tasks)["compensation"] = {"jobType": pick(("work", "undo")), **retries}
    if pick((False, True)):
        turned["onFailure"] = "COMPENSATE"
    handled = [one["id"] for one in tasks if "compensation" in one]
    for number in range(pick((0, 1, 2))):
        references = [(holder, key) for holder, key in _references(steps) if key != "joinStep"]
        holder, key = pick(references)
        undo = step(f"undo-{number}", "COMPENSATE", nextStep=holder[key])
        if pick((False, False, True)):
            undo["steps"] = [pick(handled)]
        holder[key] = undo["id"]
        steps.append(undo)
    try:
        parse_definition(turned)
    except InvalidDefinition:  # a gateway's block may not be left everywhere
        return made
    return turned


def _references(steps: Sequence[Json]) -> list[tuple[Json, str]]:
    """Every place in these steps that holds the id of a step in an object."""
    found: list[tuple[Json, str]] = []
    for one in steps:
        found += [(one, name) for name in ("nextStep", "joinStep") if name in one]
        arms = cast("Json", one.get("conditionalNextSteps", {}))
        found += [(arms, condition) for condition in arms]
        found += [(event, "targetStepId") for event in cast("list[Json]", one.get("boundaryEvents", []))]
    return found
