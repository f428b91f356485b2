"""`ddpviz serve` with a real server, and what a browser says to it."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from ddpviz.trace import records as r
from ddpviz.trace.rundir import create_run
from ddpviz.trace.writer import TraceFile

aiohttp = pytest.importorskip("aiohttp")
pytest.importorskip("textual_serve")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def serving(run: Path, port: int, home: Path) -> Iterator[subprocess.Popen[str]]:
    """A real server of one run."""
    process = subprocess.Popen(
        [sys.executable, "-m", "ddpviz", "serve", "--port", str(port), "watch", str(run)],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "HOME": str(home), "XDG_CONFIG_HOME": str(home)},
    )
    try:
        assert process.stderr is not None
        assert process.stderr.readline() == f"ddpviz: serving on http://127.0.0.1:{port} until Ctrl-C\n"
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    run = create_run(tmp_path, {"title": "seen-in-a-browser", "status": "finished", "exit_code": 0, "world_size": 1})
    TraceFile(run / "trace", "j").records([r.Note(text="hello", at=0)])
    port = free_port()
    with serving(run, port, tmp_path) as process:
        yield process, port


async def status(port: int, path: str = "/", **headers: str) -> tuple[int, str]:
    address = f"http://127.0.0.1:{port}{path}"
    for _ in range(100):  # it says that it serves just before it listens
        try:
            async with aiohttp.ClientSession() as session, session.get(address, headers=headers) as answer:
                return answer.status, await answer.text()
        except aiohttp.ClientConnectorError:
            await asyncio.sleep(0.1)
    raise AssertionError("it does not listen")


async def first_screen(port: int, words: bytes) -> None:
    seen = b""
    address, origin = f"http://127.0.0.1:{port}/ws?width=100&height=30", f"http://127.0.0.1:{port}"
    async with (
        aiohttp.ClientSession() as session,
        session.ws_connect(address, headers={"Origin": origin}) as browser,
    ):
        while words not in seen:
            message = await browser.receive(timeout=60)
            assert message.type in (aiohttp.WSMsgType.BINARY, aiohttp.WSMsgType.TEXT), (message, seen)
            seen += message.data if isinstance(message.data, bytes) else message.data.encode()


def test_a_tab_sees_the_run_and_ctrl_c_ends_everything(server: tuple[subprocess.Popen[str], int]) -> None:
    process, port = server
    code, page = asyncio.run(status(port))
    assert code == 200
    assert f"ws://127.0.0.1:{port}/ws" in page
    asyncio.run(first_screen(port, b"seen-in-a-browser"))
    viewers = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=30) == 0
    deadline = time.monotonic() + 30
    while any(viewer.is_running() and viewer.status() != psutil.STATUS_ZOMBIE for viewer in viewers):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_other_pages_and_other_names_are_refused(server: tuple[subprocess.Popen[str], int]) -> None:
    _, port = server
    for headers in ({"Origin": "http://evil.example"}, {"Host": f"evil.example:{port}"}, {"Origin": "null"}):
        for path in ("/", "/ws"):
            assert asyncio.run(status(port, path, **headers))[0] == 403
    assert asyncio.run(status(port, Host=f"localhost:{port}"))[0] == 200
    assert asyncio.run(status(port, Origin=f"http://127.0.0.1:{port}"))[0] == 200


@pytest.mark.parametrize(
    ("host", "name", "origin", "answer"),
    [
        ("127.0.0.1", "localhost:8000", None, True),
        ("127.0.0.1", "[::1]:8000", None, True),
        ("127.0.0.1", "localhost", "http://localhost", True),
        ("127.0.0.1", "rebound.example:8000", "http://rebound.example:8000", False),
        ("127.0.0.1", "localhost:8000", "http://localhost:9000", False),
        ("0.0.0.0", "node7:8000", "http://node7:8000", True),
        ("0.0.0.0", "node7:8000", "https://evil.example", False),
    ],
)
def test_who_is_answered(host: str, name: str, origin: str | None, answer: bool) -> None:
    from ddpviz.cli.serve import allowed

    assert allowed(host, name, origin) is answer


def test_a_port_that_is_taken_is_one_line(tmp_path: Path) -> None:
    run = create_run(tmp_path, {"title": "t"})
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        for wrong in (port, "99999", "-1"):
            command = [sys.executable, "-m", "ddpviz", "serve", "--port", wrong, "watch", str(run)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
            assert done.returncode == 2
            lines = [line for line in done.stderr.splitlines() if "serving on" not in line]
            assert len(lines) == 1, done.stderr
            assert lines[0].startswith(f"ddpviz: no server at 127.0.0.1:{wrong}: ")
