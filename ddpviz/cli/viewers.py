"""Who looks at what in `ddpviz serve`: tabs that only look share a viewer, the others have one of their own.

Most tabs of a class are never touched. All of one size see the same picture, so one process draws it, and what it
writes goes to each of them. The first key or click gives a tab a process of its own; the tab goes on showing the shared
picture until that process has drawn a whole frame, and what is typed meanwhile waits for it.

A viewer's output is only good on top of all that it wrote before. So a tab turns to a viewer at one of its whole
frames, which `ddpviz.cli.driver` announces, and which can be asked for.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections import deque
from typing import Any

from aiohttp import WSCloseCode, WSMsgType, web
from textual_serve.app_service import AppService
from textual_serve.download_manager import DownloadManager

from ddpviz.cli.tab import QUIET

Size = tuple[int, int]  # columns, rows

MOST = 1 << 20  # bytes that may wait for a slow browser: some thirty whole frames
MOST_TYPED = 1000  # messages that may wait for a viewer to start
STILL = 0.3  # seconds that a size must last: a window is dragged through many
_LAST = 10.0  # seconds that a viewer may take to end

# What a terminal says unasked or in answer to a question: it is no input of anybody's.
_IDLE = re.compile(
    r"\x1b\[<(?:3[2-9]|[45]\d|6[0-3])(?:;\d+){2}[Mm]"  # the mouse moves
    r"|\x1b\[<\d+;\d+;\d+m"  # a button is let go
    r"|\x1b\[[IO]"  # the window has the focus, or not
    r"|\x1b\[[?>=][\d;]*\$?[a-zA-Z]"  # modes and kind of the terminal
    r"|\x1b\[\d+(?:;\d+)*[tn]"  # its sizes and state
    r"|\x1b[\]P_][^\x07\x1b]*(?:\x07|\x1b\\)"  # colours and the like
)


def size_of(columns: Any, rows: Any) -> Size:
    """A size that a page asks for, within what makes sense."""
    return min(max(int(columns), 1), 500), min(max(int(rows), 1), 200)


def touches(typed: str) -> bool:
    """Whether somebody pressed a key or a button, or turned the wheel."""
    return bool(_IDLE.sub("", typed))


class Viewer(AppService):
    """A viewer process, and the tabs that see it or wait to see it."""

    def __init__(self, command: str, size: Size, downloads: DownloadManager) -> None:
        super().__init__(
            command, write_bytes=self._show, write_str=self._say, close=self._over, download_manager=downloads
        )
        self.size = size
        self.audience: set[Tab] = set()
        self.set_up = b""  # what it wrote to make a terminal its own
        self.ready = False  # it has shown the run as far as that is written, and takes keys
        self._setting_up = True
        self._opening = asyncio.create_task(self._open_app_process(*size))
        self._task = asyncio.create_task(self._live())

    def _build_environment(self, width: int = 80, height: int = 24) -> dict[str, str]:
        return super()._build_environment(width, height) | QUIET | {"TEXTUAL_DRIVER": "ddpviz.cli.driver:Announcing"}

    async def _live(self) -> None:
        try:
            await self._opening
            await self.run()
        except OSError:  # no process could be started
            pass
        finally:
            await self._over()  # a tab never stands still in silence, whatever a viewer died of

    async def ask(self) -> None:
        """Ask for a whole frame. One that is still starting will draw one anyway."""
        if self._stdin is not None:
            await self.send_meta({"type": "repaint"})

    async def resize(self, size: Size) -> None:
        """Another size, told once there is a process to tell."""
        self.size = size
        await asyncio.wait([self._opening])
        if self._stdin is not None:
            await self.set_terminal_size(*size)

    async def stop(self) -> None:
        """End it, kindly first."""
        await asyncio.wait([self._opening])
        if self._process is None:
            return
        try:
            await asyncio.wait_for(super().stop(), _LAST)
            await asyncio.wait_for(self._process.wait(), _LAST)
        except Exception:  # it takes too long, or something went wrong
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()

    async def on_meta(self, data: bytes) -> None:
        meta = json.loads(data)
        if meta["type"] == "set-up":
            self._setting_up = False
        elif meta["type"] == "frame":
            if meta["ready"] and not self.ready:
                self.ready = True
                await self.send_meta({"type": "focus"})
            for tab in list(self.audience):
                await tab.turn(self)
        else:
            await super().on_meta(data)

    async def _show(self, data: bytes) -> None:
        if self._setting_up:
            self.set_up += data
        for tab in self.audience:
            tab.show(self, data)

    async def _say(self, text: str) -> None:
        for tab in self.audience:
            tab.say(text)

    async def _over(self) -> None:
        for tab in self.audience:
            tab.say(None)


class Viewers:
    """The viewers of one run: a shared one for each size that untouched tabs have, and those of their own."""

    def __init__(self, command: str, downloads: DownloadManager) -> None:
        self._command, self._downloads = command, downloads
        self._shared: dict[Size, Viewer] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self.tabs: set[Tab] = set()

    def shared(self, size: Size) -> Viewer:
        if size not in self._shared:
            self._shared[size] = Viewer(self._command, size, self._downloads)
        return self._shared[size]

    def own(self, size: Size, seen: Viewer | None) -> Viewer:
        """A viewer for one tab alone: the one that it sees, if nobody else does, or a new one."""
        if seen is not None and self._shared.get(size) is seen and len(seen.audience) == 1:
            return self._shared.pop(size)
        return Viewer(self._command, size, self._downloads)

    def left(self, viewer: Viewer) -> None:
        """End a viewer that nobody looks at any more."""
        if viewer.audience:
            return
        if self._shared.get(viewer.size) is viewer:
            del self._shared[viewer.size]
        ending = asyncio.create_task(viewer.stop())
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)

    async def close(self) -> None:
        """Say goodbye to every tab, and see the viewers end."""
        for tab in list(self.tabs):
            await tab.leave()
        if self._ending:
            await asyncio.wait(self._ending)


class Tab:
    """A page in a browser, by its websocket."""

    def __init__(self, socket: web.WebSocketResponse, viewers: Viewers, size: Size) -> None:
        self._socket, self._viewers, self._size = socket, viewers, size
        self._now: Viewer | None = None  # whose output it shows
        self._next: Viewer | None = None  # whose next whole frame it waits for
        self._own: Viewer | None = None  # it was touched
        self._typed: deque[str] = deque()  # what waits until its own viewer takes keys
        self._moving: asyncio.TimerHandle | None = None
        self._out: deque[bytes | str | None] = deque()
        self._waiting = 0  # bytes of output in it
        self._wake = asyncio.Event()

    async def run(self) -> None:
        """Serve it until it is closed."""
        self._viewers.tabs.add(self)
        writing = asyncio.create_task(self._write())
        try:
            await self._look()
            async for message in self._socket:
                if message.type == WSMsgType.TEXT and self in self._viewers.tabs:
                    with contextlib.suppress(ValueError, TypeError, LookupError):  # no page of ours said that
                        await self._hear(*message.json())
        finally:
            await self.leave()
            self.say(None)
            await asyncio.wait([writing], timeout=2)
            writing.cancel()

    async def leave(self) -> None:
        """Let go of its viewers, and of the browser."""
        self._viewers.tabs.discard(self)
        if self._moving is not None:
            self._moving.cancel()
        for viewer in {self._now, self._next}:
            self._part(viewer)
        self._now = self._next = None
        with contextlib.suppress(asyncio.TimeoutError, OSError):
            await asyncio.wait_for(self._socket.close(code=WSCloseCode.GOING_AWAY), 2)

    def _part(self, viewer: Viewer | None) -> None:
        if viewer is not None and self in viewer.audience:
            viewer.audience.discard(self)
            self._viewers.left(viewer)

    # -- what it shows --------------------------------------------------------------------------------------------

    async def _look(self) -> None:
        """See the shared viewer of its size, or its own."""
        if self not in self._viewers.tabs:  # it has left
            return
        viewer = self._own or self._viewers.shared(self._size)
        if viewer is self._next:
            return
        waited, self._next = self._next, None
        if viewer is not self._now:
            late = bool(viewer.audience)
            viewer.audience.add(self)
            if self._now is None and not late:
                self._now = viewer  # from its first byte on
            else:
                self._next = viewer
            if late:
                await viewer.ask()
        self._part(waited)

    async def turn(self, viewer: Viewer) -> None:
        """A whole frame of that viewer follows."""
        if viewer is self._next and (viewer.ready or self._now is None):
            before, self._now, self._next = self._now, viewer, None
            self._put(viewer.set_up)
            self._part(before)
        if viewer is self._own and viewer.ready and viewer is self._now:
            while self._typed:
                await viewer.send_bytes(self._typed.popleft().encode())

    def show(self, viewer: Viewer, data: bytes) -> None:
        if viewer is self._now:
            self._put(data)

    def say(self, text: str | None) -> None:
        """Tell the page something; None closes it."""
        self._out.append(text)
        self._wake.set()

    def _put(self, data: bytes) -> None:
        """Send output. A browser that does not keep up misses some, and begins again with a whole frame."""
        self._out.append(data)
        self._waiting += len(data)
        if self._waiting > MOST:
            self._out = deque(item for item in self._out if not isinstance(item, bytes))
            self._waiting = 0
            self._next, self._now = self._next or self._now, None
        self._wake.set()

    async def _write(self) -> None:
        """Send what waits; nobody but this tab waits for its browser."""
        with contextlib.suppress(ConnectionError):
            while True:
                await self._wake.wait()
                self._wake.clear()
                while self._out:
                    item = self._out.popleft()
                    if isinstance(item, bytes):
                        self._waiting -= len(item)
                        await self._socket.send_bytes(item)
                    elif item is not None:
                        await self._socket.send_str(item)
                    else:
                        await self._socket.close()
                        return
                if self._now is None and self._next is not None:
                    await self._next.ask()

    # -- what it is told ------------------------------------------------------------------------------------------

    async def _hear(self, kind: str, what: Any = None) -> None:
        if kind == "ping":
            self.say(json.dumps(["pong", what]))
        elif kind == "stdin":
            await self._type(what)
        elif kind == "resize":
            await self._resize(size_of(what["width"], what["height"]))
        elif kind in ("focus", "blur") and self._own is not None and self._own.ready:
            await self._own.send_meta({"type": kind})

    async def _type(self, typed: str) -> None:
        if self._own is None:
            if not touches(typed):
                return
            self._own = self._viewers.own(self._size, self._now)
            await self._look()
        if self._typed or self._next is self._own or not self._own.ready:
            if len(self._typed) < MOST_TYPED:
                self._typed.append(typed)
        else:
            await self._own.send_bytes(typed.encode())

    async def _resize(self, size: Size) -> None:
        self._size = size
        if self._own is not None:
            await self._own.resize(size)
            return
        if self._moving is not None:
            self._moving.cancel()
        self._moving = asyncio.get_running_loop().call_later(STILL, lambda: asyncio.ensure_future(self._look()))
