"""The work of `linear` over gRPC: `workflow.v1` with one call per job, and the Work stream of `penstock.v1`."""

from __future__ import annotations

from functools import partial

from benchmarks.bench import BATCH_JOBS, BATCH_WORKERS, CLIENT_JOBS, SINGLE_WORKERS, Bench
from benchmarks.load.grpc_scripts import GrpcWorkPlan
from benchmarks.result import Bound, Run
from benchmarks.scenarios.linear import WAL_ROW, measure_work
from benchmarks.scenarios.scenario import Scenario
from benchmarks.workflows import START_VARIABLES_BYTES, linear, variables_of

SINGLE_ROW = "one call per completed job, gRPC (workflow.v1), 32 workers"
STREAM_ROW = "the Work stream (gRPC), 128 jobs in flight"
LENGTH = 3


def run(bench: Bench, *, stream: bool, polled: int = 1) -> Run:
    address = bench.need_grpc()
    workflow = linear(bench.new_tag(), LENGTH)
    plan = GrpcWorkPlan(
        address=address,
        workers=BATCH_WORKERS if stream else SINGLE_WORKERS,
        job_types=workflow.job_types,
        outputs=workflow.outputs,
        in_flight=BATCH_JOBS if stream else 0,
        max_jobs=polled,
    )
    jobs = bench.size(120_000 if stream else 30_000, 3_000)
    return measure_work(bench, workflow, variables_of(START_VARIABLES_BYTES), plan, jobs // LENGTH)


WAL = Bound(figure="wal_bytes_per_item", row=WAL_ROW, at_most=850)

SCENARIOS = [
    Scenario(
        "grpc-single",
        "3 service tasks, gRPC workflow.v1, one call per completed job",
        partial(run, stream=False),
        (
            Bound(figure="jobs_per_s", row=SINGLE_ROW, at_least=1_200),
            Bound(figure="engine_cpu_s_per_1000", row=SINGLE_ROW, at_most=0.75),
            WAL,
        ),
        {"workers": SINGLE_WORKERS, "jobs per poll": 1},
    ),
    Scenario(
        "grpc-clients",
        "The same as clients' libraries come: polls of ten",
        partial(run, stream=False, polled=CLIENT_JOBS),
        (WAL,),
        {"workers": SINGLE_WORKERS, "jobs per poll": CLIENT_JOBS},
    ),
    Scenario(
        "stream",
        "3 service tasks, gRPC penstock.v1, Work streams",
        partial(run, stream=True),
        (
            Bound(figure="jobs_per_s", row=STREAM_ROW, at_least=8_000),
            Bound(figure="engine_cpu_s_per_1000", row=STREAM_ROW, at_most=0.10),
            Bound(figure="postgres_cpu_s_per_1000", row=STREAM_ROW, at_most=0.06),
            WAL,
        ),
        {"streams": BATCH_WORKERS, "jobs in flight": BATCH_WORKERS * BATCH_JOBS},
    ),
]
