"""Work that keeps a processor busy: handlers in processes of their own, so that the worker's event loop stays free.

    python examples/cpu_worker.py [http://127.0.0.1:8080]

Its job type is `primes.count`, with variables like {"upTo": 1000000}. A handler for a process stands at the top level
of a module, because the process imports it; a job that is cancelled or past its time limit ends its process.
"""

from __future__ import annotations

import sys

import msgspec

from penstock.client import Job
from penstock.worker import NonRetryable, Worker

ENGINE = sys.argv[1] if __name__ == "__main__" and len(sys.argv) > 1 else "http://127.0.0.1:8080"
LIMIT = 100_000_000

worker = Worker(ENGINE)


class Range(msgspec.Struct, rename="camel"):
    up_to: int


@worker.handler("primes.count", in_process=True, timeout_s=60)
def count_primes(numbers: Range, job: Job) -> dict[str, object]:
    """The sieve of Eratosthenes, on one processor."""
    if numbers.up_to > LIMIT:
        raise NonRetryable(f"{numbers.up_to} is more than this example counts")
    sieve = bytearray([1]) * (numbers.up_to + 1)
    sieve[:2] = b"\x00" * len(sieve[:2])
    for number in range(2, int(numbers.up_to**0.5) + 1):
        if sieve[number]:
            multiples = range(number * number, numbers.up_to + 1, number)
            sieve[number * number :: number] = bytes(len(multiples))
    return {"primes": sum(sieve), "countedBy": job.id}


if __name__ == "__main__":
    worker.main()
