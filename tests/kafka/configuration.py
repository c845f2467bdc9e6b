"""``server.properties`` of the test broker: small, quick to start, quick to notice what was killed. Pure."""

from __future__ import annotations

from pathlib import Path
from typing import Final

LOG_CONFIGURATION: Final = """\
Configuration:
  status: "ERROR"
  name: "Quiet"
  Appenders:
    Console:
      name: STDOUT
      PatternLayout:
        pattern: "[%d] %p %m (%c)%n"
  Loggers:
    Root:
      level: "WARN"
      AppenderRef:
        - ref: STDOUT
"""

_SECURITY: Final = "org.apache.kafka.common.security"

_SMALL_AND_QUICK: Final = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "PLAINTEXT",
    "auto.create.topics.enable": "false",
    "num.partitions": "1",
    "default.replication.factor": "1",
    "min.insync.replicas": "1",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "500",
    "log.segment.bytes": str(64 * 2**20),
    "log.index.size.max.bytes": str(2**20),
    "log.cleaner.dedupe.buffer.size": str(4 * 2**20),
    "num.network.threads": "2",
    "num.io.threads": "4",
    "num.recovery.threads.per.data.dir": "1",
    "background.threads": "2",
    # A killed broker may register again only when its old session has ended; the default is 9 s.
    "broker.session.timeout.ms": "2000",
    "broker.heartbeat.interval.ms": "300",
}


def broker_properties(
    data: Path, port: int, controller_port: int, sasl_port: int | None, certificate: Path | None
) -> dict[str, str]:
    """All properties of a broker on loopback, with a SASL listener over TLS where it has a port for that."""
    listeners = [f"PLAINTEXT://127.0.0.1:{port}"]
    protocols = ["CONTROLLER:PLAINTEXT", "PLAINTEXT:PLAINTEXT"]
    properties = dict(_SMALL_AND_QUICK)
    if sasl_port is not None:
        if certificate is None:
            raise ValueError("users need a certificate: SCRAM is served over TLS only")
        listeners.append(f"SASL://127.0.0.1:{sasl_port}")
        protocols.append("SASL:SASL_SSL")
        properties |= _sasl(certificate)
    return properties | {
        "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
        "listeners": ",".join([*listeners, f"CONTROLLER://127.0.0.1:{controller_port}"]),
        "advertised.listeners": ",".join(listeners),
        "listener.security.protocol.map": ",".join(protocols),
        "log.dirs": str(data),
    }


def _sasl(certificate: Path) -> dict[str, str]:
    module = f"{_SECURITY}.scram.ScramLoginModule required;"
    return {
        "sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512",
        "listener.name.sasl.scram-sha-256.sasl.jaas.config": module,
        "listener.name.sasl.scram-sha-512.sasl.jaas.config": module,
        "listener.name.sasl.ssl.keystore.type": "PEM",
        "listener.name.sasl.ssl.keystore.location": str(certificate),
    }
