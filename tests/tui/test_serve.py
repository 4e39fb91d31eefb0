"""In a real browser: `--serve`, read-only and on this machine unless told otherwise."""

import asyncio
import base64
import json
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import psutil
import pytest

from horsies_tui import cli
from tests.support.factories import task
from tests.support.postgres import Database
from tests.support.waiting import eventually, eventually_async

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@contextmanager
def process(command: list[str], log: Path, **environment: str) -> Iterator[None]:
    import os

    with log.open("wb") as sink:
        started = subprocess.Popen(command, stdout=sink, stderr=sink, env={**os.environ, **environment})
    try:
        yield
    finally:
        tree = psutil.Process(started.pid).children(recursive=True)
        started.terminate()
        started.wait(15)
        for child in tree:
            try:
                child.kill()
                child.wait(10)
            except psutil.NoSuchProcess:
                continue


class Page:
    """One page of a browser, through its debugging port."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._number = 0
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self.asked: dict[str, str] = {}
        self.loaded: set[str] = set()
        """The hosts that the page sent a request to: those that answered, and those that did not because there is no
        network. A request that the policy blocks is not sent."""
        self.received = ""
        """What the page's own connection was sent: the terminal's output."""

    async def listen(self) -> None:
        async for message in self._socket:
            told = json.loads(message.data)
            if "id" in told and told["id"] in self._answers:
                self._answers.pop(told["id"]).set_result(told.get("result", {}))
            elif told.get("method") == "Network.responseReceived":
                self.loaded.add(urlsplit(told["params"]["response"]["url"]).netloc)
            elif told.get("method") == "Network.requestWillBeSent":
                self.asked[told["params"]["requestId"]] = urlsplit(told["params"]["request"]["url"]).netloc
            elif told.get("method") == "Network.loadingFailed" and not told["params"].get("blockedReason"):
                self.loaded.add(self.asked.get(told["params"]["requestId"], ""))
            elif told.get("method") == "Network.webSocketFrameReceived":
                frame = told["params"]["response"]
                data = frame["payloadData"]
                self.received += base64.b64decode(data).decode(errors="replace") if frame["opcode"] == 2 else data

    async def do(self, method: str, **params: Any) -> Any:
        self._number += 1
        answer = self._answers[self._number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": self._number, "method": method, "params": params})
        return await asyncio.wait_for(answer, 20)

    async def key(self, key: str) -> None:
        for kind in ("keyDown", "keyUp"):
            text = {"text": key} if kind == "keyDown" else {}
            await self.do("Input.dispatchKeyEvent", type=kind, key=key, **text)


@asynccontextmanager
async def browser(tmp_path: Path, url: str) -> AsyncIterator[Page]:
    assert CHROMIUM is not None
    port = free_port()
    command = [
        CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
        f"--remote-debugging-port={port}", f"--user-data-dir={tmp_path / 'profile'}", "--window-size=1200,800",
        "about:blank",
    ]  # fmt: skip
    with process(command, tmp_path / "chromium.log"):
        async with aiohttp.ClientSession() as session:

            async def target() -> str | None:
                try:
                    async with session.get(f"http://127.0.0.1:{port}/json") as answer:
                        pages = [page for page in await answer.json() if page["type"] == "page"]
                        return pages[0]["webSocketDebuggerUrl"] if pages else None
                except aiohttp.ClientError:
                    return None

            address = await eventually_async(target, timeout=40, interval=0.2, describe="chromium is up")
            async with session.ws_connect(address, max_msg_size=0) as connection:
                page = Page(connection)
                listening = asyncio.ensure_future(page.listen())
                await page.do("Network.enable")
                await page.do("Page.enable")
                await page.do("Page.navigate", url=url)
                yield page
                listening.cancel()
                await asyncio.gather(listening, return_exceptions=True)


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
async def test_a_browser_shows_the_dashboard_and_takes_its_keys(db: Database, tmp_path: Path) -> None:
    task_id = task(db, task_name="in_the_browser")
    port = free_port()
    log = tmp_path / "serve.log"
    command = [sys.executable, "-m", "horsies_tui", "--serve", str(port)]
    with process(command, log, HORSIES_DATABASE_URL=db.url):
        eventually(lambda: listens(port), timeout=40, interval=0.1, describe=f"served: {log.read_text()}")
        assert {address.split(":")[0] for address in listeners(port)} <= {"127.0.0.1", "::1"}
        async with browser(tmp_path, address_of(log)) as page:
            await eventually_async(lambda: "Overview" in page.received, timeout=40, describe="the first screen")
            await page.do("Input.dispatchMouseEvent", type="mousePressed", x=600, y=400, button="left", clickCount=1)
            await page.do("Input.dispatchMouseEvent", type="mouseReleased", x=600, y=400, button="left", clickCount=1)
            await page.key("2")
            await eventually_async(lambda: "in_the_browser" in page.received, timeout=20, describe="the list of tasks")
            assert "read-only" in page.received
            assert "Cancel" not in page.received
            picture = base64.b64decode((await page.do("Page.captureScreenshot"))["data"])
            assert len(picture) > 20_000, "a page with something on it"
            assert page.loaded, "the requests of the page were seen"
            elsewhere = {host for host in page.loaded if host not in (f"localhost:{port}", "")}
            assert elsewhere == set(), "nothing comes from another host"
    assert db.value("SELECT status FROM horsies_tasks WHERE id = %s", task_id) == "PENDING"


def address_of(log: Path) -> str:
    """The address with the token, as it was printed."""
    found: list[str] = eventually(
        lambda: re.findall(r"http://\S+/\?token=\S{40,}", log.read_text()), timeout=40, interval=0.1, describe="printed"
    )
    return found[0]


@dataclass(frozen=True)
class Served:
    port: int
    token: str
    cookie: str

    @property
    def host(self) -> str:
        return f"localhost:{self.port}"

    @property
    def headers(self) -> dict[str, str]:
        """What the browser of a visitor sends."""
        cookie = f"{self.cookie}={self.token}"
        return {"Host": self.host, "Origin": f"http://{self.host}", "Cookie": cookie}

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}{path}"


@contextmanager
def served(log: Path, *options: str, **environment: str) -> Iterator[Served]:
    port = free_port()
    command = [sys.executable, "-m", "horsies_tui", "--demo", "--serve", str(port), *options]
    with process(command, log, **environment):
        address = address_of(log)
        assert listens(port), "the address is printed once it is served"
        yield Served(port, address.partition("token=")[2], f"horsies_tui_{port}")


PATHS = ("/", "/ws", "/static/", "/static/js/textual.js", "/download/x", "/nothing")
UPGRADE = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13",
           "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ=="}  # fmt: skip


async def test_every_request_needs_our_host_our_origin_and_the_token(tmp_path: Path) -> None:
    """With one of the three wrong, no route and no method answers, and no dashboard is started."""
    with served(tmp_path / "serve.log", "--allow-actions") as there:
        evil = f"evil.example:{there.port}"
        good = there.headers
        forged: dict[str, tuple[int, dict[str, str]]] = {
            "no token": (401, {**good, "Cookie": ""}),
            "another token": (401, {**good, "Cookie": f"{there.cookie}={'x' * 43}"}),
            "no ASCII": (401, {**good, "Cookie": f"{there.cookie}=\u00e9"}),
            "another origin": (403, {**good, "Origin": "http://evil.example"}),
            "the origin of another port": (403, {**good, "Origin": "http://localhost:1"}),
            "another name of this machine": (403, {**good, "Origin": f"http://127.0.0.1:{there.port}"}),
            "a sandboxed page": (403, {**good, "Origin": "null"}),
            "another host": (403, {**good, "Host": evil}),
            "a name that points here": (403, {**good, "Host": evil, "Origin": f"http://{evil}"}),
            "a name that begins like ours": (403, {**good, "Host": f"localhost.evil.example:{there.port}"}),
            "another page's script": (403, {**good, "Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}),
        }
        async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session:
            for name, (status, headers) in forged.items():
                for path in PATHS:
                    more = UPGRADE if path == "/ws" else {}
                    async with session.get(there.url(path), headers={**headers, **more}) as answer:
                        assert answer.status == status, f"{name}, {path}"
                        assert "Set-Cookie" not in answer.headers
                        assert "Access-Control-Allow-Origin" not in answer.headers
            for method in ("HEAD", "OPTIONS", "POST", "PUT", "DELETE"):
                for path in PATHS:
                    async with session.request(method, there.url(path), headers=forged["no token"][1]) as answer:
                        assert answer.status == 401, (method, path)
            async with session.options(there.url("/"), headers=good) as answer:
                assert answer.status == 405
            without = {name: value for name, value in good.items() if name != "Origin"}
            for headers in ({**good, "Origin": "http://evil.example"}, without):
                with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                    await session.ws_connect(there.url("/ws"), headers=headers)
                assert refused.value.status == 403
            for path in ("/ws", "/%77s", "/"):
                upgrade = {**without, **UPGRADE, "Upgrade": "WebSocket"}
                async with session.get(there.url(path), headers=upgrade) as answer:
                    assert answer.status == 403, path
            async with session.get(there.url("/"), headers=without) as answer:
                assert answer.status == 200, "the visit of a page has no Origin"
            async with session.get(there.url("/ws"), headers=without) as answer:
                assert answer.status == 403
        assert not dashboards(there.port), "none was started"


async def test_the_printed_address_opens_it_and_leaves_a_cookie(tmp_path: Path) -> None:
    with served(tmp_path / "serve.log") as there:
        async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session:
            url = there.url(f"/?token={there.token}&fontsize=20")
            async with session.get(url, headers={"Host": there.host}, allow_redirects=False) as answer:
                assert (answer.status, answer.headers["Location"]) == (303, "/?fontsize=20")
                cookie = answer.headers["Set-Cookie"]
            assert there.token in cookie
            assert "HttpOnly" in cookie
            assert "SameSite=Strict" in cookie
            headers = {"Host": there.host, "Cookie": cookie.partition(";")[0], "Origin": f"http://{there.host}"}
            async with session.get(there.url("/?fontsize=20"), headers=headers) as answer:
                page = await answer.text()
                assert answer.status == 200
                assert answer.headers["X-Frame-Options"] == "DENY"
                assert "default-src 'self'" in answer.headers["Content-Security-Policy"]
            assert f"ws://{there.host}/ws" in page
            assert there.token not in page
            for path in ("/static/js/textual.js", "/static/css/xterm.css"):
                async with session.get(there.url(path), headers=headers) as answer:
                    assert answer.status == 200
            async with session.get(there.url("/download/none"), headers=headers) as answer:
                assert answer.status == 404
            async with session.ws_connect(there.url("/ws"), headers=headers) as socket:
                await shown(socket, b"Overview")


async def test_a_request_that_cannot_be_read_leaves_no_token_in_the_log(tmp_path: Path) -> None:
    with served(tmp_path / "serve.log") as there:
        for line in (f"GET /?token={there.token}&x={'y' * 20_000} HTTP/1.1", f"GE\0T /?token={there.token} HTTP/1.1"):
            reader, writer = await asyncio.open_connection("127.0.0.1", there.port)
            writer.write(f"{line}\r\nHost: {there.host}\r\n\r\n".encode())
            assert b" 400 " in await reader.readline()
            writer.close()
    log = (tmp_path / "serve.log").read_text()
    assert log.count(there.token) == 1, "the address that it has printed"
    assert "Traceback" not in log


async def test_another_address_and_another_name_are_given_and_need_the_token_all_the_same(tmp_path: Path) -> None:
    options = ("--host", "0.0.0.0", "--allow-host", "dash.example")
    log = tmp_path / "serve.log"
    with served(log, *options) as there:
        assert "not encrypted" in log.read_text()
        token = {"Authorization": f"Bearer {there.token}"}
        async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session:
            for host, allowed in (
                ("dash.example", True), ("DASH.example:443", True), (f"127.0.0.1:{there.port}", True),
                ("localhost", True), ("192.0.2.7", False), ("evil.example", False), ("", False), ("a b", False),
            ):  # fmt: skip
                for headers, good in ((token, 200), ({}, 401)):
                    async with session.get(there.url("/"), headers={**headers, "Host": host}) as answer:
                        # aiohttp itself refuses a Host that is no name
                        assert answer.status in ((good,) if allowed else (403, 400)), (host, headers)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--serve=0"],
        ["--serve=70000"],
        ["--serve", "--host="],
        ["--serve", "--allow-host="],
        ["--refresh=nan"],
        ["--schema="],
    ],
)
def test_a_wrong_value_is_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code = cli.run(["--database-url=postgresql://u@h/d", *arguments])
    except SystemExit as left:
        code = left.code
    assert code == 2
    assert arguments[-1].partition("=")[0].removeprefix("--") in capsys.readouterr().err.rpartition("error: ")[2]


@pytest.mark.parametrize("closed", ["", "<&-"], ids=["no terminal", "no standard input"])
def test_without_a_terminal_it_says_what_to_use(closed: str) -> None:
    command = ["sh", "-c", f'exec "$0" -m horsies_tui --demo {closed}', sys.executable]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    assert "the dashboard needs a terminal" in done.stderr
    assert "horsies top" in done.stderr


def test_a_port_in_use_is_one_sentence(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        command = [sys.executable, "-m", "horsies_tui", "--demo", "--serve", str(port), "--host=127.0.0.1"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (1, ""), "no address is printed"
    assert f"--serve cannot listen on 127.0.0.1, port {port}" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.long
async def test_a_window_of_any_size_takes_little_memory(tmp_path: Path) -> None:
    with served(tmp_path / "serve.log") as there:
        async with visitor(there, "?width=30000&height=30000") as socket:
            for size in ({"width": 30_000, "height": 30_000}, {"width": -1, "height": 0}, {"width": "x"}, {}):
                await socket.send_json(["resize", {"width": None, "height": None, **size}])
            await socket.send_json(["resize", {"width": 120, "height": 40}])
            await socket.send_json(["stdin", "?"])
            await shown(socket, b"Quit")  # all of it was read, and it still answers
            (dashboard,) = dashboards(there.port)
            assert dashboard.memory_info().rss < 500 << 20


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
async def test_dashboards_end_with_their_server(tmp_path: Path, number: int) -> None:
    with served(tmp_path / "serve.log") as there:
        async with visitor(there):
            (dashboard,) = dashboards(there.port)
            server = dashboard.parent()
            assert server is not None
            server.send_signal(number)
            await eventually_async(lambda: not dashboard.is_running(), timeout=30)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_server_that_is_stopped_while_dashboards_start(tmp_path: Path, number: int) -> None:
    """They do not read their input yet, so they must be ended, and nothing is said of them."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os, time\nif 'TEXTUAL_DRIVER' in os.environ:\n    time.sleep(600)\n"
    )
    log = tmp_path / "serve.log"
    with served(log, PYTHONPATH=str(tmp_path)) as there:
        async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session:
            visits = [await session.ws_connect(there.url("/ws"), headers=there.headers) for _ in range(10)]
            await eventually_async(lambda: len(dashboards(there.port)) == 10)
            starting = dashboards(there.port)
            server = starting[0].parent()
            assert server is not None
            for one in [server, *starting] if number == signal.SIGINT else [server]:  # as a terminal does
                with suppress(psutil.NoSuchProcess):  # the server has ended it already
                    one.send_signal(number)
            ended = psutil.STATUS_ZOMBIE
            await eventually_async(lambda: server.status() == ended, timeout=30)  # aiohttp would wait for a minute
            assert not any(one.is_running() for one in starting)
            for visit in visits:
                await visit.close()
    assert "Traceback" not in log.read_text()
    assert "failed to start" not in log.read_text()


