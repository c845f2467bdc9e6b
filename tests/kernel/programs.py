"""Random bodies, and one interpreter of them for both sides: the kernel and Trio."""

from __future__ import annotations

import itertools
import random
from collections import defaultdict
from contextvars import ContextVar
from typing import Any, NamedTuple

import trio

from penstock.kernel.errors import Cancelled, TooSlow
from penstock.kernel.local import BrokenChannel, ClosedChannel, EndOfChannel

EVENTS = 2
NAMES = ("a", "b", "c")
MESSAGES_MAX = 8
ENOUGH = 50  # of messages and permits, for all that waits in one program
Node = tuple  # (kind, id, …)
VARIABLES = [ContextVar[int](f"v{number}", default=-1) for number in range(2)]


class Program(NamedTuple):
    """A body, and the messages that come meanwhile: when, name, value. Each at a moment of its own. In place of a value
    stands at times what an operator does with the oldest message of that name that fits nobody who waits, or a call of
    an update."""

    body: list[Node]
    messages: list[tuple[float, str, int | Act | Ask]]


class Act(NamedTuple):
    """Drop it, or send a value in its place."""

    value: int | None


class Ask(NamedTuple):
    """A call of an update: what its handler does. The validator refuses it once an event is set."""

    number: int
    body: list[Node]
    refused_by: int | None


TYPES = ("any", "even", "odd", "even!", "odd!")
"""What receives take; with ``!`` they raise an error for what does not fit."""


def fits(type_: str, value: object) -> bool:
    """Whether a value is of a type. What is no number fits any."""
    if type_ == "any" or not str(value).isdigit():
        return True
    return int(str(value)) % 2 == (type_[:3] == "odd")


CHANNEL_ERRORS: dict[type[BaseException], str] = {
    EndOfChannel: "end",
    trio.EndOfChannel: "end",
    BrokenChannel: "broken",
    trio.BrokenResourceError: "broken",
    ClosedChannel: "closed",
    trio.ClosedResourceError: "closed",
}


class Failure(Exception):
    """What a program raises; its argument says where."""


