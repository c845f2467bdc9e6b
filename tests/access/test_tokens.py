"""API tokens and trusted networks: what is a proof and what is none."""

from __future__ import annotations

import math
import time

import pytest

from penstock.access.networks import TrustedNetworks
from penstock.access.roles import read_grant
from penstock.access.tokens import KnownToken, TokenBook, make_token, read_fixed_tokens
from penstock.errors import BadRequest, Unauthenticated
from tests.access.people import bearer, make_gate


def known(id: str, digest: bytes, expires_at: float = math.inf) -> KnownToken:
    return KnownToken(id, f"name of {id}", digest, read_grant("viewer"), expires_at)


def test_a_token_is_found_by_nothing_but_itself():
    made = make_token()
    assert made.text.startswith(f"pst_{made.id}_")
    assert len(made.text) >= 4 + 12 + 1 + 43
    book = TokenBook()
    book.replace([known(made.id, made.digest)])
    found = book.find(made.text.encode())
    assert found is not None
    assert (found.name, found.key) == (f"token:name of {made.id}", f"token:{made.id}")
    for wrong in (made.text[:-1], made.text + " ", made.text.upper(), "", made.digest.hex(), made.id):
        assert book.find(wrong.encode()) is None


def test_no_two_tokens_are_alike():
    assert len({make_token().text for _ in range(1000)}) == 1000


def test_a_token_ends_with_its_time_or_its_removal():
    made, over = make_token(), make_token()
    book = TokenBook()
    book.replace([known(made.id, made.digest), known(over.id, over.digest, time.time() - 0.001)])
    assert book.find(over.text.encode()) is None
    assert book.has(f"token:{made.id}")
    book.replace([])
    assert book.find(made.text.encode()) is None
    assert not book.has(f"token:{made.id}")


def test_tokens_of_the_settings_stay():
    made = make_token()
    book = TokenBook(read_fixed_tokens([f"ci = worker(a=b|c) = sha256:{made.digest.hex()}"]))
    book.replace([])
    found = book.find(made.text.encode())
    assert found is not None
    assert (found.name, found.job_types) == ("token:ci", frozenset({"a=b", "c"}))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("ci=viewer=pst_123_secret", "entry 1 of api_tokens is not name=roles=sha256"),
        ("=viewer=sha256:" + "0" * 64, "entry 1 of api_tokens is not"),
        ("ci=viewer=sha256:" + "0" * 63, "entry 1 of api_tokens is not"),
        ("ci=root=sha256:" + "0" * 64, "entry 'ci' of api_tokens: 'root' is not one of the roles"),
    ],
)
def test_a_line_without_a_token_is_refused_without_showing_it(line, said):
    with pytest.raises(BadRequest, match=said) as caught:
        read_fixed_tokens([line])
    assert "secret" not in caught.value.reason


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("10.1.2.3", "network:10.0.0.0/8"),
        ("10.1.0.9", "network:10.1.0.0/24"),
        ("::ffff:10.1.2.3", "network:10.0.0.0/8"),
        ("fe80::1%eth0", "network:fe80::/10"),
        ("11.0.0.1", None),
        ("no address", None),
        (None, None),
    ],
)
def test_the_smallest_network_that_holds_an_address_counts(address, name):
    networks = TrustedNetworks(["10.0.0.0/8=worker", "10.1.0.0/24=viewer", "fe80::/10 = viewer"])
    for _ in range(2):  # looked up, then from the cache
        found = networks.find(address)
        assert (None if found is None else found.name) == name
        assert found is None or found.ambient


@pytest.mark.parametrize("line", ["10.0.0.0/8", "10.0.0.1/8=viewer", "everywhere=viewer", "10.0.0.0/8=root"])
def test_a_line_that_is_no_network_is_refused(line):
    with pytest.raises(BadRequest, match="trusted_networks: "):
        TrustedNetworks([line])


async def test_two_proofs_at_once_are_none():
    proof = bearer("viewer").encode()
    assert (await make_gate().identify([proof], None)).name == "token:viewer"
    with pytest.raises(Unauthenticated, match="the request has the header Authorization twice: send it once"):
        await make_gate().identify([proof, proof], None)
