"""Which part of the open files each listener gets."""

from __future__ import annotations

import pytest

from penstock.runtime.descriptors import share_files
from penstock.settings import Settings


def test_with_many_open_files_the_settings_hold() -> None:
    assert share_files(Settings(), 65_536) == (10_000, 10_000, 2_000)


@pytest.mark.parametrize("open_files_max", [128, 256, 1_024, 4_096])
def test_few_open_files_leave_room_for_the_database(open_files_max: int) -> None:
    settings = Settings(db_max_conns=20)
    shares = share_files(settings, open_files_max)
    assert min(shares) >= 8
    assert sum(shares) + settings.db_max_conns <= open_files_max
    assert shares.rest == shares.grpc


def test_the_part_follows_what_is_wanted() -> None:
    shares = share_files(Settings(http_max_connections=3_000, grpc_max_connections=1_000), 1_024)
    assert shares.rest > 2.9 * shares.grpc
