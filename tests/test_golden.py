"""The whole screen, character by character: every view on recordings of real jobs, at three sizes and in every light.

The texts lie in `golden/`. After a change that is meant, write them anew and read the difference:

    DDPVIZ_GOLDEN=write pytest tests/test_golden.py && git diff tests/golden
"""

from __future__ import annotations

import asyncio
import difflib
import os
import time
from pathlib import Path

import pytest
from recorded import FOLDER
from textual.pilot import Pilot

from ddpviz.dashboard.app import Dashboard
from ddpviz.dashboard.keys import VIEWS
from ddpviz.dashboard.settings import Settings

GOLDEN = Path(__file__).parent / "golden"
WRITE = os.environ.get("DDPVIZ_GOLDEN") == "write"
SIZES = [(80, 24), (120, 40), (200, 60)]
# What is looked at: recording -> views, each a key and how often to step back before it.
LOOKS: dict[str, tuple[tuple[str, int], ...]] = {
    "accumulate": (*((view, 0) for view in VIEWS), ("backward", 1), ("overview", 5)),
    "unsynced-step": (("overview", 0), ("findings", 0)),
    "sampled": (("norms", 0), ("layers", 0)),
    "uneven": (*((view, 0) for view in VIEWS), ("backward", 3)),
    "failed": (("overview", 0), ("output", 0), ("job", 0)),
}


def screen(app: Dashboard) -> str:
    return "\n".join(strip.text.rstrip() for strip in app.screen._compositor.render_strips()) + "\n"


async def settled(app: Dashboard, pilot: Pilot[int]) -> str:
    """The screen once it stands still."""
    seen, end = "", time.monotonic() + 20
    while time.monotonic() < end:
        await pilot.pause(0.15)
        if (now := screen(app)) == seen and not ("Looking for the output" in now or ", following" in now):
            return now
        seen = now
    raise AssertionError(f"the screen never stood still:\n{seen}")


def compare(name: str, text: str, written: dict[str, str]) -> None:
    path = GOLDEN / f"{name}.txt"
    if WRITE:
        GOLDEN.mkdir(exist_ok=True)
        assert written.setdefault(name, text) == text, f"{name} differs between themes"
        path.write_text(text, "utf-8")
        return
    wanted = path.read_text("utf-8")
    if text != wanted:
        lines = difflib.unified_diff(wanted.splitlines(), text.splitlines(), name, "the screen", lineterm="", n=1)
        raise AssertionError("\n".join([*lines, "", (__doc__ or "").split("\n\n", 1)[1]]))


async def look(recording: str, size: tuple[int, int], themes: list[str]) -> None:
    written: dict[str, str] = {}
    app = Dashboard(FOLDER / recording, motion=False, settings=Settings())
    app.keep = lambda **_: None  # type: ignore[method-assign]
    async with app.run_test(size=size) as pilot:
        end = time.monotonic() + 20
        while app.feed is None or app.feed.latest is None or not app.feed.latest.complete:
            assert time.monotonic() < end
            await pilot.pause(0.05)
        for view, back in LOOKS[recording]:
            await pilot.press("end", *["left"] * back, str(VIEWS.index(view) + 1))
            for theme in themes:
                app.theme = theme
                text = await settled(app, pilot)
                compare(f"{recording}-{view}{f'-{back}' if back else ''}-{size[0]}x{size[1]}", text, written)


@pytest.fixture(autouse=True)
def _own_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("NO_COLOR", raising=False)


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("recording", LOOKS)
def test_the_screen_is_the_golden_one_in_dark_and_light(recording: str, size: tuple[int, int]) -> None:
    asyncio.run(look(recording, size, ["ddpviz-dark", "ddpviz-light"]))


@pytest.mark.parametrize("recording", LOOKS)
def test_the_screen_says_the_same_without_colour(recording: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    asyncio.run(look(recording, (80, 24), ["ddpviz-dark"]))
