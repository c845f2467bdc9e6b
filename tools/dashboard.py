"""`deploy/grafana/penstock.json`, the dashboard of the engines' metrics; `make docs` writes it with the other pages.

A dashboard is 1,000 lines of JSON of which 100 say something: those are here. A test looks that every metric and label
exists which the queries name.
"""

from __future__ import annotations

import json
from typing import NamedTuple

WIDTH, HEIGHT = 8, 7
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}


class Panel(NamedTuple):
    """One graph. Each query has its legend."""

    title: str
    unit: str
    queries: dict[str, str]
    about: str = ""


def rate(metric: str, by: str = "") -> str:
    return f"sum{f' by ({by})' if by else ''} (rate({metric}[$__rate_interval]))"


def quantile(share: float, metric: str, by: str = "") -> str:
    labels = f"le, {by}" if by else "le"
    return f"histogram_quantile({share}, sum by ({labels}) (rate({metric}_bucket[$__rate_interval])))"


ROWS: dict[str, list[Panel]] = {
    "Work": [
        Panel(
            "Instances",
            "ops",
            {
                "started": rate("workflow_instances_started_total"),
                "{{outcome}}": rate("workflow_instances_completed_total", "outcome"),
            },
        ),
        Panel("Steps", "ops", {"{{step_type}}": rate("workflow_steps_executed_total", "step_type")}),
        Panel(
            "Failed instances",
            "short",
            {"{{definition}}": 'sum by (definition) (increase(penstock_instances_ended_total{outcome="FAILED"}[5m]))'},
            "In five minutes, by definition.",
        ),
        Panel("Jobs ready", "short", {"{{job_type}}": "max by (job_type) (penstock_queue_jobs)"}),
        Panel(
            "Queues with limits",
            "short",
            {
                "{{queue}}, running": "max by (queue) (penstock_flow_running)",
                "{{queue}}, waiting": "max by (queue) (penstock_flow_waiting)",
            },
        ),
        Panel(
            "Queues: kept back",
            "short",
            {
                "{{queue}}, keys without room": "max by (queue) (penstock_flow_blocked_keys)",
                "{{queue}}, by a rate per second": rate("penstock_flow_throttled_total", "queue"),
            },
            "What the limits of queues keep from beginning.",
        ),
        Panel(
            "Oldest ready job",
            "s",
            {"{{job_type}}": "max by (job_type) (penstock_queue_oldest_job_age_seconds)"},
            "It grows when no worker of that type polls, or too few.",
        ),
        Panel(
            "From a job's creation to its lease",
            "s",
            {
                "p50": quantile(0.5, "engine_job_pickup_latency_seconds"),
                "p99": quantile(0.99, "engine_job_pickup_latency_seconds"),
            },
        ),
        Panel(
            "Attempts that went wrong",
            "ops",
            {
                "retried": rate("job_retries_total"),
                "lease ended": rate("engine_job_timeout_total"),
                "lease lost": rate("penstock_job_lease_lost_total"),
            },
        ),
        Panel(
            "Durable runs",
            "short",
            {
                "blocked": "sum (increase(penstock_runs_blocked_total[5m]))",
                "taken over": "sum (increase(penstock_run_takeovers_total[5m]))",
            },
            "In five minutes.",
        ),
        Panel(
            "Set aside",
            "short",
            {
                "rows, {{service}}": "sum by (service) (penstock_quarantined_rows)",
                "calls, {{queue}}": "sum by (queue) (penstock_aside_items)",
            },
            "Rows that a service could not handle, and calls that wait for rows which other transactions hold.",
        ),
    ],
    "Calls": [
        Panel("REST", "reqps", {"{{status}}": rate("http_requests_duration_seconds_count", "status")}),
        Panel("REST, p99 by path", "s", {"{{path}}": quantile(0.99, "http_requests_duration_seconds", "path")}),
        Panel("gRPC", "reqps", {"{{code}}": rate("grpc_requests_duration_seconds_count", "code")}),
        Panel("gRPC, p99 by method", "s", {"{{method}}": quantile(0.99, "grpc_requests_duration_seconds", "method")}),
        Panel("Connections", "short", {"{{listener}}": "sum by (listener) (penstock_open_connections)"}),
        Panel("Parked polls", "short", {"polls": "sum (penstock_parked_polls)"}),
    ],
    "Engine and database": [
        Panel(
            "Event loop: how late",
            "s",
            {"p99, {{instance}}": quantile(0.99, "penstock_event_loop_lag_seconds", "instance")},
            "Above 0.1 s the process has more to do than one core.",
        ),
        Panel(
            "Transactions, p99",
            "s",
            {"{{tx_type}}": quantile(0.99, "engine_db_transaction_duration_seconds", "tx_type")},
        ),
        Panel(
            "Items of a transaction",
            "short",
            {
                "{{commit_queue}}": f"{rate('penstock_batch_items_sum', 'commit_queue')} / "
                f"{rate('penstock_batch_items_count', 'commit_queue')}"
            },
            "On average: batches grow with the load.",
        ),
        Panel("Batch under way", "s", {"{{queue}}": "max by (queue) (penstock_batch_age_seconds)"}),
        Panel("Connections of the pool", "short", {"{{state}}": "sum by (state) (penstock_pool_connections)"}),
        Panel("Waiting for a connection", "short", {"tasks": "sum (penstock_pool_waiting_tasks)"}),
        Panel("Transactions repeated", "ops", {"{{cause}}": rate("penstock_db_transactions_repeated_total", "cause")}),
        Panel("Errors of services", "ops", {"{{task}}": rate("penstock_service_errors_total", "task")}),
        Panel(
            "Memory and CPU",
            "short",
            {
                "GB, {{instance}}": "process_resident_memory_bytes / 1e9",
                "cores, {{instance}}": "rate(process_cpu_seconds_total[$__rate_interval])",
            },
        ),
    ],
    "Kafka": [
        Panel("Waiting to be published", "short", {"rows": "max (workflow_engine_dispatch_outbox_backlog)"}),
        Panel("Published", "ops", {"{{result}}": rate("workflow_engine_dispatch_relay_publish_total", "result")}),
        Panel(
            "From the row to the broker's ack",
            "s",
            {"p99": quantile(0.99, "penstock_dispatch_latency_seconds")},
        ),
    ],
}


def dashboard() -> str:
    """The file's text."""
    panels: list[dict[str, object]] = []
    y = 0
    for title, row in ROWS.items():
        panels.append(
            {
                "type": "row",
                "id": len(panels) + 1,
                "title": title,
                "collapsed": False,
                "gridPos": {"x": 0, "y": y, "w": 24, "h": 1},
                "panels": [],
            }
        )
        y += 1
        for place, panel in enumerate(row):
            at = {"x": place % 3 * WIDTH, "y": y + place // 3 * HEIGHT, "w": WIDTH, "h": HEIGHT}
            panels.append(graph(panel, len(panels) + 1, at))
        y += (len(row) + 2) // 3 * HEIGHT
    made = {
        "uid": "penstock",
        "title": "Penstock",
        "tags": ["penstock"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "templating": {
            "list": [{"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"}]
        },
        "panels": panels,
    }
    return json.dumps(made, indent=1) + "\n"


def graph(panel: Panel, id: int, at: dict[str, int]) -> dict[str, object]:
    return {
        "type": "timeseries",
        "id": id,
        "title": panel.title,
        "description": panel.about,
        "datasource": DATASOURCE,
        "gridPos": at,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {"refId": chr(ord("A") + place), "datasource": DATASOURCE, "expr": query, "legendFormat": legend}
            for place, (legend, query) in enumerate(panel.queries.items())
        ],
    }
