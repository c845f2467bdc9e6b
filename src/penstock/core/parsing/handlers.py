"""Compensation in definitions: the rules for it, and the hidden steps that it becomes.

Each `compensation` is a step of its own, `<id>/compensation`, and so is what an instance does before its end when it is
undone, `/compensation`. They come after the steps of the upload; nothing leads to them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import structs

from penstock.core.graph.definition import Step, StepType
from penstock.core.parsing.draft import StepDraft
from penstock.core.parsing.field_reader import Problems
from penstock.core.parsing.strict_json import join_path, quote

UNDO_STEP_ID = "/compensation"


def handler_id(step_id: str) -> str:
    """Return the id of the step that undoes a step."""
    return f"{step_id}/compensation"


def check_compensation(
    drafts: Sequence[StepDraft], indexes: Mapping[str, int], problems: Problems, *, undoes_failures: bool
) -> None:
    """Note what breaks a rule. ``indexes``: of each step id."""
    handled = [draft for draft in drafts if draft.compensation is not None and draft.id is not None]
    taken = {handler_id(draft.id or ""): draft for draft in handled}
    for draft in drafts:
        if draft.id in taken:
            reason = f"the id {quote(draft.id)} is that of the compensation of {taken[draft.id].path}"
            problems.add(f"{draft.path}.id", reason)
        if handled and draft.id == UNDO_STEP_ID:
            problems.add(f"{draft.path}.id", f"the id {quote(draft.id)} is taken: steps have a compensation")
        if draft.type is StepType.COMPENSATE:
            _check_undoes(draft, drafts, indexes, problems, any_handled=bool(handled))
    if undoes_failures and not handled:
        problems.add("onFailure", "no step has a compensation")


def _check_undoes(
    draft: StepDraft,
    drafts: Sequence[StepDraft],
    indexes: Mapping[str, int],
    problems: Problems,
    *,
    any_handled: bool,
) -> None:
    if draft.undoes is None:
        if not any_handled:
            problems.add(draft.path, "there is nothing to compensate: no step has a compensation")
        return
    seen: set[str] = set()
    for place, step_id in enumerate(draft.undoes):
        path = join_path(join_path(draft.path, "steps"), place)
        if step_id is None:
            continue
        if step_id not in indexes:
            problems.add(path, f"unknown step {quote(step_id)}")
        elif drafts[indexes[step_id]].compensation is None:
            problems.add(path, f"step {quote(step_id)} has no compensation")
        elif step_id in seen:
            problems.add(path, f"the step {quote(step_id)} stands twice")
        seen.add(step_id)


def with_handlers(
    steps: Sequence[Step], drafts: Sequence[StepDraft], indexes: Mapping[str, int]
) -> tuple[tuple[Step, ...], int | None]:
    """Return all steps, the hidden ones last; and the index of the one that undoes an instance before its end, if any
    can be. ``drafts``: of the steps, without problems."""
    handlers: list[Step] = []
    made = list(steps)
    for step, draft in zip(steps, drafts, strict=True):
        if draft.compensation is None:
            continue
        index = len(steps) + len(handlers)
        handlers.append(_handler(step, draft.compensation, index))
        made[step.index] = structs.replace(step, compensation=index)
    if not handlers:
        return tuple(made), None
    handled = tuple(step.index for step in made if step.compensation is not None)
    for step, draft in zip(made, drafts, strict=True):
        if step.type is StepType.COMPENSATE:
            named = None if draft.undoes is None else tuple(indexes[id] for id in draft.undoes if id is not None)
            made[step.index] = structs.replace(step, undoes=handled if named is None else tuple(sorted(named)))
    undo_step = len(made) + len(handlers)
    last = _hidden(StepDraft(index=undo_step, given={}, type=StepType.COMPENSATE), UNDO_STEP_ID, "Compensation")
    return (*made, *handlers, structs.replace(last, undoes=handled)), undo_step


def _handler(step: Step, draft: StepDraft, index: int) -> Step:
    made = _hidden(structs.replace(draft, index=index), handler_id(step.id), f"Compensation of {step.name}")
    return structs.replace(made, compensates=step.index)


def _hidden(draft: StepDraft, id: str, name: str) -> Step:
    assert draft.type is not None
    return Step(
        index=draft.index,
        id=id,
        name=name,
        type=draft.type,
        description=None,
        next=None,
        conditions=(),
        transformations=(),
        branches=(),
        join=None,
        job_type=draft.job_type,
        delegate_class=draft.delegate_class,
        retry_count=draft.retry_count,
        boundaries=(),
        backoff=draft.backoff,
        timeout_s=draft.timeout_s,
        duration=None,
        until=None,
        retry_on=draft.retry_on,
        no_retry_on=draft.no_retry_on,
    )
