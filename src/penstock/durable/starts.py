"""What `App.start` asks for beside its workflow and arguments, as an engine takes it: see docs/starts.md."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final, TypedDict

from msgspec.structs import replace

from penstock.durable.duration import Duration, iso_text
from penstock.durable.given import check_kind, check_priority
from penstock.wire.model import StartRequest
from penstock.wire.start import Debounce, Dedupe, Throttle

AT_ONCE: Final = iso_text(0)
"""Less than a millisecond."""


class StartOptions(TypedDict, total=False):
    """The options of `App.start`, which says what they mean."""

    id: str | None
    deadline: Duration | None
    delay: Duration | None
    start_at: datetime | str | None
    dedupe: Dedupe | None
    throttle: Throttle | None
    debounce: Debounce | None
    priority: int | None
    flow_key: str | None


def start_request(
    delay: Duration | None,
    start_at: datetime | str | None,
    dedupe: Dedupe | None,
    throttle: Throttle | None,
    debounce: Debounce | None,
    priority: int | None,
    flow_key: str | None,
) -> StartRequest:
    """Without definition and variables. Lengths of time may be in either form. Raises `BadDuration`."""
    check_kind("dedupe", dedupe, Dedupe, 'a Dedupe of penstock.client, as Dedupe("key", "1 h")')
    check_kind("throttle", throttle, Throttle, 'a Throttle of penstock.client, as Throttle("key", 10)')
    check_kind("debounce", debounce, Debounce, 'a Debounce of penstock.client, as Debounce("key", "5 s")')
    check_kind("start_at", start_at, (datetime, str), "a datetime, or text such as 2026-01-31T12:00:00Z")
    check_priority(priority)
    check_kind("flow_key", flow_key, str, "text")
    if dedupe is not None:
        dedupe = replace(dedupe, window=iso_text(dedupe.window))
    if throttle is not None and throttle.period is not None:
        throttle = replace(throttle, period=iso_text(throttle.period))
    if debounce is not None:
        max_wait = None if debounce.max_wait is None else iso_text(debounce.max_wait)
        debounce = replace(debounce, wait=iso_text(debounce.wait), max_wait=max_wait)
    after = AT_ONCE if delay is None else iso_text(delay)
    return StartRequest(
        start_at=start_at.astimezone(UTC).isoformat() if isinstance(start_at, datetime) else start_at,
        delay=None if after == AT_ONCE else after,
        dedupe=dedupe,
        throttle=throttle,
        debounce=debounce,
        priority=priority,
        flow_key=flow_key,
    )
