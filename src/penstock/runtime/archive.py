"""Writes instances into files before retention removes them, and reads the files again.

A file has the instances that one transaction removes, as gzipped JSON lines: `{"instance": …}`, then its `{"step": …}`
and, of a run of code, its `{"record": …}`. It is there, whole and on the disk, before anything is removed; an instance
that was archived and not removed after all (it was retried, the engine stopped) is in a later file again, and the
latest counts. No file is ever written twice. Must not remove anything from the database.
"""

from __future__ import annotations

import gzip
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import trio

from penstock.engine.ids import show_instance
from penstock.settings import Settings
from penstock.store import archive as store
from penstock.store.connection import TrioConnection

SUFFIX: Final = ".jsonl.gz"
_UNFINISHED: Final = ".part"
_LEVEL: Final = 6


def directory_of(settings: Settings) -> Path | None:
    """Where instances are archived, absolute; None: nowhere."""
    return Path(settings.archive_dir).expanduser().absolute() if settings.archive_dir else None


async def write(connection: TrioConnection, directory: Path, instances: Sequence[int]) -> Path:
    """Write instances that ended into a new file of the directory, which is made; its path. Raises OSError, and leaves
    no file then."""
    # the time, as instances that stayed would come again under the same ids, in place of those that are gone
    name = f"{show_instance(instances[0])}-{show_instance(instances[-1])}-{time.time_ns():x}{SUFFIX}"
    unfinished = directory / (name + _UNFINISHED)
    stream = await trio.to_thread.run_sync(_open, unfinished)
    try:
        for instance in instances:
            async with aclosing(store.lines_of(connection, instance)) as pieces:
                async for lines in pieces:
                    await trio.to_thread.run_sync(_append, stream, lines)
        return await trio.to_thread.run_sync(_finish, stream, unfinished, directory / name)
    except BaseException:
        with suppress(OSError):
            stream.close()
        unfinished.unlink(missing_ok=True)
        raise


def _open(path: Path) -> gzip.GzipFile:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    return gzip.open(path, "wb", compresslevel=_LEVEL)


def _append(stream: gzip.GzipFile, lines: Sequence[str]) -> None:
    stream.write("".join(f"{line}\n" for line in lines).encode())


def _finish(stream: gzip.GzipFile, unfinished: Path, path: Path) -> Path:
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
    files = sorted(directory.rglob(f"*{SUFFIX}"), key=lambda path: (path.stat().st_mtime_ns, path.name))
    for file in files:
        try:
            yield from _read_file(file)
        except (EOFError, gzip.BadGzipFile, msgspec.DecodeError) as error:
            raise ValueError(f"{file}: is damaged: {error}") from error


def _read_file(file: Path) -> Iterator[Archived]:
    found: Archived | None = None
    with gzip.open(file, "rb") as stream:
        for line in stream:
            parts: dict[str, Any] = msgspec.json.decode(line, type=dict[str, Any])
            if "instance" in parts:
                if found is not None:
                    yield found
                found = Archived(parts["instance"], [], file)
            elif found is not None:
                found.lines.append(parts)
    if found is not None:
        yield found
