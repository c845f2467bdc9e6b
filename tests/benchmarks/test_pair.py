"""Two checkouts in turn: the estimate, the file that is gone on with, and a real pair of this checkout with itself."""

from __future__ import annotations

import io
import random
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks import pair
from benchmarks.bench import Options
from benchmarks.pair import Block, PairFailed, Pairs, Side, estimate, open_pairs, print_pairs
from benchmarks.progress import Display
from benchmarks.result import UnreadableResult
from benchmarks.scenarios import SCENARIOS
from benchmarks.units import in_units, measure_units

TOP = Path(__file__).parents[2]
OLD, NEW = Side(path="/old", commit="aaa"), Side(path="/new", commit="bbb")
SINGLE = SCENARIOS["single-3"]


def pairs_of(ratios: list[float]) -> Pairs:
    def window(engine: float) -> dict[str, float]:
        return {"engine_cpu_s_per_1000": engine, "postgres_cpu_s_per_1000": 0.1, "wal_bytes_per_item": 770.0}

    blocks = [
        Block(
            at="",
            order="ABBA",
            old=[window(0.3), window(0.3)],
            new=[window(0.4 * ratio - 0.1), window(0.4 * ratio - 0.1)],
            units={"loop_cpu_ms": 5.0, "echo_cpu_us": 20.0},
        )
        for ratio in ratios
    ]
    return Pairs(scenario="single-3", items=3_000, old=OLD, new=NEW, blocks=blocks)


def test_the_interval_holds_the_truth_despite_a_few_odd_windows() -> None:
    chance = random.Random(7)
    held = 0
    for _ in range(200):
        values = [1.05 * chance.lognormvariate(0, 0.1) for _ in range(20)]
        values[3] = 4.0  # the machine did something else
        found = estimate(values)
        assert found is not None
        assert found.low < found.ratio < found.high
        held += found.low <= 1.05 <= found.high
    assert held >= 180
    assert estimate([1.0] * 7) is None
    assert estimate([1.02] * 8) == pytest.approx((1.02, 1.02, 1.02))


@pytest.mark.parametrize(
    ("ratios", "reported", "text"),
    [
        ([1.1, 1.101, 1.099] * 4, True, "engine and PostgreSQL: 1.100 ± 0.1%"),
        ([1.1, 1.1], False, "not told yet (fewer than 8 blocks"),
        ([0.7, 1.5, 1.0, 1.3] * 5, False, "the machine is too noisy to tell"),
    ],
)
def test_what_is_reported(ratios: list[float], reported: bool, text: str) -> None:
    out = io.StringIO()
    assert print_pairs(Console(file=out, width=160), pairs_of(ratios), within=0.03, blocks_max=20) is reported
    assert text in out.getvalue()
    assert "0.400 s/1000" in out.getvalue()
    assert "in echoes a job: 20.0, 2" in out.getvalue()  # 0.4 ms in echoes of 20 µs
    assert "CPU of the fixed loop: 5.00 ms (5.0 to 5.0)" in out.getvalue()


def test_time_is_judged_where_cpu_is_unseen() -> None:
    pairs = pairs_of([1.0] * 8)
    for block in pairs.blocks:
        for window in (*block.old, *block.new):
            window["jobs_per_s"] = 500.0 if window in block.old else 1_800.0
        for window in block.old:
            del window["engine_cpu_s_per_1000"]
    out = io.StringIO()
    assert print_pairs(Console(file=out, width=160), pairs, within=0.03, blocks_max=20)
    assert "jobs a second: 3.600 ± 0.0%" in out.getvalue()
    assert "engine and PostgreSQL" not in out.getvalue()


def test_a_file_about_something_else_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "pairs.json"
    assert open_pairs(file, SINGLE, 3_000, OLD, NEW).blocks == []
    pair._write(pairs_of([1.0]), file)
    assert len(open_pairs(file, SINGLE, 3_000, OLD, NEW).blocks) == 1
    other = Side(path="/new", commit="ccc")
    with pytest.raises(PairFailed, match="aaa against bbb, not about single-3 with 3000 items, aaa against ccc"):
        open_pairs(file, SINGLE, 3_000, OLD, other)
    file.write_text("{}")
    with pytest.raises(UnreadableResult):
        open_pairs(file, SINGLE, 3_000, OLD, NEW)
    with pytest.raises(PairFailed, match="no checkout"):
        pair.side(tmp_path)


