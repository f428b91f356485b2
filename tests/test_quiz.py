"""The quiz: each question can be answered on its recording and has wrong answers, by keys and by the mouse."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from make_quiz import LESSONS

from ddpviz import language, quiz
from ddpviz.dashboard.quiz import Quiz
from ddpviz.dashboard.settings import Settings
from ddpviz.export.load import load
from ddpviz.launch.demos import demo_scripts


@pytest.fixture(autouse=True)
def back_to_english() -> Iterator[None]:
    yield
    language.use("en")


def passes(name: str) -> range:
    return range(max(module.passes for module in load(Path(quiz.RUNS) / name).modules))


@pytest.mark.parametrize("number", range(12))
def test_a_question_has_right_answers_and_wrong_ones(number: int) -> None:
    one = quiz.questions()[number]
    assert one.run in LESSONS
    if one.choices:
        assert 0 <= one.right < len(one.choices)
        return
    fitting = [one.fits(load(Path(quiz.RUNS) / one.run), index) for index in passes(one.run)]
    assert any(fitting)
    assert not all(fitting)


def test_every_pass_that_an_epoch_left_over_is_a_right_answer() -> None:
    """Those that the next epoch's window swallows, and those that the run's end leaves behind."""
    one = next(one for one in quiz.questions() if one.points is quiz.left_over)
    tl = load(Path(quiz.RUNS) / one.run)
    assert [index for index in passes(one.run) if one.fits(tl, index)] == [8, 9, 18, 19]


def test_lines_to_choose_from_stand_in_the_scripts() -> None:
    one = next(one for one in quiz.questions() if "optimizer.step()" in one.choices)
    source = next(demo.path for demo in demo_scripts() if demo.name == one.run).read_text("utf-8")
    assert all(choice in source for choice in one.choices)


def test_the_recordings_name_no_place_but_a_neutral_one() -> None:
    for path in Path(quiz.RUNS).rglob("*.ddpv"):
        data = path.read_bytes()
        assert str(Path(__file__).parent.parent).encode() not in data, path
        assert sys.prefix.encode() not in data, path


@pytest.mark.parametrize("spoken", ["en", "ru"])
def test_it_is_answered_with_keys_and_the_mouse(spoken: str) -> None:
    language.use(spoken)

    async def answer() -> None:
        app = Quiz(Settings())
        async with app.run_test(size=(80, 24)) as pilot:
            for one in app.questions:
                await pilot.pause()
                assert app.question == one
                if one.choices:
                    await pilot.press(str(one.right + 1))
                else:
                    right = next(index for index in passes(one.run) if one.fits(app.tl, index))
                    await pilot.press(*["right"] * right, "enter")
                assert app.given is True, one.ask
                await pilot.press("enter")
            assert app.correct == 12
            app.number = 0
            app._open()
            await pilot.pause()
            await pilot.click("#sync", offset=(10, 1))  # the first pass, which was not all-reduced
            await pilot.pause()
            assert app.given is False
            await pilot.press("q")
        assert app.return_code == 0

    asyncio.run(answer())
