"""Presenter's mode: the stops of the story, the band's words, and the keys of a clicker."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
import synth
from recorded import FOLDER, timeline

from ddpviz.dashboard import playback as play
from ddpviz.dashboard.app import Dashboard
from ddpviz.dashboard.levels import levels
from ddpviz.dashboard.marks import M
from ddpviz.dashboard.settings import Settings
from ddpviz.dashboard.situation import Situation, State, situation
from ddpviz.dashboard.stage import WORDS, sign
from ddpviz.dashboard.state import Cursor
from ddpviz.dashboard.tour import onward, stops
from ddpviz.findings import find
from ddpviz.timeline.model import Timeline


def told(tl: Timeline) -> list[int]:
    """The passes of the stops, each once."""
    return list(dict.fromkeys(index for _, index in stops(tl, tl.modules[0], find(tl))))


def test_a_window_like_the_one_before_is_passed_over_and_a_new_pattern_is_told() -> None:
    assert told(synth.cluster_of().timeline()) == [0, 1, 2, 3, 15]  # the first window, and the end
    assert told(synth.cluster_of("unsynced").timeline()) == [
        *range(8),
        15,
    ]  # window 1 is the first without an all-reduce
    assert told(synth.cluster_of("nan", at=2).timeline())[4:] == [8, 15]  # where the finding points to


def test_the_story_goes_on_and_back_through_the_same_stops_in_order() -> None:
    tl = timeline("accumulate")
    found = find(tl)
    cursor, seen = play.opening(tl, Cursor()), []
    while (following := onward(tl, cursor, found, 1, motion=False)) is not None:
        cursor = following
        seen.append(cursor.time)
    assert seen == sorted(set(seen))
    assert cursor.index == tl.modules[0].passes - 1
    back = []
    while (before := onward(tl, cursor, found, -1, motion=False)) is not None:
        cursor = before
        back.append(cursor.time)
    assert set(seen[:-1]) <= set(back)
    assert back == sorted(back, reverse=True)


def test_with_motion_the_way_to_a_stop_is_played_and_ends_there() -> None:
    tl = timeline("accumulate")
    start = play.opening(tl, Cursor())
    there = onward(tl, start, [], 1, motion=False)
    played = onward(tl, start, [], 1, motion=True)
    assert there is not None
    assert played is not None
    assert played.playing
    assert played.until == there.time
    for _ in range(200):
        played = play.advance(tl, played, 0.05, running=False)
    assert (played.time, played.playing, played.until) == (there.time, False, 0)
    cut = onward(tl, replace(start, playing=True, until=there.time), [], 1, motion=True)  # pressed once more
    assert cut is not None
    assert (cut.time, cut.playing) == (there.time, False)


def test_the_band_says_what_happens_at_each_moment() -> None:
    tl = timeline("accumulate")
    module = tl.modules[0]
    running = Situation(State.FINISHED)
    said = []
    for time, index in stops(tl, module, [])[:-1]:
        cursor = Cursor(index=index, time=time, live=False)
        said.append(sign(tl, cursor, running, levels(tl, module, time, [], index)))
    assert [words for _, words in said] == [
        *[WORDS[M.LOCAL]] * 3,
        "all-reduce, bucket 0",
        WORDS[M.SYNCED],
        WORDS[M.STEP],
        "emptied: a new window",
    ]
    wrong = timeline("unsynced-step")
    cursor = play.closing(wrong, Cursor())
    now = levels(wrong, wrong.modules[0], cursor.time, [], cursor.index)
    assert sign(wrong, cursor, running, now) == (M.WRONG_STEP, WORDS[M.WRONG_STEP])
    hung = synth.cluster_of("hang").timeline()
    here = situation(hung, hung.now_ns + 60_000_000_000, True)
    assert sign(hung, play.follow(hung, Cursor()), here, None)[0] is M.WAITING
    assert sign(Timeline(), Cursor(), Situation(State.STARTING), None) == (M.WAITING, "starting")


def test_a_clicker_tells_the_story(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))

    async def go() -> None:
        app = Dashboard(FOLDER / "accumulate", motion=False, present=True, settings=Settings())
        async with app.run_test(size=(80, 24)) as pilot:

            def shown() -> str:
                return "\n".join(strip.text for strip in app.screen._compositor.render_strips())

            while app.feed is None or app.feed.latest is None or not app.feed.latest.complete:
                await pilot.pause(0.05)
            await pilot.pause(0.3)
            assert "L O C A L :   N O T H I N G   I S   S E N T" in shown()
            assert "+15 newer" in shown()  # a recording's story begins at its beginning
            assert "1 Overview" not in shown()  # fewer panels
            assert "PgDn on" in shown()
            await pilot.press("pagedown", "pagedown", "pagedown")
            await pilot.pause(0.2)
            assert "A L L - R E D U C E ,   B U C K E T   0" in shown()
            await pilot.press("pagedown")
            await pilot.pause(0.2)
            assert "A V E R A G E D" in shown()
            await pilot.press("pageup", "pageup")
            await pilot.pause(0.2)
            assert "L O C A L" in shown()
            await pilot.press("8", "pagedown", "pagedown")  # the script on the wall obeys it too
            await pilot.pause(0.3)
            assert "Source" in shown()
            assert "was all-reduced" in shown()
            await pilot.press("w")
            await pilot.pause(0.3)
            assert "1 Overview" in shown()
        app.close_job()

    asyncio.run(go())
