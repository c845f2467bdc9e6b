"""Workflow definitions written in Python: each call adds a step, in order; the first is the entry point.

::

    flow = WorkflowBuilder("order", "Order")
    flow.service_task("charge", "payment.charge", retries=3)
    flow.decision("large", {"amount > 1000": "review", "true": "ship"})
    flow.user_task("review", boundary=[timer("P2D", "escalate")])
    flow.service_task("ship", "parcel.ship", then="done")
    flow.service_task("escalate", "mail.send", then="done")
    flow.end("done")
    await client.upload_definition(flow)

A step without ``then`` goes on to the step that is added after it. With ``conditions`` (expression → step) that is
where it goes when none of them is true; with ``then=None`` the instance fails there. Makes documents only: whether a
definition is valid is told by ``validate_definition``, with every problem at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Self

JsonObject = dict[str, Any]


class _Following:
    """The default of ``then``: the step that is added after this one."""


FOLLOWING: Final = _Following()
NextStep = str | None | _Following


def _listed(name: str, given: Sequence[Any]) -> list[Any]:
    """What stands for a list in the document. Raises TypeError for a text, whose letters are no list."""
    if isinstance(given, str | bytes | Mapping):
        raise TypeError(f"{name}: takes a list, not {type(given).__name__}: write [{given!r}]")
    return list(given)


def timer(duration: str, target: str, *, interrupting: bool = True) -> JsonObject:
    """Add a boundary timer: after ``duration`` (ISO 8601 such as ``P2D``, or ``${expression}``) go to the target
    step.

    Interrupting, it closes the step it stands on; else it starts the target beside it.
    """
    return {"type": "TIMER", "duration": duration, "interrupting": interrupting, "targetStepId": target}


def on_error(target: str, *codes: str, variable: str | None = None) -> JsonObject:
    """Add an error boundary: a step that fails with one of the ``codes`` (none: any) goes to the target.

    ``variable`` is set to the error: ``{"code", "message", "stepId", "data"}``.
    """
    return _given(type="ERROR", errorCodes=list(codes) or None, errorVariable=variable, targetStepId=target)


def for_each(
    items: str,
    *,
    name: str | None = None,
    index: str | None = None,
    parallel: int | None = None,
    collect: str | None = None,
    into: str | None = None,
    until: str | None = None,
    collect_errors: bool = False,
) -> JsonObject:
    """Let a step be done once for each item of a list: ``"${expression}"`` that gives it.

    ``name`` (by default ``item``) and ``index`` are variables of each item; ``parallel`` of them are under way at once.
    ``into`` becomes the list of what ``collect`` gives for each; once ``until`` is true the others are skipped. With
    ``collect_errors`` an item that fails is an error in that list, and the others go on.
    """
    fields: JsonObject = {"items": items, "as": name, "index": index, "parallel": parallel, "collect": collect}
    fields |= {"into": into, "until": until, "onError": "COLLECT" if collect_errors else None}
    return _given(**fields)


def backoff(
    initial: str, *, multiplier: float = 2.0, maximum: str | None = None, jitter: float | None = None
) -> JsonObject:
    """Set the pauses between the retries of a service task, as ISO 8601 durations or ``${expression}``. ``jitter`` (0
    to 1): the share by which each may be shorter; without it none is."""
    return _given(initial=initial, multiplier=multiplier, max=maximum, jitter=jitter)


def compensation(
    job_type: str,
    *,
    retries: int = 0,
    retry_backoff: JsonObject | None = None,
    timeout: str | None = None,
    retry_on: Sequence[str] = (),
    no_retry_on: Sequence[str] = (),
) -> JsonObject:
    """Name the job that compensates a step."""
    return _given(
        jobType=job_type,
        retryCount=retries or None,
        retryBackoff=retry_backoff,
        timeout=timeout,
        retryOn=_listed("retry_on", retry_on) or None,
        noRetryOn=_listed("no_retry_on", no_retry_on) or None,
    )


class WorkflowBuilder:
    """Collects the steps of one definition. Names default to ids."""

    def __init__(
        self,
        definition_id: str,
        name: str | None = None,
        *,
        description: str | None = None,
        next_workflow: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        search_attributes: Mapping[str, str] | None = None,
        compensate_failures: bool = False,
        record_attempts: bool = False,
        flow_key: str | None = None,
        priority: int | str | None = None,
        start: Mapping[str, Any] | None = None,
    ) -> None:
        """``compensate_failures``: what completed is undone before an instance fails. ``flow_key`` (text or
        ``"${expression}"``) and ``priority`` (0 to 9, or an expression) are those of its jobs. ``start``
        says when its instances begin, and what becomes of others with a key: docs/starts.md."""
        self._head = _given(
            id=definition_id,
            name=name or definition_id,
            description=description,
            autoStartNextWorkflow=True if next_workflow else None,
            nextWorkflowId=next_workflow,
            onFailure="COMPENSATE" if compensate_failures else None,
            searchAttributes=dict(search_attributes) if search_attributes else None,
            recordAttempts=record_attempts or None,
            flowKey=flow_key,
            priority=priority,
            start=dict(start) if start else None,
        )
        self._metadata = metadata
        self._steps: list[JsonObject] = []
        self._open: JsonObject | None = None

    def service_task(
        self,
        step_id: str,
        job_type: str,
        *,
        then: NextStep = FOLLOWING,
        conditions: Mapping[str, str] | None = None,
        retries: int = 0,
        retry_backoff: JsonObject | None = None,
        timeout: str | None = None,
        retry_on: Sequence[str] = (),
        no_retry_on: Sequence[str] = (),
        flow_key: str | None = None,
        priority: int | str | None = None,
        for_each: JsonObject | None = None,
        compensation: JsonObject | None = None,
        boundary: Sequence[JsonObject] = (),
        name: str | None = None,
        description: str | None = None,
    ) -> Self:
        """Add a job for a worker. ``conditions`` (expression → step) come before ``then``, taken when none is true.

        Retries are for every failure, or for those with the codes ``retry_on`` only; never for ``no_retry_on``.
        ``for_each``: a job for each item of a list; ``compensation``: the job that undoes it (functions of these names
        make them). ``flow_key`` and ``priority`` (values or ``"${expression}"``) instead of the instance's.
        """
        return self._add(
            _step(step_id, "SERVICE_TASK", name, description)
            | _given(
                jobType=job_type,
                retryCount=retries or None,
                retryBackoff=retry_backoff,
                timeout=timeout,
                retryOn=_listed("retry_on", retry_on) or None,
                noRetryOn=_listed("no_retry_on", no_retry_on) or None,
                flowKey=flow_key,
                priority=priority,
                forEach=for_each,
                compensation=compensation,
                conditionalNextSteps=dict(conditions) if conditions else None,
                boundaryEvents=_listed("boundary", boundary) or None,
            ),
            then,
        )

    def call(
        self,
        step_id: str,
        definition_id: str,
        *,
        version: int | None = None,
        inputs: Mapping[str, Any] | None = None,
        outputs: Mapping[str, Any] | None = None,
        business_key: str | None = None,
        for_each: JsonObject | None = None,
        compensation: JsonObject | None = None,
        then: NextStep = FOLLOWING,
        conditions: Mapping[str, str] | None = None,
        boundary: Sequence[JsonObject] = (),
        name: str | None = None,
        description: str | None = None,
    ) -> Self:
        """Start an instance of another workflow and wait for its end.

        ``inputs`` are its variables (JSON values or ``"${expression}"``), by default all of this instance's.
        ``outputs`` is what comes back of ``result`` (the instance's, else the variables that it ended with); by default
        nothing.
        """
        return self._add(
            _step(step_id, "CALL_ACTIVITY", name, description)
            | _given(
                definitionId=definition_id,
                definitionVersion=version,
                input=None if inputs is None else dict(inputs),
                output=dict(outputs) if outputs else None,
                businessKey=business_key,
                forEach=for_each,
                compensation=compensation,
                conditionalNextSteps=dict(conditions) if conditions else None,
                boundaryEvents=_listed("boundary", boundary) or None,
            ),
            then,
        )

    def user_task(
        self,
        step_id: str,
        *,
        then: NextStep = FOLLOWING,
        conditions: Mapping[str, str] | None = None,
        label: str | None = None,
        for_each: JsonObject | None = None,
        boundary: Sequence[JsonObject] = (),
        name: str | None = None,
        description: str | None = None,
    ) -> Self:
        """Wait until a person (or a program) completes it."""
        return self._add(
            _step(step_id, "USER_TASK", name, description)
            | _given(
                jobType=label,
                forEach=for_each,
                conditionalNextSteps=dict(conditions) if conditions else None,
                boundaryEvents=_listed("boundary", boundary) or None,
            ),
            then,
        )

    def decision(
        self,
        step_id: str,
        conditions: Mapping[str, str],
        *,
        name: str | None = None,
        description: str | None = None,
    ) -> Self:
        """Go to the step of the first expression that is true, in the order of the mapping."""
        step = _step(step_id, "DECISION", name, description) | {"conditionalNextSteps": dict(conditions)}
        return self._add(step, None)

    def transformation(
        self,
        step_id: str,
        assignments: Mapping[str, Any],
        *,
        then: NextStep = FOLLOWING,
        name: str | None = None,
        description: str | None = None,
    ) -> Self:
        """Set variables: JSON values or ``"${expression}"``, in order; later ones see earlier ones."""
        step = _step(step_id, "TRANSFORMATION", name, description) | {"transformations": dict(assignments)}
        return self._add(step, then)

    def wait(
        self,
        step_id: str,
        *,
        then: NextStep = FOLLOWING,
        conditions: Mapping[str, str] | None = None,
        duration: str | None = None,
        until: str | None = None,
        buffer: bool = False,
        message: tuple[str, str] | None = None,
        boundary: Sequence[JsonObject] = (),
        name: str | None = None,
        description: str | None = None,
    ) -> Self:
        """Wait for a signal, or for a time: an ISO 8601 ``duration`` or an RFC 3339 ``until``, also as ``"${…}"``.

        With ``buffer`` signals that come before it is open are kept. ``message``: waits for a message, too, of this
        name and correlation key, such as ``("payment", "${orderId}")``.
        """
        return self._add(
            _step(step_id, "WAIT", name, description)
            | _given(
                duration=duration,
                until=until,
                buffer=buffer or None,
                message=None if message is None else {"name": message[0], "correlationKey": message[1]},
                conditionalNextSteps=dict(conditions) if conditions else None,
                boundaryEvents=_listed("boundary", boundary) or None,
            ),
            then,
        )

    def parallel(
        self,
        step_id: str,
        branches: Sequence[str],
        *,
        join: str,
        name: str | None = None,
        description: str | None = None,
    ) -> Self:
        """Start every branch (its first step); they meet at the join."""
        step = _step(step_id, "PARALLEL_GATEWAY", name, description)
        return self._add(step | {"parallelNextSteps": _listed("branches", branches), "joinStep": join}, None)

    def join(
        self,
        step_id: str,
        *,
        then: NextStep = FOLLOWING,
        name: str | None = None,
        description: str | None = None,
    ) -> Self:
        """Go on when every branch of its gateway has arrived."""
        return self._add(_step(step_id, "JOIN_GATEWAY", name, description), then)

    def compensate(
        self,
        step_id: str,
        *,
        steps: Sequence[str] = (),
        then: NextStep = FOLLOWING,
        name: str | None = None,
        description: str | None = None,
    ) -> Self:
        """Compensate the completed ones of ``steps``, by default of all that have a compensation, the last first."""
        made = _step(step_id, "COMPENSATE", name, description) | _given(steps=_listed("steps", steps) or None)
        return self._add(made, then)

    def end(
        self,
        step_id: str = "end",
        *,
        error_code: str | None = None,
        output: Mapping[str, Any] | None = None,
        name: str | None = None,
        description: str | None = None,
    ) -> Self:
        """Complete the instance, whose result is ``output`` (as a transformation), or fail it with an error code."""
        given = _given(errorCode=error_code, output=None if output is None else dict(output))
        return self._add(_step(step_id, "END", name, description) | given, None)

    def document(self) -> JsonObject:
        """Return the definition as JSON, for ``upload_definition``.

        Raises:
            ValueError: the last step is meant to go on to the step after it.
        """
        if self._open is not None:
            raise ValueError(
                f"no step follows {self._open['id']!r}: add one, or name the next one with then= (then=None: none)"
            )
        document = self._head | {"steps": list(self._steps)}
        return document if self._metadata is None else document | {"metadata": dict(self._metadata)}

    def _add(self, step: JsonObject, next_step: NextStep) -> Self:
        if self._open is not None:
            _go_on(self._open, step["id"])
        self._open = None
        if isinstance(next_step, str):
            _go_on(step, next_step)
        elif next_step is not None:
            self._open = step
        self._steps.append(step)
        return self


def _go_on(step: JsonObject, target: str) -> None:
    """Where a step goes; after its conditions, where it has some, as they would fail the instance when none holds."""
    if "conditionalNextSteps" in step:
        step["conditionalNextSteps"].setdefault("true", target)
    else:
        step["nextStep"] = target


def _step(step_id: str, kind: str, name: str | None, description: str | None) -> JsonObject:
    return _given(id=step_id, name=name or step_id, type=kind, description=description)


def _given(**fields: object) -> JsonObject:
    return {name: value for name, value in fields.items() if value is not None}
