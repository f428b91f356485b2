"""The app under Pilot: recordings at every size and theme, every key, and a real job with keys typed while it runs."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import synth
from hypothesis import HealthCheck, given, settings, strategies as st
from textual.pilot import Pilot

from ddpviz.dashboard.app import Dashboard
from ddpviz.dashboard.keys import KEYS, VIEWS
from ddpviz.dashboard.main import Main
from ddpviz.dashboard.marks import M
from ddpviz.dashboard.settings import Settings
from ddpviz.dashboard.themes import THEMES

DEMOS = Path(__file__).parent.parent / "demos"
Act = Callable[[Dashboard, Pilot[int]], Awaitable[None]]


@pytest.fixture(autouse=True)
def _own_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("NO_COLOR", raising=False)


def screen(app: Dashboard) -> str:
    """What stands on the screen, as text."""
    return "\n".join(strip.text for strip in app.screen._compositor.render_strips())


def main_of(app: Dashboard) -> Main:
    return next(screen for screen in app.screen_stack if isinstance(screen, Main))


async def until(pilot: Pilot[int], app: Dashboard, what: Callable[[], bool], seconds: float = 20) -> None:
    """Wait for something to be so; the screen as it stands is the message if it never is."""
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, screen(app)
        await pilot.pause(0.05)


def with_app(
    run_dir: Path | None,
    act: Act,
    *,
    size: tuple[int, int] = (120, 40),
    motion: bool = False,
    notices: bool = False,
    **how: object,
) -> None:
    """Open a run, wait until it is read and drawn, and act."""

    async def go() -> None:
        how.setdefault("settings", Settings())
        app = Dashboard(run_dir, motion=motion, **how)  # type: ignore[arg-type]
        async with app.run_test(size=size, notifications=notices) as pilot:
            try:
                if run_dir is not None:
                    feed = app.feed
                    assert feed is not None
                    await until(pilot, app, lambda: feed.latest is not None and feed.latest.complete)
                    await pilot.pause(0.3)
                await act(app, pilot)
            finally:
                app.close_job()

    asyncio.run(go())


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    base = tmp_path_factory.mktemp("runs")
    made = {mistake: synth.write_run(base, mistake) for mistake in ("unsynced", "hang", "failed", "mixed", "nan")}
    return {"right": synth.write_run(base), "gan": synth.write_run(base, modules=2), **made}


SIZES = [(80, 24), (120, 40), (200, 60)]


@pytest.mark.parametrize("name", ["right", "unsynced", "hang", "failed", "mixed", "nan"])
def test_the_overview_shows_the_run_and_its_legend_at_every_size(runs: dict[str, Path], name: str) -> None:
    async def act(app: Dashboard, pilot: Pilot[int]) -> None:
        wanted = {
            "right": ("■ FINISHED  exit 0", "▲"),
            "unsynced": ("unsynced-step", "✗", "train.py:19"),
            "hang": ("rank 0", "◌"),
            "failed": ("✗ FAILED  exit 1", "ValueError", "†"),
            "mixed": ("rank-disagreement", "≠"),
            "nan": ("nonfinite-gradient", "∞"),
        }[name]
        for size in SIZES:
            await pilot.resize_terminal(*size)
            await pilot.pause(0.15)
            shown = screen(app)
            for text in (*wanted, "Sync timeline", "Levels", "? help"):
                assert text in shown, shown
            assert f"{M.LOCAL.glyph} local" in shown
            assert f"{M.SYNCED.glyph} all-reduced" in shown
            assert all(len(line) == size[0] for line in shown.splitlines())

    with_app(runs[name], act, size=SIZES[0])


def test_every_theme_draws(runs: dict[str, Path]) -> None:
    async def act(app: Dashboard, pilot: Pilot[int]) -> None:
        before = screen(app)
        for theme in THEMES:
            app.theme = theme.name
            await pilot.pause(0.15)
            assert screen(app) == before  # colours alone differ
        assert "<svg" in app.export_screenshot()

    with_app(runs["unsynced"], act)


def test_without_colour_the_same_shapes_are_there(runs: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")

    async def act(app: Dashboard, pilot: Pilot[int]) -> None:
        assert app.no_color
        for glyph in (M.LOCAL.glyph, M.SYNCED.glyph, M.WRONG_STEP.glyph, M.STEP.glyph):
            assert glyph in screen(app)

    with_app(runs["unsynced"], act)


def test_too_small_a_terminal_is_told_so_and_works_again_when_it_grows(runs: dict[str, Path]) -> None:
    async def act(app: Dashboard, pilot: Pilot[int]) -> None:
        assert "ddpviz needs 60 × 16" in screen(app)
        await pilot.resize_terminal(80, 24)
        await pilot.pause(0.3)
        assert "Sync timeline" in screen(app)

    with_app(runs["right"], act, size=(50, 10))


def test_time_keys(runs: dict[str, Path]) -> None:
    async def act(app: Dashboard, pilot: Pilot[int]) -> None:
        main = main_of(app)
        assert main.cursor.index == 15
        await pilot.press("left", "left")
        assert main.cursor.index == 13
        assert "‖ PAST  +2 newer" in screen(app)
        await pilot.press("home")
        assert main.cursor.index == 0
        await pilot.press("right")
        assert main.cursor.index == 1
        await pilot.press("full_stop")
        assert main.cursor.index == 7
        await pilot.press("comma")
        assert main.cursor.index == 3
        before = main.cursor.time
        await pilot.press("shift+left")
        assert main.cursor.time < before
        await pilot.press("right_curly_bracket")
        assert main.cursor.index == 7
        await pilot.press("left_curly_bracket")
        assert main.cursor.index == 3
        await pilot.press("end")
        assert main.cursor.index == 15
        assert "PAST" not in screen(app)
        await pilot.press("g", "2", "enter")
        assert main.cursor.index == 11

    with_app(runs["right"], act)


def test_playing_moves_and_pausing_stands(runs: dict[str, Path]) -> None:
    async def act(app: Dashboard, pilot: Pilot[int]) -> None:
        main = main_of(app)
        await pilot.press("home", "right_square_bracket", "o", "space")
        assert main.cursor.playing
        await until(pilot, app, lambda: main.cursor.index >= 1)
        assert "▶ PAST" in screen(app)
        await pilot.press("space")
        stood = main.cursor
        await pilot.pause(0.3)
        assert main.cursor == stood

    with_app(runs["right"], act, motion=True)


def test_views_open_by_key_and_by_mouse_and_escape_comes_back(runs: dict[str, Path]) -> None:
    async def act(app: Dashboard, pilot: Pilot[int]) -> None:
        main = main_of(app)
        for number, view in enumerate(VIEWS, start=1):
            await pilot.press(str(number))
            await pilot.pause(0.1)
            assert main.view == view
        for _ in range(len(VIEWS)):
            await pilot.press("escape")
        assert main.view == "overview"
        await pilot.press("left", "enter")
        await pilot.pause(0.2)
        assert main.view == "backward"
        assert "Backward 14" in screen(app)
        await pilot.press("escape")
        assert main.view == "overview"
        row = screen(app).splitlines()[1]
        await pilot.click(offset=(row.index("Norms") + 1, 1))
        await pilot.pause(0.2)
        assert main.view == "norms"

    with_app(runs["right"], act)


def test_a_click_puts_the_cursor_on_the_cell_and_a_second_one_opens_it(runs: dict[str, Path]) -> None:
    async def act(app: Dashboard, pilot: Pilot[int]) -> None:
        main = main_of(app)
        lines = screen(app).splitlines()
        y = next(i for i, line in enumerate(lines) if "rank 1" in line)
        x = [m.start() for m in re.finditer("░░░", lines[y])][4]
        await pilot.click(offset=(x + 1, y))
        await pilot.pause(0.1)
        assert main.cursor.index == 5
        assert main.cursor.rank == 1
        await pilot.click(offset=(x + 1, y), times=2)
        await pilot.pause(0.2)
        assert main.view == "backward"

    with_app(runs["right"], act)


def test_help_lists_every_key_and_the_footer_only_bound_ones(runs: dict[str, Path]) -> None:
    async def act(app: Dashboard, pilot: Pilot[int]) -> None:
        await pilot.press("question_mark")
        await pilot.pause(0.2)
        told = str(app.screen.query_one("Static").render())
        for key in KEYS:
            assert key.shown in told
            assert key.help.split()[0] in told
        await pilot.press("escape")
        bound = set(main_of(app)._bindings.key_to_bindings)
        for key in KEYS:
            assert set(key.keys.split(",")) <= bound

    with_app(runs["right"], act, size=(120, 60))


def test_zoom_and_maximise_and_filter(runs: dict[str, Path]) -> None:
    async def act(app: Dashboard, pilot: Pilot[int]) -> None:
        await pilot.press("minus", "minus", "minus")
        await pilot.pause(0.1)
        assert "░ ░ ░ █▲░ ░ ░ ░✗░ ░ ░ ░✗░ ░ ░ ░✗" in screen(app)  # the whole run fits, and it goes no further
        await pilot.press("plus", "plus", "plus")
        await pilot.press("z")
        await pilot.pause(0.2)
        assert "Levels" not in screen(app)
        await pilot.press("escape")
        await pilot.pause(0.2)
        assert "Levels" in screen(app)
        await pilot.press("slash", "1", "enter")
        await pilot.pause(0.2)
        timeline = screen(app).split("Levels")[0]
        assert "rank 1" in timeline
        assert "rank 0" not in timeline
        assert "/1" in screen(app)

    with_app(runs["unsynced"], act, size=(60, 30))


def test_rows_that_ranks_share_name_hosts_and_a_key_makes_them_a_row_a_host(tmp_path: Path) -> None:
    hosts = [f"node-{k // 4:02d}" for k in range(64)]
    many = synth.write_run(tmp_path, "died", ranks=64, rank=45, windows=3, hosts=hosts, layers=False)

    async def act(app: Dashboard, pilot: Pilot[int]) -> None:
        await until(pilot, app, lambda: "rank 45 node-11 " in screen(app))
        assert "ranks 0, 1 (+61) 16 hosts " in screen(app)
        await pilot.press("h")
        await until(pilot, app, lambda: "node-11 (4) " in screen(app))
        dead = next(line for line in screen(app).splitlines() if "node-11 (4)" in line)
        assert M.DEAD.glyph in dead
        assert "rank 45 node-11" not in screen(app)
        assert " more hosts: z makes room" in screen(app)
        await pilot.press("z")
        await until(pilot, app, lambda: all(f"node-{k:02d} (4) " in screen(app) for k in range(16)))
        await pilot.press("h")
        await until(pilot, app, lambda: "rank 45 node-11 " in screen(app))

    with_app(many, act)


def test_the_next_module(runs: dict[str, Path]) -> None:
    async def act(app: Dashboard, pilot: Pilot[int]) -> None:
        assert "MLP 1/2" in screen(app)
        await pilot.press("m")
        await pilot.pause(0.1)
        assert "Critic 2/2" in screen(app)

    with_app(runs["gan"], act)


def test_keys_of_the_users_own_work_and_are_what_the_help_says(runs: dict[str, Path]) -> None:
    keys = {"step": "y", "step-back": ["u", "ctrl+l"], "window": "left", "paus": "x", "choose": "n"}

    async def act(app: Dashboard, pilot: Pilot[int]) -> None:
        assert "there is no action 'paus'; pause?" in screen(app)
        main = main_of(app)
        await pilot.press("u", "u", "y", "ctrl+l")
        assert main.cursor.index == 13
        await pilot.press("right", "full_stop")  # nobody's any more
        assert main.cursor.index == 13
        await pilot.press("left")  # the next window
        assert main.cursor.index == 15
        app.clear_notifications()
        await pilot.pause(0.2)
        assert " u y step " in screen(app)
        await pilot.press("question_mark")
        await pilot.pause(0.2)
        told = str(app.screen.query_one("Static").render())
        assert re.search(r"^ +u +The micro-step", told, re.MULTILINE)
        assert re.search(r"^ +← +The next window", told, re.MULTILINE)

    with_app(runs["right"], act, settings=Settings(keys=keys), notices=True)


def test_text_of_every_panel_can_be_selected_and_copied(runs: dict[str, Path]) -> None:
    async def act(app: Dashboard, pilot: Pilot[int]) -> None:
        lines = screen(app).splitlines()
        stood = main_of(app).cursor
        for words in (
            "micro-step 15  step 3",
            "rank 1   ░░░",
            "all ranks hold the mean",
            "gradient norm of",
            "Micro-step 15",
        ):
            y = next(i for i, line in enumerate(lines) if words in line)
            x = lines[y].index(words)
            await pilot.mouse_down(offset=(x, y))
            await pilot.hover(offset=(x + 2, y))
            await pilot.hover(offset=(x + len(words) - 1, y))
            await pilot.mouse_up(offset=(x + len(words) - 1, y))
            await pilot.pause(0.05)
            await pilot.press("ctrl+c")
            assert app.clipboard == words
        assert main_of(app).cursor == stood  # selecting is no click

    with_app(runs["right"], act)


def test_the_screenshot_key_saves_an_svg(
    runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def act(app: Dashboard, pilot: Pilot[int]) -> None:
        saved: list[str] = []
        monkeypatch.setattr(app, "deliver_screenshot", lambda *a, **k: saved.append("svg") or "x.svg")
        await pilot.press("s")
        assert saved

    with_app(runs["right"], act)


def test_a_run_that_cannot_be_followed_says_so(tmp_path: Path) -> None:
    async def go() -> None:
        app = Dashboard(tmp_path / "none", motion=False, settings=Settings())
        async with app.run_test(size=(80, 24)) as pilot:
            await until(pilot, app, lambda: "cannot be followed" in screen(app))
            assert "no such run" in screen(app)
            app.close_job()

    asyncio.run(go())


def test_an_empty_recording_says_that_there_is_nothing(tmp_path: Path) -> None:
    from ddpviz.trace.rundir import create_run, update_run

    empty = create_run(tmp_path, {"title": "nothing", "command": ["train.py"], "world_size": 2})
    update_run(empty, status="finished", exit_code=0)

    async def act(app: Dashboard, pilot: Pilot[int]) -> None:
        assert "FINISHED" in screen(app)
        assert "Nothing recorded" in screen(app)

    with_app(empty, act, size=(80, 24))


_ORDER = st.lists(
    st.sampled_from(
        [name for key in KEYS for name in key.keys.split(",") if key.action.split("(")[0] not in
         ("quit_job", "interrupt", "screenshot_svg", "command_palette")]
    ),
    max_size=25,
)  # fmt: skip


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(keys=_ORDER, name=st.sampled_from(["right", "unsynced", "hang", "failed", "mixed", "gan"]))
def test_any_order_of_keys_raises_nothing(runs: dict[str, Path], keys: list[str], name: str) -> None:
    async def act(app: Dashboard, pilot: Pilot[int]) -> None:
        for key in keys:
            await pilot.press(key)
        await pilot.pause(0.2)

    with_app(runs[name], act, size=(90, 26), motion=True)


def test_the_dashboard_never_imports_torch() -> None:
    code = (
        "import sys; import ddpviz.dashboard; assert 'textual' not in sys.modules;"
        "import ddpviz.dashboard.app; assert 'torch' not in sys.modules; assert 'plotext' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


# --- a real job ------------------------------------------------------------------------------------------------------


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.mark.usefixtures("alone")
def test_a_real_job_is_on_the_screen_and_obeys_the_keys_while_its_ranks_are_alive(tmp_path: Path) -> None:
    from ddpviz.launch import Job, JobSpec

    job = Job(
        JobSpec(script=DEMOS / "accumulate_long.py", nproc=2, run_dir=tmp_path / "run", title="long", budget=None)
    )

    async def go() -> None:
        app = Dashboard(job.run_dir, job, motion=False, settings=Settings())
        async with app.run_test(size=(120, 40)) as pilot:
            await until(pilot, app, lambda: "STARTING" in screen(app))  # the screen is there before torch is
            main = main_of(app)
            await until(pilot, app, lambda: "● LIVE" in screen(app) and main.cursor.index >= 5, 120)
            assert job.poll() is None
            assert "░░░" in screen(app)
            await until(pilot, app, lambda: "███" in screen(app), 30)
            await pilot.press("space")
            stood = main.cursor.index
            await until(pilot, app, lambda: "newer" in screen(app), 30)  # the job goes on while one looks
            assert main.cursor.index == stood
            await pilot.press("home")
            assert main.cursor.index == 0
            assert "Micro-step 0 ran inside no_sync" in re.sub(r"[│\s]+", " ", screen(app))
            await pilot.press("end")
            await until(pilot, app, lambda: main.cursor.live and main.cursor.index > stood, 30)
            assert job.poll() is None
            await pilot.press("q")
        assert app.return_value == 130

        assert app.close_job() == 130

    try:
        asyncio.run(go())
    finally:
        job.stop()
        job.finish()
    left = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert str(tmp_path / "run") not in left


@pytest.mark.usefixtures("alone")
def test_a_real_mistake_stays_on_the_screen_with_its_line_when_the_job_has_ended(tmp_path: Path) -> None:
    from ddpviz.launch import Job, JobSpec

    job = Job(
        JobSpec(script=DEMOS / "unsynced_step.py", nproc=2, run_dir=tmp_path / "run", title="mistake", budget=None)
    )

    async def go() -> None:
        app = Dashboard(job.run_dir, job, motion=False, settings=Settings())
        async with app.run_test(size=(80, 24)) as pilot:
            await until(pilot, app, lambda: "FINISHED  exit 0" in screen(app) and "unsynced-step" in screen(app), 120)
            assert re.search(r"unsynced_step\.py:\d+", screen(app))
            assert app.close_job() == 0

    try:
        asyncio.run(go())
    finally:
        job.stop()
        job.finish()
    assert os.listdir(tmp_path / "run")
