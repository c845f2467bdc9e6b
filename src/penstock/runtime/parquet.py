"""Files of the archive as Parquet (extra `parquet`): a row for each line, with columns to filter by and the line.

Read by whatever reads Parquet; `line` is the JSON that the other format has, so nothing is lost between the two. Rows
are kept until there are enough for a group, in items and in bytes. Runs in threads: nothing here may touch the loop.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec

SUFFIX: Final = ".parquet"
GROUP_MAX_ROWS: Final = 10_000
GROUP_MAX_BYTES: Final = 16 * 2**20
"""Of lines, in one group of rows; one line more at most."""
_COLUMNS: Final = (
    "instance", "kind", "definition", "version", "status", "business_key", "step", "started_at", "ended_at", "line",
)  # fmt: skip


def is_installed() -> bool:
    """Return whether the extra `parquet` is there."""
    return importlib.util.find_spec("pyarrow") is not None


class _Columns(msgspec.Struct):
    """What of a line is a column of its own."""

    id: str | None = None
    instance: str | None = None
    definition: str | None = None
    version: int | None = None
    status: str | None = None
    business_key: str | None = None
    step: str | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None


class ParquetFile:
    """One that is written, to ``file``, which it closes."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._arrow: Any = importlib.import_module("pyarrow")
        text, number = self._arrow.string(), self._arrow.int32()
        time = self._arrow.timestamp("us", tz="UTC")
        types = (text, text, text, number, text, text, text, time, time, text)
        self._schema: Any = self._arrow.schema(list(zip(_COLUMNS, types, strict=True)))
        parquet: Any = importlib.import_module("pyarrow.parquet")
        self._writer: Any = parquet.ParquetWriter(file, self._schema, compression="zstd")
        self._rows: list[dict[str, object]] = []
        self._bytes = 0
        self._instance = ""

    def append(self, lines: Sequence[str]) -> None:
        """Add lines; each belongs to the instance whose own came last."""
        for line in lines:
            self._rows.append(self._row(line))
            self._bytes += len(line)
            if len(self._rows) >= GROUP_MAX_ROWS or self._bytes >= GROUP_MAX_BYTES:
                self._write()

    def close(self) -> None:
        """Write what is left. Idempotent."""
        self._write()
        self._writer.close()
        self._file.close()

    def _row(self, line: str) -> dict[str, object]:
        ((kind, columns),) = msgspec.json.decode(line, type=dict[str, _Columns]).items()
        if kind == "instance":
            self._instance = columns.id or ""
        shown = {name: getattr(columns, name, None) for name in _COLUMNS}
        return {**shown, "instance": self._instance, "kind": kind, "line": line}

    def _write(self) -> None:
        if self._rows:
            self._writer.write_table(self._arrow.Table.from_pylist(self._rows, schema=self._schema))
        self._rows, self._bytes = [], 0


def lines_of(path: Path) -> Iterator[str]:
    """The lines of a file, a group of rows at a time.

    Raises:
        ValueError: it is damaged, or the extra is not installed.
    """
    if not is_installed():
        raise ValueError(f"{path}: pip install 'penstock-workflow[parquet]'")
    parquet: Any = importlib.import_module("pyarrow.parquet")
    with parquet.ParquetFile(path) as file:
        for batch in file.iter_batches(batch_size=1_000, columns=["line"]):
            yield from batch.column(0).to_pylist()
