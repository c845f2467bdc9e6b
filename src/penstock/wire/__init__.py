"""What crosses a wire, for the engine and the client alike: the messages, and how they become bytes.

``model`` has one class per noun (a job, a completion, an instance), for REST, gRPC, the Work stream, the engine and
the SDK; ``workflow_v1``, ``penstock_v1``, ``grpc_health`` and ``grpc_reflection`` are the calls around them. All are
made from ``proto/`` by ``tools/generate_wire.py``. ``codec`` turns them into protobuf and back by their annotations, on
the ground of ``fields``, ``protobuf`` (numbers, lengths, what to skip) and ``struct_codec`` (a
``google.protobuf.Struct`` as JSON text). ``http2`` is the protocol under gRPC, for both sides.

A leaf: knows no engine and no client, does no I/O.
"""

from __future__ import annotations
