"""A TCP proxy in front of PostgreSQL that loses, holds back or cuts what passes through it.

    with ChaosProxy(db.url) as proxy:
        app = make_app(proxy.url)
        proxy.set(Mode.FREEZE)                    # nothing passes, nothing is lost
        proxy.cut()                               # every connection ends, now; new ones are served again
        proxy.cut_at(r"INSERT INTO horsies_tasks")  # the next one is executed, its answer never arrives
        proxy.hold(r"^LISTEN")                    # freezes the connections that have executed such a statement

It listens on loopback or on the address that it is given, in a thread of its own, and speaks to a TCP server or to a
unix socket. It reads enough of the protocol to know which statement a message executes, prepared ones included; TLS is
not spoken.
"""

import asyncio
import re
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Self
from urllib.parse import quote

from psycopg.conninfo import conninfo_to_dict

_NO_TYPE_YET = {80877102, 80877103, 80877104}  # CancelRequest, SSLRequest, GSSENCRequest: another start-up follows


class Mode(Enum):
    PASS = "pass"
    DELAY = "delay"
    """Every piece arrives later, by the proxy's `delay_s`, in order."""
    DROP = "drop"
    """Swallowed in both directions; the connections look healthy: a silent partition."""
    FREEZE = "freeze"
    """Held back until another mode is set; then everything arrives."""
    CUT = "cut"
    """Connections end, and new ones end at once: a server that is down."""


class When(Enum):
    UNSENT = "unsent"
    """Cut before the server sees the statement."""
    UNANSWERED = "unanswered"
    """Cut when the server has executed it, before a byte of its answer passes: the outcome is unknown."""


@dataclass
class _Trap:
    pattern: re.Pattern[str]
    when: When


