"""TLS: only with ALPN h2; what is not TLS ends its own connection."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
import trio

from penstock.rpc.limits import RpcLimits
from tests.rpc.conftest import running
from tests.rpc.raw import client_on
from tests.rpc.services import COMPLETE

Certificate = tuple[Path, Path]


def server_context(certificate: Certificate) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*certificate)
    context.set_alpn_protocols(["h2"])
    return context


async def tls_stream(port: int, certificate: Certificate, protocols: list[str]) -> trio.SSLStream[trio.SocketStream]:
    context = ssl.create_default_context(cafile=str(certificate[0]))
    context.set_alpn_protocols(protocols)
    plain = await trio.open_tcp_stream("127.0.0.1", port)
    return trio.SSLStream(plain, context, server_hostname="localhost", https_compatible=True)


async def test_calls_run_over_tls_and_the_drain_ends_them(certificate: Certificate) -> None:
    with trio.fail_after(20):
        async with running(ssl_context=server_context(certificate)) as run:
            stream = await tls_stream(run.port, certificate, ["h2"])
            async with client_on(stream) as client:
                for _ in range(20):
                    assert (await client.call(COMPLETE)).status == 0
                await run.server.drain(5.0)
                await client.closed.wait()


@pytest.mark.parametrize("protocols", [[], ["http/1.1"]])
async def test_without_alpn_h2_the_connection_is_closed(certificate: Certificate, protocols: list[str]) -> None:
    with trio.fail_after(20):
        async with running(ssl_context=server_context(certificate)) as run:
            stream = await tls_stream(run.port, certificate, protocols or ["acme"])
            with pytest.raises((trio.BrokenResourceError, ssl.SSLError)):
                await stream.do_handshake()
                if await stream.receive_some(1) == b"":
                    raise trio.BrokenResourceError
            await trio.aclose_forcefully(stream)
            await run.until(lambda now: now.counts.handshake_failures == 1)
            await run.until_quiet()


async def test_what_is_no_tls_is_closed(certificate: Certificate) -> None:
    with trio.fail_after(20):
        async with running(ssl_context=server_context(certificate)) as run:
            plain = await trio.open_tcp_stream("127.0.0.1", run.port)
            await plain.send_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
            with pytest.raises((trio.BrokenResourceError, trio.EndOfChannel)):
                while await plain.receive_some(100):
                    pass
                raise trio.EndOfChannel
            await plain.aclose()
            async with client_on(await tls_stream(run.port, certificate, ["h2"])) as client:
                assert (await client.call(COMPLETE)).status == 0


async def test_a_handshake_that_never_ends_is_given_up(certificate: Certificate) -> None:
    with trio.fail_after(20):
        async with running(RpcLimits(handshake_s=0.2), ssl_context=server_context(certificate)) as run:
            plain = await trio.open_tcp_stream("127.0.0.1", run.port)
            assert await plain.receive_some(1) == b""
            await plain.aclose()
            await run.until_quiet()


async def test_a_drain_does_not_wait_for_a_handshake(certificate: Certificate) -> None:
    with trio.fail_after(20):
        async with running(ssl_context=server_context(certificate)) as run:
            plain = await trio.open_tcp_stream("127.0.0.1", run.port)
            await run.until(lambda now: now.connections == 1)
            with trio.fail_after(10):
                await run.server.drain(15.0)
            await plain.aclose()
