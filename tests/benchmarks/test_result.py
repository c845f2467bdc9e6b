"""The result file, what is derived from it, and the comparison of two."""

from __future__ import annotations

import io
import xml.etree.ElementTree as ET

import msgspec
import pytest
from rich.console import Console

from benchmarks import report, result
from benchmarks.compare import compare, print_comparison
from benchmarks.figures import FIGURES, show
from benchmarks.plot import nice_ceiling, write_plot
from benchmarks.result import Bound, Calibration, CommitRate, Machine, Result, Run, ScenarioResult, Series
from benchmarks.scenarios import SCENARIOS


def scenario_result(name="single-3", **figures: float) -> ScenarioResult:
    run = Run(figures=figures, seconds=1.0, series=[Series(name="jobs", unit="/s", points=[(0.0, 1.0), (1.0, 3.0)])])
    return ScenarioResult(
        name=name,
        title="three steps",
        parameters={"workers": 32},
        runs=[run],
        figures=figures,
        bounds=[Bound(figure="jobs_per_s", row="a row", at_least=3_000)],
    )


def a_result(*scenarios: ScenarioResult, commits_per_s: float | None = 10_000) -> Result:
    calibration = None
    if commits_per_s is not None:
        rate = CommitRate(connections=32, commits_per_s=commits_per_s, client_cpu_s_per_1000=0.01)
        calibration = Calibration(commit_p50_ms=0.5, commit_p99_ms=2.0, rates=[rate])
    return Result(
        began_at="2026-01-01T00:00:00Z",
        seconds=60,
        version="1",
        commit="abc",
        command="python -m benchmarks",
        machine=Machine(cpus=2, cpu_model="X", memory_bytes=2**34, kernel="Linux", python="3.11", disk="ext4"),
        engine_settings={},
        postgres_settings={"fsync": "on"},
        calibration=calibration,
        scenarios=list(scenarios),
    )


def verdicts(old: Result, new: Result) -> dict[str, str]:
    return {each.figure: each.verdict for each in compare(old, new)}


def test_a_result_survives_its_file(tmp_path):
    written = a_result(scenario_result(jobs_per_s=3_812.5, wal_bytes_per_item=644.0))
    result.write(written, tmp_path / "deep" / "r.json")
    assert result.read(tmp_path / "deep" / "r.json") == written


def test_the_json_of_a_result_follows_its_schema(tmp_path):
    result.write(a_result(scenario_result(jobs_per_s=1.0)), tmp_path / "r.json")
    document = msgspec.json.decode((tmp_path / "r.json").read_bytes())
    schema = msgspec.json.schema(Result)["$defs"]
    assert document.keys() >= set(schema["Result"]["required"])
    assert document["schema"] == result.SCHEMA
    assert document["scenarios"][0].keys() >= set(schema["ScenarioResult"]["required"])


def test_a_file_of_another_version_is_refused(tmp_path):
    result.write(msgspec.structs.replace(a_result(), schema=99), tmp_path / "r.json")
    with pytest.raises(result.UnreadableResult, match="version 99"):
        result.read(tmp_path / "r.json")


def test_a_file_that_is_no_result_is_refused(tmp_path):
    (tmp_path / "r.json").write_text('{"schema": 1}')
    with pytest.raises(result.UnreadableResult, match=r"r\.json"):
        result.read(tmp_path / "r.json")


def test_medians_are_values_that_were_measured():
    runs = [Run(figures={"jobs_per_s": value}, seconds=1) for value in (5.0, 1.0, 3.0, 9.0)]
    assert result.medians(runs) == {"jobs_per_s": 3.0}


def test_a_figure_missing_in_one_run_keeps_the_others_median():
    runs = [Run(figures={"jobs_per_s": 1.0}, seconds=1), Run(figures={"jobs_per_s": 3.0, "mean_batch": 7.0}, seconds=1)]
    assert result.medians(runs) == {"jobs_per_s": 1.0, "mean_batch": 7.0}


@pytest.mark.parametrize(
    ("bound", "value", "met"),
    [
        (Bound(figure="x", row="", at_most=2), 2.0, True),
        (Bound(figure="x", row="", at_most=2), 2.1, False),
        (Bound(figure="x", row="", at_least=2), 1.9, False),
        (Bound(figure="x", row="", at_least=2, at_most=3), 2.5, True),
        (Bound(figure="x", row="", at_least=2, at_most=3), 3.5, False),
    ],
)
def test_a_bound_is_met_within_its_limits(bound, value, met):
    assert bound.met_by(value) is met


def test_every_bound_of_a_scenario_is_on_a_known_figure():
    assert {bound.figure for scenario in SCENARIOS.values() for bound in scenario.bounds} <= FIGURES.keys()


# -- comparison


def test_less_cpu_is_better_and_more_is_worse():
    old = a_result(scenario_result(engine_cpu_s_per_1000=0.20, postgres_cpu_s_per_1000=0.05))
    new = a_result(scenario_result(engine_cpu_s_per_1000=0.15, postgres_cpu_s_per_1000=0.07))
    assert verdicts(old, new) == {"engine_cpu_s_per_1000": "better", "postgres_cpu_s_per_1000": "worse"}


