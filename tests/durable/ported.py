"""Samples of Temporal and DBOS as workflows of ours, written anew: docs/durable-coming-from.md counts their lines."""

from __future__ import annotations

from penstock.durable import (
    Semaphore,
    continue_as_new,
    first,
    receive,
    run_info,
    set_view,
    sleep,
    start,
    step,
    update,
    workflow,
)

FOREIGN = {"French": "Bonjour, monde", "Spanish": "Hola, mundo"}


@step
async def call_greeting_service(language: str) -> str | None:
    return FOREIGN.get(language)


@step
async def assign_nodes(nodes: list[str], job: str) -> None: ...


@step
async def unassign_nodes(nodes: list[str], job: str) -> None: ...


@step
async def find_bad_nodes(nodes: list[str]) -> list[str]:
    return nodes[-1:]


@step
async def create_order() -> int:
    return 17


@step
async def reserve() -> bool:
    return True


@step
async def undo_reserve() -> None: ...


@step
async def set_status(order: int, status: str) -> None: ...


@workflow
async def dispatch(order: int) -> None:
    await sleep("10s")


# port: greeting
GREETINGS = {"Chinese": "你好，世界", "English": "Hello, world"}


@workflow
async def greeting() -> str:
    greetings, language, one_at_a_time = dict(GREETINGS), "English", Semaphore(1)
    set_view({"language": language, "languages": sorted(greetings)})

    def change(new: str) -> str:
        nonlocal language
        language, previous = new, language
        set_view({"language": language, "languages": sorted(greetings)})
        return previous

    @update
    def set_language(new: str) -> str:
        return change(new)

    @set_language.validator
    def check(new: str) -> None:
        if new not in greetings:
            raise ValueError(f"{new} is not supported")

    @update
    async def set_language_by_service(new: str) -> str:
        async with one_at_a_time:
            if new not in greetings:
                found = await call_greeting_service(new)
                if found is None:
                    raise LookupError(f"the greeting service does not support {new}")
                greetings[new] = found
        return change(new)

    await receive("approve", str)
    return greetings[language]


# port: cluster
@workflow
async def cluster(nodes: dict[str, str | None] | None = None) -> dict[str, int]:
    if nodes is None:
        await receive("start", bool)
        nodes = {str(number): None for number in range(25)}
    one_at_a_time, stops = Semaphore(1), False

    def of(job: str | None) -> list[str]:
        return [node for node, its in nodes.items() if its == job]

    @update
    async def assign(job: str, count: int) -> list[str]:
        async with one_at_a_time:
            if stops:
                raise RuntimeError("the cluster is shut down")
            if not of(job):
                if len(of(None)) < count:
                    raise LookupError(f"{count} nodes are asked for, {len(of(None))} are free")
                chosen = of(None)[:count]
                await assign_nodes(chosen, job)
                nodes.update(dict.fromkeys(chosen, job))
            return of(job)

    @update
    async def delete(job: str) -> None:
        async with one_at_a_time:
            await unassign_nodes(of(job), job)
            nodes.update(dict.fromkeys(of(job), None))

    while not stops:
        async with one_at_a_time:
            at_work = [node for node, job in nodes.items() if job not in (None, "BAD!")]
            nodes.update(dict.fromkeys(await find_bad_nodes(at_work), "BAD!"))
        stops = (await first(stop=receive("shutdown", bool), check=sleep("10 min"))).name == "stop"
        if not stops and run_info().is_continue_as_new_suggested:
            continue_as_new(nodes)
    return {"assigned": len(nodes) - len(of(None)) - len(of("BAD!")), "bad": len(of("BAD!"))}


# port: fair queue
@workflow(queue="fair")  # in the queue's policy: concurrency 5, concurrencyPerKey 1
async def fair() -> str:
    return "done"


# port: events
@workflow
async def checkout() -> None:
    order = await create_order()
    if not await reserve():
        await set_status(order, "CANCELLED")
        set_view(None, key="payment_id")
        return
    set_view(run_info().id, key="payment_id")
    if await receive("payment_status", str) == "paid":
        await set_status(order, "PAID")
        await start(dispatch, order)
    else:
        await undo_reserve()
        await set_status(order, "CANCELLED")
    set_view(str(order), key="order_id")


# port: end
