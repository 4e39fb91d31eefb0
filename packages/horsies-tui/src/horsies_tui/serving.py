"""The dashboard in a browser: textual-serve starts one dashboard per visitor and shows it there.

Every page that the operator's browser opens can send requests to this machine, and a name that its owner points at
127.0.0.1 makes such a page look like ours. So every request, on any route and with any method, must name this server in
its Host header and bring the token that is printed at the start. An Origin header must name this server too, and the
websocket is opened only with one: browsers send it with every websocket, but not with the visit of a page.
"""

import asyncio
import contextlib
import ipaddress
import logging
import re
import secrets
import shlex
import signal
import sys
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any, Final
from urllib.parse import urlencode

import aiohttp_jinja2
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from textual_serve.server import Server, to_int

TOKEN: Final = "token"
"""The query parameter of the printed URL. Opening the page with it sets a cookie."""
LOOPBACK_NAMES: Final = frozenset({"localhost", "127.0.0.1", "::1"})
_HOST: Final = re.compile(r"(\[(?P<v6>[0-9a-f:.]{2,45})\]|(?P<name>[a-z0-9._-]{1,253}))(:\d{1,5})?", re.IGNORECASE)
_HEADERS: Final = {
    "Cache-Control": "no-store",
    # The page of textual-serve asks another host for a font: nothing is loaded from there. Its script and styles are in
    # the page itself; browsers take 'self' for the websocket as well.
    "Content-Security-Policy": "default-src 'self'; script-src 'self' 'unsafe-inline'; "
    "style-src 'self' 'unsafe-inline'; img-src 'self' data:; font-src 'self' data:; object-src 'none'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
_NEEDS_TOKEN: Final = (
    "This dashboard needs a token: open the address that `horsies tui --serve` printed at its start.\n"
)
_END_S: Final = 2.0
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def serve(arguments: Sequence[str], *, host: str, port: int, allowed_hosts: Collection[str] = ()) -> None:
    """Serve until interrupted."""
    # textual-serve runs the command by a shell, in an environment with another driver. Ctrl+C in the terminal reaches
    # all processes; a dashboard that is still being imported would tell of it with a traceback.
    driver = "TEXTUAL_DRIVER=horsies_tui.served_driver:ServedDriver"
    command = "trap '' INT; exec " + shlex.join(["env", driver, sys.executable, "-m", "horsies_tui", *arguments])
    GuardedServer(command, host, port, Guard(host, port, allowed_hosts)).serve()


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() in LOOPBACK_NAMES


def _is_every_address(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return not host


class Guard:
    """Decides whether a request is allowed."""

    def __init__(self, host: str, port: int, allowed_hosts: Collection[str] = (), token: str | None = None) -> None:
        self.token = token or secrets.token_urlsafe(32)
        self.cookie = f"horsies_tui_{port}"
        """The name of the cookie, with the port: cookies ignore ports, and there may be a second dashboard here."""
        self._every_address = _is_every_address(host)
        names = {_plain(name) for name in allowed_hosts}
        if self._every_address or is_loopback(host):
            names |= LOOPBACK_NAMES
        if not self._every_address:
            names.add(_plain(host))
        self._names = frozenset(names)

    def problem(self, request: web.Request) -> tuple[int, str] | None:
        """The status and the reason with which a request is refused; None when it is allowed."""
        hosts = request.headers.getall("Host", [])
        if len(hosts) != 1 or not self._is_ours(hosts[0], request):
            return 403, "This address is not one of the dashboard's. --allow-host NAME allows another name.\n"
        origins = request.headers.getall("Origin", [])
        if any(not _is_same(origin, hosts[0]) for origin in origins) or (not origins and _is_upgrade(request)):
            return 403, "Only the dashboard's own page may ask for this.\n"
        is_visit = request.path == "/" and request.headers.get("Sec-Fetch-Mode") == "navigate"
        if request.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin") and not is_visit:
            return 403, "Only the dashboard's own page may ask for this.\n"
        if not self._has_token(request):
            return 401, _NEEDS_TOKEN
        if request.method not in ("GET", "HEAD"):
            return 405, "The dashboard's addresses are only read.\n"
        return None

    def _is_ours(self, host: str, request: web.Request) -> bool:
        """Whether this is a name of the server, or the connected address of a server that listens on every address."""
        found = _HOST.fullmatch(host)
        if found is None:
            return False
        name = _plain(found["v6"] or found["name"])
        return name in self._names or (self._every_address and name == _local_address(request))

    def _has_token(self, request: web.Request) -> bool:
        scheme, _, bearer = request.headers.get("Authorization", "").partition(" ")
        given = [request.query.get(TOKEN), request.cookies.get(self.cookie)]
        given.append(bearer.strip() if scheme.lower() == "bearer" else None)
        return any(self._is_token(one) for one in given if one is not None)

    def _is_token(self, given: str) -> bool:
        return secrets.compare_digest(given.encode(errors="replace"), self.token.encode())


def _plain(name: str) -> str:
    """The normal form of a host name: `LOCALHOST.` is localhost, and an address has one spelling."""
    name = name.strip("[]").rstrip(".").lower()
    try:
        return str(ipaddress.ip_address(name))
    except ValueError:
        return name


def _local_address(request: web.Request) -> str | None:
    name = request.transport.get_extra_info("sockname") if request.transport is not None else None
    if not name:
        return None
    address = ipaddress.ip_address(str(name[0]).partition("%")[0])
    return str(getattr(address, "ipv4_mapped", None) or address)


def _is_upgrade(request: web.Request) -> bool:
    """Whether the request asks for a websocket, or for the path of one."""
    upgrades = request.headers.getall("Upgrade", [])
    return request.path == "/ws" or any("websocket" in upgrade.lower() for upgrade in upgrades)


def _is_same(origin: str, host: str) -> bool:
    return origin.lower() in (f"http://{host.lower()}", f"https://{host.lower()}")


def _is_no_bad_request(record: logging.LogRecord) -> bool:
    """aiohttp logs a request that it cannot read as an error, with its line, which may hold the token."""
    return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))