def test_a_difference_within_the_noise_is_none():
    old, new = a_result(scenario_result(mean_batch=10.0)), a_result(scenario_result(mean_batch=10.9))
    assert verdicts(old, new) == {"mean_batch": ""}


def test_rates_are_compared_beside_the_calibration():
    old = a_result(scenario_result(jobs_per_s=4_000.0), commits_per_s=20_000)
    new = a_result(scenario_result(jobs_per_s=2_000.0), commits_per_s=10_000)  # the disk was half as fast
    (difference,) = compare(old, new)
    assert (difference.ratio, difference.calibrated, difference.verdict) == (1.0, True, "")


def test_rates_without_a_calibration_are_compared_as_they_are():
    old = a_result(scenario_result(jobs_per_s=4_000.0), commits_per_s=None)
    new = a_result(scenario_result(jobs_per_s=2_000.0), commits_per_s=10_000)
    (difference,) = compare(old, new)
    assert (difference.ratio, difference.calibrated, difference.verdict) == (0.5, False, "worse")


def test_errors_that_were_not_there_before_are_worse():
    assert verdicts(a_result(scenario_result(errors=0.0)), a_result(scenario_result(errors=2.0))) == {"errors": "worse"}


def test_scenarios_of_only_one_result_are_not_compared():
    old, new = a_result(scenario_result("a", jobs_per_s=1.0)), a_result(scenario_result("b", jobs_per_s=1.0))
    assert compare(old, new) == []


@pytest.mark.parametrize(("after", "fine"), [(0.2, True), (0.3, False)])
def test_the_comparison_tells_whether_something_got_worse(after, fine):
    console = Console(file=io.StringIO(), width=160)
    old = a_result(scenario_result(engine_cpu_s_per_1000=0.2))
    assert print_comparison(console, old, a_result(scenario_result(engine_cpu_s_per_1000=after))) is fine
    assert "engine CPU" in console.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue] - a StringIO


# -- what people read


def test_the_page_holds_the_figures_with_their_targets():
    page = report.markdown(a_result(scenario_result(jobs_per_s=2_000.0, wal_bytes_per_item=644.0)))
    assert "| jobs | 2,000/s |  | ≥ 3,000/s | **no** |" in page
    assert "| WAL | 644 B each |  |  |  |" in page
    assert "fsync=on" in page


def test_the_terminal_shows_problems():
    scenario = scenario_result(jobs_per_s=1.0, errors=1.0)
    scenario.runs[0].problems.append("poll: 503 away")
    console = Console(file=io.StringIO(), width=160)
    report.print_scenario(console, scenario)
    assert "poll: 503 away" in console.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue] - a StringIO


def test_the_plot_is_well_formed_and_shows_every_scenario(tmp_path):
    shown = scenario_result("<a & b>", jobs_per_s=2_000.0, engine_cpu_s_per_1000=0.2, wal_bytes_per_item=600.0)
    write_plot(a_result(shown), tmp_path / "p.svg")
    texts = [element.text for element in ET.parse(tmp_path / "p.svg").iter("{http://www.w3.org/2000/svg}text")]
    assert texts.count("<a & b>") == 3  # CPU, rate, WAL
    assert any("jobs /s" in (text or "") for text in texts)


def test_a_plot_of_nothing_is_still_one(tmp_path):
    write_plot(a_result(), tmp_path / "p.svg")
    assert ET.parse(tmp_path / "p.svg").getroot().tag.endswith("svg")


@pytest.mark.parametrize(
    ("value", "ceiling"), [(0.0, 1), (0.3, 0.5), (1, 1), (1.1, 2), (4_700, 5_000), (5_001, 10_000)]
)
def test_scales_end_at_round_numbers(value, ceiling):
    assert nice_ceiling(value) == pytest.approx(ceiling)


@pytest.mark.parametrize(
    ("figure", "value", "text"),
    [
        ("jobs_per_s", 3812.4, "3,812/s"),
        ("engine_cpu_s_per_1000", 0.1944, "0.194 s/1000"),
        ("last_to_first", 1.0, "1.00×"),
    ],
)
def test_figures_show_their_unit(figure, value, text):
    assert show(figure, value) == text


# -- noise


def runs_of(name: str, values: list[float]) -> ScenarioResult:
    runs = [Run(figures={name: value}, seconds=1) for value in values]
    return msgspec.structs.replace(scenario_result(), runs=runs, figures=result.medians(runs))


@pytest.mark.parametrize(
    ("name", "values", "reported"),
    [
        ("two_to_one", [1.05, 1.06] * 5, "two against one: 1.055 (1.050 to 1.060, 95 %)"),
        ("two_to_one", [0.8, 1.3] * 5, ": not within ± 3%"),
        ("two_to_one", [1.05] * 7, None),
        ("echo_cpu_us", [20.0, 21.0, 40.0], "too noisy to tell: CPU of one echo (JSON over a socket) was 20.0 – 40.0"),
        ("echo_cpu_us", [20.0, 21.0], None),
        ("jobs_per_s", [1_000.0] * 8, None),
    ],
)
def test_the_certainty_of_figures_is_reported(name, values, reported):
    found = report.notes(runs_of(name, values))
    assert (reported in " ".join(found)) if reported else found == []
    if reported:
        assert reported in report.markdown(a_result(runs_of(name, values)))
