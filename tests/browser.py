"""Headless Chromium over its debugging protocol: open a page, press keys, click, and see what it asked the network for.

What a served dashboard shows is read from the frames of its websocket, drawn by a terminal emulator.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import aiohttp
import pyte


class Page:
    """One page. `hosts`: every host that it sent a request to; `screen`: the terminal behind its websocket."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._ids = itertools.count(1)
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self.hosts: set[str] = set()
        self.errors: list[str] = []
        self.screen = pyte.Screen(80, 24)
        self._stream = pyte.ByteStream(self.screen)

    async def listen(self) -> None:
        async for message in self._socket:
            said = message.json()
            if "id" in said:
                self._answers.pop(said["id"]).set_result(said)
                continue
            method, params = said["method"], said["params"]
            if method == "Network.requestWillBeSent":
                self.hosts.add(urlsplit(params["request"]["url"]).netloc)
            elif method == "Network.webSocketCreated":
                address = urlsplit(params["url"])
                self.hosts.add(address.netloc)
                asked = parse_qs(address.query)
                self.screen.resize(int(asked["height"][0]), int(asked["width"][0]))
            elif method == "Network.webSocketFrameReceived":
                frame = params["response"]
                if frame["opcode"] == 2:
                    self._stream.feed(base64.b64decode(frame["payloadData"]))
            elif method == "Runtime.exceptionThrown":
                self.errors.append(str(params["exceptionDetails"]))

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        number = next(self._ids)
        self._answers[number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": number, "method": method, "params": params})
        answer = await asyncio.wait_for(self._answers[number], 30)
        assert "error" not in answer, answer
        result: dict[str, Any] = answer["result"]
        return result

    async def press(self, key: str) -> None:
        code = ord(key.upper())
        await self.call("Input.dispatchKeyEvent", type="keyDown", key=key, text=key, windowsVirtualKeyCode=code)
        await self.call("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)

    async def close(self) -> None:
        await self.call("Page.close")

    async def click(self, column: int, line: int) -> None:
        """Click on the middle of a cell."""
        place = "JSON.stringify(document.querySelector('.xterm-screen').getBoundingClientRect())"
        box = json.loads((await self.call("Runtime.evaluate", expression=place))["result"]["value"])
        x = box["x"] + (column + 0.5) * box["width"] / self.screen.columns
        y = box["y"] + (line + 0.5) * box["height"] / self.screen.lines
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            await self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    async def picture(self, path: Path) -> None:
        """What a person sees, as a PNG."""
        path.write_bytes(base64.b64decode((await self.call("Page.captureScreenshot"))["data"]))

    def text(self) -> str:
        return "\n".join(self.screen.display)

    async def until(self, seen: Callable[[str], bool], limit: float = 60) -> str:
        """The text of the terminal, once it is as wanted."""
        for _ in range(int(limit / 0.1)):
            if seen(self.text()):
                return self.text()
            await asyncio.sleep(0.1)
        raise AssertionError(self.text())


class Browser:
    """A Chromium of its own, with as many pages as wanted."""

    def __init__(self, session: aiohttp.ClientSession, port: str, open_until: AsyncExitStack) -> None:
        self._session, self._address, self._open_until = session, f"http://127.0.0.1:{port}", open_until

    async def open(self, url: str) -> Page:
        async with self._session.put(f"{self._address}/json/new?about:blank") as answer:
            target = await answer.json()
        address = target["webSocketDebuggerUrl"]
        made = Page(await self._open_until.enter_async_context(self._session.ws_connect(address, max_msg_size=0)))
        listening = asyncio.create_task(made.listen())
        self._open_until.callback(listening.cancel)
        for domain in ("Network", "Runtime", "Page"):
            await made.call(f"{domain}.enable")
        await made.call("Emulation.setFocusEmulationEnabled", enabled=True)
        await made.call("Page.navigate", url=url)
        return made


@asynccontextmanager
async def browser(profile: Path, window: str = "1300,800") -> AsyncIterator[Browser]:
    chromium = subprocess.Popen(
        ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0",
         f"--window-size={window}",
         f"--user-data-dir={profile}", "about:blank"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        port_file = profile / "DevToolsActivePort"
        for _ in range(300):
            if port_file.exists() and "\n" in port_file.read_text():
                break
            await asyncio.sleep(0.1)
        port = port_file.read_text().split()[0]
        async with aiohttp.ClientSession() as session, AsyncExitStack() as open_until:
            yield Browser(session, port, open_until)
    finally:
        chromium.kill()
        chromium.wait()


@asynccontextmanager
async def page(url: str, profile: Path, window: str = "1300,800") -> AsyncIterator[Page]:
    """Open `url` in a Chromium of its own."""
    async with browser(profile, window) as made:
        yield await made.open(url)