class GuardedServer(Server):
    """textual-serve's server with a check of every request."""

    def __init__(self, command: str, host: str, port: int, guard: Guard) -> None:
        super().__init__(command, host=host, port=port, title="horsies")  # pyright: ignore[reportUnknownMemberType]
        self._guard = guard
        self._open: dict[web.WebSocketResponse, Any] = {}
        self._is_ending = False

    def initialize_logging(self) -> None:
        """Log without local variables in tracebacks and without request lines: both can contain secrets."""
        logging.basicConfig(level=logging.WARNING, format="%(name)s: %(message)s")
        logging.getLogger("aiohttp.server").addFilter(_is_no_bad_request)

    def serve(self, debug: bool = False) -> None:
        """Serve until interrupted. The base class has no hook between binding the port and serving: an address that was
        printed before would be that of another program if the port is in use."""
        self.initialize_logging()
        loop = asyncio.new_event_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.request_exit)
        web.run_app(
            self._make_app(), host=self.host, port=self.port, handle_signals=False, loop=loop, print=self._announce
        )

    async def on_startup(self, app: web.Application) -> None:
        """Print nothing yet, unlike the base class."""

    def _announce(self, *_: object) -> None:
        """Print the address; aiohttp calls this once all sockets are bound."""
        sys.stdout.write(
            f"The dashboard is served at {self.address}\n"
            "The token in it lets anyone in who has it. Ctrl+C ends the server.\n"
        )
        sys.stdout.flush()

    @property
    def address(self) -> str:
        """The URL that the operator opens, with the token."""
        name = "localhost" if _is_every_address(self.host) else self.host
        name = f"[{name}]" if ":" in name else name
        return f"http://{name}:{self.port}/?{TOKEN}={self._guard.token}"

    async def on_shutdown(self, app: web.Application) -> None:
        """End the visitors' dashboards and close their connections; otherwise the end waits a minute for them."""
        self._is_ending = True
        logging.getLogger("textual-serve").setLevel(logging.CRITICAL)  # it would tell of each that was still starting
        await asyncio.gather(*(_end(service) for service in list(self._open.values())))
        # a visitor may leave at the same moment
        await asyncio.gather(*(socket.close() for socket in self._open), return_exceptions=True)

    async def _process_messages(self, websocket: web.WebSocketResponse, app_service: Any) -> None:
        if self._is_ending:  # it was being started
            await _end(app_service)
            return
        self._open[websocket] = app_service
        try:
            await super()._process_messages(websocket, app_service)
        finally:
            del self._open[websocket]

    async def _make_app(self) -> web.Application:
        app = await super()._make_app()
        app.middlewares.append(self._guarded())
        return app

    def _guarded(self) -> Any:
        @web.middleware
        async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
            problem = self._guard.problem(request)
            if problem is not None:
                return web.Response(status=problem[0], text=problem[1], headers=_HEADERS)
            if request.path == "/" and TOKEN in request.query:
                return self._welcome(request)
            response = await handler(request)
            if not response.prepared:
                response.headers.update(_HEADERS)
            return response

        return guarded

    def _welcome(self, request: web.Request) -> web.Response:
        """Move the token from the address, which history and screenshots show, into a cookie."""
        rest = urlencode([(key, value) for key, value in request.query.items() if key != TOKEN])
        response = web.Response(status=303, headers={**_HEADERS, "Location": f"/?{rest}" if rest else "/"})
        response.set_cookie(
            self._guard.cookie, self._guard.token, httponly=True, samesite="Strict", path="/", secure=_is_https(request)
        )
        return response

    async def handle_index(self, request: web.Request) -> Any:
        """The page with addresses under the host name that the visitor uses, because a cookie belongs to one name."""
        scheme, socket = ("https", "wss") if _is_https(request) else ("http", "ws")
        context = {
            "font_size": to_int(request.query.get("fontsize", "16"), 16),
            "app_websocket_url": f"{socket}://{request.host}/ws",
            "config": {"static": {"url": f"{scheme}://{request.host}/static/"}},
            "application": {"name": self.title},
        }
        return aiohttp_jinja2.render_template("app_index.html", request, context)


async def _end(service: Any) -> None:
    """End a visitor's dashboard. It reads its input, and so learns that it should quit, only once it has started. Its
    end is awaited: asyncio would tell of a process that outlives the event loop with a traceback."""
    process: asyncio.subprocess.Process = service._process
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_END_S):
            await process.wait()


def _is_https(request: web.Request) -> bool:
    """The scheme, also behind a proxy with TLS; a forged header breaks only the forger's own page."""
    return request.scheme == "https" or request.headers.get("X-Forwarded-Proto") == "https"
