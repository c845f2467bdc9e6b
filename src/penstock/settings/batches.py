"""Settings about batches of starts. Page for users: docs/starts.md."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from penstock.settings.access import AccessSettings
from penstock.settings.described import says

__all__ = ["BatchSettings"]

_batches = partial(says, "Batches of starts")


class BatchSettings(AccessSettings, frozen=True, kw_only=True):
    """Part of ``Settings``."""

    start_batch_max_items: Annotated[int, _batches("Items of one start batch; more get 400.", 1, 100_000)] = 10_000
    start_batch_max_bytes: Annotated[
        int,
        _batches(
            "Size of all items of one start batch, as JSON; more get 413. `max_body_bytes` applies first.",
            1_024,
            1_073_741_824,
        ),
    ] = 33_554_432
    start_batches_open_max_items: Annotated[
        int, _batches("Start batches that have not ended; more get 429.", 1, 100_000)
    ] = 1_000
    start_batch_lease_seconds: Annotated[
        float,
        _batches(
            "How long an engine holds a start batch. If it is killed, another engine goes on with the batch "
            "after that time.",
            1,
            600,
        ),
    ] = 10
    start_batch_look_max_seconds: Annotated[
        float,
        _batches(
            "A batch is asked whether it has ended each time when a tenth of its age has passed, but after so long"
            " at the latest.",
            0.2,
            3_600,
        ),
    ] = 30
