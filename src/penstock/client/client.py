"""The asynchronous client: one method per operation of an engine."""

from __future__ import annotations

from penstock.client.batches import BatchCalls
from penstock.client.bulk import BulkCalls
from penstock.client.declared import DeclarationCalls
from penstock.client.definitions import DefinitionCalls
from penstock.client.instances import InstanceCalls
from penstock.client.jobs import JobCalls
from penstock.client.messages import MessageCalls
from penstock.client.queues import QueueCalls
from penstock.client.runs import RunCalls
from penstock.client.schedules import ScheduleCalls
from penstock.client.sql_requests import SqlRequestCalls
from penstock.client.updates import UpdateCalls


class Client(
    DefinitionCalls,
    InstanceCalls,
    BatchCalls,
    BulkCalls,
    RunCalls,
    MessageCalls,
    JobCalls,
    QueueCalls,
    ScheduleCalls,
    SqlRequestCalls,
    UpdateCalls,
    DeclarationCalls,
):
    """A client of one engine, or of several behind one address. Runs under asyncio and Trio.

    Args:
        engine: the engine's URL (``http://127.0.0.1:8080``) or a ``Transport``, which is closed with the client.
        token: proves who calls, to an engine with authentication: an API token, a JSON Web Token, or a function (plain
            or async) that gives one and is asked for every exchange. With a ``Transport`` it goes there.
        ssl_context: for ``https://`` and ``grpcs://``: own authorities, or a certificate of the client's; see
            ``ssl.create_default_context``. With a ``Transport`` it goes there.
        timeout_s: how long one method may take, repeats included. The time a poll is held comes on top.
        exchange_timeout_s: how long one exchange within a call may take before it is given up and maybe repeated.

    Use it as ``async with Client(url) as client``, or call ``aclose()`` at the end. Safe to share between tasks.
    Methods raise ``ClientError`` by condition (`errors.py`); what can pass by itself is an ``Unavailable``.

    Every method is cancel-safe: a cancelled call may or may not have taken effect, and the client stays usable.
    """
