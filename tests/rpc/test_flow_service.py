"""``penstock.v1.Flow`` on a real engine and database."""

from __future__ import annotations

from grpclib.const import Status

from penstock.wire import penstock_v1 as w
from penstock.wire import workflow_v1 as m
from penstock.wire.model import StartRequest
from tests.engine.conftest import make_driver
from tests.engine.driver import Driver
from tests.rpc.served import Served
from tests.rpc.test_service import driver, grpc, refused, task, upload

__all__ = ["driver", "grpc", "make_driver"]  # pytest finds the fixtures here


async def test_queues_are_put_read_listed_and_deleted(driver: Driver, grpc: Served) -> None:
    flow = "/penstock.v1.Flow/"
    settings = w.QueueSettings(
        job_types=["work"],
        concurrency=3,
        rate=w.QueueRate(10),
        rate_per_key=w.QueueRate(60, "PT1M", 1),
        weights=[w.QueueWeight("gold", 4)],
    )
    put = await grpc.call(flow + "PutQueue", w.PutQueueRequest("q", settings), w.PutQueueResponse)
    assert put.settings is not None
    assert (put.settings.concurrency, put.settings.rate) == (3, w.QueueRate(10, "PT1S", 10))
    shown: list[bool] = []
    for settings.paused in (True, None, False):
        again = await grpc.call(flow + "PutQueue", w.PutQueueRequest("q", settings), w.PutQueueResponse)
        shown.append(again.settings is not None and bool(again.settings.paused))
    assert shown == [True, True, False]
    await grpc.call("UploadDefinition", upload(task("a", "end")), m.UploadDefinitionResponse)
    item = StartRequest("d", variables=b"{}", flow_key="gold", priority=0)
    for _ in range(2):
        request = w.StartInstancesRequest([item])
        await grpc.call("/penstock.v1.Worker/StartInstances", request, w.StartInstancesResponse)
    assert driver.rows("SELECT priority, flow_key FROM instance") == [(0, "gold")] * 2
    assert len(await grpc.poll("work", n=5)) == 1
    found = await grpc.call(flow + "GetQueue", w.GetQueueRequest("q"), w.GetQueueResponse)
    assert (found.running, found.waiting, found.keys) == (1, 1, [w.QueueKeyState("gold", None, 1)])
    listed = await grpc.call(flow + "ListQueues", w.ListQueuesRequest(), w.ListQueuesResponse)
    assert [(queue.name, queue.settings) for queue in listed.queues] == [("q", put.settings)]
    await grpc.call(flow + "DeleteQueue", w.DeleteQueueRequest("q"), w.DeleteQueueResponse)
    gone = grpc.call(flow + "GetQueue", w.GetQueueRequest("q"), w.GetQueueResponse)
    assert (await refused(gone))[0] is Status.NOT_FOUND
    unknown = grpc.call(
        flow + "PutQueue", w.PutQueueRequest("q", w.QueueSettings(["a"], concurrency=-1)), w.PutQueueResponse
    )
    assert (await refused(unknown))[0] is Status.INVALID_ARGUMENT
