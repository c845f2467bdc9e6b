"""Messages and who waits for them: which message is for which wait.

A message has a name and a key, and so has a WAIT that waits for one. A message that comes goes to the oldest wait that
has none yet; without one it is kept until a wait comes, or until it expires. What is decided here holds: it is written
under a lock of the name and the key (`store.rows.messages`), so of a publisher and a wait that come at the same moment
the second one sees the first. The message then is *for* that wait, and gets there by a timer (`state.MESSAGE_TIMER`),
whatever dies meanwhile. A wait that is closed before leaves its message to the next one.

Pure. ``Address`` is a name with a key.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

NAME_MAX_CHARS: Final = 256
KEY_MAX_CHARS: Final = 256
"""Together what an entry of a B-tree holds for certain, at four bytes a character."""
RECEIVERS_MAX: Final = 1_000
"""Waits that one message for all goes to."""

Address = tuple[str, str]


class Wait(msgspec.Struct, frozen=True, order=True):
    """An open wait for a message. They are ordered by when they were entered."""

    seq: int
    token_id: int
    instance_id: int


class Closing(msgspec.Struct, frozen=True):
    """A wait that ends, and what was for it."""

    token_id: int
    seq: int
    address: Address
    message: int | None
    for_all: bool = False
    expired: bool = False


class Correlation(msgspec.Struct):
    """What is to be written."""

    given: dict[Wait, int] = {}
    """Waits that get a message."""
    taken: list[int] = []
    """Messages that were kept and are for a wait now."""
    kept: list[int] = []
    """Messages that were for a wait which is closed, and wait for another one."""
    done: list[int] = []
    """Messages that were received, or expired before anybody got them."""
    perhaps_done: list[int] = []
    """Messages for all: done when none of their waits is left."""


def correlate(
    waits: Mapping[Address, Iterable[Wait]],
    kept: Mapping[Address, Iterable[int]],
    closing: Sequence[Closing] = (),
    received: Iterable[int] = (),
) -> Correlation:
    """Who gets what: of each address the ``waits`` that have no message yet, and the ids of messages ``kept`` for it.

    ``received``: what those that are ``closing`` have got.
    """
    out = Correlation()
    closed = {(one.token_id, one.seq) for one in closing}
    got = set(received)
    freed: dict[Address, list[int]] = {}
    for one in closing:
        if one.message is None:
            continue
        if one.for_all:
            out.perhaps_done.append(one.message)
        elif one.message in got or one.expired:
            out.done.append(one.message)
        else:
            freed.setdefault(one.address, []).append(one.message)
    for address in {**dict.fromkeys(kept), **dict.fromkeys(freed)}:
        left = freed.get(address, [])
        pool = sorted([*kept.get(address, ()), *left])
        open_waits = sorted(wait for wait in waits.get(address, ()) if (wait.token_id, wait.seq) not in closed)
        pairs = list(zip(open_waits, pool, strict=False))
        out.given.update(pairs)
        given = {message for _, message in pairs}
        out.taken += sorted(given.difference(left))
        out.kept += [message for message in left if message not in given]
    return out


class TooManyWaits(Exception):
    """More of them than one message for all goes to."""


def give(waits: list[Wait], message: int, *, for_all: bool) -> dict[Wait, int]:
    """Whom a new message goes to, of the ``waits`` of its address that have none; they are taken out of the list."""
    waits.sort()
    if not for_all:
        return {waits.pop(0): message} if waits else {}
    if len(waits) > RECEIVERS_MAX:
        raise TooManyWaits
    given = dict.fromkeys(waits, message)
    waits.clear()
    return given