class Programs:
    """Draws programs. With ties many things happen at the same moment, else nearly never."""

    def __init__(self, seed: int, *, ties: bool, misfits: bool = True) -> None:
        """``misfits``: some receives take some messages only."""
        self.random, self.ties, self.ids = random.Random(seed), ties, itertools.count()
        self.types = random.Random(f"types {seed}") if misfits else None
        self.more = random.Random(-seed - 1)  # for variables: without them a seed draws the same program
        self.calls = random.Random(f"calls {seed}") if misfits else None

    def pause(self) -> float:
        return self.random.choice([0, 1, 1, 2, 2, 3]) if self.ties else self.random.randrange(1, 1 << 13) / 1024

    def program(self) -> Program:
        body = self.body(4)
        moments = {self.pause() * self.random.choice([1, 1, 2, 4]) for _ in range(self.random.randrange(MESSAGES_MAX))}
        drawn = [(at, self.random.choice(NAMES), number) for number, at in enumerate(sorted(moments - {0}))]
        messages: list[tuple[float, str, int | Act | Ask]] = [
            (at, name, self.sent(number)) for at, name, number in drawn
        ]
        return Program(body, sorted([*messages, *self.asked({at for at, _, _ in messages})], key=lambda each: each[0]))

    def asked(self, moments: set[float]) -> list[tuple[float, str, int | Act | Ask]]:
        """Calls of updates, in every third program, at moments when nothing else comes."""
        calls = self.calls
        if calls is None or calls.random() < 0.67:
            return []
        self.random = self.more = calls  # from here on nothing is drawn for the body
        found: list[tuple[float, str, int | Act | Ask]] = []
        for number in range(calls.choice([1, 1, 2, 3])):
            at = self.pause() * calls.choice([1, 1, 2, 4])
            body, refused_by = self.body(2), calls.choice([None, None, 0, 1])
            if at and at not in moments:
                moments.add(at)
                found.append((at, "call", Ask(number, body, refused_by)))
        return found

    def sent(self, number: int) -> int | Act:
        types = self.types
        if types is None or types.random() < 0.8:
            return number
        return Act(types.choice([None, 2 * number, 2 * number + 1]))

    def message(self, i: int) -> Node:
        type_ = "any" if self.types is None else self.types.choice(["any", *TYPES])
        return "message", i, self.random.choice(NAMES), type_

    def body(self, depth: int, scopes: tuple[int, ...] = (), nurseries: tuple[int, ...] = ()) -> list[Node]:
        nodes: list[Node] = []
        for _ in range(self.random.choice([1, 1, 2, 2, 3, 4])):
            nodes += self.beside_variables(self.node(depth, scopes, nurseries))
        return nodes

    def beside_variables(self, node: Node) -> list[Node]:
        """A node; at times with context variables that are set before it, or for it alone, and looked at after it."""
        r, number = self.more, self.more.randrange(len(VARIABLES))
        match r.choice(["none"] * 4 + ["look", "assign", "with"]):
            case "look":
                return [node, ("look", next(self.ids), number)]
            case "assign":
                return [("assign", next(self.ids), number), node, ("look", next(self.ids), number)]
            case "with":
                return [("with", next(self.ids), number, [node]), ("look", next(self.ids), number)]
            case _:
                return [node]

    def node(self, depth: int, scopes: tuple[int, ...], nurseries: tuple[int, ...]) -> Node:
        r, i, below = self.random, next(self.ids), depth - 1
        kinds = ["sleep"] * 3 + ["step"] * 5 + ["check", "raise", "set", "wait", "limited", "send", "receive"]
        kinds += ["message"] * 4
        kinds += ["cancel"] * 2 if scopes else []
        kinds += ["spawn"] * 2 if nurseries else []
        if depth > 0:
            kinds += ["timeout"] * 4 + ["nursery"] * 5 + ["try"] * 4 + ["scope"] * 2 + ["first"] * 4 + ["each"]
        match r.choice(kinds):
            case "sleep":
                return "sleep", i, self.pause()
            case "step":
                return "step", i, self.pause(), r.random() < 0.2, r.random() < 0.2
            case "set" | "wait" as kind:
                return kind, i, r.randrange(EVENTS)
            case "cancel":
                return "cancel", i, r.choice(scopes)
            case "spawn":
                return "spawn", i, r.choice(nurseries), self.body(max(below, 0), scopes, nurseries)
            case "limited":
                return "limited", i, [("step", next(self.ids), self.pause(), r.random() < 0.2, False)]
            case "timeout":
                shield = r.random() < 0.25
                return "timeout", i, r.random() < 0.4, self.pause(), shield, self.body(below, (*scopes, i), nurseries)
            case "scope":
                return "scope", i, r.random() < 0.4, self.body(below, (*scopes, i), nurseries)
            case "nursery":
                inner = (*scopes, i), (*nurseries, i)
                children = [self.body(below, *inner) for _ in range(r.choice([1, 2, 2, 3]))]
                return "nursery", i, children, self.body(below, *inner)
            case "first":
                return "first", i, [self.alternative(below, scopes, nurseries) for _ in range(r.choice([2, 2, 3]))]
            case "each":
                bodies = [self.alternative(below, scopes, nurseries) for _ in range(r.choice([2, 3]))]
                return "each", i, r.choice([1, 2]), bodies
            case "message":
                return self.message(i)
            case "try":
                kind = r.choice(["error", "base", "finally", "swallow"])
                return "try", i, kind, self.body(below, scopes, nurseries), self.body(0, scopes, nurseries)
            case kind:
                return kind, i

    def alternative(self, depth: int, scopes: tuple[int, ...], nurseries: tuple[int, ...]) -> list[Node]:
        """Often only what waits, as people write it: the value is lost with the branch."""
        r = self.random
        if r.random() < 0.5:
            return self.body(depth, scopes, nurseries)
        kind = r.choice(["message", "message", "sleep", "receive", "take", "step"])
        i = next(self.ids)
        match kind:
            case "message":
                return [self.message(i)]
            case "sleep":
                return [(kind, i, self.pause())]
            case "step":
                return [(kind, i, self.pause(), False, False)]
            case _:
                return [(kind, i)]


def label(error: BaseException | None) -> str:
    """An outcome in words that are the same on both sides; groups as trees."""
    if error is None:
        return "ok"
    if isinstance(error, BaseExceptionGroup):
        return "group(" + ", ".join(sorted(map(label, error.exceptions))) + ")"
    if isinstance(error, Cancelled | trio.Cancelled):
        return "Cancelled"
    if isinstance(error, TooSlow | trio.TooSlowError):
        return "TooSlow"
    if isinstance(error, Failure):
        return f"failure {error.args[0]}"
    if isinstance(error, RuntimeError):
        return f"RuntimeError {str(error)[:30]}"
    return CHANNEL_ERRORS[type(error)]


