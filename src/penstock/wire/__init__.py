"""What crosses a wire, for the engine and the client alike: the messages, and how they become bytes.

``workflow_v1``, ``penstock_v1``, ``grpc_health`` and ``grpc_reflection`` are the messages of ``proto/``, one class
each, by ``tools/generate_wire.py``. ``codec`` turns them into protobuf and back by their annotations, on the ground of
``protobuf`` (numbers, lengths, what to skip) and ``struct_codec`` (``google.protobuf.Struct`` as JSON text).

A leaf: knows no engine and no client, does no I/O.
"""

from __future__ import annotations
