"""CPU of one small POST in the HTTP server and a bare ASGI application, for each server.

    python benchmarks/http_server.py [--connections 32] [--seconds 5] [--servers native,hypercorn]

The server runs in a process of its own and reports its CPU time; the load comes from another, a plain epoll loop which
sends the next request when an answer is there. Compare the CPU figures; requests per second also show the generator.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import multiprocessing.connection
import resource
import select
import socket
import time

import msgspec
import trio

from benchmarks.calibration import print_line
from penstock.http import AsgiServer, HttpServer, listen
from penstock.http.asgi import Receive, Scope, Send
from penstock.http.hypercorn_seam import HypercornServer

BODY = b'{"workerId":"w1","variables":{"amount":12.5,"status":"charged","ref":"abc-123"}}'
REQUEST = (
    b"POST /v1/jobs/abc-1-2/complete HTTP/1.1\r\nHost: 127.0.0.1\r\nUser-Agent: bench\r\nAccept: application/json\r\n"
    b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(BODY), BODY)
)


class Completion(msgspec.Struct):
    workerId: str  # noqa: N815 - the wire's name
    variables: dict[str, object]


DECODER = msgspec.json.Decoder(Completion)
SERVERS: dict[str, type[HttpServer | HypercornServer]] = {"native": HttpServer, "hypercorn": HypercornServer}


async def complete(scope: Scope, receive: Receive, send: Send) -> None:
    message = await receive()
    answer = msgspec.json.encode({"variables": len(DECODER.decode(message["body"]).variables)})
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(answer))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": answer})


def cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def serve(kind: str, pipe: multiprocessing.connection.Connection) -> None:
    async def main() -> None:
        server: AsgiServer = SERVERS[kind]()
        sockets = listen("127.0.0.1", 0)
        port = sockets[0].getsockname()[1]
        async with trio.open_nursery() as nursery:
            await nursery.start(server.serve, complete, sockets)
            pipe.send(port)
            before = cpu_seconds()
            await trio.to_thread.run_sync(pipe.recv)
            pipe.send((cpu_seconds() - before, server.statistics().requests_total))
            server.drain()

    trio.run(main)


def generate(port: int, connections: int, seconds: float) -> float:
    """Load for some seconds. Gives its own CPU time."""
    began = cpu_seconds()
    poller = select.epoll()
    sockets: dict[int, socket.socket] = {}
    answers: dict[int, bytes] = {}
    for _ in range(connections):
        sock = socket.create_connection(("127.0.0.1", port))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sockets[sock.fileno()] = sock
        poller.register(sock, select.EPOLLIN)
        sock.sendall(REQUEST)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for fd, _ in poller.poll(1):
            answer = answers.pop(fd, b"") + sockets[fd].recv(65_536)
            if not answer.endswith(b"}"):
                answers[fd] = answer  # hypercorn writes head and body apart
                continue
            if not answer.startswith(b"HTTP/1.1 200"):
                raise SystemExit(f"the server answered {answer!r}")
            sockets[fd].sendall(REQUEST)
    for sock in sockets.values():
        sock.close()
    return cpu_seconds() - began


def measure(kind: str, connections: int, seconds: float) -> dict[str, object]:
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(kind, theirs))
    process.start()
    generator_cpu = generate(ours.recv(), connections, seconds)
    ours.send("stop")
    server_cpu, requests = ours.recv()
    process.join()
    return {
        "server": kind,
        "connections": connections,
        "requests_per_second": round(requests / seconds),
        "server_cpu_us_per_request": round(server_cpu / requests * 1e6, 1),
        "generator_cpu_us_per_request": round(generator_cpu / requests * 1e6, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--servers", default="native,hypercorn")
    arguments = parser.parse_args()
    print_line()
    for kind in arguments.servers.split(","):
        print(json.dumps(measure(kind, arguments.connections, arguments.seconds)), flush=True)


if __name__ == "__main__":
    main()
