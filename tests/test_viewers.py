"""Who shares a viewer and who has one, and which words of a browser's terminal are somebody's."""

from __future__ import annotations

import asyncio
import json
from typing import Any, cast

import pytest

pytest.importorskip("aiohttp")
pytest.importorskip("textual_serve")

import aiohttp

from ddpviz.cli.viewers import MOST, Size, Tab, Viewer, Viewers, size_of, touches


@pytest.mark.parametrize(
    "typed",
    ["4", "\r", "\x1b", "\x1b[A", "\x1bOP", "\x1b[1;5C", "\x1b[200~pasted\x1b[201~", "ж", "\x1b[<0;4;5M",
     "\x1b[<64;4;5M", "\x1b[<35;4;5M4", "\x1b]"],
)  # fmt: skip
def test_a_key_a_button_and_the_wheel_touch(typed: str) -> None:
    assert touches(typed)


@pytest.mark.parametrize(
    "typed",
    ["", "\x1b[<35;4;5M", "\x1b[<32;4;5M", "\x1b[<39;4;5M", "\x1b[<0;4;5m", "\x1b[I", "\x1b[O", "\x1b[?2026;2$y",
     "\x1b[?1;2c", "\x1b[>0;276;0c", "\x1b[8;40;140t", "\x1b]11;rgb:0000/0000/0000\x1b\\",
     "\x1b[<35;4;5M\x1b[<35;5;5M"],
)  # fmt: skip
def test_movement_and_what_a_terminal_answers_do_not(typed: str) -> None:
    assert not touches(typed)


def test_a_page_cannot_ask_for_a_screen_of_any_size() -> None:
    assert size_of("140", 40) == (140, 40)
    assert size_of(10**9, -1) == (500, 1)


class Quiet(Viewer):
    """A viewer without a process: what it is told is kept, what it draws is given."""

    def __init__(self, command: str, size: Size, downloads: Any) -> None:
        self.size, self.audience, self.ready, self.set_up = size, set(), False, b"(set up)"
        self._setting_up, self.told, self.ended = False, [], False
        made.append(self)

    async def ask(self) -> None:
        self.told.append("ask")

    async def send_meta(self, data: dict[str, Any]) -> bool:
        self.told.append(data["type"])
        return True

    async def send_bytes(self, data: bytes) -> bool:
        self.told.append(data.decode())
        return True

    async def stop(self) -> None:
        self.ended = True

    async def draw(self, frame: bytes) -> None:
        """A whole frame, of a run that has been read."""
        await self.on_meta(b'{"type": "frame", "ready": true}')
        await self._show(frame)


class Socket:
    """A browser: it says what it is given to say, and keeps up or does not."""

    def __init__(self) -> None:
        self.said: asyncio.Queue[Any] = asyncio.Queue()
        self.keeps_up = asyncio.Event()
        self.keeps_up.set()
        self.got = b""
        self.closed = False

    def __aiter__(self) -> Socket:
        return self

    async def __anext__(self) -> Any:
        if (said := await self.said.get()) is None:
            raise StopAsyncIteration
        return aiohttp.WSMessage(aiohttp.WSMsgType.TEXT, json.dumps(said), None)

    async def send_bytes(self, data: bytes) -> None:
        await self.keeps_up.wait()
        self.got += data

    async def close(self, **_: Any) -> None:
        self.closed = True
        self.said.put_nowait(None)


made: list[Quiet] = []


async def rest() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def visit(viewers: Viewers, size: Size = (140, 40)) -> tuple[Socket, asyncio.Task[None]]:
    socket = Socket()
    served = asyncio.create_task(Tab(cast(Any, socket), viewers, size).run())
    await rest()
    return socket, served


@pytest.fixture
def viewers(monkeypatch: pytest.MonkeyPatch) -> Viewers:
    made.clear()
    monkeypatch.setattr("ddpviz.cli.viewers.Viewer", Quiet)
    monkeypatch.setattr("ddpviz.cli.viewers.STILL", 0.0)
    return Viewers("", cast(Any, None))


def test_a_touched_tab_gets_a_viewer_and_loses_no_key(viewers: Viewers) -> None:
    async def story() -> None:
        (one, _), (two, served) = await visit(viewers), await visit(viewers)
        (shared,) = made
        assert shared.told == ["ask"]
        await shared.draw(b"A")
        for key in ("\x1b[<35;4;5M", "4", "2"):
            two.said.put_nowait(["stdin", key])
        await rest()
        _, own = made
        await own._show(b"half of a frame")
        await shared._show(b"B")
        await rest()
        assert (one.got, two.got) == (b"AB", b"(set up)AB"), "it shows the shared picture until its own is whole"
        two.said.put_nowait(["stdin", "3"])
        await rest()
        await own.draw(b"C")
        await shared._show(b"D")
        await rest()
        assert (one.got, two.got) == (b"ABD", b"(set up)AB(set up)C")
        assert own.told == ["focus", "4", "2", "3"]
        await own._over()  # q, or a crash
        await served
        assert (two.closed, own.ended, one.closed, shared.ended) == (True, True, False, False)
        one.said.put_nowait(["stdin", "4"])  # nobody else looks any more
        await rest()
        assert len(made) == 2
        assert shared.told[-1] == "4"
        await viewers.close()
        assert shared.ended

    asyncio.run(story())


def test_an_untouched_tab_follows_its_size(viewers: Viewers) -> None:
    async def story() -> None:
        socket, _ = await visit(viewers)
        socket.said.put_nowait(["resize", {"width": 140, "height": 40}])
        await rest()
        assert len(made) == 1
        socket.said.put_nowait(["resize", {"width": 100, "height": 30}])
        while len(made) == 1:
            await asyncio.sleep(0)
        before, after = made
        assert (after.size, before.ended) == ((100, 30), False)
        await after.draw(b"A")
        await rest()
        assert (socket.got, before.ended) == (b"(set up)A", True)
        await viewers.close()

    asyncio.run(story())


def test_a_slow_browser_holds_up_nobody(viewers: Viewers) -> None:
    async def story() -> None:
        (one, _), (slow, _) = await visit(viewers), await visit(viewers)
        (shared,) = made
        await shared.draw(b"A")
        slow.keeps_up.clear()
        for _ in range(8):
            await shared._show(b"B" * (MOST // 4))
            await rest()
        assert len(one.got) == 1 + 2 * MOST
        slow.keeps_up.set()
        await rest()
        assert len(slow.got) < MOST
        assert shared.told[-1] == "ask", "it has missed some: only a whole frame is of use now"
        await shared._show(b"C")
        await shared.draw(b"D")
        await rest()
        assert slow.got.endswith(b"(set up)D")
        assert b"C" not in slow.got
        await viewers.close()

    asyncio.run(story())
