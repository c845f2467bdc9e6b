"""This engine among others on the same database: its number, its sign of life, wake-ups in both directions.

The number (part of every id) is a leased row; the sign of life is a session lock on a connection of its own, which
also listens. Wake-ups are hints, sent at most every ``notify_interval_seconds`` and only while other engines live.
Losing the connection loses hints, nothing else.
"""

from __future__ import annotations

import math
import os
import socket
import uuid
from collections.abc import Callable, Iterable

import msgspec
import trio

from penstock import __version__
from penstock.engine.engine import Engine
from penstock.engine.queues.events import Events
from penstock.engine.queues.journal_items import WATCH, MailboxNotice
from penstock.engine.queues.losses import Loss
from penstock.errors import Conflict
from penstock.log.log import get_logger
from penstock.runtime.deaths import Deaths, this_process
from penstock.store.db.connection import TrioConnection
from penstock.store.db.database import Database, DatabaseError
from penstock.store.db.schema import SCHEMA_VERSION
from penstock.store.rows import engines as store
from penstock.store.rows import outbox as outbox_store
from penstock.store.rows.engines import NUMBER_LEASE_S

POLL_INTERVAL_S = 1.0
RENEW_INTERVAL_S = 5.0
FRESH_S = 2 * RENEW_INTERVAL_S
"""An engine without its session lock that took or renewed its number within this time may be starting."""
RELOCK_INTERVAL_S = 1.0
"""How long the server may take to notice that our last session is gone, and its lock with it, before we ask again."""
PAYLOAD_MAX_CHARS = 7000  # PostgreSQL's limit is 8,000 bytes
LOSSES_MAX_ITEMS = 1000
"""Told with one wake-up, and so many runs that have mail; heartbeats tell of the others."""
KEYS_MAX_ITEMS = 100
"""Of flow keys, told with one wake-up; walks come to the others."""

log = get_logger(__name__)
_read_mailbox = msgspec.json.Decoder(list[MailboxNotice]).decode
_read_keys = msgspec.json.Decoder(list[tuple[str, str]]).decode
_read_instances = msgspec.json.Decoder(list[int]).decode
_read_losses = msgspec.json.Decoder(list[Loss]).decode


class Superseded(Exception):
    """This engine was taken for dead, and others have agreed on something that it can't take part in: it has to end."""


