"""Reads the settings: command-line options over the environment over the YAML file over the defaults.

Relies on the model for names, types and bounds. Must not log, nor put the value of a secret into a message. Collects
every problem before it raises, each with where it stands, so that one failed start tells all of them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from enum import Enum
from pathlib import Path
from typing import Any, Final, cast

import msgspec

from penstock.log.masking import mask_text
from penstock.settings.access_rules import access_problems
from penstock.settings.model import CHECKED_TYPES, SETTINGS, DispatchMode, KafkaTransport, SettingInfo, Settings
from penstock.settings.secret import Secret, dsn_has_password

__all__ = [
    "DEFAULT_CONFIG_PATH",
    "SettingsError",
    "did_you_mean",
    "load_settings",
    "load_with_sources",
    "unknown_environment",
]

DEFAULT_CONFIG_PATH: Final = Path("/etc/workflow/engine.yaml")
SECRET_FILE_MAX_BYTES: Final = 64 * 1024
CONFIG_FILE_MAX_BYTES: Final = 1024 * 1024
SECRET_FILES: Final[Mapping[str, SettingInfo]] = {
    f"{info.name}_file": info for info in SETTINGS.values() if info.secret
}


class SettingsError(ValueError):
    """What is wrong with the settings: ``problems`` holds one line each, with its source."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


class _Reader:
    """Collects values, each with its source, later sources over earlier ones, and every problem on the way."""

    def __init__(self) -> None:
        self.values: dict[str, object] = {}
        self.sources: dict[str, str] = {}
        self.problems: list[str] = []

    def take(self, info: SettingInfo, value: object, source: str, *, text: bool) -> None:
        """``text``: the value comes as a string (environment, command line) and is read as the setting's type."""
        if text and info.is_list and isinstance(value, str):
            value = tuple(part.strip() for part in value.split(",") if part.strip())
        try:
            self.values[info.name] = msgspec.convert(
                value, CHECKED_TYPES[info.name], strict=not text, dec_hook=_decode_secret
            )
        except msgspec.ValidationError as error:
            shown = "" if info.secret else f"{mask_text(repr(value))} is not accepted: "
            self.problems.append(f"{source}: {shown}{_expected(info) or _lower_first(str(error))}")
        self.sources[info.name] = source

    def source(self, name: str) -> str:
        return self.sources.get(name, f"{name} (default)")


def _expected(info: SettingInfo) -> str | None:
    """The values of a setting that has few."""
    if info.type is bool:
        return "expected true or false"
    if isinstance(info.type, type) and issubclass(info.type, Enum):
        return f"expected {' or '.join(str(member.value) for member in info.type)}"
    return None


def _decode_secret(kind: type, value: object) -> object:
    if kind is Secret and isinstance(value, str):
        return Secret(value)
    raise msgspec.ValidationError("Expected a string")


def _lower_first(text: str) -> str:
    return text[:1].lower() + text[1:]


def load_settings(
    *,
    config_path: str | os.PathLike[str] | None = None,
    environ: Mapping[str, str] | None = None,
    options: Mapping[str, object] | None = None,
    default_config_path: Path = DEFAULT_CONFIG_PATH,
) -> Settings:
    """Reads file, environment and command-line ``options`` (setting name → value, ``None`` = not given).

    Raises SettingsError with every problem at once. Reads files (configuration, mounted secrets); changes nothing.
    """
    return load_with_sources(
        config_path=config_path, environ=environ, options=options, default_config_path=default_config_path
    )[0]


def load_with_sources(
    *,
    config_path: str | os.PathLike[str] | None = None,
    environ: Mapping[str, str] | None = None,
    options: Mapping[str, object] | None = None,
    default_config_path: Path = DEFAULT_CONFIG_PATH,
) -> tuple[Settings, Mapping[str, str]]:
    """As ``load_settings``, with where each value that was given comes from: ``WE_REST_PORT``, ``FILE:LINE: KEY``."""
    environ = os.environ if environ is None else environ
    reader = _Reader()
    if config_path is not None:
        _read_file(Path(config_path), reader)
    elif default_config_path.exists():
        _read_file(default_config_path, reader)
    _read_environment(environ, reader)
    for name, value in (options or {}).items():
        if value is not None:
            reader.take(SETTINGS[name], value, f"option --{name.replace('_', '-')}", text=True)
    _check_together(reader)
    if reader.problems:
        raise SettingsError(reader.problems)
    return Settings(**cast("Any", reader.values)), reader.sources


def unknown_environment(environ: Mapping[str, str] | None = None) -> dict[str, str | None]:
    """Variables that start with ``WE_`` and mean nothing here, each with the name that was perhaps meant.

    Worth a warning, since a misspelt one is silent.
    """
    known = {info.env for info in SETTINGS.values()} | {f"WE_{name.upper()}" for name in SECRET_FILES}
    unknown = sorted(name for name in (environ or os.environ) if name.startswith("WE_") and name not in known)
    return {name: _nearest(name, known) for name in unknown}


def _read_environment(environ: Mapping[str, str], reader: _Reader) -> None:
    for info in SETTINGS.values():
        value = environ.get(info.env, "").strip()
        file = environ.get(f"{info.env}_FILE", "").strip() if info.secret else ""
        if value and file:
            reader.problems.append(f"{info.env}: set together with {info.env}_FILE; give one of them")
        elif value:  # an empty variable counts as absent: compose files pass on what is not set that way
            reader.take(info, value, info.env, text=True)
        elif file:
            _read_secret_file(info, file, f"{info.env}_FILE", reader)


