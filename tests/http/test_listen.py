"""Listening sockets, bound or inherited."""

from __future__ import annotations

import os
import socket
import sys

import pytest

from penstock.http import ListenError, inherit, listen, reserved_ports
from tests.http.apps import echo
from tests.http.conftest import Serve
from tests.http.raw import get


def test_a_taken_port_is_named() -> None:
    (taken,) = listen("127.0.0.1", 0)
    port = taken.getsockname()[1]
    with taken, pytest.raises(ListenError, match=f"REST can't listen on 127.0.0.1:{port}: port {port} is taken"):
        listen("127.0.0.1", port, purpose="REST")


def test_a_port_is_free_again_after_its_server(serve_native: Serve) -> None:
    for _ in range(2):
        (first,) = listen("127.0.0.1", 0)
        port = first.getsockname()[1]
        peer = socket.create_connection(("127.0.0.1", port))
        accepted, _ = first.accept()
        accepted.close()  # by us first: this side goes to TIME_WAIT
        peer.close()
        first.close()
        (again,) = listen("127.0.0.1", port)
        again.close()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a port is only free now")
def test_a_reserved_port_is_ours_and_can_be_listened_on() -> None:
    with reserved_ports(1) as (port,), socket.socket() as other:
        with pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port))  # without SO_REUSEADDR, as whoever is given a port by the system
        for _ in range(2):  # an engine may end and come again
            (listening,) = listen("127.0.0.1", port)
            socket.create_connection(("127.0.0.1", port)).close()
            listening.close()


def test_an_unknown_host_is_named() -> None:
    with pytest.raises(ListenError, match=r"no-such-host\.invalid:80"):
        listen("no-such-host.invalid", 80)


def test_an_address_of_another_machine_is_named() -> None:
    with pytest.raises(ListenError, match=r"192\.0\.2\.1:8080"):
        listen("192.0.2.1", 8080)


def test_localhost_is_one_port_on_every_address_it_has() -> None:
    sockets = listen("localhost", 0)
    ports = {sock.getsockname()[1] for sock in sockets}
    for sock in sockets:
        sock.close()
    assert len(ports) == 1


def test_a_descriptor_that_does_not_listen_is_refused() -> None:
    with socket.socket() as idle, pytest.raises(ListenError, match="is not a listening socket"):
        inherit(idle.fileno())
    reader, writer = os.pipe()
    with pytest.raises(ListenError, match="is not a listening socket"):
        inherit(reader)
    os.close(reader)
    os.close(writer)


async def test_an_inherited_socket_is_served(serve_either: Serve) -> None:
    (bound,) = listen("127.0.0.1", 0)
    async with serve_either(echo, sockets=[inherit(bound.detach())]) as http, http.client() as client:
        assert (await client.ask(get("/x"))).status == 200


async def test_two_servers_share_a_socket_and_one_may_leave(serve_either: Serve) -> None:
    (bound,) = listen("127.0.0.1", 0)
    shared = bound.dup()
    async with serve_either(echo, sockets=[bound]) as staying:
        async with serve_either(echo, sockets=[shared]):
            pass
        for _ in range(5):
            async with staying.client() as client:
                assert (await client.ask(get("/x"))).status == 200
