"""What executors write down of the open branches of runs: what these wait for, which messages they accept, which they
rejected. What is told of a run goes by it, as long as it holds: as long as no record came after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final, cast

import msgspec

from penstock.engine.definitions.json_schema import WrongValue, find_problem
from penstock.store.rows.journal import MessageRow
from penstock.wire.model import RejectedMessage

REJECTED_MAX: Final = 20
"""Rejected messages of a run that are shown."""
SHOWN_MAX_BYTES: Final = 16_384
"""Of the payload of one; a larger one is in the journal."""
NOT_KNOWN: Final = (
    "position: no message that the run rejected is there now: a receive has taken it, it was dropped, or the run is at "
    "work and will say in a moment"
)


class RejectedNote(msgspec.Struct, frozen=True):
    """A message that fits no `receive` that waits. ``pos``: its position in the journal, in hex."""

    pos: str
    field: str = ""
    reason: str = ""


class OpenBranch(msgspec.Struct, frozen=True, omit_defaults=True):
    """Of the JSON that executors give to `Journal.extend` and `Journal.park` as ``branches``: a list of these."""

    path: str
    kind: str
    """step, sleep, receive, nursery, scope, branch, child; not awaited: a call that was dropped (``name`` says it)."""
    name: str | None = None
    since: float | None = None
    due_at: float | None = None
    attempt: int | None = None
    where: str | None = None
    progress: Any = None  # no `Raw | None`: msgspec reads nothing but null into that
    as_of: str | None = None
    """With the first `receive` of a name, what follows: this was so behind the record at this position (hex)."""
    accepts: list[dict[str, Any]] | None = None
    """JSON schemas, of which a message of that name must fit one. None: any may come."""
    rejects: int = 0
    rejected: list[RejectedNote] = []


def read_branches(text: str) -> list[OpenBranch]:
    """What an executor wrote down of a run's branches; nothing when it is none of ours to read."""
    try:
        return msgspec.json.decode(text, type=list[OpenBranch])
    except msgspec.MsgspecError:
        return []


def problem_of(text: str, last: int | None, name: str, payload: str) -> WrongValue | None:
    """Why a message does not fit what the run waits for, as far as it has said so since its record ``last``."""
    for branch in read_branches(text):
        if branch.kind == "receive" and branch.name == name and branch.accepts and _holds(branch, last):
            try:
                found = find_problem({"anyOf": branch.accepts}, msgspec.json.decode(payload))
            except (TypeError, ValueError, AttributeError):  # a schema of no form that we know says nothing
                return None
            if found is None:
                return None
            at = f" at {branch.where}" if branch.where else ""
            return WrongValue(f"payload: {found}. The run waits for another message '{name}'{at}", [found])
    return None


def rejected_notes(branches: Sequence[OpenBranch]) -> dict[int, tuple[OpenBranch, RejectedNote]]:
    """By position."""
    found: dict[int, tuple[OpenBranch, RejectedNote]] = {}
    for branch in branches:
        for note in branch.rejected[: REJECTED_MAX - len(found)]:
            try:
                found[int(note.pos, 16)] = branch, note
            except ValueError:
                continue
    return found


def rejected_as_of(branches: Sequence[OpenBranch], position: int) -> int:
    """Behind which record a message was rejected; 0, behind which there always is one, where it was not."""
    noted = rejected_notes(branches).get(position)
    try:
        return 0 if noted is None else int(noted[0].as_of or "0", 16)
    except ValueError:
        return 0


def shown(branches: Sequence[OpenBranch], messages: Sequence[MessageRow]) -> list[RejectedMessage]:
    """Rejected messages as clients read them, oldest first."""
    notes = rejected_notes(branches)
    return [_shown(message, *notes[message.pos]) for message in messages if message.pos in notes]


def _shown(message: MessageRow, branch: OpenBranch, note: RejectedNote) -> RejectedMessage:
    payload = message.payload or "null"
    fits = len(payload) <= SHOWN_MAX_BYTES and not payload.startswith("~")
    return RejectedMessage(
        position=f"{message.pos:x}",
        name=message.name or "",
        at=datetime.fromtimestamp(message.at, UTC),
        sender=message.sender,
        path=note.field,
        reason=note.reason,
        where=branch.where,
        payload=msgspec.Raw(payload.encode()) if fits else None,
    )


def _holds(branch: OpenBranch, last: int | None) -> bool:
    try:
        return branch.as_of is not None and int(branch.as_of, 16) >= (last or 0)
    except ValueError:
        return False


def names_of(branches: Sequence[OpenBranch]) -> list[str]:
    """Of the messages that are waited for, with how many were rejected."""
    rejects: dict[str, int] = {}
    for branch in branches:
        if branch.kind == "receive":
            name = cast(str, branch.name)
            rejects[name] = rejects.get(name, 0) + branch.rejects
    return [f"message {name!r}" + (f" ({count} rejected)" if count else "") for name, count in rejects.items()]
