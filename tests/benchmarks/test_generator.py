"""The load generator against servers that answer as the engine does, or as it never should."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress

import pytest

from benchmarks.load.counts import Count, Samples, percentile
from benchmarks.load.generator import GeneratorFailed, generators
from benchmarks.load.http1 import CHUNKED, UnexpectedAnswer, encode_request, read_chunks, read_head
from benchmarks.load.loop import Loop
from benchmarks.load.scripts import Context, Quota, StartPlan, WorkPlan, part

BOUND_S = 20.0

Answer = Callable[[bytes], bytes]


def answer_of(status: int, body: bytes = b"") -> bytes:
    if status == 204:
        return b"HTTP/1.1 204 No Content\r\ndate: x\r\n\r\n"
    return b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (
        status,
        len(body),
        body,
    )


@contextmanager
def server(answer: Answer) -> Generator[tuple[str, int]]:
    """Answers every request with ``answer(request)``, sent byte by byte in two pieces."""

    def serve(connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with connection, suppress(ConnectionError):  # clients hang up when they have seen enough
            data = b""
            while chunk := connection.recv(65_536):
                data += chunk
                head, found, body = data.partition(b"\r\n\r\n")
                length = int(head.rpartition(b"Content-Length: ")[2].split(b"\r")[0]) if found else 0
                if not found or len(body) < length:
                    continue
                data = b""
                whole = answer(head + b"\r\n\r\n" + body)
                if not whole:
                    return
                connection.sendall(whole[:20])
                connection.sendall(whole[20:])

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, daemon=True).start()
        yield listener.getsockname()[:2]
        listener.shutdown(socket.SHUT_RDWR)


class Engine:
    """Has so many jobs; remembers what it was asked."""

    def __init__(self, jobs: int, completion: bytes = answer_of(204)) -> None:
        self.left = jobs
        self.completion = completion
        self.requests: list[bytes] = []
        self._lock = threading.Lock()

    def __call__(self, request: bytes) -> bytes:
        with self._lock:
            self.requests.append(request)
            path = request.split(b" ")[1]
            if path == b"/v1/jobs/poll":
                wanted = int(request.partition(b'"maxJobs":')[2].split(b",")[0])
                taken = min(wanted, self.left)
                self.left -= taken
                jobs = b",".join(b'{"id":"a-%d","jobType":"t","attempt":1,"x":[]}' % n for n in range(taken))
                return answer_of(200, b'{"jobs":[%b]}' % jobs)
            if path == b"/v1/jobs/complete":
                outcomes = [b'{"jobId":"a","outcome":"ok"}'] * request.count(b'"jobId"')
                return answer_of(200, b'{"results":[%b]}' % b",".join(outcomes))
            if path == b"/v1/instances/batch":
                started = [b'{"instance":{}}'] * request.count(b'"definitionId"')
                return answer_of(200, b'{"results":[%b]}' % b",".join(started))
            if path == b"/v1/instances":
                return answer_of(201, b"{}")
            return self.completion


def run_until(
    address: tuple[str, int], plan, done: Callable[[list[int]], bool]
) -> tuple[list[int], Samples, list[str]]:
    """One process of the generator in this one, on a loop that ends when the counts say so."""
    loop = Loop(*address)
    counts, samples, until = [0] * len(Count), Samples(), time.monotonic() + BOUND_S
    context = Context(loop, "engine", counts, samples)
    try:
        plan.open(context)
        loop.run(lambda: done(counts) or time.monotonic() > until)
    finally:
        loop.close()
    assert done(counts), counts
    return counts, samples, context.problems


WORK = WorkPlan(workers=3, job_types=("t",), outputs={"t": b'{"r":1}'})


def test_workers_complete_every_job_with_a_call_of_its_own():
    engine = Engine(jobs=50)
    with server(engine) as address:
        counts, samples, problems = run_until(address, WORK, lambda counts: counts[Count.COMPLETED] == 50)
    assert (counts[Count.JOBS], counts[Count.ENDED], counts[Count.ERRORS], problems) == (50, 50, 0, [])
    assert len(samples.between("complete", 0, time.monotonic())) == 50
    completions = [request for request in engine.requests if request.startswith(b"POST /v1/jobs/a-0/complete ")]
    assert len(completions) == 50
    bodies = {request.partition(b"\r\n\r\n")[2] for request in completions}
    assert bodies <= {b'{"workerId":"bench-%d","variables":{"r":1}}' % worker for worker in range(3)}


def test_batch_workers_complete_a_polls_jobs_with_one_call():
    engine = Engine(jobs=40)
    plan = WorkPlan(workers=1, job_types=("t",), outputs={"t": b'{"r":1}'}, max_jobs=10, batch=True)
    with server(engine) as address:
        _, _, problems = run_until(address, plan, lambda counts: counts[Count.COMPLETED] == 40)
    assert problems == []
    completions = [request for request in engine.requests if request.startswith(b"POST /v1/jobs/complete ")]
    assert [request.count(b'"attempt":1') for request in completions] == [10, 10, 10, 10]


def test_a_refused_completion_is_an_error_and_no_completed_job():
    engine = Engine(jobs=1, completion=answer_of(409, b'{"error":"lease-lost"}'))
    with server(engine) as address:
        counts, _, problems = run_until(address, WORK, lambda counts: counts[Count.ERRORS] == 1)
    assert (counts[Count.COMPLETED], counts[Count.ENDED]) == (0, 0)
    assert problems == ['completion of 1: 409 {"error":"lease-lost"}']


def test_a_counting_worker_sets_its_variable_to_the_jobs_count():
    engine = Engine(jobs=3)
    plan = WorkPlan(workers=1, job_types=("t",), outputs={"t": b"{}"}, counter="n")
    with server(engine) as address:
        run_until(address, plan, lambda counts: counts[Count.COMPLETED] == 3)
    reported = [request.rpartition(b'"n":')[2] for request in engine.requests if b'"n":' in request]
    assert reported == [b"1}}", b"2}}", b"3}}"]


@pytest.mark.parametrize(("batch", "requests"), [(0, 25), (10, 3)])
def test_starters_start_exactly_as_many_instances_as_asked(batch, requests):
    engine = Engine(jobs=0)
    plan = StartPlan(connections=1, instances=25, body=b'{"definitionId":"d"}', batch=batch)
    with server(engine) as address:
        counts, _, problems = run_until(address, plan, lambda counts: counts[Count.STARTED] == 25)
    assert (len(engine.requests), counts[Count.ERRORS], problems) == (requests, 0, [])


def test_a_paced_starter_keeps_its_rate():
    plan = StartPlan(connections=2, instances=20, body=b'{"definitionId":"d"}', rate=100)
    began = time.monotonic()
    with server(Engine(jobs=0)) as address:
        run_until(address, plan, lambda counts: counts[Count.STARTED] == 20)
    assert time.monotonic() - began >= 0.17  # 20 at 100 per second, two at once at the start


def test_no_more_instances_are_open_than_may_be_in_flight():
    asked: list[Starting] = []

    class Starting:
        def go(self) -> None:
            asked.append(self)

    quota, starter = Quota(10, in_flight=3), Starting()
    assert [quota.take(1, starter) for _ in range(4)] == [1, 1, 1, 0]  # pyright: ignore[reportArgumentType] - a stand-in with what is used
    quota.ended()
    assert asked == [starter]
    assert [quota.take(1, starter) for _ in range(2)] == [1, 0]  # pyright: ignore[reportArgumentType] - a stand-in with what is used


def test_the_last_instances_are_given_out_when_none_follow():
    class Starting:
        def go(self) -> None:
            pass

    quota = Quota(5)
    assert [quota.take(3, Starting()) for _ in range(3)] == [3, 2, 0]  # pyright: ignore[reportArgumentType] - a stand-in with what is used


@pytest.mark.parametrize("of", [1, 2, 3, 7])
def test_shares_of_a_plan_add_up(of):
    shares = [StartPlan(connections=4, instances=100, body=b"").share(index, of) for index in range(of)]
    assert sum(share.instances for share in shares) == 100  # pyright: ignore[reportAttributeAccessIssue] - a stand-in with what is used
    assert sum(share.connections for share in shares) == 4  # pyright: ignore[reportAttributeAccessIssue] - a stand-in with what is used
    assert sum(part(32, index, of) for index in range(of)) == 32


def test_an_engine_that_hangs_up_ends_the_loop():
    with server(lambda request: b"") as address, pytest.raises(ConnectionResetError):
        run_until(address, WORK, lambda counts: False)


def test_large_answers_are_put_together():
    blob = b"x" * 1_000_000
    with server(lambda request: answer_of(201, blob)) as address:
        plan = StartPlan(connections=2, instances=6, body=b'{"v":"' + b"y" * 2_000_000 + b'"}')
        counts, _, problems = run_until(address, plan, lambda counts: counts[Count.STARTED] == 6)
    assert (counts[Count.ERRORS], problems) == (0, [])


# -- processes


def test_processes_count_together_and_give_their_samples_back():
    with server(Engine(jobs=60)) as address, generators(*address, [WORK], processes=2) as load:
        load.begin()
        until = time.monotonic() + BOUND_S
        while load.counts()[Count.COMPLETED] < 60 and time.monotonic() < until:
            load.check()
        assert load.counts()[Count.COMPLETED] == 60
        assert len(set(load.pids)) == 2
        assert len(load.stop().between("complete", 0, time.monotonic())) == 60


def test_a_generator_that_breaks_off_is_told_why():
    with server(lambda request: b"") as address, generators(*address, [WORK]) as load:
        load.begin()
        with pytest.raises(GeneratorFailed, match="closed a connection"):
            while True:
                load.check()


def test_a_generator_that_is_killed_is_reported():
    with server(Engine(jobs=0)) as address, generators(*address, [WORK]) as load:
        os.kill(load.pids[0], signal.SIGKILL)
        until = time.monotonic() + BOUND_S
        with pytest.raises(GeneratorFailed, match="its process has ended"):
            while time.monotonic() < until:
                load.check()


def test_nobody_listening_is_reported():
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # and kept, so that nobody else listens there
        address = silent.getsockname()[:2]
        with pytest.raises(GeneratorFailed, match="Connection"), generators(*address, [WORK]):  # pyright: ignore[reportCallIssue] - a stand-in with what is used
            pass


# -- HTTP


def test_a_request_carries_its_length():
    assert encode_request("POST", "/x", "h:1", b"abc") == (
        b"POST /x HTTP/1.1\r\nHost: h:1\r\nUser-Agent: Go-http-client/1.1\r\nContent-Length: 3\r\n"
        b"Content-Type: application/json\r\nAccept-Encoding: gzip\r\n\r\nabc"
    )


@pytest.mark.parametrize(
    ("data", "head"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Le", None),
        (b"HTTP/1.1 204 No Content\r\n\r\n", (204, 27, 0)),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX: y\r\n\r\nhello", (200, 44, 5)),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n", (200, 47, CHUNKED)),
        (b"HTTP/1.1 200 OK\r\nx: y\r\ncontent-length: 5\r\n\r\nhe", (200, 44, 5)),
    ],
)
def test_heads_are_read(data, head):
    assert read_head(data) == head


def test_an_answer_of_unknown_length_is_refused():
    with pytest.raises(UnexpectedAnswer, match="Content-Length"):
        read_head(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n")


# -- samples


def test_samples_outside_the_window_do_not_count():
    samples = Samples()
    for moment, duration in ((1.0, 0.3), (2.0, 0.2), (3.0, 0.1), (9.0, 5.0)):
        samples.of("x")[0].append(moment)
        samples.of("x")[1].append(duration)
    assert samples.between("x", 1.5, 3.0) == [0.1, 0.2]
    assert samples.by_second("x", 1.0) == {0: [0.3], 1: [0.2], 2: [0.1], 8: [5.0]}


@pytest.mark.parametrize(("share", "value"), [(0.5, 6), (0.99, 10), (1.0, 10), (0.0, 1)])
def test_percentiles(share, value):
    assert percentile(list(range(1, 11)), share) == value


def test_there_is_no_percentile_of_nothing():
    assert percentile([], 0.5) is None


def test_chunks_are_read_when_the_last_one_is_there():
    data = b"head\r\n\r\n5\r\nhello\r\nA;x=1\r\n, \r\nchunks\r\n0\r\n\r\n"
    assert read_chunks(data, 8) == (b"hello, \r\nchunks", len(data))
    assert [read_chunks(data[:end], 8) for end in range(8, len(data))] == [None] * (len(data) - 8)
