"""Source: which line each rank is at, which lines made a pass, and the script read from disk only if it is the same."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
import simrank
import synth
from recorded import timeline

from ddpviz.dashboard.app import Dashboard
from ddpviz.dashboard.marks import M
from ddpviz.dashboard.places import Use, made_by, place, places, recorded
from ddpviz.dashboard.playback import closing
from ddpviz.dashboard.settings import Settings
from ddpviz.dashboard.state import Cursor
from ddpviz.dashboard.views.script import caption, draw, scene
from ddpviz.dashboard.views.source import whole
from ddpviz.timeline.model import Timeline


def at(tl: Timeline, what: str, index: int = 3) -> int:
    """A moment inside the forward, backward or step of a pass on rank 0."""
    lane = tl.modules[0].lanes[0]
    if what == "step":
        row = lane.steps[lane.steps["after"] == index][0]
        return int(row["begin"] + row["end"]) // 2
    begin, end = ("forward", "forward_end") if what == "forward" else ("begin", "end")
    row = lane.passes[index]
    return int(row[begin] + row[end]) // 2


@pytest.fixture(scope="module")
def right() -> Timeline:
    return synth.cluster_of().timeline()


@pytest.mark.parametrize("what", ["backward", "step"])
def test_a_rank_is_in_the_line_that_called_what_runs(right: Timeline, what: str) -> None:
    line, code = simrank.LINES[what]
    found = place(right, 0, at(right, what), present=False)
    assert found is not None
    assert (found.doing, found.inside, found.site.line, found.site.code) == (what, True, line, code)


def test_between_two_records_the_line_of_the_last_one_stands(right: Timeline) -> None:
    lane = right.modules[0].lanes[0]
    found = place(right, 0, int(lane.clears["at"][-1]) + 1, present=False)
    assert found is not None
    assert (found.doing, found.inside) == ("zero_grad", False)
    assert place(right, 0, 0, present=False) is None  # nothing yet


def test_the_lines_that_made_a_pass(right: Timeline) -> None:
    uses = made_by(right, right.modules[0], 3, None)
    lines = {line: its for (_, line), its in uses.items()}
    assert lines[simrank.LINES["backward"][0]] == [Use("backward", M.SYNCED)]
    assert lines[simrank.LINES["step"][0]] == [Use("step", M.STEP)]
    assert simrank.LINES["step"][0] not in {line for _, line in made_by(right, right.modules[0], 2, None)}


def test_a_rank_that_is_blocked_waits_in_its_line_and_one_that_raised_stands_where_it_did() -> None:
    tl = synth.cluster_of("hang").timeline()
    found = {its.rank: its for its in places(tl, tl.now_ns, present=True)}
    assert found[0].doing == "waits: all-reduce"
    assert found[1].doing == "waits: barrier"
    assert all(its.inside and its.role == "waiting" for its in found.values())
    tl = synth.cluster_of("failed").timeline()
    raised = [its for its in places(tl, tl.now_ns, present=True) if its.doing == "raised here"]
    assert [its.rank for its in raised] == [1]


def test_the_drawing_marks_ranks_and_lines_and_says_that_the_script_is_elsewhere() -> None:
    tl = timeline("accumulate")
    now = scene(tl, closing(tl, Cursor()))
    text = draw(now, 78, 20).text()
    assert "these" in text.splitlines()[0]  # the recorded lines alone: the file is not here, or another one
    assert "loss / args.accumulation).backward()" in text
    assert f"backward {M.SYNCED.glyph}" in text
    assert f"step {M.STEP.glyph}" in text
    told = caption(now, "A sentence.", 78).text()
    assert "A sentence." in told
    assert "ranks 0, 1" in told
    assert max(map(len, text.splitlines())) <= 78
    assert draw(scene(Timeline(), Cursor()), 78, 20).text().strip() == "No line of the script is known yet."


def test_a_script_is_shown_whole_only_if_it_is_what_ran(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import torch\n\nfor batch in data:\n    loss.backward()\n")
    found = whole(str(script), {4: "loss.backward()"})
    assert found.problem == ""
    assert found.lines[3] == "    loss.backward()"
    assert "has changed" in whole(str(script), {3: "loss.backward()"}).problem
    assert "has changed" in whole(str(script), {40: "loss.backward()"}).problem
    assert "recorded no line" in whole(str(script), {}).problem  # a stranger's trace opens no file that it names
    assert "not on this machine" in whole(str(tmp_path / "other.py"), {4: "loss.backward()"}).problem
    assert not whole(str(tmp_path), {4: "loss.backward()"}).lines


def test_many_ranks_and_a_long_script_are_drawn_round_where_they_are(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("".join(f"line_{n}()\n" for n in range(1, 3001)))
    tl = synth.cluster_of(ranks=70, accumulation=1, windows=1, layers=False).timeline()
    for key, site in tl.sites.items():
        tl.sites[key] = replace(site, file=str(script), line=site.line + 2000, code=f"line_{site.line + 2000}()")
    canvas = draw(scene(tl, closing(tl, Cursor())), 100, 30)
    assert "▶0-64" in canvas.text()
    assert "line_2018()" in canvas.text()
    assert canvas.height <= 402
    assert recorded(tl, str(script))


def test_the_view_beside_the_timeline_and_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "train.py"
    known = dict(simrank.LINES.values())
    script.write_text("\n".join(known.get(n, f"other = {n}") for n in range(1, 40)))
    monkeypatch.setattr(simrank, "SCRIPT", str(script))
    run = synth.write_run(tmp_path, "unsynced")

    async def go() -> None:
        app = Dashboard(run, motion=False, settings=Settings())
        app.keep = lambda **_: None  # type: ignore[method-assign]
        async with app.run_test(size=(140, 40)) as pilot:
            while app.feed is None or app.feed.latest is None or not app.feed.latest.complete:
                await pilot.pause(0.05)

            def shown() -> str:
                return "\n".join(strip.text for strip in app.screen._compositor.render_strips())

            await pilot.press("8")
            await pilot.pause(0.3)
            assert "Source: train.py" in shown()
            assert "other = 16" in shown()
            assert "rank 1 in barrier, line 30" in shown()
            assert "Sync timeline" in shown()
            await pilot.resize_terminal(80, 24)
            await pilot.pause(0.3)
            assert "Sync timeline" not in shown()
            assert f"step {M.WRONG_STEP.glyph}" in shown()  # in sight without scrolling
            await pilot.press("left")
            await pilot.pause(0.2)
            assert f"step {M.WRONG_STEP.glyph}" not in shown()
            assert f"backward {M.LOCAL.glyph}" in shown()
        app.close_job()

    asyncio.run(go())
