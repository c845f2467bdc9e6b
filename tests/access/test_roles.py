"""Roles: what each allows, how a grant is written, and that every route and RPC has its row in the table."""

from __future__ import annotations

import pytest

from penstock.access.identity import Identity, actor, check_job_types, set_identity
from penstock.access.roles import ALLOWED, LEAST_ROLE, Grant, Role, grant_of, merged, read_grant
from penstock.api.permission import Permission
from penstock.errors import BadRequest, Forbidden


@pytest.mark.parametrize(
    ("role", "allowed"),
    [
        ("viewer", {"view", "answers"}),
        ("clerk", {"view", "answers", "tasks"}),
        ("worker", {"work", "stream"}),
        ("operator", {"view", "answers", "tasks", "operate", "runs"}),
        ("executor", {"execute", "stream", "runs", "answers"}),
        ("admin", {"view", "answers", "tasks", "operate", "model", "work", "execute", "stream", "runs"}),
    ],
)
def test_what_each_role_allows(role, allowed):
    assert read_grant(role).permissions == allowed


def test_every_permission_has_a_role_that_a_refusal_can_name():
    for permission in set(Permission) - {Permission.NONE, Permission.PROVED}:
        assert permission in ALLOWED[LEAST_ROLE[permission]]


@pytest.mark.parametrize("text", ["viewer", "viewer+worker", "worker(a|b)", "clerk+worker(a+b|c)", "admin"])
def test_a_grant_is_written_as_it_is_read(text):
    assert str(read_grant(text)) == text


def test_a_worker_is_limited_to_job_types():
    grant = read_grant("viewer+worker(pack|ship)")
    assert grant == Grant(frozenset({Role.VIEWER, Role.WORKER}), frozenset({"pack", "ship"}))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "root",
        "Admin",
        "viewer+",
        "admin+executor(a)",
        "viewer(a)",
        "worker()",
        "worker(a||b)",
        "worker(a",
        "admin+worker(a)",
    ],
)
def test_what_is_no_grant_is_refused(text):
    with pytest.raises(BadRequest):
        read_grant(text)


def test_job_types_without_the_role_are_refused():
    with pytest.raises(BadRequest, match="limit the role worker"):
        grant_of([Role.VIEWER], ["a"])


def test_grants_add_up():
    assert merged([]) is None
    assert str(merged([read_grant("worker(a)"), read_grant("worker(b)+viewer")])) == "viewer+worker(a|b)"
    assert str(merged([read_grant("viewer"), read_grant("worker(a)")])) == "viewer+worker(a)"
    assert str(merged([read_grant("worker(a)"), read_grant("worker")])) == "worker"
    assert str(merged([read_grant("worker(a)"), read_grant("admin")])) == "worker+admin"


def test_a_refusal_names_the_role_that_is_needed():
    clerk = Identity.of("kim", read_grant("clerk"))
    clerk.require(Permission.TASKS)
    clerk.require(Permission.NONE)
    clerk.require(Permission.PROVED)
    with pytest.raises(Forbidden, match="needs the role admin, which kim does not have"):
        clerk.require(Permission.MODEL)


async def test_a_limited_worker_touches_its_job_types_only():
    check_job_types(["anything"])
    assert actor("said") == "said"
    set_identity(Identity.of("w1", read_grant("worker(pack)")))
    assert actor("said") == "w1"
    check_job_types(["pack"])
    with pytest.raises(Forbidden, match="worker for job type 'ship', which w1"):
        check_job_types(["pack", "ship"])
