"""Undoing what was done, within one advance: a COMPENSATE, and the end of an instance that is undone before it.

The completed executions of steps with a `compensation` are undone one after the other, those that completed last first,
each by a handler: a job on a token of its own, whose parent waits as FORKED. Which execution comes next is asked of
whoever carries the advance out (`CompletionsNeeded`): only that one is read, however many there are. Which of them a
handler has undone, or is about to, is kept with the instance, so that none is undone twice.

Pure; `advance.py` says when.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from penstock.core.advance import for_each, recorder
from penstock.core.advance.completion import CompletionAnswer, CompletionsNeeded, DoneExecution, Question
from penstock.core.advance.effect import CompensatedStep, Compensation
from penstock.core.advance.recorder import AdvanceState
from penstock.core.graph.definition import Definition, Step
from penstock.core.rules.state import HistoryKind, Token, TokenState, Trigger, move


def is_compensating(definition: Definition, tokens: Iterable[Token]) -> bool:
    """Return whether the instance of these tokens is being compensated, and then ends."""
    step = definition.undo_step
    return step is not None and any(t.step == step and t.state is TokenState.FORKED for t in tokens)


def compensating(definition: Definition, done: DoneExecution) -> bytes:
    """What the job of a handler sees beside the instance's variables, a JSON object."""
    output = None if done.output is None else msgspec.Raw(done.output)
    about: dict[str, object] = {"stepId": definition.steps[done.step].id, "output": output}
    if done.item is not None:
        about["item"] = done.item
    return msgspec.json.encode({"compensating": about})


def compensate(run: AdvanceState, token: Token, step: Step) -> None:
    """The token has entered a COMPENSATE."""
    recorder.record(run, token, HistoryKind.COMPLETED)
    found = _newest(run, step)
    if found is None:
        _go_past(run, token, step)
        return
    _compensate(run, token, found)


def handler_done(run: AdvanceState, token: Token) -> Compensation | None:
    """On to the next one, or past the COMPENSATE; or to the end of the instance, which is given then."""
    assert token.parent_id is not None
    parent = run.tokens[token.parent_id]
    step = run.definition.steps[parent.step]
    found = _ask(run, Question(step.undoes, _by_item(run, step), after=token.id))
    recorder.remove(run, token)
    if found.completion is not None:
        _begin_handler(run, parent, found.completion)
        return None
    if parent.step == run.definition.undo_step:
        assert found.undoing is not None, "it is not known how the instance ends"
        return found.undoing
    parent.pending = 0
    recorder.mark_changed(run, parent)
    _go_past(run, parent, step)
    return None


def compensate_first(run: AdvanceState, undoing: Compensation, culprit: Token | None) -> bool:
    """Undo what the instance did before it ends; False where there is nothing to undo, or that is under way."""
    index = run.definition.undo_step
    if index is None or is_compensating(run.definition, run.tokens.values()):
        return False
    step = run.definition.steps[index]
    _free_handlers(run)
    found = _newest(run, step)
    if found is None:
        return False
    close_open(run, undoing.failure, culprit)
    root = run.tokens[run.instance.id]
    for token in [token for token in run.tokens.values() if run.is_map(token)]:
        for_each.forget_map(run, token)
    for token in [token for token in run.tokens.values() if token is not root]:
        recorder.remove(run, token)
    root.parent_id, root.leaving = None, False
    # bounded as if it came now: what failed may have been an advance that took too much
    run.steps_max = run.out.steps_run + run.inputs.max_automatic_steps
    run.work.begin_anew()
    recorder.begin_execution(run, root, step)
    recorder.record(run, root, HistoryKind.COMPLETED)
    run.out.undoing = undoing
    _compensate(run, root, found)
    return True


def _free_handlers(run: AdvanceState) -> None:
    """What handlers have not done yet is to be undone by others."""
    for token in run.tokens.values():
        recorder.free(run, token)
    run.out.undone.clear()
    run.undoes.clear()


def _compensate(run: AdvanceState, parent: Token, found: DoneExecution) -> None:
    """Begin to, with what is found first."""
    move(parent, Trigger.COMPENSATE if parent.state is TokenState.ENDED else Trigger.FORK)
    parent.pending, parent.arrived = 1, 0
    _begin_handler(run, parent, found)


def _begin_handler(run: AdvanceState, parent: Token, found: DoneExecution) -> None:
    handler = run.definition.steps[found.step].compensation
    assert handler is not None
    token = recorder.new_token(run, handler, parent_id=parent.id, side=parent.side)
    run.undoes[token.id] = found
    run.out.undone.append(CompensatedStep(found.position, token.id))
    run.entering.append((token, handler))


def close_open(run: AdvanceState, reason: str | None, culprit: Token | None) -> None:
    """Close what is open, but for ``culprit`` and the whole that it is an item of, and forget what this advance was
    about to do."""
    entering = {token.id for token, _ in run.entering}
    run.entering.clear()
    closed = () if culprit is None else (culprit, run.whole(culprit))
    for token in sorted(run.tokens.values(), key=lambda token: (token.item is None, token.seq)):
        is_open = (token.is_open or run.is_map(token)) and token.id not in entering
        if is_open and not any(token is other for other in closed):
            recorder.close(run, token, HistoryKind.SKIPPED, reason=reason)
        elif token.state is TokenState.DELAYED:  # no step was entered: none is closed
            run.out.disarmed.append((token.id, token.seq))
    run.out.queued.clear()  # nothing that this very advance queued, called or armed survives
    run.out.calls.clear()
    run.out.armed.clear()


def _go_past(run: AdvanceState, token: Token, step: Step) -> None:
    assert step.next is not None
    run.entering.append((token, step.next))


def _newest(run: AdvanceState, step: Step) -> DoneExecution | None:
    """What is to be undone first. What this very advance has completed is not stored yet."""
    taken = {completion.position for completion in run.undoes.values()}
    for row in reversed(run.out.history):
        each = row.item is not None
        if (
            row.kind is HistoryKind.COMPLETED
            and row.step in step.undoes
            and each is (run.definition.steps[row.step].for_each is not None)
            and row.position not in taken
        ):
            output = next((given for at, given in run.out.item_outputs if at == row.position), row.output)
            return DoneExecution(row.position, row.step, output, row.item)
    stored = tuple(sorted(taken - {row.position for row in run.out.history}))
    question = Question(step.undoes, _by_item(run, step), taken=stored, freed=tuple(sorted(run.freed)))
    return _ask(run, question).completion


def _by_item(run: AdvanceState, step: Step) -> tuple[int, ...]:
    return tuple(index for index in step.undoes if run.definition.steps[index].for_each is not None)


def _ask(run: AdvanceState, question: Question) -> CompletionAnswer:
    found = run.inputs.completions.get(question)
    if found is None:
        raise CompletionsNeeded(question)
    return found
