"""Long computations, away from the event loop: in a thread, one at a time for the whole process.

The interpreter's lock is why it is one. A thread that computes lets the loop go on within milliseconds (a probe under
load was answered after 28 ms at most); of eight, each takes its turn at every system call of the loop (858 ms, and 21
answers a second in place of 11,000). What waits, waits in order. A leaf: what is computed is the caller's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Final, TypeVar, TypeVarTuple

import trio

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

INLINE_MAX_BYTES: Final = 16_384
"""What clients send is read on the loop up to here: 3 ms at worst, as a rule 0.1."""

TURNS_APART: Final = 4
"""Turns of the loop from one piece of work to the next (`take_turn`): one client is accepted in each."""

_lines: trio.lowlevel.RunVar[dict[str, trio.CapacityLimiter]] = trio.lowlevel.RunVar("penstock.offload")


async def run_long(compute: Callable[[*Ts], T], *args: *Ts, line: str = "") -> T:
    """The result of ``compute(*args)``, which does not touch the loop. Of what stands in a ``line`` only the first one
    waits for its turn with the others: a crowd there holds up nobody else. Cancelled, it waits for its turn no more,
    but for the end of what has begun."""
    limiters = _limiters()
    done: list[T] = []
    failed: list[Exception] = []

    def run() -> None:
        # Trio keeps what a thread raises in a cycle, with all that is in its frames: 30 MB of a refused body's values.
        try:
            done.append(compute(*args))
        except Exception as error:
            failed.append(error)

    if not line:
        await trio.to_thread.run_sync(run, limiter=limiters[""])
    else:
        async with limiters[line]:
            await trio.to_thread.run_sync(run, limiter=limiters[""])
    if failed:
        raise failed.pop()
    return done.pop()


async def run_sized(size_bytes: int, compute: Callable[[], T], *, line: str = "requests") -> T:
    """``compute()``, which takes as long as what it is given is large, such as what a client sent: away from the loop
    unless it is small."""
    return compute() if size_bytes <= INLINE_MAX_BYTES else await run_long(compute, line=line)


async def take_turn() -> None:
    """Before a piece of work of a few milliseconds that must stay on the loop, as a thread would cost more: whoever
    else has such a one goes before or after, with turns of the loop for everybody else between. Cancel-safe."""
    async with _limiters()["turns"]:
        for _ in range(TURNS_APART):
            await trio.lowlevel.checkpoint()


def _limiters() -> dict[str, trio.CapacityLimiter]:
    try:
        return _lines.get()
    except LookupError:
        lines: dict[str, trio.CapacityLimiter] = defaultdict(lambda: trio.CapacityLimiter(1))
        _lines.set(lines)
        return lines
