"""Our blocks of headers against the hpack package's: what it writes we read, what we write it reads."""

from __future__ import annotations

import contextlib
import random

import pytest
from hpack import Decoder, Encoder

from penstock.wire.header_blocks import KEPT_BLOCK_BYTES, KEPT_MAX_BYTES, HeaderReader, block_of
from penstock.wire.http2_frames import BrokenConnection, Headers

NAMES = [b":path", b":status", b"content-type", b"authorization", b"x-key", b"x" * 130, b"grpc-timeout"]


def drawn(rng: random.Random) -> list[tuple[bytes, bytes]]:
    values = [b"", b"200", b"application/grpc", rng.randbytes(rng.randrange(200)), b"%dm" % rng.randrange(5_000)]
    return [(rng.choice(NAMES), rng.choice(values)) for _ in range(rng.randrange(8))]


@pytest.mark.parametrize("seed", range(20))
def test_a_sequence_of_blocks_says_what_hpack_wrote(seed: int) -> None:
    rng = random.Random(seed)
    encoder, reader = Encoder(), HeaderReader(10_000, list)
    for _ in range(60):
        if rng.random() < 0.1:
            encoder.header_table_size = rng.choice([0, 60, 500, 4_096])
        given = drawn(rng)
        said = reader.read(encoder.encode(given, huffman=rng.random() < 0.5))
        assert list(said.headers) == given
        assert said.request == given


@pytest.mark.parametrize("seed", range(5))
def test_hpack_reads_what_we_write(seed: int) -> None:
    rng = random.Random(seed)
    decoder = Decoder()
    for _ in range(60):
        given = drawn(rng)
        found = list(decoder.decode(block_of(given), raw=True))
        assert found == given
        assert not any(field.indexable for field in found if field[0] == b"authorization" and field[1])
    assert not decoder.header_table.dynamic_entries


def test_a_block_is_read_again_when_the_table_has_changed() -> None:
    read: list[Headers] = []
    encoder, reader = Encoder(), HeaderReader(10_000, read.append)
    for value, times in ((b"a", 2), (b"a", 3), (b"b", 1)):  # the first time it is put into the table
        for _ in range(times):
            reader.read(encoder.encode([(b"x-key", value)]))
    assert [dict(each)[b"x-key"] for each in read] == [b"a", b"a", b"b"]
    changed = encoder.encode([(b"x-key", b"a")])  # the same entry by another number
    assert dict(reader.read(changed).headers) == {b"x-key": b"a"}


def test_what_is_remembered_is_bounded() -> None:
    reader = HeaderReader(10_000, lambda headers: None)
    for number in range(2_000):
        reader.read(block_of([(b"x", b"%d" % number * 50)]))
        assert sum(map(len, reader.kept)) <= KEPT_MAX_BYTES
    assert reader.kept
    for number in range(2_000):  # of a few bytes each, which are a fraction of what is kept with them
        reader.read(block_of([(b"te", b"%d" % number)]))
        assert len(reader.kept) <= KEPT_MAX_BYTES // KEPT_BLOCK_BYTES
    reader.read(block_of([(b"x", b"y" * 9_000)]))  # larger than all that may be kept
    assert sum(map(len, reader.kept)) <= KEPT_MAX_BYTES // 2


def test_arbitrary_blocks_are_read_or_refused_as_hpack_does() -> None:
    rng = random.Random(3)
    for _ in range(5_000):
        block = rng.randbytes(rng.randrange(1, 20))
        theirs = ours = None
        with contextlib.suppress(Exception):
            theirs = list(Decoder(10_000).decode(block, raw=True))
        if theirs is not None and b"content-length" in dict(theirs):
            continue  # its value has to be a number
        with contextlib.suppress(BrokenConnection):
            ours = list(HeaderReader(10_000, lambda headers: None).read(block).headers)
        assert ours == theirs, block
