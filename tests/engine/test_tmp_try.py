from __future__ import annotations
import time, trio, psycopg
from penstock.testing import invariants as I
from tests.engine.driver import Driver
from penstock.testing.definitions import *
async def test_t(driver: Driver) -> None:
    await driver.run(linear(3))
    for _ in range(3):
        t=time.perf_counter(); I.find_broken(driver.dsn); print("total",time.perf_counter()-t)
    with psycopg.connect(driver.dsn) as c:
        t=time.perf_counter(); c.execute(I._VIEWS); print('views',time.perf_counter()-t)
        for k,q in I.INVARIANTS.items():
            t=time.perf_counter(); c.execute(q.encode()).fetchall(); d=time.perf_counter()-t
            if d>0.001: print(round(d*1000,1),k)
    assert 0