@asynccontextmanager
async def visitor(there: Served, query: str = "") -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
    """A browser's connection, whose dashboard is up."""
    async with (
        aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session,
        session.ws_connect(there.url(f"/ws{query}"), headers=there.headers) as socket,
    ):
        await shown(socket, b"Overview")
        yield socket


async def shown(socket: aiohttp.ClientWebSocketResponse, text: bytes) -> None:
    seen = b""
    while text not in seen:
        message = await socket.receive(60)
        assert message.type in (aiohttp.WSMsgType.BINARY, aiohttp.WSMsgType.TEXT), message
        seen += message.data if isinstance(message.data, bytes) else message.data.encode()


def dashboards(port: int) -> list[psutil.Process]:
    """Those that the server on this port has started."""
    (server,) = {found.pid for found in psutil.net_connections("tcp")
                 if found.status == psutil.CONN_LISTEN and found.laddr.port == port}  # fmt: skip
    assert server is not None
    return psutil.Process(server).children(recursive=True)


def listens(port: int) -> bool:
    with socket.socket() as there:
        there.settimeout(0.5)
        return there.connect_ex(("127.0.0.1", port)) == 0


def listeners(port: int) -> list[str]:
    return [
        f"{found.laddr.ip}:{found.laddr.port}"
        for found in psutil.net_connections("tcp")
        if found.status == psutil.CONN_LISTEN and found.laddr.port == port
    ]
