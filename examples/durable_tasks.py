"""Background tasks, as a task queue's: a worker's process runs what scripts, cron jobs and views hand over.

    python durable_tasks.py                       works, until Ctrl-C; start as many as you like

and from another terminal, meanwhile:

    python durable_tasks.py send 3 5 8            waits for the result and prints it
    python durable_tasks.py send --detach 3 5 8   prints the id to ask for later
    python durable_tasks.py result ID

A task that is sent is in the database before `send` returns: a worker that is killed loses none, and what it had done
is not done again. The database is the embedded one, or what PENSTOCK_AT names (`postgresql://…`). In Django put `send`
behind a view, with an App that is opened once in a process (as `shop` of `durable_flask.py`), and the worker behind a
management command.
"""

from __future__ import annotations

import sys

from penstock.durable import App, each, step, workflow

NAME = "tasks"


@step(retries=5, first="1s", cap="1m")
def square(number: int) -> int:
    return number * number


@workflow
async def sum_of_squares(numbers: list[int]) -> int:
    """A group of steps, twenty at a time, and what is made of their results."""
    return sum(await each(square, numbers, limit=20))


worker = App(sum_of_squares, name=NAME)


def send(numbers: list[int], *, detach: bool) -> str:
    """Blocks: for the result, or until the task is stored."""
    with App(name=NAME).in_thread() as tasks:  # it has no workflows, so it runs none
        run = tasks.start(sum_of_squares, numbers)
        return run.instance_id if detach else str(run.result(timeout_s=60))


def result(instance_id: str) -> str:
    with App(name=NAME).in_thread() as tasks:
        return str(tasks.get(instance_id, sum_of_squares).result(timeout_s=60))


if __name__ == "__main__":
    match sys.argv[1:]:
        case []:
            worker.main()
        case ["send", "--detach", *numbers]:
            print(send([int(number) for number in numbers], detach=True))
        case ["send", *numbers]:
            print(send([int(number) for number in numbers], detach=False))
        case ["result", instance_id]:
            print(result(instance_id))
        case _:
            sys.exit(__doc__)
