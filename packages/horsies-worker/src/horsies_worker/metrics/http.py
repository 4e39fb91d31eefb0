"""The HTTP endpoint for Prometheus and for probes: `/metrics`, `/healthz`, `/readyz`. Standard library only.

A thread accepts connections and starts one thread for each, up to a bound; no client can hold a thread for longer than
`DEADLINE_S`, however slowly it reads or writes. At the bound, a new connection takes the place of one that has not sent
its request: idle connections must not make the probes of an orchestrator fail, which would restart the worker. Nothing
here waits for a client at shutdown. The endpoint has no authentication: it serves figures and names of queues and
tasks, never arguments or results.
"""

import errno
import logging
import select
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, Self

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder, generate_latest

from horsies._text import one_line
from horsies_worker.metrics import DEFAULT_HOST, MetricsUnavailable

_log = logging.getLogger("horsies.metrics")

Probe = Callable[[], str | None]
"""Returns None when all is well, otherwise the reason. Called in a thread of the server."""

MAX_CONNECTIONS: Final = 16
"""Two Prometheus servers and the probes of an orchestrator need four."""
MAX_SCRAPES: Final = 8
"""Answers to `/metrics` at once. Only they can be too large for the socket's buffer, so that a client which does not
read holds its thread; the other places stay free for probes."""
SILENCE_S: Final = 5.0
"""A client that sends or takes nothing for so long is disconnected."""
DEADLINE_S: Final = 15.0
"""A client that has no answer by then is disconnected, even if it sends a byte every second."""
_POLL_S: Final = 0.2
_PLACE_S: Final = 0.2
"""How long a new connection waits for a place: the thread of a disconnected client, or a quick answer, ends sooner."""
_TEXT: Final = "text/plain; charset=utf-8"
_BUSY: Final = (
    b"HTTP/1.0 503 Service Unavailable\r\nContent-Type: text/plain; charset=utf-8\r\n"
    b"Connection: close\r\n\r\ntoo many connections at once\n"
)


def always_well() -> str | None:
    return None


class MetricsServer:
    """Serves one registry. `start` binds the address; `port` is then the real one, also for port 0.

    A process that forks children without exec starts it afterwards: they would inherit the listening socket.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        *,
        host: str = DEFAULT_HOST,
        port: int = 0,
        health: Probe = always_well,
        readiness: Probe = always_well,
    ) -> None:
        """`health`: whether the process should go on; `readiness`: whether its figures can be trusted."""
        self._registry = registry
        self._host = host
        self._wanted_port = port
        self._probes = {"/healthz": health, "/readyz": readiness}
        self._server: _Server | None = None

    @property
    def port(self) -> int:
        """The port that it listens on; 0 before `start`, unless one was given."""
        return self._server.server_port if self._server is not None else self._wanted_port

    def start(self) -> Self:
        """Bind the address and serve in a daemon thread. Raises MetricsUnavailable."""
        try:
            family, address = _resolved(self._host, self._wanted_port)
            self._server = _Server(family, address, self._registry, self._probes)
        except OSError as error:
            raise MetricsUnavailable(_told(error, self._host, self._wanted_port)) from error
        serve = threading.Thread(
            target=self._server.serve_forever, args=(_POLL_S,), name="horsies-metrics", daemon=True
        )
        serve.start()
        return self

    def close(self) -> None:
        """Stop listening and disconnect every client; returns within about a quarter of a second."""
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()
            server.disconnect_all()


def _resolved(host: str, port: int) -> tuple[int, tuple[Any, ...]]:
    """The first address of the host, IPv4 or IPv6."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, _, _, _, address = found[0]
    return family, address


def _told(error: OSError, host: str, port: int) -> str:
    where = f"{one_line(host)}, port {port}"
    match error.errno:
        case errno.EADDRINUSE:
            return (
                f"metrics cannot be served on {where}: port {port} is in use by another process; stop that, or choose "
                "another port (0: any free one)"
            )
        case errno.EACCES:
            return (
                f"metrics cannot be served on {where}: this user may not listen on port {port}; choose one from 1024 on"
            )
        case errno.EADDRNOTAVAIL:
            return f"metrics cannot be served on {where}: this machine does not have that address"
        case _:
            return f"metrics cannot be served on {where}: {error.strerror or error}"


