"""The keyring: what is sealed can be opened again, by who has the key and by nobody else."""

from __future__ import annotations

import base64
import builtins
import json
import re
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from penstock.errors import BadRequest
from penstock.store.db import vault as vault_module
from penstock.store.db.vault import KeyMissing, Vault, make_vault, read_keys

OLD, NEW = b"o" * 32, b"n" * 32
DOCUMENT = b'{"a":1,"b":{"deep":["x",null,1.5]},"number":123456789012345678901234567890,"\\u00e9":"\\u00e9","empty":{}}'


def test_each_value_is_sealed_by_itself_and_opened_exactly():
    vault = Vault({"k1": OLD})
    sealed = vault.seal(DOCUMENT)
    found = json.loads(sealed)
    assert list(found) == ["a", "b", "number", "é", "empty"]
    for value in found.values():
        assert list(value) == ["$enc"]
        assert re.fullmatch(r"k1:[A-Za-z0-9+/=]+", value["$enc"])
    assert json.loads(vault.open(sealed.decode())) == json.loads(DOCUMENT)
    assert json.loads(Vault({"k1": OLD}).open(sealed.decode())) == json.loads(DOCUMENT)
    as_stored = json.dumps(found)  # jsonb writes a space after the colon
    assert json.loads(vault.open(as_stored)) == json.loads(DOCUMENT)


def test_no_two_seals_of_a_value_are_alike():
    first, second = Vault({"k1": OLD}), Vault({"k1": OLD})
    sealed = {vault.seal_value(b"1", "a") for vault in (first, second) for _ in range(100)}
    assert len(sealed) == 200


def test_after_so_many_values_a_new_salt_begins(monkeypatch):
    monkeypatch.setattr(vault_module, "VALUES_PER_SALT", 3)
    vault = Vault({"k1": OLD})
    sealed = [json.loads(vault.seal_value(b"1", "a"))["$enc"].partition(":")[2] for _ in range(7)]
    salts = [base64.b64decode(text)[:16] for text in sealed]
    assert [salts.index(salt) for salt in salts] == [0, 0, 0, 3, 3, 3, 6]
    assert [base64.b64decode(text)[16:28] for text in sealed[3:6]] == [n.to_bytes(12, "big") for n in range(3)]


def test_threads_that_seal_at_once_never_share_a_nonce(monkeypatch):
    monkeypatch.setattr(vault_module, "VALUES_PER_SALT", 50)
    vault = Vault({"k1": OLD})
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as threads:
            runs = list(threads.map(lambda _: [vault.seal_value(b"1", "a") for _ in range(2_000)], range(4)))
    finally:
        sys.setswitchinterval(before)
    used = [base64.b64decode(json.loads(each)["$enc"].partition(":")[2])[:28] for run in runs for each in run]
    assert len(set(used)) == len(used) == 8_000


def test_the_first_key_seals_and_all_open():
    before = Vault({"old": OLD}).seal(b'{"a":1}').decode()
    rotated = Vault({"new": NEW, "old": OLD})
    after = rotated.seal(b'{"a":2}').decode()
    assert "new:" in after
    assert (rotated.open(before), rotated.open(after)) == ('{"a":1}', '{"a":2}')


def test_missing_wrong_and_moved_values_are_told_without_content():
    sealed = Vault({"k1": OLD}).seal(b'{"a":"hunter2"}').decode()
    with pytest.raises(KeyMissing, match="key 'k1', which is not in encryption_keys of this engine"):
        Vault({"k2": NEW}).open(sealed)
    with pytest.raises(KeyMissing, match="can't be opened with the key 'k1'"):
        Vault({"k1": NEW}).open(sealed)
    with pytest.raises(KeyMissing, match="can't be opened"):
        Vault({"k1": OLD}).open(sealed.replace('"a"', '"b"'))
    for broken in ("k1:AAAA", "k1:" + "A" * 400, "k1:AAA"):
        with pytest.raises(KeyMissing, match="can't be opened"):
            Vault({"k1": OLD}).open(json.dumps({"a": {"$enc": broken}}))


@pytest.mark.parametrize(
    "value", [{"$enc": 1}, {"$enc": "no"}, {"$enc": "k1:x", "more": 1}, {"$enc": None}, "$enc", ["$enc"]]
)
def test_what_was_written_without_keys_is_read_as_it_is(value):
    text = json.dumps({"a": value, "b": 1})
    assert json.loads(Vault({"k1": OLD}).open(text)) == {"a": value, "b": 1}


def test_a_clients_sealed_value_is_data_and_not_opened():
    vault = Vault({"k1": OLD})
    stolen = vault.seal(b'{"a":"hunter2"}')
    assert vault.open(vault.seal(stolen).decode()) == stolen.decode()


def encoded(key: bytes) -> str:
    return base64.b64encode(key).decode()


def test_keys_are_read_from_text_in_their_order():
    text = f"new={encoded(NEW)}, old={encoded(OLD)}\n"
    assert list(read_keys(text).items()) == [("new", NEW), ("old", OLD)]
    assert list(read_keys(text.replace(", ", "\n"))) == ["new", "old"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "number 1 of encryption_keys is not id=key"),
        (encoded(OLD), "number 1 of encryption_keys is not id=key|is not the base64"),
        (f"k1={encoded(OLD)} k1={encoded(NEW)}", "'k1' is given twice"),
        (f"k1={encoded(b'short')}", "'k1' of encryption_keys is not the base64 of 32 bytes"),
        ("k1=hunter2!", "'k1' of encryption_keys is not the base64 of 32 bytes"),
        (f"a b={encoded(OLD)}", "is not id=key|is not the base64"),
    ],
)
def test_keys_that_are_none_are_told_without_showing_them(text, reason):
    with pytest.raises(BadRequest, match=reason) as raised:
        read_keys(text)
    assert "hunter2" not in raised.value.reason
    assert encoded(OLD)[:20] not in raised.value.reason


def test_without_the_extra_the_error_says_what_to_install(monkeypatch):
    assert make_vault(None) is None
    real = builtins.__import__

    def without(name, *args):
        if name.startswith("cryptography"):
            raise ImportError(name)
        return real(name, *args)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(BadRequest, match=r"pip install 'penstock-workflow\[encryption\]'"):
        make_vault(f"k1={encoded(OLD)}")
