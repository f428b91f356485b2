"""The whole screen, character by character: every view on recordings of real jobs, at three sizes and in every light.

The texts lie in `golden/`. Beside the texts at 80x24 lie the colours (`.style`): a letter a cell for its role in the
theme (`LETTERS`), a capital where fore- and background are exchanged. They are the same in the dark theme and in the
light one. After a change that is meant, write them anew and read the difference:

    DDPVIZ_GOLDEN=write pytest tests/test_golden.py && git diff tests/golden
"""

from __future__ import annotations

import asyncio
import difflib
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from recorded import FOLDER
from rich.style import Style
from textual.color import Color
from textual.pilot import Pilot

from ddpviz.dashboard import overview
from ddpviz.dashboard.app import Dashboard
from ddpviz.dashboard.keys import VIEWS
from ddpviz.dashboard.settings import Settings
from ddpviz.dashboard.themes import ROLES
from ddpviz.dashboard.views import canvas, findings, norms, script
from ddpviz.dashboard.views.source import excerpt, whole

GOLDEN = Path(__file__).parent / "golden"
WRITE = os.environ.get("DDPVIZ_GOLDEN") == "write"
SIZES = [(80, 24), (120, 40), (200, 60)]
# What is looked at: recording -> views, each a key and how often to step back before it.
LOOKS: dict[str, tuple[tuple[str, int], ...]] = {
    "accumulate": (*((view, 0) for view in VIEWS), ("backward", 1), ("overview", 5), ("source", 5)),
    "unsynced-step": (("overview", 0), ("findings", 0)),
    "sampled": (("norms", 0), ("layers", 0)),
    "uneven": (*((view, 0) for view in VIEWS), ("backward", 3)),
    "failed": (("overview", 0), ("output", 0), ("job", 0), ("source", 0)),
}
LETTERS = {
    "local": "l", "synced": "s", "running": "r", "partial": "p", "step": "y", "wrong": "w", "dim": "d", "track": "t",
    "cursor": "c", "text": ".", "strong": "!", "border": "b",
}  # fmt: skip


def screen(app: Dashboard) -> str:
    return "\n".join(strip.text.rstrip() for strip in app.screen._compositor.render_strips()) + "\n"


def styles(app: Dashboard) -> str:
    """The role of each cell's colour."""
    known: dict[str, str] = {}
    for role in ("border", *ROLES):
        letter = LETTERS.get(role)
        if letter is not None:
            known.setdefault(Color.parse(app.theme_variables[role]).hex.lower(), letter)
    lines = []
    for strip in app.screen._compositor.render_strips():
        line = ""
        for segment in strip:
            style = segment.style or Style()
            triplet = style.color.triplet if style.color is not None else None
            letter = known.get(triplet.hex, "?") if triplet is not None else "?"
            line += "".join(
                " " if char == " " else letter.upper() if style.reverse else letter for char in segment.text
            )
        lines.append(line.rstrip())
    return "\n".join(lines) + "\n"


def greys(app: Dashboard) -> bool:
    """Whether nothing on the screen has a colour."""
    colours = {
        colour.triplet
        for strip in app.screen._compositor.render_strips()
        for segment in strip
        for colour in ((segment.style or Style()).color, (segment.style or Style()).bgcolor)
        if colour is not None and colour.triplet is not None
    }
    return all(max(triplet) - min(triplet) <= 1 for triplet in colours)


async def settled(app: Dashboard, pilot: Pilot[int], take: Callable[[Dashboard], str], name: str) -> str:
    """What `take` shows: as soon as it is the golden one; else once it stands still, for two seconds if it is wrong."""
    path = GOLDEN / name
    wanted = path.read_text("utf-8") if path.exists() and not WRITE else None
    seen, still, end = "", 0, time.monotonic() + 20
    while time.monotonic() < end:
        await pilot.pause(0.06)
        now = take(app)
        if now == wanted:
            return now
        still = still + 1 if now == seen else 0
        if still > (0 if wanted is None else 30) and not ("Looking for the output" in now or ", following" in now):
            return now
        seen = now
    raise AssertionError(f"the screen never stood still:\n{seen}")


def compare(name: str, text: str, written: dict[str, str]) -> None:
    path = GOLDEN / name
    if WRITE:
        path.parent.mkdir(exist_ok=True)
        assert written.setdefault(name, text) == text, f"{name} differs between themes"
        path.write_text(text, "utf-8")
        return
    wanted = path.read_text("utf-8")
    if text != wanted:
        lines = difflib.unified_diff(wanted.splitlines(), text.splitlines(), name, "the screen", lineterm="", n=1)
        raise AssertionError("\n".join([*lines, "", (__doc__ or "").split("\n\n", 1)[1]]))


async def look(recording: str, sizes: list[tuple[int, int]], *, colour: bool) -> None:
    """All views of a recording in one app, which is resized; in both lights at the smallest size."""
    written: dict[str, str] = {}
    app = Dashboard(FOLDER / recording, motion=False, settings=Settings())
    app.keep = lambda **_: None  # type: ignore[method-assign]
    async with app.run_test(size=sizes[0]) as pilot:
        end = time.monotonic() + 20
        while app.feed is None or app.feed.latest is None or not app.feed.latest.complete:
            assert time.monotonic() < end
            await pilot.pause(0.05)
        for width, height in sizes:
            await pilot.resize_terminal(width, height)
            for view, back in LOOKS[recording]:
                name = f"{recording}-{view}{f'-{back}' if back else ''}-{width}x{height}"
                await pilot.press("end", *["left"] * back, str(VIEWS.index(view) + 1))
                for theme in ("ddpviz-light", "ddpviz-dark") if (width, height) == SIZES[0] and colour else ("",):
                    app.theme = theme or app.theme
                    compare(f"{name}.txt", await settled(app, pilot, screen, f"{name}.txt"), written)
                    if theme:
                        compare(f"{name}.style", await settled(app, pilot, styles, f"{name}.style"), written)
                assert colour or greys(app), name


@pytest.fixture(autouse=True)
def _own_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("COLORTERM", "truecolor")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(overview, "CHART_EVERY", 0.0)  # nothing is held back for the eye's sake
    monkeypatch.setattr(overview, "CHART_SHARE", 0)
    monkeypatch.setattr(script, "whole", lambda file, known: whole(f"/nowhere{file}", known))  # wherever this runs
    monkeypatch.setattr(findings, "excerpt", lambda file, *its: excerpt(f"/nowhere{file}", *its))
    monkeypatch.setattr(canvas.Drawing, "EVERY", 0.0)
    monkeypatch.setattr(norms.NormsView, "EVERY", 0.0)


@pytest.mark.parametrize("recording", LOOKS)
def test_the_screen_is_the_golden_one_in_dark_and_light(recording: str) -> None:
    asyncio.run(look(recording, SIZES, colour=True))


@pytest.mark.parametrize("recording", LOOKS)
def test_the_screen_says_the_same_without_colour(recording: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    asyncio.run(look(recording, SIZES[:1], colour=False))
