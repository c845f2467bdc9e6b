"""A worker whose handlers pay in transactions of their own, which complete their jobs: `paying_worker URL DSN NAME`."""

from __future__ import annotations

import sys

import psycopg

from penstock.worker import JobContext, Worker

url, dsn, name = sys.argv[1:4]
worker = Worker(url, worker_id=name, concurrency=4, lease_s=2, wait_s=1)


@worker.handler("pay")
def pay(job: JobContext) -> None:
    with psycopg.connect(dsn) as connection:
        connection.execute("INSERT INTO payment (key) VALUES (%s)", (job.idempotency_key,))
        connection.execute(*job.completion({job.step_id: job.attempt}, schema="public"))


worker.main()
