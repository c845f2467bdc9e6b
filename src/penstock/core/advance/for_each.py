"""What a forEach does within one advance: its items, one after the other, and what is gathered of them.

The step's token waits as FORKED; each item under way has a token of its own, which goes on with the next item. Boundary
events are the whole step's. What an item is done with is no variable of the instance: only what `collect` makes of it
is kept, as a row of its own, and gathered once when all are done. Pure; `advance.py` says when.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import Final, NamedTuple, cast

import msgspec
from msgspec import structs

from penstock.core.advance import evaluation, recorder
from penstock.core.advance.effect import MapEffects, MapState
from penstock.core.advance.evaluation import EvaluationFailed, shown
from penstock.core.advance.recorder import AdvanceState
from penstock.core.expression import ExpressionError, ExpressionLimits
from penstock.core.expression.work import BYTES_PER_STEP, TooMuchWork
from penstock.core.graph.definition import ForEach, Step
from penstock.core.rules.state import CONTINUE_TIMER, HistoryKind, Token
from penstock.wire.error_code import BAD_ITEMS

ITEMS_MAX_COUNT: Final = 10_000
ITEMS_MAX_BYTES: Final = 4 * 1024 * 1024
"""Of their variables as JSON text."""
ITEMS_LIMITS: Final = ExpressionLimits(result_bytes=ITEMS_MAX_BYTES)
STARTED_MAX_COUNT: Final = 100
"""Items that one advance begins: further ones go on in an advance of their own."""
ITEM_WORK: Final = 5
"""Steps of work for each item of the list."""


class KeptItems(NamedTuple):
    """What is known of the forEach steps of an instance: how far each is, by its token; by token and item variables, as
    far as they were read, and what was collected in this transaction."""

    states: dict[int, MapState]
    items: dict[tuple[int, int], bytes]
    collected: dict[tuple[int, int], bytes]

    def after(self, maps: MapEffects) -> KeptItems:
        """What is known once that was done."""
        ended = set(maps.ended)
        states = {token: state for token, state in self.states.items() if token not in ended}
        collected = {key: value for key, value in self.collected.items() if key[0] not in ended}
        return KeptItems(states | maps.states, self.items | maps.variables, collected | maps.results)


NO_ITEMS: Final = KeptItems({}, {}, {})


class ResultsNeeded(Exception):
    """What was collected for this token has to be read: then advance again."""

    def __init__(self, token: int) -> None:
        super().__init__()
        self.token = token


class RawNeeded(Exception):
    """The raw result of the row at this position has to be read: then advance again."""

    def __init__(self, position: int) -> None:
        super().__init__()
        self.position = position


def forget_raw(run: AdvanceState, token: Token) -> None:
    """Its raw result is mapped, or never will be. A handler is told it, where there is one."""
    if token.raw is not None and run.definition.steps[token.step].compensation is None:
        run.out.mapped.append(token.raw)
    token.raw = None


# -- the whole


def begin_map(run: AdvanceState, token: Token, step: Step, each: ForEach) -> None:
    """Begin its first items. Raises EvaluationFailed."""
    rows = _read_items(run, step, each)
    delays_s = evaluation.boundary_delays_s(run, token, step) if rows else {}
    if not rows:
        evaluation.count_automatic(run, step)
    maps = run.maps()
    maps.begun[token.id] = rows
    maps.states[token.id] = MapState(len(rows))
    run.ended_maps.pop(token.id, None)
    if not rows:
        finish_map(run, token)
        return
    recorder.arm_all(run, token, delays_s)
    begin_items(run, token)


def begin_items(run: AdvanceState, whole: Token) -> None:
    """As many as may be under way, and as this advance may begin."""
    each, state = _each(run, whole), _state(run, whole)
    while state.next < state.total and whole.pending - whole.arrived < each.parallel:
        if not _may_begin(run):
            _go_on_later(run, whole)
            break
        _begin_item(run, whole, recorder.new_token(run, whole.step, parent_id=whole.id, side=whole.side), state)
    recorder.mark_changed(run, whole)


def go_on(run: AdvanceState, whole: Token) -> None:
    """Its CONTINUE_TIMER: further items, if those that were done since have not begun all of them."""
    whole.pending, whole.arrived = whole.pending - 1, 0
    begin_items(run, whole)
    if not whole.pending:
        finish_map(run, whole)


def resume_map(run: AdvanceState, whole: Token) -> None:
    """A `retry` came back to it: another execution of the step, with the items that it had. Raises EvaluationFailed."""
    step = run.definition.steps[whole.step]
    run.reentering[whole.id] = whole.entry
    recorder.begin_execution(run, whole, step)
    recorder.arm_all(run, whole, evaluation.boundary_delays_s(run, whole, step))
    if whole.arrived:
        recorder.arm(run, whole, CONTINUE_TIMER, 0)


def finish_map(run: AdvanceState, whole: Token) -> None:
    """All is done: what was collected becomes a list, with null for items that were skipped. All that is kept of it
    goes. Raises ResultsNeeded."""
    each, state, maps = _each(run, whole), _state(run, whole), run.maps()
    output = None
    if each.into is not None:
        kept = {item: value for (token, item), value in maps.results.items() if token == whole.id}
        if whole.id not in maps.begun:
            if whole.id not in run.inputs.results:
                raise ResultsNeeded(whole.id)
            kept = {**run.inputs.results[whole.id], **kept}
        if whole.id not in maps.begun:  # as if it came now: once for each, and never too much
            run.work.begin_anew()
            run.work.spend(min(state.kept_bytes // BYTES_PER_STEP, run.work.limit // 2))
        values = b",".join(kept.get(item, b"null") for item in range(state.total))
        output = b"{%b:[%b]}" % (msgspec.json.encode(each.into), values)
    forget_map(run, whole)
    output = recorder.merge(run, whole, output)
    recorder.close(run, whole, HistoryKind.COMPLETED, output=output)
    whole.leaving = True
    run.entering.append((whole, whole.step))


def close_map(
    run: AdvanceState, whole: Token, reason: str | None, but: Token | None = None, *, closed: bool = False
) -> None:
    """The items that are under way are skipped, but for one that is closed already, or all that are; nothing is
    gathered."""
    if closed:
        for token in items_of(run, whole):
            forget_raw(run, token)
            recorder.remove(run, token)
    else:
        _skip_items(run, whole, reason, but)
    forget_map(run, whole)


def forget_map(run: AdvanceState, whole: Token) -> None:
    """All that is kept of it goes."""
    maps = run.maps()
    if whole.id in maps.begun or (whole.id in run.inputs.maps and whole.id not in maps.ended):
        run.ended_maps[whole.id] = _state(run, whole)
        maps.end(whole.id)
    whole.pending = whole.arrived = 0


def items_of(run: AdvanceState, whole: Token) -> list[Token]:
    """Return the tokens of its items."""
    return [token for token in run.tokens.values() if token.item is not None and token.parent_id == whole.id]


# -- one item


def decide_item(run: AdvanceState, token: Token, output: bytes | None) -> tuple[bytes | None, bool]:
    """Of an item that is done: what is kept of it, and whether the step is done with it. Raises EvaluationFailed."""
    whole = run.whole(token)
    step, each, state = run.definition.steps[token.step], _each(run, whole), _state(run, whole)
    if each.collect is None and each.until is None:
        return None, False
    given = output or b"{}"
    spend_on(run, step, len(given) // BYTES_PER_STEP)
    scope = evaluation.scope_of(run, token)
    scope["result"] = run.work.keep(partial(msgspec.json.decode, given))
    kept = None
    if each.collect is not None:
        value = evaluation.evaluate(run, step, each.collect, scope)
        kept = run.work.keep(partial(msgspec.json.encode, value))
        _check_size(run, step, state, kept)
    if each.until is None:
        return kept, False
    running = whole.pending - whole.arrived - 1
    scope["items"] = {"total": state.total, "completed": state.done + 1, "failed": state.failed, "running": running}
    enough = evaluation.evaluate(run, step, each.until, scope)
    if not isinstance(enough, bool):
        raise EvaluationFailed(f"step '{step.id}': until `{each.until.source}` gave {shown(enough)}, not true or false")
    return kept, enough


def error_of_item(run: AdvanceState, token: Token, code: str, message: str) -> bytes | None:
    """What is kept of an item that failed. Raises EvaluationFailed."""
    whole = run.whole(token)
    if _each(run, whole).into is None:
        return None
    kept = msgspec.json.encode({"error": {"code": code, "message": message}})
    _check_size(run, run.definition.steps[token.step], _state(run, whole), kept)
    return kept


def item_over(run: AdvanceState, token: Token, kept: bytes | None, kind: HistoryKind, *, enough: bool = False) -> None:
    """An item was closed so: its token goes on with the next one, or the step is done."""
    whole = run.whole(token)
    state = _state(run, whole)
    if kept is not None and token.item is not None:
        run.maps().results[whole.id, token.item] = kept
        state.kept_bytes += len(kept)
    state.done += kind is HistoryKind.COMPLETED
    state.failed += kind is HistoryKind.FAILED
    whole.pending -= 1
    whole.unfolded += 1  # its row, though it has no delta: reads of the variables walk over it until the next fold
    recorder.mark_changed(run, whole)
    if enough:
        _skip_items(run, whole, None, token)
        finish_map(run, whole)
    elif state.next < state.total and _may_begin(run):
        _begin_item(run, whole, token, state)
    else:
        if state.next < state.total:
            _go_on_later(run, whole)
        recorder.remove(run, token)
        if not whole.pending:
            finish_map(run, whole)


def notify_item(run: AdvanceState, token: Token, output: bytes | None) -> None:
    """What a signal brings to an item is its own."""
    if output is None or token.item is None:
        return
    known = msgspec.json.decode(recorder.own_variables(run, token), type=dict[str, msgspec.Raw])
    known.update(msgspec.json.decode(output, type=dict[str, msgspec.Raw]))
    run.maps().variables[run.whole(token).id, token.item] = msgspec.json.encode(known)


def spend_on(run: AdvanceState, step: Step, work: int) -> None:
    try:
        run.work.spend(work)
    except TooMuchWork as error:
        raise EvaluationFailed(f"step '{step.id}': {error}") from None


# -- within


def _read_items(run: AdvanceState, step: Step, each: ForEach) -> list[bytes]:
    try:
        value = run.work.evaluate(each.items, run.scope(), run.inputs.now, ITEMS_LIMITS)
    except ExpressionError as error:
        raise EvaluationFailed(f"BadItems: step '{step.id}': {error}", BAD_ITEMS) from None
    except TooMuchWork as error:
        raise EvaluationFailed(f"step '{step.id}': {error}") from None
    source = f"step '{step.id}': forEach.items `{each.items.source}` gave"
    if not isinstance(value, list):
        raise EvaluationFailed(f"BadItems: {source} {shown(value)}, not an array", BAD_ITEMS)
    items = cast("list[object]", value)
    if len(items) > ITEMS_MAX_COUNT:
        raise EvaluationFailed(f"BadItems: {source} {len(items)} items, more than {ITEMS_MAX_COUNT}", BAD_ITEMS)
    spend_on(run, step, len(items) * ITEM_WORK)
    rows = run.work.keep(partial(_rows, each, items))
    size = sum(map(len, rows))
    spend_on(run, step, size // BYTES_PER_STEP)
    if size > ITEMS_MAX_BYTES:
        raise EvaluationFailed(f"BadItems: {source} {size} bytes of items, more than {ITEMS_MAX_BYTES}", BAD_ITEMS)
    return rows


def _each(run: AdvanceState, whole: Token) -> ForEach:
    each = run.definition.steps[whole.step].for_each
    assert each is not None
    return each


def _state(run: AdvanceState, whole: Token) -> MapState:
    """To be changed: it is written."""
    states = run.maps().states
    if whole.id not in states:
        states[whole.id] = structs.replace(run.inputs.maps[whole.id])
    return states[whole.id]


def _may_begin(run: AdvanceState) -> bool:
    return run.items_begun < STARTED_MAX_COUNT and run.work.may_go_on


def _begin_item(run: AdvanceState, whole: Token, token: Token, state: MapState) -> None:
    token.item = state.next
    state.next += 1
    whole.pending += 1
    run.items_begun += 1
    run.entering.append((token, whole.step))


def _go_on_later(run: AdvanceState, whole: Token) -> None:
    if not whole.arrived:
        whole.arrived = 1
        whole.pending += 1
        recorder.arm(run, whole, CONTINUE_TIMER, 0)


def _skip_items(run: AdvanceState, whole: Token, reason: str | None, but: Token | None) -> None:
    items = items_of(run, whole)
    entering = {token.id for token, _ in run.entering}
    for token in sorted(items, key=lambda token: token.seq):
        if token is not but and token.id not in entering:
            recorder.close(run, token, HistoryKind.SKIPPED, reason=reason)
        recorder.remove(run, token)
    gone = {token.id for token in items}
    run.entering = deque(about for about in run.entering if about[0].id not in gone)


def _check_size(run: AdvanceState, step: Step, state: MapState, kept: bytes) -> None:
    most = run.inputs.max_written_bytes
    if state.kept_bytes + len(kept) > most:
        raise EvaluationFailed(f"step '{step.id}': the results of its items have more than {most} bytes")


def _rows(each: ForEach, items: list[object]) -> list[bytes]:
    """Return the variables of each item."""
    if each.index is None:
        return [msgspec.json.encode({each.name: item}) for item in items]
    return [msgspec.json.encode({each.name: item, each.index: index}) for index, item in enumerate(items)]
