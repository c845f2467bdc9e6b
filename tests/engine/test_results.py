"""What an instance gives at its end, beside its variables."""

from __future__ import annotations

import msgspec
import pytest

from penstock.core.parsing.parsing import parse_definition
from penstock.engine.instances.instance_filter import InstanceFilter
from penstock.errors import Conflict
from penstock.settings import Secret
from penstock.testing.definitions import Json, definition, service, step
from tests.engine.conftest import MakeDriver
from tests.engine.test_encryption import KEYS

OUTPUT: Json = {"total": "${n + 1}", "note": "${note ?? 'none'}"}
GIVING: Json = definition(service("work", "end"), step("end", "END", output=OUTPUT), definition_id="giving")
AT_ONCE: Json = definition(step("end", "END", output=OUTPUT), definition_id="at once")


@pytest.mark.parametrize("encrypted", [False, True])
async def test_a_result_stands_beside_the_variables(make_driver: MakeDriver, encrypted: bool) -> None:
    driver = make_driver(encryption_keys=Secret(KEYS["k1"])) if encrypted else make_driver()
    await driver.upload(GIVING)
    instance = (await driver.start("giving", {"n": 1})).id
    assert (await driver.view(instance)).result is None
    await driver.complete(await driver.one("work"), {"n": 4})
    view = await driver.view(instance)
    assert view.status == "COMPLETED"
    assert msgspec.json.decode(view.result) == {"total": 5, "note": "none"}
    assert await driver.variables(instance) == {"n": 4}
    [(kept,)] = driver.rows("SELECT result::text FROM instance")
    assert ("none" in kept) is not encrypted
    listed = await driver.engine.instances.list(InstanceFilter(), 0, 10)
    assert [item.result for item in listed.items] == [None]


async def test_a_start_that_ends_answers_with_the_result(make_driver: MakeDriver) -> None:
    driver = make_driver()
    await driver.upload({**AT_ONCE, "id": "at-once"})
    started = await driver.start("at-once", {"n": 1, "note": "x"})
    assert (started.status, bytes(started.result)) == ("COMPLETED", b'{"total":2,"note":"x"}')


async def test_results_wait_until_all_engines_know_them(make_driver: MakeDriver) -> None:
    driver = make_driver()
    driver.rows(
        "INSERT INTO engine (number, holder, leased_until, dispatch_mode, description, schema_version)"
        " VALUES (900, gen_random_uuid(), penstock_now() + interval '1 h', 'polling', 'old', 15) RETURNING 1"
    )
    with pytest.raises(Conflict, match="upgrade all engines first"):
        await driver.engine.definitions.upload(parse_definition(GIVING))
