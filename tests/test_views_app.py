"""The views as widgets, in an app of one view: keys, mouse, messages, states. Recordings of real jobs are shown."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from recorded import FOLDER, timeline
from textual.app import App, ComposeResult
from textual.pilot import Pilot
from textual.widget import Widget

from ddpviz.dashboard.messages import Chosen, GoTo
from ddpviz.dashboard.state import Cursor, Demo
from ddpviz.dashboard.themes import THEMES, defaults
from ddpviz.dashboard.views.backward import BackwardView
from ddpviz.dashboard.views.findings import FindingsView, listed, name_of
from ddpviz.dashboard.views.job import JobView
from ddpviz.dashboard.views.layers import ORDERS, LayersView
from ddpviz.dashboard.views.norms import NormsView
from ddpviz.dashboard.views.output import OutputView
from ddpviz.dashboard.views.picker import DemoPicker, Demos
from ddpviz.findings import find
from ddpviz.launch.demos import demo_scripts
from ddpviz.timeline.model import Timeline

VIEWS = (NormsView, BackwardView, LayersView, FindingsView, JobView)


class One(App[None]):
    """Shows one view and keeps what it posts."""

    def __init__(self, view: Widget, theme: str = "ddpviz-dark") -> None:
        super().__init__()
        for known in THEMES:
            self.register_theme(known)
        self.theme = theme
        self.view = view
        self.went: list[tuple[int, int | None, str | None]] = []
        self.chosen: list[str] = []

    def get_theme_variable_defaults(self) -> dict[str, str]:
        return defaults(self.current_theme.dark)

    def compose(self) -> ComposeResult:
        yield self.view

    def on_go_to(self, message: GoTo) -> None:
        self.went.append((message.index, message.module, message.view))

    def on_chosen(self, message: Chosen) -> None:
        self.chosen.append(message.name)


def text(app: App[Any], widget: Widget | None = None) -> str:
    """What a widget (or the whole screen) shows, as characters."""
    widget = widget or app.screen
    strips = app.screen._compositor.render_strips()
    region = widget.region
    rows = (
        strips[y].crop(region.x, region.right).text.rstrip() for y in range(region.y, min(region.bottom, len(strips)))
    )
    return "\n".join(rows)


def drive(
    view: Widget,
    body: Callable[[One, Pilot[None]], Awaitable[None]],
    tl: Timeline | None = None,
    cursor: Cursor | None = None,
    *,
    size: tuple[int, int] = (80, 24),
    theme: str = "ddpviz-dark",
) -> None:
    """Run `body` with the view on screen, told `tl` and `cursor`, and in focus."""

    async def go() -> None:
        app = One(view, theme)
        async with app.run_test(size=size) as pilot:
            await pilot.pause()
            if tl is not None:
                view.show(tl, cursor or Cursor(), find(tl))  # type: ignore[attr-defined]
            view.focus()
            await pilot.pause()
            await body(app, pilot)

    asyncio.run(go())


async def until(pilot: Pilot[None], true: Callable[[], bool]) -> None:
    """Wait for something that happens soon."""
    for _ in range(200):
        if true():
            return
        await pilot.pause(0.02)
    raise AssertionError("it did not happen within 4 s")


@pytest.mark.parametrize("view", VIEWS)
def test_a_view_shows_its_drawing_in_every_theme(view: type[Widget]) -> None:
    async def body(app: One, pilot: Pilot[None]) -> None:
        looks = set()
        for theme in THEMES:
            app.theme = theme.name
            await pilot.pause(0.05)
            drawn = app.view.canvas.text().splitlines()  # type: ignore[attr-defined]
            seen = text(app, app.view).splitlines()
            height = app.view.scrollable_content_region.height
            assert len(drawn) > 3
            for y, row in enumerate(drawn[:height]):
                assert seen[y].startswith(row.rstrip()[: app.size.width - 1])
            colours = {
                segment.style.color.name
                for strip in app.screen._compositor.render_strips()
                for segment in strip
                if segment.style and segment.style.color
            }
            assert len(colours) >= 3
            looks.add(frozenset(colours))
        assert len(looks) == len(THEMES)  # a change of the theme is drawn at once

    drive(view(), body, timeline("uneven"), Cursor(index=3))


@pytest.mark.parametrize("view", VIEWS)
def test_a_view_that_is_out_of_sight_draws_when_it_comes_back(view: type[Widget]) -> None:
    async def body(app: One, pilot: Pilot[None]) -> None:
        shown = text(app, app.view)
        app.view.display = False
        await pilot.pause()
        app.view.show(timeline("accumulate"), Cursor(index=6, rank=1), [])  # type: ignore[attr-defined]
        await pilot.pause()
        app.view.display = True
        await pilot.pause()
        assert text(app, app.view) != shown or view is JobView

    drive(view(), body, timeline("unsynced-step"), Cursor(index=1))


@pytest.mark.parametrize("view", VIEWS)
def test_a_view_follows_the_size_of_its_window(view: type[Widget]) -> None:
    async def body(app: One, pilot: Pilot[None]) -> None:
        for size in ((200, 60), (40, 8), (80, 24), (5, 2), (120, 40)):
            await pilot.resize_terminal(*size)
            await pilot.pause()
        assert app.view.canvas.width in (119, 120)  # type: ignore[attr-defined]

    drive(view(), body, timeline("uneven"), Cursor(index=4))


def test_new_data_is_drawn_soon_but_not_at_once_again_and_again() -> None:
    tl = timeline("accumulate")

    async def body(app: One, pilot: Pilot[None]) -> None:
        view, painted = app.view, 0
        paint = view.paint  # type: ignore[attr-defined]

        def counted(width: int, height: int) -> Any:
            nonlocal painted
            painted += 1
            return paint(width, height)

        view.paint = counted  # type: ignore[attr-defined]
        view.EVERY = 0.3  # type: ignore[attr-defined]
        for _ in range(20):
            tl.version += 1
            view.show(tl, Cursor(index=3), [])  # type: ignore[attr-defined]
        assert painted <= 1
        await until(pilot, lambda: painted in (1, 2))
        view.show(tl, Cursor(index=4), [])  # type: ignore[attr-defined]
        assert "Backward 4" in text_of(view)

    drive(BackwardView(), body, tl, Cursor(index=3))


def text_of(view: Any) -> str:
    return str(view.canvas.text())


# --- norms and backward ----------------------------------------------------------------------------------------------


def test_norms_zoom_and_go_where_one_clicks() -> None:
    async def body(app: One, pilot: Pilot[None]) -> None:
        view = app.view
        assert "micro-steps 114 to 159 of 160" in text_of(view) or "of 160" in text_of(view)
        await pilot.press("0")
        assert "micro-steps 0 to 159 of 160" in text_of(view)
        await pilot.press("0", "plus")
        closer = text_of(view).splitlines()[0]
        await pilot.press("minus")
        assert text_of(view).splitlines()[0] != closer
        await pilot.press("0", "0")
        span = view._view()  # type: ignore[attr-defined]
        await pilot.click(NormsView, offset=(int(view.size.width - span.width + span.column(150)), 8))
        assert app.went == [(150, 0, None)]

    drive(NormsView(), body, timeline("sampled"), Cursor(index=159), size=(100, 24))


def test_enter_and_a_click_on_a_bucket_open_the_layers() -> None:
    async def body(app: One, pilot: Pilot[None]) -> None:
        await pilot.press("enter")
        row = next(y for y in app.view.canvas.hits)  # type: ignore[attr-defined]
        await pilot.click(BackwardView, offset=(4, row))
        await pilot.click(BackwardView, offset=(4, 0))
        assert app.went == [(3, 0, "layers"), (3, 0, "layers")]

    drive(BackwardView(), body, timeline("accumulate"), Cursor(index=3))


# --- layers ----------------------------------------------------------------------------------------------------------


def test_layers_turn_their_order_and_go_to_a_sampled_pass() -> None:
    tl = timeline("sampled")

    async def body(app: One, pilot: Pilot[None]) -> None:
        assert "not sampled" in text_of(app.view)
        await pilot.press("n")
        ((index, *_),) = app.went
        assert len(tl.modules[0].lanes[0].layers_of(index)) == 4
        app.view.show(tl, Cursor(index=index), [])  # type: ignore[attr-defined]
        await pilot.press("n")
        assert len(app.went) == 1
        for order in (*ORDERS[1:], ORDERS[0]):
            await pilot.press("r")
            assert order in text_of(app.view)

    drive(LayersView(), body, tl, Cursor(index=159))


# --- findings --------------------------------------------------------------------------------------------------------


def test_findings_are_chosen_by_key_and_mouse_and_lead_to_their_cell() -> None:
    tl = timeline("uneven")
    rows = listed(find(tl))
    assert len(rows) >= 3

    async def body(app: One, pilot: Pilot[None]) -> None:
        view = app.view
        assert rows[0].message[:40] in text_of(view)
        await pilot.press("down")
        assert rows[0].message[:40] not in text_of(view)
        assert rows[1].message[:40] in text_of(view)
        await pilot.press(*["down"] * 20)
        assert view.chosen == name_of(rows[-1])  # type: ignore[attr-defined]
        await pilot.press(*["up"] * 20)
        assert view.chosen == name_of(rows[0])  # type: ignore[attr-defined]
        await pilot.press("enter")
        assert app.went[-1][0] == rows[0].backward
        assert app.went[-1][2] == "overview"
        view.scroll_home(animate=False)
        await pilot.pause()
        second = min(y for y, hit in view.canvas.hits.items() if hit == name_of(rows[1]))  # type: ignore[attr-defined]
        await pilot.click(FindingsView, offset=(6, second))
        assert view.chosen == name_of(rows[1])  # type: ignore[attr-defined]
        assert len(app.went) == 1
        await pilot.press("c")
        assert app.clipboard.endswith(f":{rows[1].line}")

    drive(FindingsView(), body, tl, Cursor(index=6), size=(100, 40))


def test_the_chosen_finding_is_brought_into_sight_on_a_small_screen() -> None:
    tl = timeline("uneven")
    rows = listed(find(tl))

    async def body(app: One, pilot: Pilot[None]) -> None:
        for finding in rows[1:]:
            await pilot.press("down")
            await pilot.pause()
            assert finding.rule in text(app, app.view)

    drive(FindingsView(), body, tl, Cursor(index=6), size=(60, 12))


# --- output ----------------------------------------------------------------------------------------------------------


def run_folder(path: Path, status: str = "running", **logs: str) -> Path:
    (path / "logs").mkdir(parents=True)
    names = {name.strip("_"): f"logs/{name.strip('_')}.log" for name in logs}
    (path / "run.json").write_text(json.dumps({"status": status, "logs": names}))
    for name, content in logs.items():
        (path / "logs" / f"{name.strip('_')}.log").write_text(content)
    return path


def test_output_shows_each_rank_and_follows_it(tmp_path: Path) -> None:
    run = run_folder(tmp_path / "run", _0="hello from 0\n", _1="hello from 1\n")
    log = run / "logs" / "0.log"

    async def body(app: One, pilot: Pilot[None]) -> None:
        view = app.view
        assert isinstance(view, OutputView)
        view.follow(run)
        await until(pilot, lambda: "hello from 0" in text(app))
        assert "hello from 1" not in text(app)
        with log.open("a") as more:
            more.write("".join(f"line {i} \x1b[31mred\x1b[0m\x1b[2J\n" for i in range(100)))
        await until(pilot, lambda: "line 99 red" in text(app))
        await pilot.press("pageup")
        await pilot.pause()
        assert "line 99" not in text(app)
        held = re.findall(r"line \d+", text(app))
        with log.open("a") as more:
            more.write("one more\n")
        await until(pilot, lambda: "102 lines" in text(app))
        assert re.findall(r"line \d+", text(app)) == held
        assert "held" in text(app)
        await pilot.press("f")
        await until(pilot, lambda: "one more" in text(app))
        await pilot.press("r")
        await until(pilot, lambda: "hello from 1" in text(app))
        await pilot.press("r")
        await until(pilot, lambda: "rank 1 │ hello from 1" in text(app) or "in order of arrival" in text(app))
        await pilot.press("R", "R")
        await until(pilot, lambda: "one more" in text(app))
        place = next(start for start, _, name in view.bar._places if name == "1")
        await pilot.click(type(view.bar), offset=(place + 2, 0))
        await until(pilot, lambda: "hello from 1" in text(app))

    drive(OutputView(), body)


def test_output_is_filtered_and_follows_the_rank_of_the_cursor(tmp_path: Path) -> None:
    run = run_folder(tmp_path / "run", "finished", _0="loss 1\nstep\nLOSS 2\n", _1="other\n", launcher="")

    async def body(app: One, pilot: Pilot[None]) -> None:
        view = app.view
        assert isinstance(view, OutputView)
        view.follow(run)
        await until(pilot, lambda: "step" in text(app))
        view.show(Timeline(), Cursor(filter="loss"), [])
        await pilot.pause()
        assert text(app, view.text).split("\n")[:3] == ["loss 1", "LOSS 2", ""]
        assert "2 lines of 3" in text(app)
        view.show(Timeline(), Cursor(filter="gone"), [])
        await pilot.pause()
        assert "No line holds 'gone'." in text(app)
        view.show(Timeline(), Cursor(rank=1), [])
        await pilot.pause()
        assert "other" in text(app)
        view.choose("launcher")
        await pilot.pause()
        assert "Launcher has printed nothing." in text(app)

    drive(OutputView(), body)


def test_output_that_was_not_captured_is_said_to_be_so(tmp_path: Path) -> None:
    run = run_folder(tmp_path / "run", "finished")

    async def body(app: One, pilot: Pilot[None]) -> None:
        assert isinstance(app.view, OutputView)
        app.view.follow(run)
        await until(pilot, lambda: "not captured" in text(app))

    drive(OutputView(), body)


def test_a_real_run_s_output_is_found_by_its_folder_alone() -> None:
    async def body(app: One, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: "micro-step 5: loss" in text(app))

    view = OutputView()
    view.run_dir = FOLDER / "uneven"
    drive(view, body)


# --- the picker ------------------------------------------------------------------------------------------------------


class Pick(One):
    def compose(self) -> ComposeResult:
        return iter(())

    def on_mount(self) -> None:
        def job() -> Any:
            raise AssertionError("the picker makes no job")

        self.push_screen(DemoPicker([Demo(d.name, d.summary, job, d.path) for d in demo_scripts()]))


def test_the_picker_says_what_each_demo_shows_and_starts_the_chosen_one() -> None:
    demos = demo_scripts()

    async def go() -> None:
        app = Pick(Widget())
        async with app.run_test(size=(80, 24)) as pilot:
            await pilot.pause()
            for size in ((60, 16), (120, 40), (80, 24)):
                await pilot.resize_terminal(*size)
                await pilot.pause()
                assert demos[0].name in text(app)
                assert demos[0].summary.split()[0] in text(app)
                if size[0] >= 72:
                    assert demos[0].path.name in text(app)
                    assert "for " in text(app)
            await pilot.press("down", "down", "up", "enter")
            assert app.chosen == [demos[1].name]
            await pilot.press(*["down"] * len(demos))
            await pilot.pause()
            assert demos[-1].name in text(app)
            await pilot.press("enter")
            assert app.chosen == [demos[1].name, demos[-1].name]
            picker = app.screen.query_one(Demos)
            picker.scroll_home(animate=False)
            await pilot.pause()
            row = next(y for y, hit in picker.canvas.hits.items() if hit == 0)
            await pilot.click(Demos, offset=(5, row + 1))
            assert len(app.chosen) == 2
            await pilot.click(Demos, offset=(5, row + 1))
            assert app.chosen[-1] == demos[0].name
            await pilot.press("q")
        assert app.return_code == 0

    asyncio.run(go())
