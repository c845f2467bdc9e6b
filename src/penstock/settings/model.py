"""Every setting of the engine: name, unit, bounds, default and meaning, in the order of the documentation.

Relies on msgspec for the checks. Must not read anything: that is `load.py`. A unit stands in the name of whatever has
one (``_seconds``, ``_bytes``, ``_items``). A setting that nothing uses is deleted (a test looks for it).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, cast, get_args, get_type_hints

import msgspec

from penstock.log.masking import mask_text
from penstock.settings.access import AccessSettings
from penstock.settings.described import SettingInfo, bounds_of, checkable, says
from penstock.settings.retention import ArchiveFormat, RetentionSettings
from penstock.settings.secret import Secret, redact_dsn

__all__ = [
    "CHECKED_TYPES",
    "SETTINGS",
    "ArchiveFormat",
    "DispatchMode",
    "HttpServerKind",
    "KafkaTransport",
    "LogFormat",
    "LogLevel",
    "SaslMechanism",
    "SettingInfo",
    "Settings",
]


class LogLevel(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(StrEnum):
    AUTO = "auto"
    HUMAN = "human"
    JSON = "json"


class DispatchMode(StrEnum):
    POLLING = "polling"
    KAFKA_OUTBOX = "kafka_outbox"


class HttpServerKind(StrEnum):
    NATIVE = "native"
    HYPERCORN = "hypercorn"


class KafkaTransport(StrEnum):
    PLAINTEXT = "plaintext"
    SASL_SCRAM_TLS = "sasl_scram_tls"


class SaslMechanism(StrEnum):
    SCRAM_SHA_256 = "SCRAM-SHA-256"
    SCRAM_SHA_512 = "SCRAM-SHA-512"


_database = partial(says, "Database")
_listeners = partial(says, "Listeners")


def _port(text: str) -> msgspec.Meta:
    return _listeners(f"{text} 0 takes any free port.", 0, 65_535)


_log = partial(says, "Log and audit")
_http = partial(says, "HTTP")
_grpc = partial(says, "gRPC")
_engine = partial(says, "Engine")
_jobs = partial(says, "Jobs")
_runs = partial(says, "Durable workflows")
_kafka = partial(says, "Kafka")


class Settings(RetentionSettings, frozen=True, kw_only=True):
    """All settings, checked. Made by ``load_settings``; tests may build one directly (``Settings(rest_port=0)``)."""

    postgres_dsn: Annotated[
        Secret | None,
        _database("Connection string of the PostgreSQL to use. Without it the embedded PostgreSQL is started."),
    ] = None
    replica_dsn: Annotated[
        Secret | None,
        _database(
            "A standby of that PostgreSQL. The engine reads lists and the console's pages there while it is "
            "up to date, and never anything by id."
        ),
    ] = None
    replica_max_lag_seconds: Annotated[
        float, _database("The engine reads from the primary while the standby is further behind.", 0, 86_400)
    ] = 5
    data_dir: Annotated[
        str | None,
        _database(
            "Directory of the embedded PostgreSQL; not used with `postgres_dsn`. "
            "Default: `penstock/postgres` in `$XDG_DATA_HOME`, else in `~/.local/share`, for root in `/var/lib`."
        ),
    ] = None
    db_schema: Annotated[
        Annotated[str, msgspec.Meta(pattern="^[a-z_][a-z0-9_]{0,62}$")] | None,
        _database(
            "Schema of Penstock's tables. Default: where the connection's `search_path` finds them (`public`), else"
            " `penstock`, where new ones are made."
        ),
    ] = None
    db_max_conns: Annotated[int, _database("The most connections in the pool.", 2, 500, env="DB_MAX_CONNS")] = 10
    db_min_conns: Annotated[int, _database("Connections kept open when idle.", 0, 500, env="DB_MIN_CONNS")] = 0
    db_connect_timeout_seconds: Annotated[float, _database("Timeout of one attempt to connect.", 0.1, 600)] = 5
    db_acquire_timeout_seconds: Annotated[
        float, _database("How long an operation waits for a free connection of the pool.", 0.01, 600)
    ] = 10
    db_answer_timeout_seconds: Annotated[
        float,
        _database(
            "The engine abandons a statement that the database has not answered for so long, and looks up "
            "what became of it.",
            0.1,
            600,
        ),
    ] = 10
    db_conn_max_lifetime_seconds: Annotated[
        float, _database("The pool replaces an older connection when it is returned.", 1, 604_800)
    ] = 3_600
    encryption_keys: Annotated[
        Secret | None,
        _database(
            "`id=base64 of 32 bytes` each: variables, checkpoints and kept answers are encrypted in the database. The"
            " first encrypts, all decrypt. See docs/security.md."
        ),
    ] = None
    outage_wait_seconds: Annotated[
        float,
        _database(
            "How long complete, fail and heartbeat wait for a database that is away, or for rows that other "
            "transactions hold, before 503.",
            0,
            600,
        ),
    ] = 10

    bind: Annotated[
        str | None,
        _listeners("Address of all listeners. Default: `127.0.0.1`. One that others reach needs `authentication`."),
    ] = None
    rest_port: Annotated[int, _port("Port of REST.")] = 8080
    grpc_port: Annotated[int, _port("Port of gRPC.")] = 9090
    metrics_port: Annotated[int, _port("Port of `GET /metrics`.")] = 9091
    http_server: Annotated[
        HttpServerKind,
        _listeners("Server of the REST port: `native` (HTTP/1.1, fast) or `hypercorn` (HTTP/1.1 and HTTP/2)."),
    ] = HttpServerKind.NATIVE
    metrics_enabled: Annotated[bool, _listeners("Serve metrics on `metrics_port`.")] = True
    docs_enabled: Annotated[bool, _listeners("Serve `/docs` and `/openapi.json`.")] = True
    console_enabled: Annotated[
        bool, _listeners("Serve the web console at `/console/`, and send browsers there from `/`.")
    ] = True
    console_hide_variables: Annotated[
        tuple[str, ...],
        _listeners(
            "Names of variables whose values the console does not show, such as `password` or `card*`; `stackTrace`"
            " hides those of workers. Programs still read them."
        ),
    ] = ()
    grpc_reflection_enabled: Annotated[
        bool, _listeners("Serve gRPC reflection, which lists the services for clients.")
    ] = True
    processes: Annotated[int, _listeners("Engine processes that share the ports.", 1, 64)] = 1
    shutdown_grace_seconds: Annotated[
        float, _listeners("How long requests in flight may take to finish after SIGTERM or SIGINT.", 0, 3_600)
    ] = 25

    log_level: Annotated[LogLevel, _log("The least level of the log's lines.")] = LogLevel.INFO
    log_format: Annotated[LogFormat, _log("`human`, `json`, or `auto`: human on a terminal, otherwise JSON.")] = (
        LogFormat.AUTO
    )
    otel_enabled: Annotated[
        bool,
        _log(
            "OpenTelemetry traces: spans of calls and jobs, exported by OTLP to where the standard `OTEL_…` variables"
            " say. Needs the extra `otel`."
        ),
    ] = False
    audit_log_enabled: Annotated[bool, _log("Write the append-only audit records.")] = True

    http_max_connections: Annotated[int, _http("The most open connections on the REST port.", 1, 1_000_000)] = 10_000
    http_max_header_bytes: Annotated[
        int, _http("Size of request line and headers together; more get 431.", 1_024, 1_048_576)
    ] = 32_768
    max_body_bytes: Annotated[int, _http("Size of a request body; more get 413.", 1_024, 1_073_741_824)] = 8_388_608
    http_max_request_memory_bytes: Annotated[
        int,
        _http(
            "Size of the bodies of all requests together; beyond it the request that has taken longest gets 503.",
            1_048_576,
            1_099_511_627_776,
        ),
    ] = 268_435_456
    http_header_timeout_seconds: Annotated[
        float,
        _http(
            "Time from the first byte of a request to the end of its headers; after it the request gets 408.",
            0.01,
            3_600,
        ),
    ] = 10
    http_body_timeout_seconds: Annotated[
        float,
        _http("Time from the end of the headers to the end of the body; after it the request gets 408.", 0.01, 3_600),
    ] = 30
    http_keep_alive_seconds: Annotated[float, _http("Time after which an idle connection is closed.", 0.01, 86_400)] = (
        120
    )
    http_write_timeout_seconds: Annotated[
        float,
        _http(
            "The engine closes the connection of a client that reads nothing of its answer for so long.", 0.01, 3_600
        ),
    ] = 30
    cors_origins: Annotated[
        tuple[str, ...],
        _http(
            "Origins whose pages may call from a browser, such as `https://modeller.example`. `*` is any; without "
            "authentication it lets them read only. Default: with authentication any, else the engine's own only."
        ),
    ] = ()
    allowed_hosts: Annotated[
        tuple[str, ...],
        _http(
            "Names (without port) by which REST may be addressed. On a loopback `bind` beside `localhost`, "
            "`127.0.0.1` and `[::1]`; elsewhere any are taken while this is empty."
        ),
    ] = ()
    cors_headers: Annotated[tuple[str, ...], _http("Request headers that pages of these origins may send.")] = (
        "Accept",
        "Authorization",
        "Content-Type",
        "Idempotency-Key",
        "traceparent",
    )

    grpc_max_connections: Annotated[int, _grpc("The most open connections on the gRPC port.", 1, 1_000_000)] = 10_000
    grpc_max_streams: Annotated[int, _grpc("The most concurrent calls of one gRPC connection.", 1, 100_000)] = 1_000
    grpc_max_message_bytes: Annotated[
        int, _grpc("Size of one gRPC message; more get INVALID_ARGUMENT.", 1_024, 1_073_741_824)
    ] = 8_388_608
    grpc_tls_cert_path: Annotated[str | None, _grpc("Certificate chain (PEM) of gRPC's own; see `tls_cert_path`.")] = (
        None
    )
    grpc_tls_key_path: Annotated[str | None, _grpc("Private key of the certificate (PEM).")] = None

    batch_max_items: Annotated[
        int, _engine("The most completions, starts or failures that one transaction writes.", 1, 5_000)
    ] = 500
    batch_queue_max_items: Annotated[
        int, _engine("Items that may wait for a transaction; more get 503.", 1, 1_000_000)
    ] = 20_000
    batch_stuck_seconds: Annotated[
        float, _engine("`/readyz` is 503 while a batch has been under way for longer than this.", 0.1, 3_600)
    ] = 5
    max_automatic_steps: Annotated[
        int, _engine("Steps that one advance may run without a wait; more fail the instance.", 1, 1_000_000)
    ] = 1_000
    advance_max_work_steps: Annotated[
        int,
        _engine(
            "Work of one advance, counted: nodes, items and bytes that its expressions go through, and steps that it "
            "enters; more fails the instance. A million takes 75 to 260 ms, in a thread.",
            1_000,
            1_000_000_000,
        ),
    ] = 1_000_000
    long_queue_max_items: Annotated[
        int, _engine("Items with a long advance that may wait; more get 503.", 1, 1_000_000)
    ] = 1_000
    background_failure_limit: Annotated[
        int,
        _engine("After so many failed attempts to fire a timer, with growing pauses, its instance fails.", 1, 1_000),
    ] = 5
    definition_cache_max_bytes: Annotated[
        int,
        _engine(
            "Parsed definition versions kept in memory, as estimated from above: some 400 of 5 kB.",
            1_048_576,
            1_099_511_627_776,
        ),
    ] = 67_108_864
    variables_cache_max_bytes: Annotated[
        int, _engine("Variables of jobs kept in memory, waiting or under lease, to spare reads.", 0, 17_179_869_184)
    ] = 67_108_864
    answer_max_memory_bytes: Annotated[
        int,
        _engine(
            "Answers that are being made or that clients have not taken yet, over REST and gRPC; variables count four "
            "times, as they are copied on the way. Beyond it reads, polls and starts get 503 or RESOURCE_EXHAUSTED.",
            16_777_216,
            1_099_511_627_776,
        ),
    ] = 268_435_456
    definition_max_steps: Annotated[int, _engine("The most steps of one definition.", 1, 10_000)] = 10_000
    variables_max_bytes: Annotated[
        int, _engine("Size of the variables of one request, as JSON; more get 413.", 1_024, 268_435_456)
    ] = 4_194_304
    instance_variables_max_bytes: Annotated[
        int,
        _engine(
            "The variables of one instance, in PostgreSQL's binary form: about as many as of JSON. Looked at after "
            "64 results or 8 MB of them, so it may be exceeded by as much; what would bring more is refused with 413. "
            "Also what the transformations of one advance may write; more fails the instance.",
            1_024,
            134_217_728,
        ),
    ] = 67_108_864
    variables_max_depth: Annotated[int, _engine("The deepest nesting of JSON in variables.", 8, 500)] = 100
    checkpoint_max_bytes: Annotated[
        int, _engine("Size of the checkpoint, or of the progress, of a heartbeat.", 1_024, 16_777_216)
    ] = 262_144
    list_exact_total_limit: Annotated[
        int, _engine("Up to here the `total` of a list is exact, beyond it an estimate.", 1, 10_000_000)
    ] = 10_000
    sql_requests_poll_seconds: Annotated[
        float,
        _engine("How often an engine looks for requests of SQL functions whose wake-up is lost or off.", 0.05, 60),
    ] = 2
    sql_requests_failed_retention_days: Annotated[
        float, _engine("How long a request of a SQL function that failed is kept, to be retried.", 0.01, 3_650)
    ] = 30
    idempotency_retention_hours: Annotated[
        float, _engine("How long the answer to an Idempotency-Key is kept.", 0.01, 8_760)
    ] = 24
    attention_acknowledged_hours: Annotated[
        float, _engine('How long a row of "Needs attention" stays acknowledged.', 0.01, 8_760)
    ] = 24
    attempts_recorded_job_types: Annotated[
        tuple[str, ...], _engine("Job types whose attempts are recorded, as by `recordAttempts` of a definition.")
    ] = ()
    attempt_record_max_bytes: Annotated[
        int, _engine("The engine neither keeps nor shows variables of an attempt that are larger.", 0, 1_048_576)
    ] = 65_536
    stack_trace_max_bytes: Annotated[
        int,
        _engine("The engine keeps so many bytes from the end of a worker's stack trace. 0: none.", 0, 1_048_576),
    ] = 16_384
    messages_kept_max_items: Annotated[
        int, _engine("Messages that nobody has received yet, counted every 10 s; more are refused.", 1, 10_000_000)
    ] = 100_000
    messages_kept_max_bytes: Annotated[
        int, _engine("Size of the variables of these messages together.", 1_048_576, 68_719_476_736)
    ] = 268_435_456

    poll_max_jobs: Annotated[int, _jobs("`maxJobs` is clamped to this.", 1, 10_000)] = 1_000
    poll_max_wait_seconds: Annotated[float, _jobs("`waitSeconds` is clamped to this.", 0, 600)] = 60
    poll_max_parked: Annotated[
        int, _jobs("Polls that may wait in one process; further ones are answered at once.", 1, 1_000_000)
    ] = 20_000
    poll_parked_max_bytes: Annotated[
        int,
        _jobs(
            "Polls that wait and the job types that they name; more are answered at once.", 1_048_576, 68_719_476_736
        ),
    ] = 134_217_728
    lease_default_seconds: Annotated[float, _jobs("Length of a lease without `leaseSeconds`.", 0.05, 86_400)] = 30
    lease_min_seconds: Annotated[float, _jobs("`leaseSeconds` is clamped up to this.", 0.05, 86_400)] = 5
    lease_max_seconds: Annotated[float, _jobs("`leaseSeconds` is clamped down to this.", 0.05, 86_400)] = 3_600
    lease_expiry_limit: Annotated[int, _jobs("A job whose lease expired this often fails for good.", 1, 32_767)] = 10
    queues_file: Annotated[
        str,
        _jobs("YAML or JSON file of queues by name, each put at the start (docs/queues.md); others stay."),
    ] = ""
    schedules_file: Annotated[str, _jobs("YAML or JSON of schedules by id, put at a start (docs/schedules.md).")] = ""
    flow_keys_per_claim: Annotated[
        int, _jobs("Flow keys that one claim looks at, at most; the next one goes on from there.", 1, 10_000)
    ] = 256
    leases_watched_max_items: Annotated[
        int,
        _jobs(
            "Leases that a process keeps in memory, some 600 B each, to end them in time; further ones end when a look "
            "finds them (`lease_scan_interval_seconds`).",
            1,
            100_000_000,
        ),
    ] = 200_000
    lease_scan_interval_seconds: Annotated[
        float, _jobs("Longest time between two scans for leases of engines that died.", 0.05, 3_600)
    ] = 10
    ready_probe_interval_seconds: Annotated[
        float, _jobs("Time between two scans for ready jobs while polls wait.", 0.005, 60)
    ] = 0.2
    notify_interval_seconds: Annotated[
        float, _jobs("Least time between two wake-ups of the other engines.", 0.001, 60)
    ] = 0.02

    dispatch_mode: Annotated[DispatchMode, _kafka("How jobs reach workers: `polling` or `kafka_outbox`.")] = (
        DispatchMode.POLLING
    )
    kafka_seed_brokers: Annotated[
        tuple[str, ...], _kafka("`host:port` of some brokers. Required for `kafka_outbox`.")
    ] = ()
    kafka_transport: Annotated[KafkaTransport, _kafka("`plaintext` or `sasl_scram_tls`.")] = KafkaTransport.PLAINTEXT
    kafka_sasl_mechanism: Annotated[SaslMechanism, _kafka("`SCRAM-SHA-512` or `SCRAM-SHA-256`.")] = (
        SaslMechanism.SCRAM_SHA_512
    )
    kafka_sasl_username: Annotated[str | None, _kafka("Required for `sasl_scram_tls`.")] = None
    kafka_sasl_password: Annotated[Secret | None, _kafka("Required for `sasl_scram_tls`.")] = None
    kafka_tls_ca_path: Annotated[str | None, _kafka("CA certificates (PEM). Default: those of the system.")] = None
    kafka_tls_server_name: Annotated[
        str | None, _kafka("Name in the broker's certificate, if it is not the broker's address.")
    ] = None
    kafka_create_topics: Annotated[bool, _kafka("Create missing topics, at the start and at uploads.")] = False
    kafka_topic_partitions: Annotated[int, _kafka("Partitions of a topic that is created.", 1, 10_000)] = 6
    kafka_topic_replicas: Annotated[
        int, _kafka("Replicas of a topic that is created. 0: as many as there are brokers, at most 3.", 0, 100)
    ] = 0
    kafka_connect_timeout_seconds: Annotated[
        float, _kafka("How long a start, and each later attempt, waits for a broker.", 0.1, 600)
    ] = 10
    kafka_publish_timeout_seconds: Annotated[
        float, _kafka("How long a batch waits for its acknowledgements; then it is sent again.", 0.1, 600)
    ] = 10
    kafka_max_record_bytes: Annotated[
        int,
        _kafka(
            "Size of one record; the relay sends no larger one. See `message.max.bytes` of the broker.",
            1_024,
            1_073_741_824,
        ),
    ] = 1_048_576
    outbox_batch_size: Annotated[int, _kafka("Rows that the relay publishes in one batch.", 1, 10_000)] = 200
    dispatch_timeout_seconds: Annotated[
        float, _kafka("Time after which a dispatched job that no worker has completed is dispatched again.", 1, 604_800)
    ] = 1_800

    payload_max_bytes: Annotated[
        int, _runs("Size of arguments, of a message, or of a step's result, as JSON; more get 413.", 1_024, 16_777_216)
    ] = 262_144
    journal_max_records: Annotated[
        int, _runs("Records of a run's journal; a run that needs more ends as FAILED.", 100, 10_000_000)
    ] = 100_000
    messages_unread_max_items: Annotated[
        int, _runs("Messages that a run may have received since it last did anything; more get 429.", 1, 100_000)
    ] = 10_000
    refused_calls_max_items: Annotated[
        int,
        _runs(
            "Answers to refused calls of updates that the engine keeps for a run; it deletes the oldest first.",
            1,
            10_000,
        ),
    ] = 1_000
    journal_queue_max_bytes: Annotated[
        int, _runs("Records that may wait for a transaction; more get 429.", 1_048_576, 68_719_476_736)
    ] = 67_108_864

    @property
    def through_kafka(self) -> bool:
        """Return whether jobs reach workers through the outbox and Kafka."""
        return self.dispatch_mode is DispatchMode.KAFKA_OUTBOX

    @property
    def embedded(self) -> bool:
        """Return whether the engine starts its own PostgreSQL."""
        return self.postgres_dsn is None

    @property
    def bind_address(self) -> str:
        """Return the address of all listeners."""
        return self.bind or "127.0.0.1"

    @property
    def allowed_origins(self) -> tuple[str, ...]:
        """Origins whose pages may call: with authentication they need a token, so any may unless some are named."""
        return self.cors_origins or (("*",) if self.authentication else ())

    @property
    def data_path(self) -> Path | None:
        """Return the directory of the embedded PostgreSQL, absolute; None leaves it to the store's default."""
        return Path(self.data_dir).expanduser().absolute() if self.data_dir else None

    def redacted(self) -> dict[str, object]:
        """For the start-up log: what differs from the defaults, and which database, without secrets."""
        return {name: shown for name, shown in self.shown().items() if getattr(self, name) != SETTINGS[name].default}

    def shown(self) -> dict[str, object]:
        """Every setting with its value, in the order of the documentation, without secrets."""
        return {info.name: _shown(info, getattr(self, info.name)) for info in SETTINGS.values()}