def test_a_checkout_with_changes_is_another_one(tmp_path: Path) -> None:
    file = tmp_path / "src" / "penstock" / "engine.py"
    file.parent.mkdir(parents=True)
    file.write_text("a = 1")
    who = ["-c", "user.name=t", "-c", "user.email=t@example.invalid"]
    for words in (["init", "-q"], ["add", "."], [*who, "commit", "-qm", "first"]):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True)
    clean = pair.side(tmp_path).commit
    file.write_text("a = 2")
    changed = pair.side(tmp_path).commit
    file.with_name("new.py").write_text("b = 1")  # git does not know it, Python imports it
    added = pair.side(tmp_path).commit
    file.with_name("new.py").write_text("b = 2")
    assert clean in changed
    assert len({clean, changed, added, pair.side(tmp_path).commit}) == 4


def test_a_compiled_side_is_made_once(tmp_path: Path) -> None:
    """By the checkout's own script; here one that makes an empty package."""
    checkout, kept = tmp_path / "checkout", tmp_path / "kept"
    for folder in ("src/penstock", "tools"):
        (checkout / folder).mkdir(parents=True)
    script = checkout / "tools" / "compiled.py"
    script.write_text("import os, sys\nos.makedirs(sys.argv[1] + '/penstock')")
    made = pair.side(checkout, compiled_in=kept)
    script.write_text("raise SystemExit('once more')")
    assert made == pair.side(checkout, compiled_in=kept)
    assert made.commit == "no commit-compiled"
    assert f"{sys.implementation.cache_tag}" in made.path, "of this Python"
    assert (Path(made.path) / "src" / "penstock").is_dir()
    with pytest.raises(PairFailed, match="not compiled"):
        pair.side(checkout, compiled_in=tmp_path / "other")


def test_cpu_is_reported_in_units_of_fixed_work() -> None:
    units = measure_units()
    assert units.keys() == {"loop_cpu_ms", "echo_cpu_us"}
    assert all(value > 0 for value in units.values())
    reported = in_units({"engine_cpu_s_per_1000": 0.2, "jobs_per_s": 1.0}, {"echo_cpu_us": 20.0, "loop_cpu_ms": 5.0})
    assert reported == {"engine_cpu_echoes": pytest.approx(10.0)}


@pytest.mark.slow(reason="a benchmark in a process")
def test_a_pair_is_gone_on_with_from_its_file(tmp_path: Path) -> None:
    scenario, file = SCENARIOS["batch-3"], tmp_path / "pairs.json"
    side = pair.side(TOP)
    for blocks in (1, 2):
        pairs = open_pairs(file, scenario, 600, side, side)
        assert len(pairs.blocks) == blocks - 1
        with Display(Console(file=io.StringIO())) as display:
            opened = partial(pair.both, pairs, Options(items=600))
            pair.measure(pairs, file, scenario, opened, display, within=0.03, seconds=60, blocks_max=blocks)
    found = open_pairs(file, scenario, 600, side, side)
    assert [block.order for block in found.blocks] == ["ABBA", "BAAB"]
    assert all(block.units["commits_per_s_32"] > block.units["commits_per_s_1"] > 0 for block in found.blocks)
    blocks = {title: len(pair.ratios(found, names)) for title, names in pair.SHOWN.items()}
    assert [blocks.pop(title) for title in list(blocks) if title.startswith("start")] == [0, 0, 0]  # these are jobs
    shortest = blocks.pop("PostgreSQL")  # of so few items its CPU may be none: then a block has no ratio
    assert set(blocks.values()) == {2}
    assert shortest in (1, 2)
    assert all(len(block.old) == len(block.new) == 2 for block in found.blocks)
