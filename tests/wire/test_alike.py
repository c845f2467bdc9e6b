"""What one struct holds, as another whose fields have the same names: of what is empty, and of what is in it."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec

from penstock.wire import repair_v1 as w
from penstock.wire.alike import alike
from penstock.wire.attention import Acknowledgement, Attention
from penstock.wire.audit import AuditTrailRecord
from penstock.wire.bulk import BulkFilter

NOON = datetime(2026, 1, 2, 12, 0, tzinfo=UTC)


def test_what_is_not_given_is_empty_in_a_message_and_none_in_a_noun() -> None:
    record = AuditTrailRecord(NOON, "QUEUE_PAUSED", actor="token:ada")
    message = w.AuditTrailRecord(NOON, "QUEUE_PAUSED", "token:ada")
    assert alike(record, w.AuditTrailRecord) == message
    assert alike(message, AuditTrailRecord) == record
    assert alike(w.BulkFilter(definition_version=0, step_id="a"), BulkFilter, status=None) == BulkFilter(step_id="a")


def test_structs_in_fields_are_converted_too() -> None:
    row = Attention("failed", "bad", "2 failed", query={"a": "b"}, acknowledged=Acknowledgement(NOON, NOON, by="ada"))
    message = alike(row, w.Attention, more=True)
    assert message.acknowledged == w.Acknowledgement(NOON, NOON, "ada")
    assert (message.more, message.query, message.job_type) == (True, {"a": "b"}, "")
    assert alike(message, Attention, exact=False) == msgspec.structs.replace(row, exact=False)


def test_json_text_is_bytes_in_a_message() -> None:
    class Note(msgspec.Struct):
        variables: msgspec.Raw | None = None
        items: list[AuditTrailRecord] = []

    class NoteMessage(msgspec.Struct):
        variables: bytes = b""
        items: list[w.AuditTrailRecord] = []

    note = Note(msgspec.Raw(b"{}"), [AuditTrailRecord(NOON, "K")])
    assert alike(note, NoteMessage) == NoteMessage(b"{}", [w.AuditTrailRecord(NOON, "K")])
    assert alike(Note(), NoteMessage) == NoteMessage()
