"""Long computations, away from the event loop: in a thread, one at a time for the whole process.

The interpreter's lock is why it is one. A thread that computes lets the loop go on within milliseconds (a probe under
load was answered after 28 ms at most); of eight, each takes its turn at every system call of the loop (858 ms, and 21
answers a second in place of 11,000). What waits, waits in order. A leaf: what is computed is the caller's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar, TypeVarTuple

import trio

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

INLINE_MAX_BYTES: Final = 65_536
"""JSON and messages up to here are looked at on the loop: 2 ms at worst."""

_turn: trio.lowlevel.RunVar[trio.CapacityLimiter] = trio.lowlevel.RunVar("penstock.offload")


async def run_long(compute: Callable[[*Ts], T], *args: *Ts) -> T:
    """The result of ``compute(*args)``, which does not touch the loop. Cancelled, it waits for its turn no more, but
    for the end of what has begun."""
    try:
        turn = _turn.get()
    except LookupError:
        turn = trio.CapacityLimiter(1)
        _turn.set(turn)
    return await trio.to_thread.run_sync(compute, *args, limiter=turn)