@dataclass
class _Connection:
    """What the server knows about a connection that has a thread."""

    began: float = field(default_factory=time.monotonic)
    is_answering: bool = False
    """Its request is complete."""
    is_dropped: bool = False
    """It lost its place to a newer connection before its request was complete."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True
    allow_reuse_port = False  # two processes on one port would each get half of the scrapes
    request_queue_size = 512  # the kernel drops what does not fit, and a client tries again only after a second

    def __init__(
        self, family: int, address: tuple[Any, ...], registry: CollectorRegistry, probes: dict[str, Probe]
    ) -> None:
        self.address_family = family
        self.registry = registry
        self.probes = probes
        self.scrapes = threading.Semaphore(MAX_SCRAPES)
        self._changed = threading.Condition()
        """Guards `_open`; notified when a place becomes free."""
        self._open: dict[socket.socket, _Connection] = {}
        """The connections that have a thread, the oldest first."""
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        """Bind without the lookup of the host's name that the base class makes: it can take a minute."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def get_request(self) -> tuple[socket.socket, Any]:
        try:
            return super().get_request()
        except OSError:
            time.sleep(
                _POLL_S
            )  # no descriptors are left; the connection stays in the queue, and the loop must not spin
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start a thread for the connection, or refuse it when there are too many."""
        request.settimeout(SILENCE_S)
        if not self._take_place(request):
            _log.debug("refused a connection of %s: %d are open", client_address, MAX_CONNECTIONS)
            request.setblocking(False)  # the answer fits into the socket's buffer, or is dropped
            try:
                request.sendall(_BUSY)
            except OSError:
                pass
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread could be started
            self._forget(request)
            raise

    def begin_answer(self, request: socket.socket) -> bool:
        """Note that the request is complete: from now on the connection keeps its place. False if it has lost it."""
        with self._changed:
            connection = self._open.get(request)
            if connection is None or connection.is_dropped:
                return False
            connection.is_answering = True
            return True

    def _take_place(self, request: socket.socket) -> bool:
        with self._changed:
            if len(self._open) >= MAX_CONNECTIONS:
                self._drop_one()
                self._changed.wait_for(lambda: len(self._open) < MAX_CONNECTIONS, _PLACE_S)
            if len(self._open) >= MAX_CONNECTIONS:
                return False
            self._open[request] = _Connection()
            return True

    def _drop_one(self) -> None:
        """Disconnect the oldest client whose request is not complete, also if it sends a byte from time to time.

        Bytes that wait in a socket may be a request whose thread has had no turn yet: such a connection goes last.
        """
        waiting = [request for request, one in self._open.items() if not one.is_answering and not one.is_dropped]
        if not waiting:
            return
        poll = select.poll()
        for request in waiting:
            poll.register(request, select.POLLIN)
        with_bytes = {descriptor for descriptor, _ in poll.poll(0)}
        chosen = next((request for request in waiting if request.fileno() not in with_bytes), waiting[0])
        self._open[chosen].is_dropped = True
        _disconnect(chosen)

    def shutdown_request(self, request: Any) -> None:
        self._forget(request)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Called between requests: disconnect the clients that have passed the deadline."""
        overdue = time.monotonic() - DEADLINE_S
        with self._changed:
            late = [request for request, connection in self._open.items() if connection.began < overdue]
        for request in late:
            _disconnect(request)

    def disconnect_all(self) -> None:
        with self._changed:
            found = list(self._open)
        for request in found:
            _disconnect(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        _log.debug("a connection of %s failed", client_address, exc_info=True)

    def _forget(self, request: socket.socket) -> None:
        with self._changed:
            self._open.pop(request, None)
            self._changed.notify_all()


def _disconnect(request: socket.socket) -> None:
    """Wake the thread that reads from it or writes to it; that thread closes it."""
    try:
        request.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # it is closed already


class _Handler(BaseHTTPRequestHandler):
    server: _Server  # pyright: ignore[reportIncompatibleVariableOverride]
    protocol_version = "HTTP/1.0"  # one request for each connection: an idle one would hold a thread
    default_request_version = "HTTP/1.0"  # HTTP/0.9 would have no status in its answers

    def parse_request(self) -> bool:
        """Parse the request, and answer it only if the connection still has its place."""
        return super().parse_request() and self.server.begin_answer(self.connection)

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/metrics":
            self._metrics_in_turn()
        elif (probe := self.server.probes.get(path)) is not None:
            self._probe(probe)
        else:
            self._answer(HTTPStatus.NOT_FOUND, "not found; there are /metrics, /healthz and /readyz\n")

    def do_HEAD(self) -> None:
        self.do_GET()

    def _refuse(self) -> None:
        self._answer(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD are allowed\n", allow="GET, HEAD")

    do_POST = do_PUT = do_DELETE = do_PATCH = do_OPTIONS = do_TRACE = do_CONNECT = _refuse

    def _metrics_in_turn(self) -> None:
        if not self.server.scrapes.acquire(blocking=False):
            self._answer(HTTPStatus.SERVICE_UNAVAILABLE, "too many scrapes at once\n")
            return
        try:
            self._metrics()
        finally:
            self.server.scrapes.release()

    def _metrics(self) -> None:
        try:
            encode, content_type = choose_encoder(self.headers.get("Accept", ""))
        except Exception:  # a version in the header that is no number
            encode, content_type = generate_latest, _TEXT
        try:
            body = encode(self.server.registry)
        except Exception:
            _log.exception("the metrics could not be collected")
            self._answer(HTTPStatus.INTERNAL_SERVER_ERROR, "the metrics could not be collected; the log says why\n")
            return
        self._write(HTTPStatus.OK, content_type, body)

    def _probe(self, probe: Probe) -> None:
        try:
            reason = probe()
        except Exception:
            _log.exception("the probe %s failed", self.path)
            reason = "the probe failed; the log says why"
        if reason is None:
            self._answer(HTTPStatus.OK, "ok\n")
        else:
            self._answer(HTTPStatus.SERVICE_UNAVAILABLE, f"{one_line(reason)}\n")

    def _answer(self, status: HTTPStatus, text: str, allow: str | None = None) -> None:
        self._write(status, _TEXT, text.encode(errors="backslashreplace"), allow)

    def _write(self, status: HTTPStatus, content_type: str, body: bytes, allow: str | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        if allow is not None:
            self.send_header("Allow", allow)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """In plain text, unlike the base class: what a malformed request gets."""
        status = HTTPStatus(code)
        if status is HTTPStatus.NOT_IMPLEMENTED:  # a method that is no word of HTTP
            self._refuse()
        else:
            self._answer(status, f"{status.phrase}\n")

    def version_string(self) -> str:
        return "horsies"

    def log_message(self, format: str, *args: Any) -> None:
        _log.debug("%s: %s", self.client_address[0], one_line(format % args))
