"""Writes instances into files before retention removes them, and reads the files again.

A file has the instances that one transaction removes, as gzipped JSON lines: `{"instance": …}`, then its `{"step": …}`
and, of a durable run, its `{"record": …}`; or the same lines as rows of Parquet (`parquet.py`). It is there, whole and
on the disk, before anything is removed; an instance that was archived and not removed after all (it was retried, the
engine stopped) is in a later file again, and the latest counts. No file is ever written twice. Must not remove anything
from the database.
"""

from __future__ import annotations

import gzip
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

import msgspec
import trio

from penstock.engine.requests.ids import show_instance
from penstock.runtime import parquet
from penstock.runtime.parquet import ParquetFile, lines_of
from penstock.settings import ArchiveFormat, Settings
from penstock.store.db.connection import TrioConnection
from penstock.store.rows import archive as store
from penstock.store.rows.retention import Selected

SUFFIXES: Final = {ArchiveFormat.JSONL: ".jsonl.gz", ArchiveFormat.PARQUET: parquet.SUFFIX}
_UNFINISHED: Final = ".part"
_LEVEL: Final = 6


def directory_of(settings: Settings) -> Path | None:
    """Where instances are archived, absolute; None: nowhere."""
    return Path(settings.archive_dir).expanduser().absolute() if settings.archive_dir else None


class Removed(Exception):
    """Some went while they were read: another engine has archived them, and what was read here may be half of them."""


class _JsonLines:
    """A file of gzipped lines that is written."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._stream = gzip.GzipFile(fileobj=file, mode="wb", compresslevel=_LEVEL)

    def append(self, lines: Sequence[str]) -> None:
        self._stream.write("".join(f"{line}\n" for line in lines).encode())

    def close(self) -> None:
        self._stream.close()
        self._file.close()


_File = _JsonLines | ParquetFile


async def write(
    connection: TrioConnection,
    directory: Path,
    instances: Sequence[Selected],
    form: ArchiveFormat = ArchiveFormat.JSONL,
) -> Path:
    """Write instances that are as they were selected into a new file of the directory, which is made; its path. Raises
    OSError and `Removed`, and leaves no file then."""
    # the time, as instances that stayed would come again under the same ids, in place of those that are gone
    name = f"{show_instance(instances[0].id)}-{show_instance(instances[-1].id)}-{time.time_ns():x}{SUFFIXES[form]}"
    unfinished = directory / (name + _UNFINISHED)
    stream = await trio.to_thread.run_sync(_open, unfinished, form)
    try:
        for instance in instances:
            async with aclosing(store.lines_of(connection, instance)) as pieces:
                async for lines in pieces:
                    await trio.to_thread.run_sync(stream.append, lines)
        if not await store.are_there(connection, instances):
            raise Removed
        return await trio.to_thread.run_sync(_finish, stream, unfinished, directory / name)
    except BaseException:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(_abandon, stream, unfinished)
        raise


def _open(path: Path, form: ArchiveFormat) -> _File:
    """Of us alone, as are the directories that are made for it. It is written by its descriptor: in a directory of
    others the name may lead elsewhere by now."""
    for directory in [each for each in (*reversed(path.parents),) if not each.exists()]:
        directory.mkdir(mode=0o700, exist_ok=True)
    file = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")
    return ParquetFile(file) if form is ArchiveFormat.PARQUET else _JsonLines(file)


def _abandon(stream: _File, path: Path) -> None:
    with suppress(OSError):
        stream.close()  # what it has yet is written, a group of rows
    path.unlink(missing_ok=True)


def _finish(stream: _File, unfinished: Path, path: Path) -> Path:
    stream.close()
    for written in (unfinished, None, path.parent):
        if written is None:
            unfinished.replace(path)
            continue
        descriptor = os.open(written, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    return path


class Archived(NamedTuple):
    """An instance in a file: its own line, and those that follow it."""

    instance: dict[str, Any]
    lines: list[dict[str, Any]]
    file: Path


def read(directory: Path) -> Iterator[Archived]:
    """All instances of the archive, oldest file first; one that is in several files comes from each. Raises OSError,
    and ValueError for a file that is damaged, which it names."""
    found = (path for suffix in SUFFIXES.values() for path in directory.rglob(f"*{suffix}"))
    files = sorted(found, key=lambda path: (path.stat().st_mtime_ns, path.name))
    for file in files:
        try:
            yield from _read_file(file)
        except (EOFError, gzip.BadGzipFile, msgspec.DecodeError, ValueError) as error:
            raise ValueError(f"{file}: is damaged: {error}") from error


def _read_file(file: Path) -> Iterator[Archived]:
    found: Archived | None = None
    for line in lines_of(file) if file.suffix == parquet.SUFFIX else _unzipped(file):
        parts: dict[str, Any] = msgspec.json.decode(line, type=dict[str, Any])
        if "instance" in parts:
            if found is not None:
                yield found
            found = Archived(parts["instance"], [], file)
        elif found is not None:
            found.lines.append(parts)
    if found is not None:
        yield found


def _unzipped(file: Path) -> Iterator[bytes]:
    with gzip.open(file, "rb") as stream:
        yield from stream
