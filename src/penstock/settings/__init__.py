"""The settings of the engine: what there is, what it means, and how it is read.

A leaf: imports nothing else of penstock, and stays cheap to import (`penstock serve` starts with it). One name serves
everywhere: the attribute, the key in the YAML file, and, in capitals with ``WE_`` before it, the environment variable
(``rest_port``, ``rest_port:``, ``WE_REST_PORT``; only the two pool sizes are ``DB_MAX_CONNS`` and ``DB_MIN_CONNS``, as
the wire contract has them).
"""

from __future__ import annotations

from penstock.settings.access import is_loopback
from penstock.settings.load import (
    DEFAULT_CONFIG_PATH,
    SettingsError,
    did_you_mean,
    load_settings,
    load_with_sources,
    unknown_environment,
)
from penstock.settings.model import (
    SETTINGS,
    ArchiveFormat,
    DispatchMode,
    HttpServerKind,
    KafkaTransport,
    LogFormat,
    LogLevel,
    SaslMechanism,
    SettingInfo,
    Settings,
)
from penstock.settings.secret import Secret

__all__ = [
    "DEFAULT_CONFIG_PATH",
    "SETTINGS",
    "ArchiveFormat",
    "DispatchMode",
    "HttpServerKind",
    "KafkaTransport",
    "LogFormat",
    "LogLevel",
    "SaslMechanism",
    "Secret",
    "SettingInfo",
    "Settings",
    "SettingsError",
    "did_you_mean",
    "is_loopback",
    "load_settings",
    "load_with_sources",
    "unknown_environment",
]
