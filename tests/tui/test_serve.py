"""In a real browser: `--serve`, read-only and on this machine unless told otherwise."""

import asyncio
import base64
import json
import shutil
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest

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
        self.received = ""
        """What the page's own connection was sent: the terminal's output."""

    async def listen(self) -> None:
        async for message in self._socket:
            told = json.loads(message.data)
            if "id" in told and told["id"] in self._answers:
                self._answers.pop(told["id"]).set_result(told.get("result", {}))
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
        async with browser(tmp_path, f"http://localhost:{port}/") as page:
            await eventually_async(lambda: "Overview" in page.received, timeout=40, describe="the first screen")
            await page.do("Input.dispatchMouseEvent", type="mousePressed", x=600, y=400, button="left", clickCount=1)
            await page.do("Input.dispatchMouseEvent", type="mouseReleased", x=600, y=400, button="left", clickCount=1)
            await page.key("2")
            await eventually_async(lambda: "in_the_browser" in page.received, timeout=20, describe="the list of tasks")
            assert "read-only" in page.received
            assert "Cancel" not in page.received
            picture = base64.b64decode((await page.do("Page.captureScreenshot"))["data"])
            assert len(picture) > 20_000, "a page with something on it"
    assert db.value("SELECT status FROM horsies_tasks WHERE id = %s", task_id) == "PENDING"


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
