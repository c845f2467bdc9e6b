"""The machine that drives the body of a durable workflow: synchronous, pure, with Trio's rules.

Inputs go in as records of a journal (`record`), commands come out: start this step, stop that one (`operation`). The
kernel has no loop, no clock, no I/O and no randomness: for one journal it does the same every time, on every machine.
That is what makes replay after a crash exact, and what Trio's own scheduler can't give, as it shuffles on purpose.

    branch      one coroutine of a run; the root, and one per child of a nursery
    scope       cancel scopes and deadlines; nursery opens one
    nursery     children that end before their block does
    operation   what a branch waits for: a step, a sleep, a message, a local event
    local       Event, Semaphore, memory channel: within one run, free of records
    record      what the journal holds
    drive       the kernel itself: records in, commands out
    replay      a whole journal at once; what differs is a `Mismatch`
    current     the branch that runs in this thread, for verbs that take no context argument

tests/kernel checks it against Trio itself over random programs.
"""
