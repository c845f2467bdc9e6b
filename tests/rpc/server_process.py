"""The test services in a process of their own: ``python -m tests.rpc.server_process [GRACE_S]``.

Prints its port, and "busy" at its 300th call; drains on SIGTERM and exits 0. Prints its CPU seconds and calls at the
end, for measuring.
"""

from __future__ import annotations

import json
import resource
import signal
import socket
import sys

import trio

from penstock.rpc.health import Health
from penstock.rpc.methods import service_names
from penstock.rpc.problems import status_of
from penstock.rpc.reflection import Reflection
from penstock.rpc.server import GrpcServer
from tests.rpc.services import Engine


async def main() -> None:
    engine = Engine()
    health = Health(service_names(engine.__mapping__()))
    health.set_serving(True)
    services = [engine, health, Reflection(service_names({**engine.__mapping__(), **health.__mapping__()}))]

    def on_call(_method: str, _status: str, _seconds: float) -> None:
        if server.statistics().counts.calls == 300:
            print(json.dumps("busy"), flush=True)

    server = GrpcServer(services, status_of=status_of, on_call=on_call)
    sock = socket.create_server(("127.0.0.1", 0))
    with trio.open_signal_receiver(signal.SIGTERM) as signals:
        async with trio.open_nursery() as nursery:
            await nursery.start(server.serve, [sock])
            used = resource.getrusage(resource.RUSAGE_SELF)
            began_s = used.ru_utime + used.ru_stime
            print(json.dumps({"port": sock.getsockname()[1]}), flush=True)
            async for _ in signals:
                break
            await server.drain(float(sys.argv[1]) if len(sys.argv) > 1 else 10.0)
    used = resource.getrusage(resource.RUSAGE_SELF)
    counts = server.statistics().counts
    print(
        json.dumps({"cpu_s": used.ru_utime + used.ru_stime - began_s, "calls": counts.calls, "broken": counts.broken})
    )


if __name__ == "__main__":
    trio.run(main)
