"""Every figure that a scenario may give: how it is called, in which unit, and which way is better."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

Better = Literal["lower", "higher", ""]


class Figure(NamedTuple):
    label: str
    unit: str
    better: Better
    digits: int


FIGURES: Final[dict[str, Figure]] = {
    "steps_per_s_1": Figure("steps, one run", "/s", "higher", 0),
    "steps_per_s_64": Figure("steps, 64 runs", "/s", "higher", 0),
    "steps_per_s_256": Figure("steps, 256 runs", "/s", "higher", 0),
    "commits_per_step": Figure("commits a step", "each", "lower", 3),
    "wal_bytes_per_step": Figure("WAL a step", "B each", "lower", 0),
    "app_cpu_us_per_step": Figure("App CPU a step", "µs", "lower", 0),
    "app_cpu_us_per_run": Figure("App CPU a run", "µs", "lower", 0),
    "step_p50_ms": Figure("step p50", "ms", "lower", 2),
    "step_p99_ms": Figure("step p99", "ms", "lower", 2),
    "step_over_commits_ms": Figure("step p50 beyond 1.3 commits", "ms", "lower", 2),
    "runs_per_s": Figure("runs", "/s", "higher", 0),
    "wide_s": Figure("10,000 branches", "s", "lower", 2),
    "wide_commits": Figure("commits for 10,000 branches", "", "lower", 0),
    "replayed_per_s": Figure("records replayed", "/s of CPU", "higher", 0),
    "run_memory_bytes": Figure("a run in memory", "B", "lower", 0),
    "takeover_p50_ms": Figure("kill -9 → first new step p50", "ms", "lower", 0),
    "takeover_p99_ms": Figure("kill -9 → first new step p99", "ms", "lower", 0),
    "runs_taken_over": Figure("runs taken over", "", "", 0),
    "cancel_p50_ms": Figure("cancel → Cancelled p50", "ms", "lower", 1),
    "cancel_p99_ms": Figure("cancel → Cancelled p99", "ms", "lower", 1),
    "cancel_other_p50_ms": Figure("the same from another engine p50", "ms", "lower", 1),
    "cancel_other_p99_ms": Figure("the same from another engine p99", "ms", "lower", 1),
    "jobs_per_s": Figure("jobs", "/s", "higher", 0),
    "instances_per_s": Figure("instances", "/s", "higher", 0),
    "engine_cpu_s_per_1000": Figure("engine CPU", "s/1000", "lower", 3),
    "postgres_cpu_s_per_1000": Figure("PostgreSQL CPU", "s/1000", "lower", 3),
    "generator_cpu_s_per_1000": Figure("generator CPU", "s/1000", "lower", 3),
    "engine_cpu_echoes": Figure("engine CPU in echoes", "each", "lower", 2),
    "postgres_cpu_echoes": Figure("PostgreSQL CPU in echoes", "each", "lower", 2),
    "wal_bytes_per_item": Figure("WAL", "B each", "lower", 0),
    "write_commits_per_item": Figure("commits", "each", "lower", 3),
    "wal_flushes_per_item": Figure("WAL flushes", "each", "lower", 3),
    "mean_batch": Figure("mean batch", "items", "higher", 1),
    "buffers_per_item": Figure("buffers", "each", "lower", 1),
    "calls_per_item": Figure("calls", "each", "lower", 2),
    "complete_p50_ms": Figure("complete p50", "ms", "lower", 2),
    "complete_p99_ms": Figure("complete p99", "ms", "lower", 2),
    "start_p50_ms": Figure("start p50", "ms", "lower", 2),
    "start_p99_ms": Figure("start p99", "ms", "lower", 2),
    "round_p50_ms": Figure("start → completed p50", "ms", "lower", 2),
    "round_p99_ms": Figure("start → completed p99", "ms", "lower", 2),
    "all_started_s": Figure("all due schedules started", "s", "lower", 2),
    "doubled": Figure("started twice", "", "lower", 0),
    "schedules": Figure("schedules due", "", "", 0),
    "call_p50_ms": Figure("call of an empty child p50", "ms", "lower", 2),
    "children_1000_s": Figure("1,000 children", "s", "lower", 2),
    "commit_p50_ms": Figure("one durable commit p50", "ms", "", 2),
    "four_commits_p50_ms": Figure("4 durable commits p50", "ms", "", 2),
    "four_commits_p99_ms": Figure("4 durable commits p99", "ms", "", 2),
    "warm_round_p50_ms": Figure("without a pause between them p50", "ms", "lower", 2),
    "warm_round_p99_ms": Figure("without a pause between them p99", "ms", "lower", 2),
    "four_statements_p50_ms": Figure("its 4 statements without an engine p50", "ms", "", 2),
    "four_statements_p99_ms": Figure("its 4 statements without an engine p99", "ms", "", 2),
    "round_p50_over_four_commits_ms": Figure("start → completed p50 beyond 4 commits", "ms", "lower", 2),
    "round_p99_over_four_commits_ms": Figure("start → completed p99 beyond 4 commits", "ms", "lower", 2),
    "pickup_p50_ms": Figure("pick-up p50", "ms", "lower", 2),
    "pickup_p99_ms": Figure("pick-up p99", "ms", "lower", 2),
    "lateness_p50_ms": Figure("timer lateness p50", "ms", "lower", 1),
    "lateness_p99_ms": Figure("timer lateness p99", "ms", "lower", 1),
    "statements_per_s": Figure("statements", "/s", "lower", 1),
    "transactions_per_s": Figure("transactions", "/s", "lower", 1),
    "engine_core_percent": Figure("engine", "% of a core", "lower", 2),
    "postgres_core_percent": Figure("PostgreSQL", "% of a core", "lower", 2),
    "engine_memory_mib": Figure("engine memory", "MiB", "lower", 0),
    "ready_cold_s": Figure("ready, embedded and cold", "s", "lower", 2),
    "ready_warm_s": Figure("ready, embedded and warm", "s", "lower", 2),
    "ready_with_database_s": Figure("ready, with a database", "s", "lower", 2),
    "first_engine_cpu_s_per_1000": Figure("engine CPU, first steps", "s/1000", "lower", 3),
    "last_engine_cpu_s_per_1000": Figure("engine CPU, last steps", "s/1000", "lower", 3),
    "first_postgres_cpu_s_per_1000": Figure("PostgreSQL CPU, first steps", "s/1000", "lower", 3),
    "last_postgres_cpu_s_per_1000": Figure("PostgreSQL CPU, last steps", "s/1000", "lower", 3),
    "first_wal_bytes_per_item": Figure("WAL, first steps", "B each", "lower", 0),
    "last_wal_bytes_per_item": Figure("WAL, last steps", "B each", "lower", 0),
    "last_to_first": Figure("last steps against the first", "×", "lower", 2),
    "small_buffers_per_item": Figure("buffers among few rows", "each", "lower", 1),
    "small_postgres_cpu_s_per_1000": Figure("PostgreSQL CPU among few rows", "s/1000", "lower", 3),
    "buffers_per_item_to_small": Figure("buffers against few rows", "×", "lower", 2),
    "postgres_cpu_s_per_1000_to_small": Figure("PostgreSQL CPU against few rows", "×", "lower", 2),
    "one_engine_jobs_per_s": Figure("jobs, one engine", "/s", "higher", 0),
    "two_engines_jobs_per_s": Figure("jobs, two engines", "/s", "higher", 0),
    "two_to_one": Figure("two against one", "×", "higher", 2),
    "record_p50_ms": Figure("commit → record in the worker p50", "ms", "lower", 2),
    "record_p99_ms": Figure("commit → record in the worker p99", "ms", "lower", 2),
    "start_to_record_p50_ms": Figure("start sent → record in the worker p50", "ms", "lower", 2),
    "relay_records_per_s": Figure("relay records", "/s", "higher", 0),
    "one_engine_cpu_s_per_1000": Figure("engine CPU, one", "s/1000", "lower", 3),
    "two_engine_cpu_s_per_1000": Figure("engine CPU, two", "s/1000", "lower", 3),
    "one_postgres_cpu_s_per_1000": Figure("PostgreSQL CPU, one", "s/1000", "lower", 3),
    "two_postgres_cpu_s_per_1000": Figure("PostgreSQL CPU, two", "s/1000", "lower", 3),
    "one_wal_bytes_per_item": Figure("WAL, one", "B each", "lower", 0),
    "two_wal_bytes_per_item": Figure("WAL, two", "B each", "lower", 0),
    "one_mean_batch": Figure("mean batch, one", "items", "higher", 1),
    "two_mean_batch": Figure("mean batch, two", "items", "higher", 1),
    "timers_fired": Figure("timers fired", "", "", 0),
    "before_p50_ms": Figure("complete p50 before", "ms", "lower", 2),
    "held_p50_ms": Figure("complete p50 while held", "ms", "lower", 2),
    "after_p50_ms": Figure("complete p50 at the end", "ms", "lower", 2),
    "before_commit_ms": Figure("bare commit before", "ms", "", 2),
    "held_commit_ms": Figure("bare commit while held", "ms", "", 2),
    "after_commit_ms": Figure("bare commit at the end", "ms", "", 2),
    "after_to_before": Figure("end against before, in bare commits", "×", "lower", 2),
    "dead_rows_held": Figure("dead rows at the most", "rows", "lower", 0),
    "dead_rows_after": Figure("dead rows at the end", "rows", "lower", 0),
    "start_rate_kept": Figure("share of the wanted starts", "", "higher", 3),
    "loop_cpu_ms": Figure("CPU of the fixed loop", "ms", "", 2),
    "echo_cpu_us": Figure("CPU of one echo (JSON over a socket)", "µs", "", 1),
    "commits_per_s_1": Figure("bare commits, 1 connection", "/s", "", 0),
    "commits_per_s_8": Figure("bare commits, 8 connections", "/s", "", 0),
    "commits_per_s_32": Figure("bare commits, 32 connections", "/s", "", 0),
    "jobs_to_free": Figure("jobs/s against no queue", "×", "higher", 2),
    "wal_to_free": Figure("WAL against no queue, with starts, without page images", "×", "lower", 2),
    "free_jobs_per_s": Figure("jobs, no queue", "/s", "higher", 0),
    "rate_share": Figure("begun, of what the rate lets begin", "", "higher", 3),
    "over_burst": Figure("begun beyond rate and burst", "jobs", "lower", 3),
    "begun_while_idle": Figure("begun while nothing may", "", "lower", 0),
    "flow_claim_ms": Figure("mean claim", "ms", "lower", 2),
    "freed_key_p50_ms": Figure("job of a freed key found p50", "ms", "lower", 2),
    "freed_key_p99_ms": Figure("job of a freed key found p99", "ms", "lower", 2),
    "new_key_p50_ms": Figure("job of a new key found p50", "ms", "lower", 2),
    "new_key_p99_ms": Figure("job of a new key found p99", "ms", "lower", 2),
    "unheard_key_p50_ms": Figure("job of a key that nobody told of p50", "ms", "lower", 0),
    "unheard_key_p99_ms": Figure("job of a key that nobody told of p99", "ms", "lower", 0),
    "unheard_max_s": Figure("the same, longest", "s", "lower", 2),
    "errors": Figure("errors", "", "lower", 0),
}


def describe(name: str) -> Figure:
    """What is known about a figure; one that is not listed (of a newer version, say) shows under its own name."""
    return FIGURES.get(name, Figure(name.replace("_", " "), "", "", 3))


def show(name: str, value: float) -> str:
    """The value with its unit."""
    figure = describe(name)
    separator = "" if figure.unit.startswith(("/", "×")) else " "
    return f"{value:,.{figure.digits}f}{separator}{figure.unit}".rstrip()
