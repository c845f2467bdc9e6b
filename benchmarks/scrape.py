"""Reads the engine's metrics page: batch sizes per group-commit queue, and its CPU where the process can't be seen."""

from __future__ import annotations

import http.client
import re

BATCH_LINE = re.compile(r'^penstock_batch_items_(sum|count)\{commit_queue="([^"]+)"\} (\S+)$', re.MULTILINE)
FLOW_CLAIMS_LINE = re.compile(r"^penstock_flow_claim_seconds_(sum|count) (\S+)$", re.MULTILINE)
CPU_LINE = re.compile(r"^process_cpu_seconds_total (\S+)$", re.MULTILINE)


def read_page(host: str, port: int, timeout_s: float = 10) -> str:
    """The page as text."""
    connection = http.client.HTTPConnection(host, port, timeout=timeout_s)
    try:
        connection.request("GET", "/metrics")
        return connection.getresponse().read().decode()
    finally:
        connection.close()


def batches(page: str) -> dict[str, tuple[float, float]]:
    """Items and batches so far, by group-commit queue."""
    sums: dict[str, float] = {}
    counts: dict[str, float] = {}
    for kind, commit_queue, value in BATCH_LINE.findall(page):
        (sums if kind == "sum" else counts)[commit_queue] = float(value)
    return {commit_queue: (sums[commit_queue], counts[commit_queue]) for commit_queue in sums if commit_queue in counts}


def flow_claims(page: str) -> tuple[float, float]:
    """Seconds and number of the claims of jobs that wait for turns, so far."""
    found = {kind: float(value) for kind, value in FLOW_CLAIMS_LINE.findall(page)}
    return found.get("sum", 0.0), found.get("count", 0.0)


def cpu_s(page: str) -> float | None:
    """CPU seconds of the engine's process."""
    found = CPU_LINE.search(page)
    return None if found is None else float(found[1])
