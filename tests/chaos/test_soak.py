"""What a soak calls flat, and what it does not."""

from __future__ import annotations

import msgspec
import pytest

from chaos.soak import Sample, trends


def samples(**growth: float) -> list[Sample]:
    """An hour of samples; ``growth`` is by how much a field grows in all, as a factor."""
    flat = Sample(
        at=0, engine_bytes=100_000_000, files=30, table_bytes=2_000_000, instances=1_000, kept_bytes=10_000_000,
        start_p50_s=0.05, start_p99_s=0.2, spin_s=0.02,
    )  # fmt: skip
    found = []
    for number in range(60):
        changed = {name: getattr(flat, name) * (1 + (factor - 1) * number / 59) for name, factor in growth.items()}
        found.append(msgspec.structs.replace(flat, at=number * 60.0, **changed))
    return found


def uneven(found: list[Sample]) -> list[str]:
    return [trend.what for trend in trends(found) if not trend.flat]


def test_what_stays_as_it_is_is_flat() -> None:
    assert len(trends(samples())) == 5
    assert uneven(samples()) == []


@pytest.mark.parametrize(
    ("field", "factor", "what"),
    [
        ("engine_bytes", 1.5, "memory of the engine [MB]"),
        ("files", 2, "open files of the engine"),
        ("table_bytes", 5, "tables of what is open [MB]"),
        ("kept_bytes", 2, "kept per instance [kB]"),
        ("start_p50_s", 4, "start, median [ms]"),
    ],
)
def test_what_grows_is_not(field: str, factor: float, what: str) -> None:
    assert uneven(samples(**{field: factor})) == [what]


def test_a_machine_that_got_slower_excuses_latency() -> None:
    assert uneven(samples(start_p50_s=4, spin_s=4)) == []


def test_a_few_samples_show_nothing() -> None:
    assert trends(samples()[:2]) == []
