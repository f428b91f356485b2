"""The classroom's panels in the dashboard, on recordings and without a job: the lesson, the control panel, two runs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from recorded import FOLDER, timeline
from rich.style import Style
from textual.pilot import Pilot

from ddpviz.cli.arguments import parse
from ddpviz.dashboard.app import Dashboard
from ddpviz.dashboard.control import ControlPanel, begun_with, next_value, state_line, with_values
from ddpviz.dashboard.lesson import look_text, seen_text
from ddpviz.dashboard.settings import Settings
from ddpviz.dashboard.state import Demo
from ddpviz.dashboard.views.picker import DemoPicker
from ddpviz.launch.control import Controller, Standing, prepare
from ddpviz.launch.environment import job_environment
from ddpviz.launch.spec import JobError, JobSpec, validate
from ddpviz.lessons import Knob, lesson
from ddpviz.trace import orders
from ddpviz.trace.orders import Answer, Order


@pytest.fixture(autouse=True)
def _own_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


def text(app: Dashboard) -> str:
    return "\n".join(strip.text for strip in app.screen._compositor.render_strips())


def drive(app: Dashboard, body: Callable[[Pilot[int]], Any], size: tuple[int, int] = (80, 24)) -> None:
    app.keep = lambda **_: None  # type: ignore[method-assign]

    async def run() -> None:
        async with app.run_test(size=size, notifications=True) as pilot:
            await body(pilot)
        app.close_job()

    asyncio.run(run())


async def until(pilot: Pilot[int], what: Callable[[], bool], app: Dashboard) -> None:
    end = time.monotonic() + 15
    while not what():
        assert time.monotonic() < end, text(app)
        await pilot.pause(0.05)


def of(recording: str) -> Dashboard:
    return Dashboard(FOLDER / recording, motion=False, settings=Settings())


def test_a_lesson_says_what_was_seen_and_shows_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    one = lesson("accumulate")
    assert one is not None
    for module in ("brief", "main"):
        monkeypatch.setattr(f"ddpviz.dashboard.{module}.lesson_of", lambda tl: one)
    app = of("accumulate")

    async def body(pilot: Pilot[int]) -> None:
        await until(pilot, lambda: "What was seen" in text(app), app)
        assert "micro-steps stayed local: a rank sent" in text(app)
        await pilot.press("l")
        await pilot.pause()
        shown = text(app)
        assert one.title in shown
        assert "Windows of four micro-steps" in shown
        assert "The replicas were compared" in shown
        await pilot.press("escape", "left")
        await until(pilot, lambda: "What just happened" in text(app), app)  # one who looks back is told of that

    drive(app, body)


def test_a_run_that_takes_no_orders_says_so() -> None:
    app = of("accumulate")

    async def body(pilot: Pilot[int]) -> None:
        await until(pilot, lambda: app.feed is not None and app.feed.latest is not None, app)
        for key in ("p", "j", "l"):
            await pilot.press(key)
        await until(pilot, lambda: "this job takes no orders" in text(app), app)
        assert not isinstance(app.screen, ControlPanel)

    drive(app, body)


def test_the_texts_fit_what_they_are_told() -> None:
    one = lesson("accumulate")
    assert one is not None
    ink = dict.fromkeys(("strong", "local", "text", "dim"), Style())
    assert look_text(one, ink).plain.startswith(one.title)
    whole = seen_text(one, timeline("accumulate"), ink).plain
    short = seen_text(one, timeline("accumulate"), ink, lines=2, width=76).plain
    assert whole.startswith(short)
    assert 0 < len(short) < len(whole)


KNOB = Knob("batch_size", "samples", ("1", "4", "16"), "4")


def test_values_come_from_the_command_line_and_go_back_to_it() -> None:
    assert begun_with(KNOB, ()) == "4"
    assert begun_with(KNOB, ("--lr", "1", "--batch-size", "16")) == "16"
    assert begun_with(KNOB, ("--batch-size=1",)) == "1"
    args = ("--lr", "1", "--batch-size", "16", "--right", "--pause=2")
    assert with_values(args, {"batch_size": "4", "pause": "-1"}) == (
        "--lr", "1", "--right", "--batch-size=4", "--pause=-1",
    )  # fmt: skip
    assert [next_value(KNOB, now, by) for now, by in (("4", 1), ("16", 1), ("4", -1), ("9", -1), ("9", 1))] == [
        "16", "16", "1", "1", "16",
    ]  # fmt: skip
    assert state_line(Standing(held=True, at=7))[0] == "‖ every rank holds before micro-step 7, in no collective"
    assert state_line(Standing(pending="pause"))[1] == "running"
    assert state_line(Standing(over=True))[0] == "the job is over"


def test_the_panel_gives_the_orders_of_its_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(tmp_path)
    app = of("accumulate")
    control = app.controller = Controller(tmp_path, 2)
    again: list[JobSpec] = []
    monkeypatch.setattr(app, "start_again", again.append)

    def ranks(serial: int, **said: Any) -> None:
        for rank in range(2):
            orders.write(tmp_path / orders.ANSWERS / f"rank-{rank}", Answer(rank, serial, **said))

    def obey(position: int, *, held: bool) -> Order:
        """Both ranks do what stands there."""
        control.tick()
        asked = orders.read(tmp_path / orders.CONTROL, Order)
        assert asked is not None
        ranks(asked.serial, promised=True, position=position, held=held)
        control.tick()
        ranks(asked.serial, promised=True, done=True, position=asked.at, held=held)
        control.tick()
        return asked

    async def body(pilot: Pilot[int]) -> None:
        await until(pilot, lambda: app.feed is not None and app.feed.latest is not None, app)
        app.controller = None  # the timer does not tick it here: the test does
        spec = JobSpec(lesson="accumulate-long", args=("--accumulation", "8"), nproc=2)
        app.push_screen(ControlPanel(control, spec, 2))
        await pilot.pause()
        assert "the job runs" in text(app)
        assert "‹ 8 ›" in text(app)
        await pilot.press("p")
        assert "pause … on its way to every rank" in (await shown(pilot))
        ranks(0, position=10)
        assert obey(10, held=True).then == "hold"
        assert "every rank holds before micro-step 12, in no collective" in (await shown(pilot))
        for key, kind in (("n", "backward"), ("s", "step"), ("b", "bucket")):
            await pilot.press(key)
            asked = obey(12, held=True)
            assert (asked.then, asked.at) == (kind, 12)
        await pilot.press("right")
        assert obey(12, held=True).set == {"accumulation": "16"}
        assert "from micro-step 12 on, on every rank: accumulation 16" in (await shown(pilot))
        await pilot.press("left_square_bracket")
        assert obey(12, held=True).pace == 0.05
        await pilot.press("p")
        asked = obey(12, held=False)
        assert (asked.then, asked.pace) == ("free", 0.05)
        await pilot.press("up")
        assert "‹ 2 ›" in (await shown(pilot))
        await pilot.press("right")
        assert "Enter" in (await shown(pilot))
        await pilot.press("enter")
        assert [(spec.nproc, spec.args) for spec in again] == [(3, ("--accumulation=16",))]
        assert not isinstance(app.screen, ControlPanel)

    async def shown(pilot: Pilot[int]) -> str:
        await pilot.pause(0.15)
        return text(app)

    drive(app, body)


def test_two_runs_one_above_the_other_and_how_they_differ() -> None:
    app = Dashboard(None, motion=False, settings=Settings())
    app.beside = (FOLDER / "accumulate", FOLDER / "unsynced-step")

    async def body(pilot: Pilot[int]) -> None:
        await until(pilot, lambda: "unsynced-step (error) is new in B" in text(app), app)
        shown = text(app)
        assert "A: accumulate" in shown
        assert "B: unsynced-step" in shown
        assert shown.count("rank 1") == 2
        before = shown
        await pilot.press("down", "down")
        await until(pilot, lambda: text(app) != before, app)
        await pilot.press("plus", "minus", "m", "t", "up", "q")
        await until(pilot, lambda: app._exit, app)

    drive(app, body)
    assert app.return_value == 0


def test_the_picker_offers_a_variant_and_starts_both() -> None:
    started: list[tuple[Any, ...]] = []
    made = [object(), object()]
    one = Demo("accumulate", "Shows it.", lambda: made[0], None, "first", lambda: made[1], "no_sync off")  # type: ignore[arg-type,return-value]
    alone = Demo("gan", "Two models.", lambda: made[0], None, "second")  # type: ignore[arg-type,return-value]
    app = Dashboard(None, demos=[one, alone], motion=False, settings=Settings())
    app.watch_both = lambda runs, names: started.append((list(runs), names))  # type: ignore[method-assign]

    async def body(pilot: Pilot[int]) -> None:
        await pilot.pause()
        assert isinstance(app.screen, DemoPicker)
        assert "v: beside it, no_sync off" in text(app)
        assert "first" in text(app)
        await pilot.press("v")
        await pilot.pause()
        assert started == [(made, ("accumulate", "accumulate, no_sync off"))]
        await pilot.press("down", "v")
        await until(pilot, lambda: "has no variant" in text(app), app)

    drive(app, body)


def test_orders_are_for_scripts_and_demos(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("pass\n")
    assert parse(["run", "--control", str(script)]).control
    assert not parse(["run", str(script)]).control
    with pytest.raises(JobError, match=r"^--control is for a SCRIPT\.py"):
        validate(JobSpec(command=("true",), control=()))
    for spec, wanted in ((JobSpec(script=script), None), (JobSpec(script=script, control=("a", "b")), "a,b")):
        env = job_environment({"DDPVIZ_CONTROL": "of another job"}, spec, tmp_path, "mark", ranks=2, hide_cuda=False)
        assert env.get("DDPVIZ_CONTROL") == wanted
