"""The metrics of several engine processes as those of one (`--processes N`: the parent serves one page).

Children hand over ``export(registry)``, the parent feeds it to an ``Aggregate``, which is a collector. Chosen over
prometheus_client's multiprocess mode, which needs an environment variable before its import, writes memory-mapped files
on each increment, and knows no gauges that are functions. Must not know how the bytes travel.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Final, cast

import msgspec
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

__all__ = ["Aggregate", "export"]

# Gauges that every process reports of the same thing: the sum would count it several times.
LARGEST: Final = frozenset(
    {
        "penstock_batch_age_seconds",
        "penstock_build_info",
        "penstock_queue_jobs",
        "penstock_queue_oldest_job_age_seconds",
        "process_max_fds",
        "workflow_engine_dispatch_outbox_backlog",
    }
)
SMALLEST: Final = frozenset({"process_start_time_seconds"})


class _Family(msgspec.Struct, array_like=True, frozen=True):
    name: str
    text: str
    kind: str
    samples: list[tuple[str, dict[str, str], float]]


_decoder = msgspec.json.Decoder(list[_Family])
_SampleKey = tuple[str, tuple[tuple[str, str], ...]]


def export(registry: CollectorRegistry) -> bytes:
    """Everything in the registry, for the ``Aggregate`` of another process."""
    return msgspec.json.encode(
        [
            _Family(
                family.name,
                family.documentation,
                family.type,
                [
                    (sample.name, dict(cast("Mapping[str, str]", sample.labels)), sample.value)
                    for sample in family.samples
                ],
            )
            for family in registry.collect()
        ]
    )


class Aggregate(Collector):
    """Counters and histograms are summed, what a process counted before it died included, so that they never fall
    when a child is restarted; gauges are those of the processes that live."""

    def __init__(self) -> None:
        self._live: dict[str, list[_Family]] = {}
        self._dead: list[_Family] = []

    def update(self, process: str, exported: bytes) -> None:
        """The newest export of a process, by any name that tells it from the others."""
        self._live[process] = _decoder.decode(exported)

    def retire(self, process: str) -> None:
        """The process is gone: what it counted stays, its gauges go."""
        gone = [family for family in self._live.pop(process, ()) if family.kind != "gauge"]
        self._dead = list(_merge([*self._dead, *gone]))

    def collect(self) -> Iterator[Metric]:
        live = [family for families in self._live.values() for family in families]
        for family in _merge([*self._dead, *live]):
            metric = Metric(family.name, family.text, family.kind)
            for name, labels, value in family.samples:
                metric.add_sample(name, labels, value)
            yield metric


def _merge(families: list[_Family]) -> Iterator[_Family]:
    by_name: dict[str, list[_Family]] = defaultdict(list)
    for family in families:
        by_name[family.name].append(family)
    for name, same in by_name.items():
        combine = max if name in LARGEST else min if name in SMALLEST else sum
        values: dict[_SampleKey, list[float]] = defaultdict(list)
        for family in same:
            for sample, labels, value in family.samples:
                values[sample, tuple(labels.items())].append(value)
        samples = [(sample, dict(labels), float(combine(each))) for (sample, labels), each in values.items()]
        yield _Family(name, same[0].text, same[0].kind, samples)
