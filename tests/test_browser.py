"""The dashboard in a real browser: keys and mouse work, and the page asks no other host for anything."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import psutil
import pytest

pytest.importorskip("aiohttp")
pytest.importorskip("textual_serve")

from tests.browser import page
from tests.test_cli_serve import free_port, serving

RECORDINGS = Path(__file__).parent / "recordings"


@pytest.mark.skipif(shutil.which("chromium") is None, reason="no Chromium here")
def test_keys_and_mouse_in_a_browser(tmp_path: Path) -> None:
    port = free_port()

    async def visit() -> None:
        async with page(f"http://127.0.0.1:{port}/", tmp_path / "profile") as browser:
            await browser.until(lambda text: "Sync timeline" in text and "FINISHED" in text)
            await browser.press("4")
            await browser.until(lambda text: "0.weight" in text)
            tabs = next(i for i, line in enumerate(browser.screen.display) if "2 Norms" in line)
            await browser.click(browser.screen.display[tabs].index("Norms"), tabs)
            await browser.until(lambda text: "gradient norm of Sequential" in text)
            assert browser.hosts == {f"127.0.0.1:{port}"}
            assert browser.errors == []
            viewers.extend(psutil.Process(server.pid).children(recursive=True))
            server.kill()

    viewers: list[psutil.Process] = []
    with serving(RECORDINGS / "accumulate", port, tmp_path) as server:
        asyncio.run(visit())
    assert viewers
    _, left = psutil.wait_procs(viewers, timeout=30)  # whatever ends the server ends its viewers
    assert left == []
    assert not (RECORDINGS / "accumulate" / "dashboard-crash.txt").exists(), "its end is no fault of the viewer"
