"""Another engine of the contract and ours in turn, under the same generator: what a job costs here against there.

Relies on the contract alone: definitions, starts, polls of jobs and their completion. What of the other engine can be
seen (its process, its database) is compared; without that, jobs a second are. Instances are started in batches where
an engine takes them, singly elsewhere, outside of what is measured.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import ExitStack, contextmanager

from benchmarks import surroundings
from benchmarks.bench import Bench, Options
from benchmarks.database import Database
from benchmarks.deployment import Deployment, engine, work_directory
from benchmarks.pair import Side


@contextmanager
def theirs_and_ours(theirs: Deployment, ours: Deployment | None, options: Options) -> Generator[tuple[Bench, Bench]]:
    """Both, ready; ``ours`` None: an engine of our own."""
    with ExitStack() as stack:
        if ours is None:
            directory = stack.enter_context(work_directory(options.work_dir))
            ours = stack.enter_context(engine(directory, options.settings))
        benches: list[Bench] = []
        for each in (theirs, ours):
            database = None if each.dsn is None else Database(each.dsn)
            if database is not None:
                stack.callback(database.close)
            benches.append(Bench(each, database, options, lambda share, text: None))
        yield benches[0], benches[1]


def side_of(url: str | None) -> Side:
    """How it is called: an engine that runs by its address, our own by its commit."""
    if url is None:
        return Side(path="", commit=surroundings.commit() or surroundings.version())
    return Side(path=url, commit=url.partition("//")[2].rstrip("/").replace("/", "-") or url)
