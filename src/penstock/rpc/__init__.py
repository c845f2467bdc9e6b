"""gRPC: the old service ``workflow.v1.WorkflowEngine`` and the fast one, ``penstock.v1.Worker``.

``server`` accepts connections and drains, ``transport`` is one HTTP/2 connection on Trio, ``call`` is one RPC,
``health`` and ``reflection`` are the standard services, ``problems`` is the one table from errors to status codes.
The messages and their codec are those of ``penstock.wire``. Nothing here decides what an operation does: that is
``penstock.engine``.
"""

from __future__ import annotations
