"""Settings: which source wins, what is refused and how it is told, and that secrets are never shown."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from penstock.runtime.processes import decode_config, encode_config
from penstock.settings import (
    SETTINGS,
    DispatchMode,
    KafkaTransport,
    LogLevel,
    Secret,
    Settings,
    SettingsError,
    load_settings,
    unknown_environment,
)
from penstock.settings.load import SECRET_FILE_MAX_BYTES

NOWHERE = Path("/nonexistent/engine.yaml")


@pytest.fixture
def yaml_file(tmp_path):
    def write(text: str) -> Path:
        path = tmp_path / "engine.yaml"
        path.write_text(text)
        return path

    return write


def problems(**arguments) -> list[str]:
    arguments.setdefault("environ", {})
    arguments.setdefault("default_config_path", NOWHERE)
    with pytest.raises(SettingsError) as caught:
        load_settings(**arguments)
    return caught.value.problems


def test_without_sources_settings_have_the_contracts_defaults():
    settings = load_settings(environ={}, default_config_path=NOWHERE)
    assert settings == Settings()
    assert (settings.rest_port, settings.grpc_port, settings.metrics_port) == (8080, 9090, 9091)
    assert settings.log_level is LogLevel.INFO
    assert settings.audit_log_enabled is True
    assert settings.db_min_conns == 0
    assert settings.dispatch_mode is DispatchMode.POLLING
    assert settings.outbox_batch_size == 200
    assert settings.kafka_sasl_mechanism == "SCRAM-SHA-512"


def test_every_variable_of_the_contract_sets_its_setting(tmp_path):
    environ = {
        "WE_POSTGRES_DSN": "postgresql://db/penstock",
        "WE_BIND": "::1",
        "WE_REST_PORT": "1",
        "WE_GRPC_PORT": "2",
        "WE_METRICS_PORT": "3",
        "WE_LOG_LEVEL": "debug",
        "WE_AUDIT_LOG_ENABLED": "false",
        "DB_MAX_CONNS": "7",
        "DB_MIN_CONNS": "6",
        "WE_DISPATCH_MODE": "kafka_outbox",
        "WE_KAFKA_SEED_BROKERS": "a:9092, b:9093",
        "WE_KAFKA_TRANSPORT": "sasl_scram_tls",
        "WE_KAFKA_SASL_MECHANISM": "SCRAM-SHA-256",
        "WE_KAFKA_SASL_USERNAME": "user",
        "WE_KAFKA_SASL_PASSWORD": "pw",
        "WE_KAFKA_TLS_CA_PATH": "/ca.pem",
        "WE_KAFKA_TLS_SERVER_NAME": "broker",
        "WE_KAFKA_CREATE_TOPICS": "true",
        "WE_OUTBOX_BATCH_SIZE": "50",
    }
    assert load_settings(environ=environ, default_config_path=NOWHERE) == Settings(
        postgres_dsn=Secret("postgresql://db/penstock"),
        bind="::1",
        rest_port=1,
        grpc_port=2,
        metrics_port=3,
        log_level=LogLevel.DEBUG,
        audit_log_enabled=False,
        db_max_conns=7,
        db_min_conns=6,
        dispatch_mode=DispatchMode.KAFKA_OUTBOX,
        kafka_seed_brokers=("a:9092", "b:9093"),
        kafka_transport=KafkaTransport.SASL_SCRAM_TLS,
        kafka_sasl_mechanism="SCRAM-SHA-256",  # pyright: ignore[reportArgumentType] - as its text has it
        kafka_sasl_username="user",
        kafka_sasl_password=Secret("pw"),
        kafka_tls_ca_path="/ca.pem",
        kafka_tls_server_name="broker",
        kafka_create_topics=True,
        outbox_batch_size=50,
    )


def test_options_win_over_environment_over_file_over_defaults(yaml_file):
    path = yaml_file("rest_port: 1\ngrpc_port: 1001\nmetrics_port: 1002\n")
    settings = load_settings(
        config_path=path,
        environ={"WE_REST_PORT": "2", "WE_GRPC_PORT": "2001"},
        options={"rest_port": 3, "grpc_port": None},
    )
    assert (settings.rest_port, settings.grpc_port, settings.metrics_port) == (3, 2001, 1002)


def test_the_file_in_etc_is_read_by_default_only(yaml_file, tmp_path):
    default = tmp_path / "default.yaml"
    default.write_text("rest_port: 5")
    assert load_settings(environ={}, default_config_path=default).rest_port == 5
    named = yaml_file("grpc_port: 6")
    assert load_settings(config_path=named, environ={}, default_config_path=default).rest_port == 8080


def test_a_named_file_that_does_not_exist_is_refused():
    assert problems(config_path=NOWHERE) == [f"{NOWHERE}: can't be read: No such file or directory"]


def test_an_empty_file_changes_nothing(yaml_file):
    assert load_settings(config_path=yaml_file("# nothing\n"), environ={}) == Settings()


def test_every_problem_is_reported_at_once_with_its_source(yaml_file):
    path = yaml_file(
        "# first line\nrest_prot: 1\nmax_body_bytes: 1\nlog_level: loud\ngrpc_port: '9'\nrest_port: 1\nrest_port: 2\n"
        "docs_enabled: perhaps\n"
    )
    assert problems(config_path=path, environ={"DB_MAX_CONNS": "many"}, options={"metrics_port": 70000}) == [
        f"{path}:2: rest_prot: unknown setting (did you mean rest_port?)",
        f"{path}:3: max_body_bytes: 1 is not accepted: expected `int` >= 1024",
        f"{path}:4: log_level: 'loud' is not accepted: expected debug or info or warning or error",
        f"{path}:5: grpc_port: '9' is not accepted: expected `int`, got `str`",
        f"{path}:7: rest_port: given twice",
        f"{path}:8: docs_enabled: 'perhaps' is not accepted: expected true or false",
        "DB_MAX_CONNS: 'many' is not accepted: expected `int`, got `str`",
        "option --metrics-port: 70000 is not accepted: expected `int` <= 65535",
    ]


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("rest_port: [1\n", 2, "expected ',' or ']'"),
        ("a: 1\n\tb: 2", 2, "found character"),
        ("- rest_port\n", None, "mapping"),
    ],
)
def test_a_file_without_a_mapping_is_refused_with_its_line(yaml_file, text, line, said):
    [problem] = problems(config_path=yaml_file(text))
    assert said in problem
    assert line is None or f":{line}: " in problem


def test_a_value_that_breaks_yaml_is_reported_with_its_line(yaml_file):
    [problem] = problems(config_path=yaml_file("rest_port: 1\ngrpc_port: 2026-13-01\n"))
    assert ":2: grpc_port: month must be in 1..12" in problem


@pytest.mark.parametrize("text", ["log_level: \x07\n", "[" * 3_000])
def test_what_the_yaml_reader_gives_up_on_is_refused(yaml_file, text):
    path = yaml_file(text)
    assert problems(config_path=path) == [f"{path}: not YAML"]


def test_a_yaml_tag_that_makes_objects_is_refused(yaml_file):
    [problem] = problems(config_path=yaml_file("rest_port: !!python/object/apply:os.getpid []\n"))
    assert "could not determine a constructor" in problem


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"DB_MIN_CONNS": "11"}, "DB_MIN_CONNS: 11 is more than db_max_conns (10)"),
        ({"WE_REST_PORT": "9090"}, "grpc_port (default): 9090 is rest_port already"),
        (
            {"WE_DISPATCH_MODE": "kafka_outbox"},
            "WE_DISPATCH_MODE: kafka_outbox needs kafka_seed_brokers (WE_KAFKA_SEED_BROKERS)",
        ),
        ({"WE_KAFKA_SEED_BROKERS": "a"}, "WE_KAFKA_SEED_BROKERS: 'a' is not host:port"),
        (
            {"WE_LEASE_MIN_SECONDS": "31"},
            "lease_default_seconds (default): must lie between lease_min_seconds and lease_max_seconds",
        ),
        ({"WE_BIND": "no address"}, "WE_BIND: 'no address' is not an address"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(environ, said):
    assert problems(environ=environ) == [said]


def test_sasl_needs_user_and_password():
    assert problems(environ={"WE_KAFKA_TRANSPORT": "sasl_scram_tls"}) == [
        "kafka_sasl_username (default): kafka_transport sasl_scram_tls needs it (WE_KAFKA_SASL_USERNAME)",
        "kafka_sasl_password (default): kafka_transport sasl_scram_tls needs it (WE_KAFKA_SASL_PASSWORD)",
    ]


@pytest.mark.parametrize("name", [name for name, info in SETTINGS.items() if info.bounds is not None])
def test_every_bound_holds_for_variables(name):
    info = SETTINGS[name]
    assert info.bounds is not None
    for value in (info.bounds[0] - 1, info.bounds[1] + 1):
        [problem] = problems(environ={info.env: str(value)})
        assert problem.startswith(f"{info.env}: '{value}' is not accepted")


def test_an_empty_variable_counts_as_absent(yaml_file):
    assert load_settings(config_path=yaml_file("rest_port: 5"), environ={"WE_REST_PORT": " "}).rest_port == 5


def test_port_0_may_be_given_three_times():
    environ = {"WE_REST_PORT": "0", "WE_GRPC_PORT": "0", "WE_METRICS_PORT": "0"}
    assert load_settings(environ=environ, default_config_path=NOWHERE).metrics_port == 0


def test_a_secret_from_a_file_has_no_line_end(tmp_path, yaml_file):
    secret = tmp_path / "dsn"
    secret.write_text("postgresql://u:pw@db/x\n")
    from_variable = load_settings(environ={"WE_POSTGRES_DSN_FILE": str(secret)}, default_config_path=NOWHERE)
    from_file = load_settings(config_path=yaml_file(f"postgres_dsn_file: {secret}\n"), environ={})
    assert from_variable.postgres_dsn == from_file.postgres_dsn == Secret("postgresql://u:pw@db/x")


def test_a_mounted_file_that_is_missing_or_empty_is_refused(tmp_path):
    empty = tmp_path / "empty"
    empty.touch()
    assert problems(environ={"WE_POSTGRES_DSN_FILE": "/nonexistent", "WE_KAFKA_SASL_PASSWORD_FILE": str(empty)}) == [
        "WE_POSTGRES_DSN_FILE: can't read /nonexistent: No such file or directory",
        f"WE_KAFKA_SASL_PASSWORD_FILE: {empty} is empty",
    ]


def test_a_secret_file_that_is_too_large_is_refused(tmp_path):
    large = tmp_path / "large"
    large.write_text("x" * (SECRET_FILE_MAX_BYTES + 1))
    [problem] = problems(environ={"WE_KAFKA_SASL_PASSWORD_FILE": str(large)})
    assert problem == f"WE_KAFKA_SASL_PASSWORD_FILE: {large} has more than {SECRET_FILE_MAX_BYTES} bytes"


def test_a_secret_given_twice_is_refused(tmp_path):
    environ = {"WE_POSTGRES_DSN": "x", "WE_POSTGRES_DSN_FILE": "/y"}
    assert problems(environ=environ) == ["WE_POSTGRES_DSN: set together with WE_POSTGRES_DSN_FILE; give one of them"]


@pytest.mark.parametrize(
    "line",
    [
        "postgres_dsn: postgresql://u:hunter2@db/x",
        "postgres_dsn: postgresql://db/x?password=hunter2",
        "postgres_dsn: host=db password=hunter2",
        "postgres_dsn: 'postgresql://[broken:hunter2@'",
        "postgres_dsn: 'postgresql://u:hunter2#3@db/x'",
        "kafka_sasl_password: hunter2",
    ],
)
def test_a_password_in_yaml_is_refused_without_showing_it(yaml_file, line):
    [problem] = problems(config_path=yaml_file(line))
    assert "a secret; set WE_" in problem
    assert "hunter2" not in problem


def test_a_connection_string_without_password_may_stand_in_the_file(yaml_file):
    settings = load_settings(config_path=yaml_file("postgres_dsn: host=/run/postgresql dbname=x"), environ={})
    assert settings.postgres_dsn == Secret("host=/run/postgresql dbname=x")


@pytest.mark.parametrize(
    ("dsn", "shown"),
    [
        ("postgresql://u:hunter2@db:5432/x?password=hunter2", "postgresql://u@db:5432/x"),
        ("host=db dbname=x user=u password='hunter2 and more'", "host=db dbname=x user=u"),
        ("password=hunter2", "***"),
        ("postgresql://[broken:hunter2@", "***"),
        ("postgresql://u:hunter2/3@db/x", "***"),
        ("postgresql://u:hunter2#3@db/x", "***"),
        ("postgresql://u:hunter2?3@db/x", "***"),
    ],
)
def test_no_form_of_the_settings_shows_a_secret(dsn, shown):
    settings = Settings(postgres_dsn=Secret(dsn), kafka_sasl_password=Secret("hunter2"))
    assert settings.redacted() == {"postgres_dsn": shown, "kafka_sasl_password": "***"}
    for text in (repr(settings), str(settings), str(settings.postgres_dsn), f"{settings.redacted()}"):
        assert "hunter2" not in text


def test_redacted_shows_what_differs_from_the_defaults():
    settings = Settings(rest_port=1, log_level=LogLevel.DEBUG, kafka_seed_brokers=("a:1", "b:2"))
    assert settings.redacted() == {"rest_port": 1, "log_level": "debug", "kafka_seed_brokers": "a:1,b:2"}


def test_all_listeners_are_local_unless_an_address_is_given():
    assert Settings().bind_address == Settings(postgres_dsn=Secret("x")).bind_address == "127.0.0.1"
    assert Settings(bind="10.0.0.1").bind_address == "10.0.0.1"


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "10.0.0.1", "db.example", "127.0.0.1.example", "fe80::1%eth0"])
def test_an_address_that_others_reach_needs_authentication_or_insecure(address):
    [problem] = problems(environ={"WE_BIND": address})
    assert problem == (
        f"WE_BIND: '{address}' can be reached by others: needs authentication (WE_AUTHENTICATION), or WE_INSECURE=true"
        " to let everybody in"
    )
    for cure in ("WE_AUTHENTICATION", "WE_INSECURE"):
        environ = {"WE_BIND": address, cure: "true"}
        assert load_settings(environ=environ, default_config_path=NOWHERE).bind_address == address


@pytest.mark.parametrize("address", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_an_address_of_this_machine_needs_nothing(address):
    assert load_settings(environ={"WE_BIND": address}, default_config_path=NOWHERE).bind_address == address


ISSUER = {"WE_AUTHENTICATION": "1", "WE_OIDC_ISSUER": "https://issuer.example", "WE_OIDC_AUDIENCE": "penstock"}


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"WE_API_TOKENS": "a=viewer=x"}, "WE_API_TOKENS: needs authentication: true (WE_AUTHENTICATION)"),
        ({"WE_TRUSTED_NETWORKS": "10.0.0.0/8=worker"}, "WE_TRUSTED_NETWORKS: needs authentication"),
        ({"WE_OIDC_AUDIENCE": "a"}, "WE_OIDC_AUDIENCE: needs oidc_issuer"),
        ({**ISSUER, "WE_OIDC_AUDIENCE": ""}, "oidc_audience (default): oidc_issuer needs it"),
        (
            {**ISSUER, "WE_OIDC_ISSUER": "http://issuer.example"},
            "WE_OIDC_ISSUER: 'http://issuer.example' is not an https://",
        ),
        (
            {**ISSUER, "WE_OIDC_JWKS": "http://issuer.example/keys"},
            "WE_OIDC_JWKS: 'http://issuer.example/keys' is not an https",
        ),
        ({"WE_AUTHENTICATION": "1", "WE_INSECURE": "1"}, "WE_INSECURE: is for engines without authentication"),
    ],
)
def test_settings_of_access_that_would_let_others_in_are_refused(environ, said):
    [problem] = problems(environ=environ)
    assert problem.startswith(said)


def test_keys_from_a_file_or_this_machine_are_fine():
    for source in ("/etc/keys.json", "http://127.0.0.1:8000/keys", "https://issuer.example/keys"):
        load_settings(environ={**ISSUER, "WE_OIDC_JWKS": source}, default_config_path=NOWHERE)


def test_a_data_directory_is_made_absolute(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    assert Settings(data_dir="~/pg").data_path == Path("/home/me/pg")
    assert Settings(data_dir="pg").data_path == Path.cwd() / "pg"
    assert Settings().data_path is None


def test_misspelt_variables_are_found():
    assert unknown_environment(
        {"WE_REST_PROT": "1", "WE_REST_PORT": "1", "WE_POSTGRES_DSN_FILE": "x", "HOME": "/"}
    ) == {"WE_REST_PROT": "WE_REST_PORT"}


def test_every_setting_is_described_and_bounded():
    for info in SETTINGS.values():
        assert info.description.endswith("."), info.name
        if info.type in (int, float):
            assert info.bounds, info.name
            assert info.bounds[0] <= info.default <= info.bounds[1], info.name


def test_every_setting_with_a_unit_says_it_in_its_name():
    units = (
        "_seconds",
        "_hours",
        "_days",
        "_bytes",
        "_items",
        "_records",
        "_steps",
        "_conns",
        "_port",
        "_jobs",
        "_parked",
        "_limit",
        "_depth",
    )
    units += (
        "_per_second",
        "_per_claim",
        "_calls",
        "_connections",
        "_streams",
        "_size",
        "_days",
        "processes",
        "_partitions",
        "_replicas",
    )
    for info in SETTINGS.values():
        assert info.type not in (int, float) or info.name.endswith(units), info.name


def test_child_processes_read_values_of_every_type():
    """msgspec finds out only then that a bound does not go with a type."""
    settings, sockets = decode_config(encode_config(Settings(), "dbname=x", {}))
    assert (settings.postgres_dsn, settings.retention_days, sockets) == (Secret("dbname=x"), None, {})
    wanted = msgspec.structs.replace(Settings(), retention_days=3.5)
    assert decode_config(encode_config(wanted, "dbname=x", {}))[0].retention_days == 3.5
