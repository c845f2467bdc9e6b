"""Payloads at rest, encrypted: top-level values of variables one by one, checkpoints, progress and kept answers whole.

A value becomes ``{"$enc": "<key id>:<base64>"}``, so that SQL goes on merging variables by their names and counting
their bytes. The engine above works on the clear values; only `store` seals and opens. What was written before, or by an
engine without keys, is no such object and is read as it is.

AES-256-GCM, with the variable's name as associated data: a value can't be moved to another name. The key of a value is
derived (HKDF-SHA-256) from the configured one and a random salt, anew for each process and every 2^24 values, and the
nonce counts: random nonces under one key would be used up after some billion values. The first key of the ring seals;
all of them open. Relies on `cryptography`, an extra. Must not log, nor show a value in an error.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
from collections import OrderedDict
from collections.abc import Callable
from threading import Lock
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from penstock.errors import BadRequest, Unavailable
from penstock.loop.offload import run_sized

T = TypeVar("T")

KEY_BYTES: Final = 32
SALT_BYTES: Final = 16
NONCE_BYTES: Final = 12
VALUES_PER_SALT: Final = 1 << 24
DERIVED_MAX_KEYS: Final = 10_000
"""Derived keys that are kept: one per engine process that wrote what is read."""

CHECKPOINT: Final = "$checkpoint"
PROGRESS: Final = "$progress"
ANSWER: Final = "$answer"
PAYLOAD: Final = "$payload"
ITEM: Final = "$item"
"""What values are called that are no variables."""

_KEY_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,32}")
_SEALED: Final = re.compile(r"([A-Za-z0-9_-]{1,32}):([A-Za-z0-9+/]+={0,2})")
_MARK: Final = '"$enc"'
_decode = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_encode = msgspec.json.Encoder().encode


class KeyMissing(Unavailable):
    """A value can't be opened: its key is not in the ring, or it is not what was sealed."""


class _Envelope(msgspec.Struct, forbid_unknown_fields=True):
    sealed: str = msgspec.field(name="$enc")


_read_envelope = msgspec.json.Decoder(_Envelope).decode


class Sealing(NamedTuple):
    """A parameter of a statement that is to be encrypted: when the statement is sent, away from the loop if it is large
    (`TrioConnection`). 4 MB of small values take 0.4 s."""

    size_bytes: int
    seal: Callable[[], str | bytes]


