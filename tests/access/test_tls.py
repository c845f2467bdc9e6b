"""TLS on all listeners of an engine process: certificates, those of clients, and files that change."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import trustme

from penstock.client import Client, Unauthenticated
from penstock.net.tls import CertificateError, Tls
from penstock.testing.definitions import linear
from penstock.worker import Worker
from tests import postgres
from tests.access.people import TOKENS, lines
from tests.runtime.engine_process import EngineProcess
from tests.runtime.waiting import wait_until

StartEngine = Callable[..., EngineProcess]
CLIENTS = "dns:packer.example=worker(work), dns:ops.example=operator, cn:old=viewer"


class Files(NamedTuple):
    cert: Path
    key: Path
    ca: Path

    def settings(self) -> dict[str, str]:
        return {"tls_cert_path": str(self.cert), "tls_key_path": str(self.key)}


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def write(authority: trustme.CA, directory: Path) -> Files:
    found = Files(directory / "cert.pem", directory / "key.pem", directory / "ca.pem")
    issued = authority.issue_cert("localhost", "127.0.0.1")
    issued.private_key_pem.write_to_path(str(found.key))
    issued.cert_chain_pems[0].write_to_path(str(found.cert))
    authority.cert_pem.write_to_path(str(found.ca))
    return found


@pytest.fixture
def files(authority: trustme.CA, tmp_path: Path) -> Files:
    return write(authority, tmp_path)


@pytest.fixture(scope="module")
def start_engine(postgres_server: postgres.PostgresServer) -> Generator[StartEngine]:
    running: list[EngineProcess] = []
    with postgres_server.database(postgres.apply_schema) as dsn:

        def start(*arguments: str, **settings: Any) -> EngineProcess:
            running.append(EngineProcess(dsn, *arguments, **settings))
            return running[-1]

        yield start
        for engine in running:
            engine.__exit__()


def trust(authority: trustme.CA, *names: str, common_name: str | None = None, by: trustme.CA | None = None) -> Any:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    if names or common_name:
        (by or authority).issue_cert(*names, common_name=common_name).configure_cert(context)
    return context


def ask(port: int, context: ssl.SSLContext, path: str, token: str = "") -> tuple[int, Any]:
    connection = http.client.HTTPSConnection("127.0.0.1", port, context=context, timeout=60)
    try:
        connection.request("GET", path, headers={"authorization": f"Bearer {token}"} if token else {})
        answer = connection.getresponse()
        text = answer.read()
        found = json.loads(text) if "json" in answer.headers.get("content-type", "") else text
        return answer.status, found
    finally:
        connection.close()


def serial(port: int, context: ssl.SSLContext) -> str:
    with (
        socket.create_connection(("127.0.0.1", port)) as sock,
        context.wrap_socket(sock, server_hostname="localhost") as secured,
    ):
        found = secured.getpeercert()
        assert found is not None
        return str(found["serialNumber"])


@pytest.mark.slow(reason="starts engine processes")
@pytest.mark.parametrize("server", ["native", "hypercorn"])
@pytest.mark.parametrize("processes", ["1", "2"])
async def test_all_listeners_speak_tls(
    authority: trustme.CA, files: Files, start_engine: StartEngine, server: str, processes: str
) -> None:
    engine = start_engine("--processes", processes, http_server=server, **files.settings()).wait_ready()
    context = trust(authority)
    assert ask(engine.port, context, "/healthz")[0] == 200
    assert ask(engine.metrics_port, context, "/metrics")[0] == 200
    for port in (engine.port, engine.metrics_port):
        with pytest.raises(ssl.SSLCertVerificationError):
            ask(port, ssl.create_default_context(), "/")
        with pytest.raises((http.client.HTTPException, OSError)):
            plain = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            plain.request("GET", "/healthz")
            plain.getresponse()
    for url in (f"https://localhost:{engine.port}", f"grpcs://localhost:{engine.grpc_port}"):
        async with Client(url, ssl_context=trust(authority)) as client:
            await client.upload_definition(linear(1))
            large = "x" * 200_000
            started = await client.start_instance("linear", {"large": large})
            assert (await client.get_instance(started.id)).variables == {"large": large}


@pytest.mark.slow(reason="starts engine processes")
async def test_a_certificate_takes_the_place_of_a_workers_token(
    authority: trustme.CA, files: Files, start_engine: StartEngine
) -> None:
    engine = start_engine(
        **files.settings(), authentication=True, api_tokens=",".join(lines()), tls_client_ca_path=files.ca,
        tls_client_roles=CLIENTS,
    ).wait_ready()  # fmt: skip
    packer = trust(authority, "packer.example")
    for url in (f"https://localhost:{engine.port}", f"grpcs://localhost:{engine.grpc_port}"):
        async with Client(url, token=TOKENS["admin"].text, ssl_context=trust(authority)) as client:
            await client.upload_definition(linear(1))
            worker = Worker(url, ssl_context=packer)

            @worker.handler("work")
            async def handle(variables: dict[str, Any]) -> dict[str, Any]:
                return {}

            async with worker:
                started = await client.start_instance("linear")
                assert (await client.wait_until_ended(started.id, timeout_s=120)).status == "COMPLETED"
        async with Client(url, ssl_context=trust(authority)) as nobody:
            with pytest.raises(Unauthenticated):
                await nobody.list_definitions()


@pytest.mark.slow(reason="starts engine processes")
@pytest.mark.parametrize("server", ["native", "hypercorn"])
def test_what_a_clients_certificate_may_do(
    authority: trustme.CA, files: Files, start_engine: StartEngine, server: str
) -> None:
    engine = start_engine(
        **files.settings(), authentication=True, tls_client_ca_path=files.ca, tls_client_roles=CLIENTS,
        http_server=server, api_tokens=",".join(lines()),
    ).wait_ready()  # fmt: skip

    def me(context: ssl.SSLContext, token: str = "") -> tuple[int, Any]:
        return ask(engine.port, context, "/v1/me", token)

    assert me(trust(authority, "ops.example")) == (
        200, {"can": ["view", "operate", "tasks"], "name": "cert:dns:ops.example"},
    )  # fmt: skip
    old = trust(authority, "other.example", common_name="old")  # it has other names, so its common one does not count
    assert me(old)[0] == 401
    assert me(trust(authority, "x.example"))[0] == me(trust(authority))[0] == 401
    assert me(trust(authority, "ops.example"), "wrong")[0] == 401
    assert me(trust(authority, "ops.example"), TOKENS["viewer"].text)[1]["name"] == "token:viewer"
    assert ask(engine.metrics_port, trust(authority, "ops.example"), "/metrics")[0] == 200
    assert ask(engine.metrics_port, trust(authority), "/metrics")[0] == 401
    with pytest.raises((OSError, http.client.HTTPException)):
        me(trust(authority, "ops.example", by=trustme.CA()))


def test_certificates_can_be_required(authority: trustme.CA, files: Files, start_engine: StartEngine) -> None:
    engine = start_engine(**files.settings(), tls_client_ca_path=files.ca, tls_client_required=True).wait_ready()
    for port in (engine.port, engine.metrics_port):
        assert (
            ask(port, trust(authority, "anybody.example"), "/healthz" if port == engine.port else "/metrics")[0] == 200
        )
        with pytest.raises((OSError, http.client.HTTPException)):
            ask(port, trust(authority), "/healthz")


@pytest.mark.slow(reason="starts engine processes")
def test_changed_files_are_read_again_and_bad_ones_change_nothing(
    authority: trustme.CA, files: Files, start_engine: StartEngine
) -> None:
    engine = start_engine(**files.settings()).wait_ready()
    context = trust(authority)
    ports = (engine.port, engine.metrics_port)
    before = serial(engine.port, context)
    files.cert.write_text("no certificate")
    engine.wait_said("the certificate could not be reloaded")
    assert [serial(port, context) for port in ports] == [before, before]
    write(authority, files.cert.parent)
    wait_until(lambda: all(serial(port, context) != before for port in ports), timeout_s=120)


def test_tls_takes_what_changed_only(authority: trustme.CA, files: Files) -> None:
    tls = Tls(str(files.cert), str(files.key), protocols=["h2"], client_ca=str(files.ca))
    first = tls.context
    assert first.verify_mode is ssl.CERT_OPTIONAL
    assert not tls.refresh()
    files.key.unlink()
    assert not tls.refresh()
    assert tls.context is first
    write(authority, files.cert.parent)
    assert tls.refresh()
    assert tls.context is not first
    assert not tls.refresh()
    with pytest.raises(CertificateError, match="authority of clients /nowhere"):
        Tls(str(files.cert), str(files.key), protocols=[], client_ca="/nowhere")


@pytest.mark.slow(reason="starts engine processes")
def test_files_that_can_t_be_used_end_the_start(files: Files, start_engine: StartEngine) -> None:
    engine = start_engine(tls_cert_path=files.key, tls_key_path=files.cert)
    assert engine.process.wait(120) == 1
    assert engine.said("the engine could not start")
