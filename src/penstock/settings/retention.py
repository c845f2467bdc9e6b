"""Settings about how long what has ended is kept, and where it goes then. Page for operators: docs/operations.md."""

from __future__ import annotations

from enum import StrEnum
from functools import partial
from typing import Annotated

import msgspec

from penstock.settings.batches import BatchSettings
from penstock.settings.described import says

__all__ = ["ArchiveFormat", "RetentionSettings"]

_keeping = partial(says, "Retention")
_Days = Annotated[float, msgspec.Meta(ge=0.01, le=36_500)]


class ArchiveFormat(StrEnum):
    JSONL = "jsonl"
    PARQUET = "parquet"


class RetentionSettings(BatchSettings, frozen=True, kw_only=True):
    """Part of ``Settings``."""

    retention_days: Annotated[
        _Days | None,
        _keeping(
            "Instances are removed so long after their end, and their history with them, a partition at a time. "
            "Default: never."
        ),
    ] = None
    retention_rules: Annotated[
        tuple[str, ...],
        _keeping(
            "`loan=90`, `loan:FAILED=365`, `*:CANCELLED=7`, `loan:COMPLETED=never`: days for instances of a definition,"
            " that ended so, in place of `retention_days`. The same in all engines. See docs/operations.md."
        ),
    ] = ()
    retention_moved_max_records: Annotated[
        int,
        _keeping(
            "Rows of history that are kept longer than their partition and move to one of their own; more of them keep"
            " the whole.",
            0,
            100_000_000,
        ),
    ] = 100_000
    archive_dir: Annotated[
        str | None,
        _keeping(
            "Directory into which instances are written before retention removes them, with their history. Without it"
            " they are gone. What can't be written is not removed."
        ),
    ] = None
    archive_format: Annotated[
        ArchiveFormat, _keeping("`jsonl`: gzipped JSON lines; `parquet`: the same as rows, needs the extra `parquet`.")
    ] = ArchiveFormat.JSONL
    audit_retention_days: Annotated[
        _Days | None,
        _keeping("Time after which audit records are removed, a partition at a time. Default: never."),
    ] = None
    partition_days: Annotated[
        float, _keeping("Length of the partitions of history and audit that are made from now on.", 0.01, 3_650)
    ] = 30