class ChaosProxy:
    """Use as a context manager; every method may be called from any thread."""

    def __init__(self, url: str, *, host: str = "127.0.0.1") -> None:
        self._listens_on = host
        target = conninfo_to_dict(url)
        self._host, self._port = str(target.get("host") or "localhost"), int(target.get("port") or 5432)
        user, password = quote(str(target["user"]), safe=""), target.get("password")
        self._account = f"{user}:{quote(str(password), safe='')}" if password else user
        self._database = target["dbname"]
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="chaosproxy", daemon=True)
        self._server: asyncio.Server | None = None
        self._links: set[_Link] = set()
        self.mode = Mode.PASS
        self.delay_s = 0.05
        self.accepted = 0
        """Connections that clients opened so far."""
        self.cuts = 0
        """How often a trap (`cut_at`, `cut_after_bytes`) has closed."""
        self.notifications = 0
        """Notifications that were passed on to clients so far."""
        self.trap: _Trap | None = None
        self.held: re.Pattern[str] | None = None
        self.bytes_left: int | None = None
        self.url = ""

    def set(self, mode: Mode, *, delay_s: float | None = None) -> None:
        """From now on, for what is open and for what comes."""
        if delay_s is not None:
            self.delay_s = delay_s

        async def change() -> None:
            self.mode = mode
            for link in list(self._links):
                link.changed.set()
                if mode is Mode.CUT:
                    link.abort()

        self._do(change)

    def cut(self) -> None:
        """End every connection now; the mode stays."""

        async def end_all() -> None:
            for link in list(self._links):
                link.abort()

        self._do(end_all)

    def cut_at(self, pattern: str, when: When = When.UNANSWERED) -> None:
        """Cut the one connection that executes the next statement that matches."""
        self.trap = _Trap(re.compile(pattern, re.IGNORECASE), when)

    def hold(self, pattern: str | None) -> None:
        """Freeze every connection that has executed, or will execute, a statement that matches by its first 40
        characters; None lets everything through again."""

        async def change() -> None:
            self.held = None if pattern is None else re.compile(pattern, re.IGNORECASE)
            for link in list(self._links):
                link.changed.set()

        self._do(change)

    def cut_after_bytes(self, count: int) -> None:
        """Cut all connections once this many more bytes, of all of them together, have gone to the server."""
        self.bytes_left = count

    @property
    def open(self) -> int:
        return len(self._links)

    # -- inside ----------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self._thread.start()
        self._do(self._listen)
        return self

    def __exit__(self, *exc: object) -> None:
        self._do(self._close)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _do(self, work: Callable[[], Any]) -> None:
        asyncio.run_coroutine_threadsafe(work(), self._loop).result(10)

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, self._listens_on, 0)
        port = self._server.sockets[0].getsockname()[1]
        self.url = f"postgresql://{self._account}@{self._listens_on}:{port}/{self._database}"

    async def _close(self) -> None:
        assert self._server is not None
        self._server.close()
        # again and again: a client that was just accepted has a task, and then a link, a moment later
        while serving := [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]:
            for link in list(self._links):
                link.abort()
            await asyncio.wait(serving, timeout=0.1)
        await asyncio.sleep(0)  # aborted transports close their sockets in the loop's next round

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        # As a server does that probes its clients: else a session whose client vanished in a partition stays for ever.
        accepted: socket.socket = writer.get_extra_info("socket")
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if hasattr(socket, "TCP_KEEPIDLE"):
            for option, value in ((socket.TCP_KEEPIDLE, 5), (socket.TCP_KEEPINTVL, 2), (socket.TCP_KEEPCNT, 3)):
                accepted.setsockopt(socket.IPPROTO_TCP, option, value)
        if self.mode is Mode.CUT:
            writer.transport.abort()
            return
        try:
            there = await self._dial()
        except OSError:
            writer.transport.abort()
            return
        link = _Link(self, reader, writer, *there)
        self._links.add(link)
        try:
            await asyncio.gather(link.to_server(), link.to_client())
        except OSError:
            pass
        finally:
            self._links.discard(link)
            link.abort()

    async def _dial(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._host.startswith("/"):
            return await asyncio.open_unix_connection(f"{self._host}/.s.PGSQL.{self._port}")
        return await asyncio.open_connection(self._host, self._port)


@dataclass(eq=False)
class _Link:
    """One client's connection."""

    proxy: ChaosProxy
    client: asyncio.StreamReader
    client_writer: asyncio.StreamWriter
    server: asyncio.StreamReader
    server_writer: asyncio.StreamWriter
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    executed: set[str] = field(default_factory=set[str])
    """The first words of its statements, which tell a connection that listens from the others."""
    is_muted: bool = False
    """A trap has closed: the server's answer is read up to its end, and not passed on."""
    is_over: bool = False

    def abort(self) -> None:
        self.is_over = True
        self.changed.set()
        self.client_writer.transport.abort()
        self.server_writer.transport.abort()

    async def to_server(self) -> None:
        statements = _Statements()
        while chunk := await self.client.read(65_536):
            for message in statements.feed(chunk):
                if message.executes is not None:
                    self.executed.add(message.executes[:40])
                trap = self.proxy.trap
                if trap is not None and message.executes is not None and trap.pattern.search(message.executes):
                    self.proxy.trap = None
                    self.proxy.cuts += 1
                    if trap.when is When.UNSENT:
                        return self.abort()
                    self.is_muted = True
                if await self._may_pass():
                    self.server_writer.write(message.data)
                    await self.server_writer.drain()
                if self._is_used_up(len(message.data)):
                    return self.abort()
        return self.server_writer.close()

    async def to_client(self) -> None:
        answer = _Messages(has_type=True)
        while chunk := await self.server.read(65_536):
            kinds = [kind for kind, _, _ in answer.feed(chunk if chunk != b"N" else b"")]  # no to an SSLRequest
            if self.is_muted:
                if b"Z" in kinds:  # ReadyForQuery: it is done
                    return self.abort()
                continue
            if await self._may_pass():
                self.proxy.notifications += kinds.count(b"A")
                self.client_writer.write(chunk)
                await self.client_writer.drain()
        return self.client_writer.close()

    async def _may_pass(self) -> bool:
        while (self.proxy.mode is Mode.FREEZE or self._is_held()) and not self.is_over:
            self.changed.clear()
            await self.changed.wait()
        if self.proxy.mode is Mode.DELAY:
            await asyncio.sleep(self.proxy.delay_s)
        return self.proxy.mode is not Mode.DROP

    def _is_held(self) -> bool:
        held = self.proxy.held
        return held is not None and any(map(held.search, self.executed))

    def _is_used_up(self, count: int) -> bool:
        if self.proxy.bytes_left is None:
            return False
        self.proxy.bytes_left -= count
        if self.proxy.bytes_left > 0:
            return False
        self.proxy.bytes_left = None
        self.proxy.cuts += 1
        return True


class _Messages:
    """Whole protocol messages out of a stream of bytes."""

    def __init__(self, *, has_type: bool) -> None:
        self._buffer = bytearray()
        self.has_type = has_type

    def feed(self, chunk: bytes) -> Iterator[tuple[bytes, bytes, bytes]]:
        """(type, body, whole message); a start-up message has no type."""
        self._buffer += chunk
        while True:
            start = 1 if self.has_type else 0
            if len(self._buffer) < start + 4:
                return
            end = start + int.from_bytes(self._buffer[start : start + 4], "big")
            if len(self._buffer) < end:
                return
            data = bytes(self._buffer[:end])
            del self._buffer[:end]
            yield data[:start], data[start + 4 :], data


@dataclass(frozen=True)
class _Message:
    data: bytes
    executes: str | None


class _Statements:
    """Knows the text behind every Execute: what was parsed under which name, and bound to which portal."""

    def __init__(self) -> None:
        self._messages = _Messages(has_type=False)
        self._parsed: dict[bytes, str] = {}
        self._bound: dict[bytes, str] = {}

    def feed(self, chunk: bytes) -> Iterator[_Message]:
        for kind, body, data in self._messages.feed(chunk):
            executes: str | None = None
            parts = body.split(b"\0", 2)
            match kind:
                case b"":
                    self._messages.has_type = int.from_bytes(body[:4], "big") not in _NO_TYPE_YET
                case b"P":
                    self._parsed[parts[0]] = parts[1].decode()
                case b"B":
                    self._bound[parts[0]] = self._parsed.get(parts[1], "")
                case b"E":
                    executes = self._bound.get(parts[0], "")
                case b"Q":
                    executes = parts[0].decode()
                case _:
                    pass
            yield _Message(data, executes)