class Vault:
    """A ring of keys. Not shared between processes: each has salts of its own. Any thread may seal and open."""

    def __init__(self, keys: dict[str, bytes]) -> None:
        """``keys`` by their id; the first seals. Raises BadRequest where `cryptography` is not installed."""
        try:
            from cryptography.exceptions import InvalidTag
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        except ImportError as error:
            raise BadRequest(
                "encryption_keys needs the extra `encryption`: pip install 'penstock-workflow[encryption]'"
            ) from error
        self._cipher: type[Any] = AESGCM
        self._invalid: type[Exception] = InvalidTag
        self._keys = keys
        self._active = next(iter(keys))
        self._derived: OrderedDict[tuple[str, bytes], Any] = OrderedDict()
        self._salt = b""
        self._count = VALUES_PER_SALT
        self._counting = Lock()

    # -- whole documents

    def seal(self, variables: bytes) -> bytes:
        """Each value of a JSON object sealed; its names stay readable."""
        return _encode(
            {name: msgspec.Raw(self.seal_value(bytes(value), name)) for name, value in _decode(variables).items()}
        )

    def open(self, variables: str) -> str:
        """Each value of a JSON object as it was given to `seal`; those that are not sealed as they are.

        Raises KeyMissing.
        """
        if _MARK not in variables:
            return variables
        return _encode(
            {name: msgspec.Raw(self._open_raw(bytes(value), name)) for name, value in _decode(variables).items()}
        ).decode()

    def open_value(self, value: str, name: str) -> str:
        """A value as it was given to `seal_value`. Raises KeyMissing."""
        return self._open_raw(value.encode(), name).decode() if _MARK in value else value

    # -- one value

    def seal_text(self, payload: str) -> str:
        """Return a payload of a journal, as `seal_value`."""
        return self.seal_value(payload.encode(), PAYLOAD).decode()

    def seal_value(self, value: bytes, name: str) -> bytes:
        """A JSON value as the object that stands for it."""
        with self._counting:  # no nonce twice under one salt, whatever thread asks
            if self._count >= VALUES_PER_SALT:
                self._salt, self._count = os.urandom(SALT_BYTES), 0
            salt, nonce = self._salt, self._count.to_bytes(NONCE_BYTES, "big")
            self._count += 1
        text = self._cipher_for(self._active, salt).encrypt(nonce, value, name.encode())
        return b'{"$enc":"%b:%b"}' % (self._active.encode(), base64.b64encode(salt + nonce + text))

    def _open_raw(self, value: bytes, name: str) -> bytes:
        if not value.startswith(b'{"$enc"'):
            return value
        try:
            match = _SEALED.fullmatch(_read_envelope(value).sealed)
        except msgspec.MsgspecError:
            match = None
        if match is None:  # somebody's own object, from before there were keys
            return value
        id = match[1]
        if id not in self._keys:
            raise KeyMissing(
                f"a value is encrypted with the key '{id}', which is not in encryption_keys of this engine"
            )
        try:
            sealed = base64.b64decode(match[2], validate=True)
            salt, nonce = sealed[:SALT_BYTES], sealed[SALT_BYTES : SALT_BYTES + NONCE_BYTES]
            text = sealed[SALT_BYTES + NONCE_BYTES :]
            return bytes(self._cipher_for(id, salt).decrypt(nonce, text, name.encode()))
        except (self._invalid, binascii.Error, ValueError):
            reason = f"a value can't be opened with the key '{id}': that is not the key it had, or it was changed"
            raise KeyMissing(reason) from None

    def _cipher_for(self, id: str, salt: bytes) -> Any:
        cipher = self._derived.get((id, salt))
        if cipher is None:
            from cryptography.hazmat.primitives.hashes import SHA256
            from cryptography.hazmat.primitives.kdf.hkdf import HKDF

            derive = HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=salt, info=b"penstock payload 1")
            cipher = self._cipher(derive.derive(self._keys[id]))
            with self._counting:
                self._derived[id, salt] = cipher
                if len(self._derived) > DERIVED_MAX_KEYS:
                    self._derived.popitem(last=False)
        return cipher


async def offloaded(size_bytes: int, compute: Callable[[], T]) -> T:
    """What seals or opens so many bytes: away from the loop unless they are few. A checkpoint only then."""
    return await run_sized(size_bytes, compute, line="payloads")


def make_vault(keys: str | None) -> Vault | None:
    """Return the vault of a setting; None without one. Raises BadRequest."""
    return None if keys is None else Vault(read_keys(keys))


def read_keys(text: str) -> dict[str, bytes]:
    """Keys by their id from ``id=base64`` each, apart by commas or white space. Raises BadRequest, which shows none."""
    keys: dict[str, bytes] = {}
    for number, item in enumerate(re.split(r"[,\s]+", text.strip()), 1):
        id, _, encoded = item.partition("=")
        if not encoded.strip("=") or _KEY_ID.fullmatch(id) is None:  # a key without an id must not be shown as one
            raise BadRequest(f"number {number} of encryption_keys is not id=key, the id of letters, digits, _ and -")
        if id in keys:
            raise BadRequest(f"the id '{id}' is given twice in encryption_keys")
        try:
            key = base64.b64decode(encoded, validate=True)
        except (binascii.Error, ValueError):
            key = b""
        if len(key) != KEY_BYTES:
            raise BadRequest(f"'{id}' of encryption_keys is not the base64 of {KEY_BYTES} bytes")
        keys[id] = key
    return keys


def sealed(variables: bytes, vault: Vault | None) -> str | Sealing:
    """A JSON object as a parameter: encrypted where there are keys."""
    return variables.decode() if vault is None else Sealing(len(variables), lambda: vault.seal(variables).decode())
