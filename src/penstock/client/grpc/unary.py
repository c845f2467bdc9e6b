"""One unary call as a value: its method, its request, how to read the answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

ENGINE = "/workflow.v1.WorkflowEngine/"
WORKER = "/penstock.v1.Worker/"


class UnaryExchange(NamedTuple):
    """One unary call and how to read its answer."""

    path: str
    request: msgspec.Struct
    answer_type: type[msgspec.Struct]
    read: Callable[[Any], Any]
    idempotency_key: str | None = None
