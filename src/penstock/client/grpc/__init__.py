"""The client over gRPC: the same operations as over REST, on one HTTP/2 connection (anyio streams).

``connection`` and ``call`` move the bytes of `wire.http2`, ``channel`` connects and connects again, ``exchange``
and ``definitions`` say what each operation looks like on this wire, ``status`` what an error means, ``transport`` puts
them together. The messages and their codec are those of `penstock.wire`.
"""

from __future__ import annotations

from penstock.client.grpc.transport import GrpcTransport

__all__ = ["GrpcTransport"]