def _read_secret_file(info: SettingInfo, path: str, source: str, reader: _Reader) -> None:
    try:
        with open(path, encoding="utf-8") as file:
            value = file.read(SECRET_FILE_MAX_BYTES + 1).strip()
    except (OSError, UnicodeDecodeError) as error:
        reader.problems.append(f"{source}: can't read {path}: {getattr(error, 'strerror', None) or 'not UTF-8'}")
        return
    if len(value) > SECRET_FILE_MAX_BYTES:
        reader.problems.append(f"{source}: {path} has more than {SECRET_FILE_MAX_BYTES} bytes")
        return
    if not value:
        reader.problems.append(f"{source}: {path} is empty")
        return
    reader.take(info, value, source, text=True)


def _read_file(path: Path, reader: _Reader) -> None:
    import yaml  # only here: most starts have no file, and it costs 20 ms

    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(CONFIG_FILE_MAX_BYTES + 1)
    except (OSError, UnicodeDecodeError) as error:
        reader.problems.append(f"{path}: can't be read: {getattr(error, 'strerror', None) or 'not UTF-8'}")
        return
    if len(text) > CONFIG_FILE_MAX_BYTES:
        reader.problems.append(f"{path}: more than {CONFIG_FILE_MAX_BYTES} bytes")
        return
    try:
        loader = yaml.SafeLoader(text)
    except yaml.YAMLError:  # a character that none may have
        reader.problems.append(f"{path}: not YAML")
        return
    try:
        node = loader.get_single_node()
        if node is None:
            return
        if not isinstance(node, yaml.MappingNode):
            reader.problems.append(f"{path}: expected a mapping of settings")
            return
        seen: set[str] = set()
        for key_node, value_node in node.value:
            key = str(key_node.value)
            source = f"{path}:{key_node.start_mark.line + 1}: {key}"
            if key in seen:
                reader.problems.append(f"{source}: given twice")
            seen.add(key)
            try:
                value: object = loader.construct_object(value_node, deep=True)  # pyright: ignore[reportUnknownMemberType] - PyYAML's stubs leave the node untyped
            except ValueError as error:  # a date of a 13th month; YAMLError is none
                reader.problems.append(f"{source}: {error}")
                continue
            _take_from_file(key, value, source, reader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        reader.problems.append(f"{path}:{line}: {error.problem or 'not YAML'}")
    except (yaml.YAMLError, RecursionError):
        reader.problems.append(f"{path}: not YAML")
    finally:
        loader.dispose()


def _take_from_file(key: str, value: object, source: str, reader: _Reader) -> None:
    info = SETTINGS.get(key)
    if value is None and (info or key in SECRET_FILES):
        return  # `key:` with nothing after it counts as absent
    if key in SECRET_FILES:
        _read_secret_file(SECRET_FILES[key], str(value), source, reader)
    elif info is None:
        reader.problems.append(f"{source}: unknown setting{did_you_mean(_nearest(key, SETTINGS))}")
    elif info.secret and not (info.name == "postgres_dsn" and isinstance(value, str) and not dsn_has_password(value)):
        reader.problems.append(f"{source}: a secret; set {info.env}, {info.env}_FILE or {info.name}_file instead")
    elif info.is_list and isinstance(value, str):
        reader.take(info, value, source, text=True)
    else:
        reader.take(info, value, source, text=False)


def did_you_mean(nearest: str | None) -> str:
    """The end of a sentence on a name that does not exist."""
    return f" (did you mean {nearest}?)" if nearest else ""


def _nearest(name: str, names: Iterable[str]) -> str | None:
    import difflib

    return next(iter(difflib.get_close_matches(name, names, n=1)), None)


def _check_together(reader: _Reader) -> None:
    """Rules between settings. Values that were refused on their own count as their defaults here."""
    settings = Settings(**cast("Any", reader.values))
    wrong: list[tuple[str, str]] = []
    if settings.db_min_conns > settings.db_max_conns:
        wrong.append(("db_min_conns", f"{settings.db_min_conns} is more than db_max_conns ({settings.db_max_conns})"))
    if not settings.lease_min_seconds <= settings.lease_default_seconds <= settings.lease_max_seconds:
        wrong.append(("lease_default_seconds", "must lie between lease_min_seconds and lease_max_seconds"))
    ports = {"rest_port": settings.rest_port, "grpc_port": settings.grpc_port, "metrics_port": settings.metrics_port}
    taken: dict[int, str] = {}
    for name, port in ports.items():
        if port and port in taken:
            wrong.append((name, f"{port} is {taken[port]} already"))
        taken[port] = name
    if settings.dispatch_mode is DispatchMode.KAFKA_OUTBOX and not settings.kafka_seed_brokers:
        wrong.append(("dispatch_mode", "kafka_outbox needs kafka_seed_brokers (WE_KAFKA_SEED_BROKERS)"))
    wrong += [
        ("kafka_seed_brokers", f"{mask_text(repr(broker))} is not host:port")
        for broker in settings.kafka_seed_brokers
        if not re.fullmatch(r"[^\s/:]+:\d{1,5}|\[[0-9a-fA-F:]+\]:\d{1,5}", broker)
    ]
    if settings.kafka_transport is KafkaTransport.SASL_SCRAM_TLS:
        wrong += [
            (name, f"kafka_transport sasl_scram_tls needs it ({SETTINGS[name].env})")
            for name in ("kafka_sasl_username", "kafka_sasl_password")
            if not getattr(settings, name)
        ]
    if settings.bind is not None and not re.fullmatch(r"[0-9A-Za-z.:%_\-]+", settings.bind):
        wrong.append(("bind", f"{settings.bind!r} is not an address"))
    else:
        wrong += access_problems(settings)
    reader.problems += [f"{reader.source(name)}: {text}" for name, text in wrong]
