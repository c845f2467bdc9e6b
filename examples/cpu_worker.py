"""Work that keeps a processor busy: handlers in processes of their own, so that the worker's event loop stays free.

    python examples/cpu_worker.py --try     uploads prime-count.json, counts the primes up to four numbers at once
    python examples/cpu_worker.py           only works, until Ctrl-C

Both need an engine, e.g. `penstock serve`; PENSTOCK_URL says where, by default http://127.0.0.1:8080. The job type is
`primes.count`, with variables like {"upTo": 1000000}. A handler for a process stands at the top level of a module,
because the process imports it; a job that is cancelled or past its time limit ends its process.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import anyio
import msgspec

from penstock.client import Client, Job, StartRequest
from penstock.worker import NonRetryable, Worker

ENGINE = os.environ.get("PENSTOCK_URL", "http://127.0.0.1:8080")
WORKFLOW = Path(__file__).with_name("prime-count.json")
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


async def try_it() -> None:
    requests = [StartRequest(definition_id="prime-count", variables={"upTo": 10**power}) for power in (3, 4, 5, 6)]
    async with Client(ENGINE) as client, worker:
        await client.upload_definition(WORKFLOW)
        for result in await client.start_instances(requests):
            ended = await client.wait_until_ended(result.unwrap().id, timeout_s=60)
            print("up to", ended.variables["upTo"], "there are", ended.variables["primes"], "primes")


if __name__ == "__main__":
    anyio.run(try_it) if "--try" in sys.argv else worker.main()
