"""A wrong option is refused where it is written, by an error with its name, its value and what is allowed."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from penstock import durable
from penstock.client.errors import BadRequest, IdempotencyConflict
from penstock.durable import App, child, send, start, step, workflow
from penstock.durable.loaded_run import ExecutorLimits
from penstock.testing import Message
from penstock.testing.durable import run_workflow


async def body(amount: int = 5, note: str = "") -> int:
    return amount


def plain() -> None: ...


order = workflow(name="order")(body)
second = workflow(name="order")(body)


def order_of(**options: Any) -> Any:
    return workflow(**options)(body)


def step_of(**options: Any) -> Any:
    return step(**options)(plain)


def limited(**limits: Any) -> App:
    return App(order, limits=ExecutorLimits(**limits))


def tried(**options: Any) -> Any:
    return any_run_workflow(order, **options)


any_run_workflow: Any = run_workflow
any_step: Any = step
any_app: Any = App
any_workflow: Any = workflow
any_child: Any = child
any_start: Any = start
any_send: Any = send
"""As those call them who have no type checker."""
NAME = r"give 1 to 100 letters \(a-z, A-Z\), digits, '_' and '-'"
WRONG: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: order_of(name="shop.order"), ValueError, f"the name of a workflow is 'shop.order': {NAME}"),
    (lambda: order_of(name="größe"), ValueError, f"the name of a workflow is 'größe': {NAME}"),
    (lambda: order_of(name=""), ValueError, f"the name of a workflow is '': {NAME}"),
    (lambda: order_of(name="shop:order"), ValueError, f"the name of a workflow is 'shop:order': {NAME}"),
    (lambda: order_of(name="a" * 101), ValueError, "the name of a workflow is 'aaa"),
    (lambda: order_of(name=17), TypeError, "the name of a workflow is 17: give text of 1 to 100 letters"),
    (lambda: order_of(version="2"), TypeError, "version is '2': give an integer from 1 to 2,147,483,647"),
    (lambda: order_of(version=0), ValueError, "version is 0: give an integer from 1"),
    (lambda: order_of(version=True), TypeError, "version is True: give an integer from 1"),
    (lambda: order_of(queue=5), TypeError, "queue is 5: give text of 1 to 256 characters, such as '5'"),
    (lambda: order_of(queue=""), ValueError, "queue is '': give text of 1 to 256 characters"),
    (lambda: any_workflow("order"), TypeError, "what @workflow decorates is 'order': give an async def; a name is"),
    (lambda: any_step("charge"), TypeError, "what @step decorates is 'charge': give a function"),
    (lambda: any_step.transaction(5), TypeError, "what @step.transaction decorates is 5: give a function"),
    (lambda: any_step(name=5), TypeError, "name is 5: give text of 1 to 256 characters"),
    (lambda: any_step(name=""), ValueError, "name is '': give text of 1 to 256 characters"),
    (lambda: any_step(retries="3"), TypeError, "retries is '3': give an integer of 0 or more"),
    (lambda: any_step(retries=-1), ValueError, "retries is -1: give an integer of 0 or more"),
    (lambda: any_step(retries=1.5), TypeError, "retries is 1.5: give an integer of 0 or more"),
    (lambda: any_step(first="soon"), ValueError, "first: 'soon' is not a duration"),
    (lambda: any_step(cap=-1), ValueError, "cap: -1 is not between 0 and"),
    (lambda: any_step(timeout="5 parsecs"), ValueError, "timeout: '5 parsecs' is not a duration"),
    (lambda: any_step(within=timedelta(-1)), ValueError, "within: .* is not between 0 and"),
    (lambda: any_step(abandon="yes"), TypeError, "abandon is 'yes': give True or False"),
    (lambda: any_step(raises=ValueError), TypeError, "raises is ValueError: give a list of exception classes"),
    (lambda: any_step.transaction(at=5), TypeError, "at is 5: give text of 1 to 4096 characters"),
    (lambda: step_of().using(retries="3"), TypeError, "retries is '3'"),
    (lambda: step_of().using(name=""), ValueError, "the name of a step is ''"),
    (lambda: any_app(order, name="my.shop"), ValueError, f"name is 'my.shop': {NAME}"),
    (lambda: any_app(order, name=None), TypeError, "name is None: give text of 1 to 100 letters"),
    (lambda: any_app(order, at=5), TypeError, "at is 5: give text"),
    (lambda: any_app(order, rest_port="8080"), TypeError, "rest_port is '8080': give an integer from 0 to 65,535"),
    (lambda: any_app(order, rest_port=70_000), ValueError, "rest_port is 70000: give an integer from 0 to 65,535"),
    (lambda: any_app(order, migrate="no"), TypeError, "migrate is 'no': give True or False"),
    (lambda: any_app(order, strict_args=1), TypeError, "strict_args is 1: give True or False"),
    (lambda: any_app(order, max_lost=-1), ValueError, "max_lost is -1: give an integer of 0 or more"),
    (lambda: any_app(order, limits={"step_threads": 5}), TypeError, "limits is .*: give an ExecutorLimits"),
    (lambda: any_app(order, second), ValueError, r"workflow 'order', version 1, is test_options_are_checked.py:\d+"),
    (lambda: any_app(order, order), ValueError, "workflow 'order', version 1, is given twice"),
    (lambda: any_app(order).run(order, id=17), TypeError, "id is 17: give text of 1 to 256 characters, such as '17'"),
    (lambda: any_app(order).run(order, id=""), ValueError, "id is empty: give an id of yours"),
    (lambda: any_app(order).run(order, id="a\0"), ValueError, "id is .*: give text of 1 to 256 characters, none of"),
    (lambda: any_app(order).run(order, id="a" * 257), ValueError, "id is 'aaa.*…: give text of 1 to 256 characters"),
    (lambda: any_app(order).run(order, deadline="soon"), ValueError, "deadline: 'soon' is not a duration"),
    (lambda: any_step(first=True), ValueError, "first: True is not a duration"),
    (lambda: any_step(timeout=0), ValueError, "timeout: 0 is not a length of time: give more than 0, or leave it out"),
    (lambda: any_step(within="0 s"), ValueError, "within: '0 s' is not a length of time"),
    (lambda: any_step.transaction(at="mysql://x"), ValueError, "at: mysql://… can't be used; a PostgreSQL is"),
    (lambda: any_step.transaction(at="grpc://x"), ValueError, "at: a transaction needs a PostgreSQL"),
    (lambda: any_app(order, at="http://x:8080"), ValueError, "at: http://… can't be used; a PostgreSQL is"),
    (lambda: any_app(order, at=""), ValueError, "at is '': give text of 1 to 4096"),
    (lambda: any_app(order, token=5), TypeError, "token is 5: give text, or a function that gives it"),
    (lambda: any_app(order, ssl_context=True), TypeError, "ssl_context is True: give an ssl.SSLContext"),
    (lambda: limited(step_threads=0), ValueError, "limits: step_threads is 0: give an integer of 1 or more"),
    (lambda: limited(max_in_memory="5"), TypeError, "limits: max_in_memory is '5': give an integer of 1 or more"),
    (lambda: limited(park_after_s="2 s"), ValueError, "limits: park_after_s is '2 s': give seconds, 0 or more"),
    (lambda: limited(max_lost=-1), ValueError, "limits: max_lost is -1: give an integer of 0 or more"),
    (lambda: limited(run=5), TypeError, "limits: run is 5: give a Limits"),
    (lambda: tried(steps=[plain]), TypeError, r"steps is \[.*: give a dictionary, as {charge: fake_charge}"),
    (lambda: tried(steps={plain: plain}), TypeError, "a key of steps is .*plain.*: give the @step or @workflow"),
    (lambda: tried(messages=["go"]), TypeError, r"messages is \['go'\]: give a list, as \[Message"),
    (lambda: tried(messages=Message("go")), TypeError, r"messages is Message.*: give a list, as \[Message"),
    (lambda: tried(messages=[Message("go", after="x")]), ValueError, "after of message 'go': 'x' is not a duration"),
    (lambda: tried(cancel_after="soon"), ValueError, "cancel_after: 'soon' is not a duration"),
    (lambda: tried(started_at="2030"), TypeError, "started_at is '2030': give a datetime"),
    (lambda: tried(limits=5), TypeError, "limits is 5: give a Limits"),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(WRONG)))
def test_an_option_is_refused_where_it_is_written(number: int) -> None:
    write, kind, reported = WRONG[number]
    with pytest.raises(kind, match=reported):
        write()


def test_what_was_allowed_is() -> None:
    for name in ("order", "order-2", "Order_2", "a" * 100):
        assert order_of(name=name).name == name
    assert App(order, name="my-shop").name == "my-shop"
    assert step_of(retries=3, first="5 s", cap=60, timeout=timedelta(seconds=5), abandon=True).options.retries == 3


STARTS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"id": 17}, TypeError, "id is 17: give text"),
    ({"id": ""}, ValueError, "id is empty: give an id of yours"),
    ({"deadline": "soon"}, ValueError, "deadline: 'soon' is not a duration"),
    ({"priority": "high"}, TypeError, "priority is 'high': give an integer from 0 to 9"),
    ({"priority": 10}, BadRequest, "priority: must be 0 to 9, not 10"),
    ({"flow_key": 5}, TypeError, "flow_key is 5: give text"),
    ({"flow_key": ""}, BadRequest, "flowKey: is empty"),
    ({"dedupe": "key"}, TypeError, "dedupe is 'key': give a Dedupe of penstock.client"),
    ({"throttle": 10}, TypeError, "throttle is 10: give a Throttle of penstock.client"),
    ({"debounce": {}}, TypeError, "debounce is {}: give a Debounce of penstock.client"),
    ({"start_at": 5}, TypeError, "start_at is 5: give a datetime, or text such as"),
]


async def test_a_start_is_refused_at_the_call(database_dsn: str) -> None:
    async with App(order, at=database_dsn, name="shop") as app:
        any_app_start: Any = app.start
        for options, kind, reported in STARTS:
            with pytest.raises(kind, match=re.escape(reported)):
                await any_app_start(order, **options)
        with pytest.raises(ValueError, match="status is 'DONE': give ACTIVE, WAITING, COMPLETED, FAILED or CANCELLED"):
            await app.find(order, status="DONE")
        any_get: Any = app.get
        with pytest.raises(TypeError, match="id is 17: give text"):
            await any_get(17)
        assert await app.find(order) == []


async def test_an_id_with_other_arguments_tells_which(database_dsn: str) -> None:
    async with App(order, at=database_dsn, name="shop") as app:
        any_start_of: Any = app.start
        await app.start(order, 5, id="17")
        for arguments, options, reported in (
            ((5, ""), {}, 'note is "" and was not given'),
            ((6,), {}, "amount is 6 and was 5"),
            ((), {}, "amount is not given and was 5"),
            ((5,), {"deadline": 60}, "deadline is 60.0 and was not given"),
        ):
            with pytest.raises(
                IdempotencyConflict, match=re.escape(f"other arguments: {reported}. Give the same ones")
            ):
                await any_start_of(order, *arguments, id="17", **options)


def any_verb(name: str) -> Any:
    return getattr(durable, name)


async def spawned(what: Any) -> None:
    try:
        async with durable.open_nursery() as nursery:
            nursery.start_soon(what)
    except ExceptionGroup as group:
        raise group.exceptions[0] from None
    finally:
        what.close()


VERBS: list[tuple[Callable[[], Any], str]] = [
    (lambda: any_child(order, id=17), "id is 17: give text"),
    (lambda: any_start(order, id=""), "id is empty: give an id of yours"),
    (lambda: any_send(17, "go"), "run_id is 17: give text"),
    (lambda: any_send("17", 5), "the name of a message is 5: give text"),
    (lambda: any_verb("sleep")(True), "duration: True is not a duration"),
    (lambda: any_verb("sleep")("soon"), "duration: 'soon' is not a duration"),
    (lambda: any_verb("receive")("go", "int"), "the type of message 'go' is 'int': give a type, as int or list[Order]"),
    (lambda: any_verb("receive")("go", {"a": int}), "the type of message 'go' is {'a': <class 'int'>}: give a type"),
    (lambda: any_verb("each")(body, 5), "items is 5: give a list"),
    (lambda: any_verb("each")(None, [1]), "the function of each is None: give a step or a coroutine function"),
    (lambda: any_verb("each")(body, [1], limit="3"), "limit is '3': give an integer of 1 or more"),
    (lambda: any_verb("each")(body, [1], key="id"), "key is 'id': give a function of an item"),
    (lambda: any_verb("first")(a=body), "alternative 'a' of first is <function body"),
    (lambda: any_verb("first")(a=5), "alternative 'a' of first is 5: give a call, as a=receive(…)"),
    (lambda: any_child(""), "the id of a definition is '': give text"),
    (lambda: any_verb("move_on_after")(1, shield=1), "shield is 1: give True or False"),
    (lambda: any_verb("fail_after")(None), "duration: None is not a duration"),
    (lambda: any_verb("patched")(5), "the name of a patch is 5: give text"),
    (lambda: any_verb("Semaphore")("3"), "initial_value is str: give an integer"),
    (lambda: any_verb("Semaphore")(2, max_value="3"), "max_value is str: give an integer"),
    (lambda: any_verb("open_memory_channel")(1.5), "max_buffer_size is float: give an integer, or math.inf"),
    (
        lambda: spawned(body()),
        "start_soon takes a function and its arguments, start_soon(charge, order), not coroutine",
    ),
]


@pytest.mark.parametrize("number", range(len(VERBS)))
def test_a_verb_is_refused_at_the_call(number: int) -> None:
    call, reported = VERBS[number]

    @workflow
    async def asks() -> str:
        try:
            await call()
        except (TypeError, ValueError) as error:
            return str(error)
        return "nothing"

    assert reported in run_workflow(asks).result()