def _shown(info: SettingInfo, value: object) -> object:
    if isinstance(value, Secret):
        return redact_dsn(value.reveal()) if info.name in ("postgres_dsn", "replica_dsn") else "***"
    if value is None:
        return None
    if isinstance(value, tuple):
        return mask_text(",".join(cast("tuple[str, ...]", value)))
    return value if isinstance(value, (int, float)) else mask_text(str(value))


def _describe() -> Iterator[SettingInfo]:
    hints = get_type_hints(Settings, include_extras=True)
    bases = [{field.name for field in msgspec.structs.fields(base)} for base in (RetentionSettings, AccessSettings)]
    # a base class's fields come first, and in the documentation last
    for field in sorted(msgspec.structs.fields(Settings), key=lambda field: sum(field.name in base for base in bases)):
        annotation, meta = get_args(hints[field.name])
        extra = cast("dict[str, str]", meta.extra)
        yield SettingInfo(
            name=field.name,
            env=extra["env"] or f"WE_{field.name.upper()}",
            group=extra["group"],
            description=cast("str", meta.description),
            default=field.default,
            type=annotation,
            bounds=bounds_of(annotation, meta),
        )


SETTINGS: Final[Mapping[str, SettingInfo]] = {info.name: info for info in _describe()}


CHECKED_TYPES: Final[Mapping[str, Any]] = {
    name: checkable(hint) for name, hint in get_type_hints(Settings, include_extras=True).items()
}
