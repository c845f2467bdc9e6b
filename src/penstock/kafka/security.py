"""How the engine presents itself to brokers: from settings to the options of aiokafka's clients.

Secrets go into the options and nowhere else. Decides nothing about topics or records.
"""

from __future__ import annotations

import ssl
from typing import Any, Final

from penstock.errors import BrokerUnavailable
from penstock.settings import KafkaTransport, Settings

CLIENT_ID: Final = "penstock"


class _NamedContext(ssl.SSLContext):
    """Expects one name in the certificate, whatever address was connected to.

    asyncio passes the address as the name to expect, and aiokafka has no option for another.
    """

    expected_name = ""

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        return super().wrap_bio(incoming, outgoing, server_side, self.expected_name, session)


def client_options(settings: Settings) -> dict[str, Any]:
    """What every aiokafka client takes: where to, and as whom.

    Raises:
        BrokerUnavailable: the CA file can't be read, or has no certificate in it.
    """
    options: dict[str, Any] = {"bootstrap_servers": list(settings.kafka_seed_brokers), "client_id": CLIENT_ID}
    if settings.kafka_transport is KafkaTransport.PLAINTEXT:
        return options
    password = settings.kafka_sasl_password
    return options | {
        "security_protocol": "SASL_SSL",
        "ssl_context": tls_context(settings.kafka_tls_ca_path, settings.kafka_tls_server_name),
        "sasl_mechanism": settings.kafka_sasl_mechanism.value,
        "sasl_plain_username": settings.kafka_sasl_username,
        "sasl_plain_password": password.reveal() if password is not None else None,
    }


def tls_context(ca_path: str | None, server_name: str | None) -> ssl.SSLContext:
    """Verifies the broker against the given CA certificates, else those of the system.

    Raises:
        BrokerUnavailable: the file can't be read, or has no certificate in it.
    """
    context = _NamedContext(ssl.PROTOCOL_TLS_CLIENT) if server_name else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if isinstance(context, _NamedContext):
        context.expected_name = server_name or ""
    if ca_path is None:
        context.load_default_certs()
        return context
    try:
        context.load_verify_locations(ca_path)
    except (OSError, ssl.SSLError) as error:
        raise BrokerUnavailable(f"WE_KAFKA_TLS_CA_PATH: {ca_path}: {error.strerror or error}") from error
    return context