class Interpreter:
    """Runs a program on an environment and writes down what each branch saw, and when."""

    def __init__(self, env) -> None:
        self.env = env
        self.trace: dict[str, list[tuple[int, str, float]]] = defaultdict(list)
        self.scopes: dict[int, Any] = {}
        self.nurseries: dict[int, Any] = {}
        self.events = [env.Event() for _ in range(EVENTS)]
        self.semaphore = env.Semaphore(1)
        self.sender, self.receiver = env.open_memory_channel(1)

    def release(self) -> None:
        """Ends whatever programs may wait for without a time limit."""
        for _ in range(ENOUGH):
            self.semaphore.release()
            for name in NAMES:
                self.env.send_now(name, "late")
        for event in self.events:
            event.set()
        self.sender.close()
        self.receiver.close()

    def frozen(self) -> tuple:
        return tuple(
            sorted(
                (branch, tuple((i, what, round(at, 6)) for i, what, at in seen)) for branch, seen in self.trace.items()
            )
        )

    def note(self, branch: str, i: int, what: str) -> None:
        self.trace[branch].append((i, what, self.env.now()))

    async def main(self, program: list[Node]) -> None:
        self.env.serve(self)
        with self.env.move_on_after(500):
            await self.sequence(program, "root")

    def refuses(self, ask: Ask) -> bool:
        return ask.refused_by is not None and self.events[ask.refused_by].is_set()

    async def handle(self, ask: Ask) -> None:
        await self.sequence(ask.body, f"u{ask.number}")

    async def sequence(self, body: list[Node], branch: str) -> None:
        for node in body:
            try:
                await self.node(node, branch)
            except BaseException as error:
                self.note(branch, node[1], label(error))
                raise
            self.note(branch, node[1], "ok")

    async def node(self, node: Node, branch: str) -> None:
        env, i = self.env, node[1]
        match node:
            case "sleep", _, seconds:
                await env.sleep(seconds)
            case "check", _:
                await env.sleep(0)
            case "step", _, seconds, fails, stubborn:
                await env.step(i, seconds, fails, stubborn)
            case "raise", _:
                raise Failure(i)
            case "set", _, event:
                self.events[event].set()
            case "wait", _, event:
                await self.events[event].wait()
            case "send", _:
                await self.sender.send(i)
            case "receive", _:
                self.note(branch, i, f"got {await self.receiver.receive()}")
            case "message", _, name, type_:
                self.note(branch, i, f"got {name} {await env.receive(name, type_)}")
            case "look", _, variable:
                self.note(branch, i, f"sees {VARIABLES[variable].get()}")
            case "assign", _, variable:
                VARIABLES[variable].set(i)
            case "with", _, variable, body:
                token = VARIABLES[variable].set(i)
                try:
                    await self.sequence(body, branch)
                    self.note(branch, i, f"sees {VARIABLES[variable].get()}")
                finally:
                    VARIABLES[variable].reset(token)
            case "take", _:
                await self.semaphore.acquire()
            case "limited", _, body:
                async with self.semaphore:
                    await self.sequence(body, branch)
            case "cancel", _, scope:
                if scope in self.scopes:
                    self.scopes[scope].cancel()
            case "spawn", _, nursery, body:
                if nursery in self.nurseries:
                    self.nurseries[nursery].start_soon(self.sequence, body, f"s{i}")
            case _:
                await self.block(node, branch)

    async def block(self, node: Node, branch: str) -> None:
        env, i = self.env, node[1]
        match node:
            case "timeout", _, fails, seconds, shield, body:
                with (env.fail_after if fails else env.move_on_after)(seconds, shield=shield) as scope:
                    self.scopes[i] = scope
                    await self.sequence(body, branch)
                self.note(branch, i, f"caught={scope.cancelled_caught}")
            case "scope", _, shield, body:
                with env.CancelScope(shield=shield) as scope:
                    self.scopes[i] = scope
                    await self.sequence(body, branch)
                self.note(branch, i, f"caught={scope.cancelled_caught}")
            case "nursery", _, children, body:
                async with env.open_nursery() as nursery:
                    self.scopes[i], self.nurseries[i] = nursery.cancel_scope, nursery
                    for number, child in enumerate(children):
                        nursery.start_soon(self.sequence, child, f"{i}.{number}")
                    await self.sequence(body, branch)
            case "each", _, limit, bodies:
                await self.each(i, limit, bodies)
            case "first", _, alternatives:
                self.note(branch, i, f"won={await self.first(i, alternatives)}")
            case "try", _, "finally", body, clean_up:
                try:
                    await self.sequence(body, branch)
                finally:
                    with env.CancelScope(shield=True):
                        await self.sequence(clean_up, branch)
            case "try", _, kind, body, clean_up:
                try:
                    await self.sequence(body, branch)
                except BaseException as error:
                    if kind == "error" and not isinstance(error, Failure):
                        raise
                    with env.CancelScope(shield=True):
                        await self.sequence(clean_up, branch)
                    if kind == "base":
                        raise
            case _:
                raise AssertionError(node)

    async def each(self, i: int, limit: int, bodies: list[list[Node]]) -> None:
        room = self.env.Semaphore(limit)

        async def one(number: int, body: list[Node]) -> None:
            try:
                await self.sequence(body, f"{i}.{number}")
            finally:
                room.release()

        async with self.env.open_nursery() as nursery:
            for number, body in enumerate(bodies):
                await room.acquire()
                nursery.start_soon(one, number, body)

    async def first(self, i: int, alternatives: list[list[Node]]) -> list[int]:
        won: list[int] = []
        async with self.env.open_nursery() as nursery:

            async def alternative(body: list[Node], number: int) -> None:
                await self.sequence(body, f"{i}.{number}")
                if not won:
                    won.append(number)
                    nursery.cancel_scope.cancel()

            for number, body in enumerate(alternatives):
                nursery.start_soon(alternative, body, number)
        return won