class Membership:
    """One engine's place among the engines on its database."""

    def __init__(self, database: Database, dispatch_mode: str, events: Events | None = None) -> None:
        self._database = database
        self.events = Events() if events is None else events
        self._mode = dispatch_mode
        self.holder = str(uuid.uuid4())
        self._tag = self.holder[:8]
        self.number = 0
        self.others: dict[int, store.OtherEngine] = {}
        self.relays_here: Callable[[], bool] = lambda: False
        """Whether what is queued here is published here: then nobody else has to know."""
        self._engine: Engine | None = None
        self._queued: set[str] = set()
        self._keys: dict[tuple[str, str], None] = {}
        self._losses: list[Loss] = []
        self._mail: dict[tuple[str, int, bool], MailboxNotice] = {}
        self._changed: dict[int, None] = {}  # runs that show something else, for those who wait elsewhere
        self._deaths = Deaths()
        self._timer_s: float | None = None
        self._unsent: list[str] = []
        self._wake = trio.Event()
        self._renew_at = 0.0
        self._listening = trio.CancelScope()
        self._servers_left = 0

    async def join(self) -> int:
        """Take a number.

        Raises Conflict, and holds none, while an engine of another dispatch mode lives, or when what is used on this
        database needs a newer engine.
        """
        async with self._database.connection(ahead=True) as connection:
            await self._claim(connection)
            needed = await store.needed_version(connection)
            if needed > SCHEMA_VERSION:
                await store.leave(connection, self.number, self.holder)
                raise Conflict(_too_old(needed))
            # afterwards: of two that start at once at least one sees the other
            others = await store.others(connection, self.holder)
            alive = [other for other in others if other.connected or other.left_s > NUMBER_LEASE_S - FRESH_S]
            for other in alive:
                if other.dispatch_mode != self._mode:
                    await store.leave(connection, self.number, self.holder)
                    raise Conflict(
                        f"an engine in dispatch mode '{other.dispatch_mode}' ({other.description}) lives on this"
                        f" database; this one has '{self._mode}'. All engines have to be stopped to switch."
                    )
            before = await outbox_store.switch_mode(connection, self._mode)
        self.others = {other.number: other for other in others if other.connected}  # who hears of what is done at once
        if before is not None:
            log.info("dispatch mode switched", before=before, now=self._mode)
        return self.number

    def attach(self, engine: Engine) -> None:
        """Wire the engine's wake-ups."""
        self._engine = engine
        engine.code.tag = self._tag
        events = engine.events
        events.queued.listen(self._on_queued)
        events.key_opened.listen(self._on_key)
        events.armed.listen(self._on_timer)
        events.lost.listen(self._on_loss)
        events.mailed.listen(self._on_mailbox)
        events.run_changed.listen(self._on_run_changed)

    async def leave(self) -> None:
        """Tell what was not told yet, and give the number back; best effort."""
        await self._notify()
        async with self._database.connection(ahead=True) as connection:
            await store.leave(connection, self.number, self.holder)

    # -- services

    async def listen(self) -> None:
        """Hold the session lock and take wake-ups until the connection is lost (then raises) or the number changes."""
        connection = await TrioConnection.connect(self._database.dsn)
        try:
            with trio.CancelScope() as self._listening:
                if not await store.listen_and_hold(connection, self.number):
                    self._listening.deadline = trio.current_time() + RELOCK_INTERVAL_S
                self._deaths.begin_session()
                async for notice in connection.notifies():
                    try:
                        self._take(notice.payload)
                    except (ValueError, msgspec.MsgspecError) as error:  # anybody on the database may notify
                        log.warning("an unreadable wake-up was ignored", reason=str(error))
        finally:
            self._deaths.end_session()
            connection.close_nowait()

    async def refresh(self) -> None:
        """Renew the number and see who else lives. With a primary that was replaced its listener is left, too."""
        if self._servers_left != self._database.pool.servers_left:
            self._servers_left = self._database.pool.servers_left
            self._listening.cancel()
        async with self._database.connection(ahead=True) as connection:
            if trio.current_time() >= self._renew_at:
                await self._renew(connection)
            others = await store.others(connection, self.holder)
        found = {other.number: other for other in others if other.connected}
        dead = self._deaths.find_dead(others, trio.current_time())
        if dead:
            self.events.engines_dead(dead)
        gone = [other.description for number, other in self.others.items() if number not in found]
        self.others = found
        if gone:
            log.info("engines are gone", engines=gone)
            self.events.engine_lost()
        await trio.sleep(POLL_INTERVAL_S)

    async def send(self) -> None:
        """Send one wake-up when there is something to tell."""
        await self._wake.wait()
        await self._notify()
        assert self._engine is not None
        await trio.sleep(self._engine.settings.notify_interval_seconds)

    async def _notify(self) -> None:
        """Send what there is to tell. Cancelled, the rest is sent the next time."""
        self._wake = trio.Event()
        queued, self._queued = self._queued, set()
        keys, self._keys = self._keys, {}
        timer_s, self._timer_s = self._timer_s, None
        losses, self._losses = self._losses, []
        mail, self._mail = self._mail, {}
        changed, self._changed = self._changed, {}
        self._unsent += [
            *self._json_payloads("h", keys),  # before what makes others look
            *self._payloads(queued, timer_s),
            *self._json_payloads("l", losses),
            *self._json_payloads("m", mail.values()),
            *self._json_payloads("v", changed),
        ]
        if self._unsent and (self.others or changed):
            try:
                async with self._database.connection(ahead=True) as connection:
                    while self._unsent:
                        await store.notify(connection, self._unsent[0])
                        del self._unsent[0]
            except DatabaseError:
                self._unsent.clear()
                raise
        self._unsent.clear()

    async def _claim(self, connection: TrioConnection) -> None:
        description = f"{socket.gethostname()} pid {os.getpid()}"
        self.number = await store.claim_number(
            connection, self.holder, NUMBER_LEASE_S, self._mode, description, this_process()
        )
        self._renew_at = trio.current_time() + RENEW_INTERVAL_S

    def _facts(self) -> str | None:
        """What is said of this engine to people who look at all of them."""
        engine = self._engine
        if engine is None:
            return None
        pool = self._database.pool.statistics()
        report = engine.polls.activity.report(__version__, pool.idle + pool.busy, len(engine.polls.leases))
        return msgspec.json.encode(report).decode()

    async def _renew(self, connection: TrioConnection) -> None:
        self._renew_at = trio.current_time() + RENEW_INTERVAL_S
        # our lease may have run out during an outage; whoever switched the mode then has another number, as a rule
        mode = await outbox_store.mode(connection)
        if mode != self._mode:
            raise Superseded(f"the dispatch mode was switched to '{mode}' while this engine was cut off")
        needed = await store.needed_version(connection)
        if needed > SCHEMA_VERSION:
            raise Superseded(_too_old(needed))
        if await store.renew_number(connection, self.number, self.holder, NUMBER_LEASE_S, self._facts()):
            return
        await self._claim(connection)  # the number was given away
        if self._engine is not None:
            self._engine.ids.number = self.number
        self._listening.cancel()  # the session lock is the number's
        log.warning("the engine number was lost and replaced", number=self.number)

    # -- payloads: "<tag> q <type>\n<type>...", "<tag> t <seconds>", "<tag> l <losses, JSON>", "<tag> m <mail, JSON>",
    # "<tag> v <runs that changed, JSON>", "<tag> h <flow keys, JSON>", "<tag> k" (API tokens), "<tag> f" (queues),
    # "sql r" (requests of SQL functions)

    def _payloads(self, queued: set[str], timer_s: float | None) -> list[str]:
        payloads: list[str] = []
        if queued:
            text = "\n".join(sorted(queued))
            payloads.append(f"{self._tag} q {text}" if len(text.encode()) < PAYLOAD_MAX_CHARS else f"{self._tag} a")
        if timer_s is not None:
            payloads.append(f"{self._tag} t {timer_s:.3f}")
        return payloads

    def _json_payloads(self, kind: str, things: Iterable[Loss | MailboxNotice | tuple[str, str] | int]) -> list[str]:
        texts = [""]
        for thing in things:
            text = msgspec.json.encode(thing).decode()
            if len(texts[-1].encode()) + len(text.encode()) > PAYLOAD_MAX_CHARS:
                texts.append("")
            texts[-1] += f",{text}" if texts[-1] else text
        return [f"{self._tag} {kind} [{text}]" for text in texts if text]

    def _take(self, payload: str) -> None:
        tag, _, rest = payload.partition(" ")
        kind, _, text = rest.partition(" ")
        engine = self._engine
        if tag == self._tag or engine is None:
            return
        if kind == "a" or kind == "q":
            types = text.split("\n") if kind == "q" else ()
            engine.polls.hint(types or engine.polls.waiters.types())
            self.events.queued_elsewhere(types)
        elif kind == "t":
            seconds = float(text)
            if not math.isfinite(seconds):
                raise ValueError(f"a timer is due in {seconds} s")
            engine.timers.hint(seconds)
        elif kind == "k":
            self.events.tokens_changed()
        elif kind == "f":
            engine.queues.hint()
        elif kind == "r":
            engine.sql_requests.hint()
        else:
            _on_notices(engine, kind, text)

    def _on_queued(self, job_type: str) -> None:
        if self.others and not self.relays_here():
            self._queued.add(job_type)
            self._wake.set()

    def _on_key(self, job_type: str, flow_key: str) -> None:
        if self.others and len(self._keys) < KEYS_MAX_ITEMS and not self.relays_here():
            self._keys[job_type, flow_key] = None
            self._wake.set()

    def _on_loss(self, loss: Loss) -> None:
        if self.others and len(self._losses) < LOSSES_MAX_ITEMS:
            self._losses.append(loss)
            self._wake.set()

    def _on_mailbox(self, mail: MailboxNotice) -> None:
        if self.others and len(self._mail) < LOSSES_MAX_ITEMS:
            self._mail[mail.holder, mail.instance, mail.mail == WATCH] = mail
            self._wake.set()

    def _on_run_changed(self, instance: int) -> None:
        if len(self._changed) < LOSSES_MAX_ITEMS:  # who waits for it at another engine may listen there only just now
            self._changed[instance] = None
            self._wake.set()

    def _on_timer(self, seconds: float) -> None:
        if self.others:
            self._timer_s = seconds if self._timer_s is None else min(seconds, self._timer_s)
            self._wake.set()


def _on_notices(engine: Engine, kind: str, text: str) -> None:
    """What comes as JSON; of a kind that only newer engines know nothing is heard."""
    if kind == "h":
        for job_type, flow_key in _read_keys(text):
            engine.polls.on_key_freed(job_type, flow_key)
    elif kind == "l":
        engine.polls.on_losses(_read_losses(text))
    elif kind == "m":
        for mail in _read_mailbox(text):
            engine.journal.receive(mail)
    elif kind == "v":
        for instance in _read_instances(text):
            engine.journal.subscribers.notify(instance)


def _too_old(needed: int) -> str:
    return (
        f"what is used on this database needs engines that know schema version {needed};"
        f" this one knows versions up to {SCHEMA_VERSION}"
    )
