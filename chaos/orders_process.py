"""An executor of the example order, whose world is slow: `python -m chaos.orders_process DSN WORLD`."""

from __future__ import annotations

import random
import sys
import time

from examples import durable_order
from examples.durable_order import order
from penstock.durable import App

DELAY_MAX_S = 0.05


class SlowWorld(durable_order.World):
    """Takes its time before and after it acts, so that kills come in between."""

    def do(self, key: str, what: str, order: str, detail: str = "") -> str:
        time.sleep(random.uniform(0, DELAY_MAX_S))
        done = super().do(key, what, order, detail)
        time.sleep(random.uniform(0, DELAY_MAX_S))
        return done


if __name__ == "__main__":
    durable_order.world = SlowWorld(sys.argv[2])
    App(order, at=sys.argv[1], migrate=True).main()
