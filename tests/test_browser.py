"""The dashboard in a real browser: keys and mouse work, and the page asks no other host for anything."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import psutil
import pytest

pytest.importorskip("aiohttp")
pytest.importorskip("textual_serve")

from tests.browser import browser, page
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
    assert len(viewers) == 1, "nobody else looked: the viewer became its own"
    _, left = psutil.wait_procs(viewers, timeout=30)  # whatever ends the server ends its viewers
    assert left == []
    assert not (RECORDINGS / "accumulate" / "dashboard-crash.txt").exists(), "its end is no fault of the viewer"


@pytest.mark.skipif(shutil.which("chromium") is None, reason="no Chromium here")
def test_tabs_that_look_share_a_viewer(tmp_path: Path) -> None:
    port = free_port()

    def viewers() -> set[int]:
        return {child.pid for child in psutil.Process(server.pid).children(recursive=True)}

    async def until(number: int) -> set[int]:
        for _ in range(300):
            if len(viewers()) == number:
                return viewers()
            await asyncio.sleep(0.1)
        raise AssertionError(viewers())

    async def visit() -> None:
        async with browser(tmp_path / "profile") as chromium:
            tabs = [await chromium.open(f"http://127.0.0.1:{port}/") for _ in range(2)]
            for tab in tabs:
                await tab.until(lambda text: "Sync timeline" in text and "FINISHED" in text)
            late = await chromium.open(f"http://127.0.0.1:{port}/")
            await late.until(lambda text: text == tabs[0].text())  # all of it, though nothing of the picture changes
            before, (shared,) = late.text(), viewers()
            await late.press("4")
            await late.press("2")
            await late.until(lambda text: "gradient norm of Sequential" in text)  # no key was lost
            assert len(viewers()) == 2
            assert [tab.text() for tab in tabs] == [before] * 2
            await late.press("q")
            assert await until(1) == {shared}
            for tab in tabs:
                await tab.close()
            await until(0)

    with serving(RECORDINGS / "accumulate", port, tmp_path) as server:
        asyncio.run(visit())
