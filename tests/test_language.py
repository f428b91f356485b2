"""The Russian catalogue is whole and right, the language is chosen as it should be, and nothing overflows in either."""

from __future__ import annotations

import asyncio
import html
import re
import string
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import catalogue
import pytest
from rich.cells import cell_len
from textual.pilot import Pilot

from ddpviz import language, quiz
from ddpviz.cli import main
from ddpviz.dashboard import narration, playback as play
from ddpviz.dashboard.app import Dashboard
from ddpviz.dashboard.keys import VIEW_NAMES, VIEWS
from ddpviz.dashboard.marks import M
from ddpviz.dashboard.settings import Settings
from ddpviz.dashboard.state import Cursor
from ddpviz.dashboard.sync_draw import SHORT
from ddpviz.dashboard.views.canvas import Canvas
from ddpviz.export.load import load
from ddpviz.export.report import to_json
from ddpviz.findings import find, find_in_english
from ddpviz.language import choose
from ddpviz.lessons.catalogue import catalogue as lessons
from ddpviz.phrases import counted, which_ranks

RECORDINGS = Path(__file__).parent / "recordings"


@pytest.fixture(autouse=True)
def back_to_english() -> Iterator[None]:
    yield
    language.use("en")
    narration.speak("normal")


def fields(text: str) -> set[str]:
    """Names between braces; old-fashioned ones as they are."""
    found = {name for _text, name, _spec, _how in string.Formatter().parse(text) if name is not None}
    return found | {word for word in text.split() if word.startswith(("%s", "%("))}


def test_no_sentence_of_the_source_is_untranslated() -> None:
    """What `tests/catalogue.py update` would add is there, what it would drop is not, and nothing is guessed."""
    there = {(message.id, message.context or "") for message in catalogue.load("ru") if message.id}
    wanted = {(message.id, message.context or "") for message in catalogue.template() if message.id}
    assert wanted - there == set()
    assert there - wanted == set()
    for message in catalogue.load("ru"):
        said = message.string if isinstance(message.string, tuple) else (message.string,)
        assert all(said), message.id
        assert not message.fuzzy or not message.id, message.id


def test_every_translation_has_the_fields_and_the_blanks_of_its_sentence() -> None:
    for message in catalogue.load("ru"):
        if not message.id:
            continue
        ids = message.id if isinstance(message.id, tuple) else (message.id,)
        said = message.string if isinstance(message.string, tuple) else (message.string,)
        if "{" not in "".join(ids) + "".join(said):
            continue
        for text in said:
            assert fields(text) <= fields(ids[0]) | fields(ids[-1]), message.id
            assert fields(text) >= fields(ids[0]) & fields(ids[-1]), message.id
            assert text[:1].isspace() == ids[-1][:1].isspace(), message.id
            assert text[-1:].isspace() == ids[-1][-1:].isspace(), message.id


def test_the_compiled_catalogue_is_the_written_one() -> None:
    shipped = catalogue.LOCALES / "ru" / "LC_MESSAGES" / "ddpviz.mo"
    assert shipped.read_bytes() == catalogue.compiled(catalogue.load("ru"))


@pytest.mark.parametrize(
    ("flag", "setting", "environment", "chosen"),
    [
        ("ru", "en", {"LANG": "en_US.UTF-8"}, "ru"),
        ("", "ru", {"LANG": "en_US.UTF-8"}, "ru"),
        ("", "", {"LANG": "ru_RU.UTF-8"}, "ru"),
        ("", "", {"LC_ALL": "C.UTF-8", "LANG": "ru_RU.UTF-8"}, "en"),
        ("", "", {"LC_MESSAGES": "ru", "LANG": "de_DE"}, "ru"),
        ("", "", {"LC_ALL": "", "LANG": "de_DE.UTF-8"}, "en"),
        ("", "tlh", {}, "en"),
    ],
)
def test_the_language_is_the_flags_the_settings_the_locales(
    flag: str, setting: str, environment: dict[str, str], chosen: str
) -> None:
    assert choose(flag, setting, environment) == chosen


def test_plurals_and_cases() -> None:
    language.use("ru")
    assert [str(counted(n, "step")) for n in (1, 2, 5, 11, 21)] == [
        "1 шаг", "2 шага", "5 шагов", "11 шагов", "21 шаг",
    ]  # fmt: skip
    assert f"{counted(3, 'step'):gen}, {which_ranks([0, 1], '0 и 1'):loc}" == "3 шагов, рангах 0 и 1"
    assert f"{which_ranks([0, 1], '', [0, 1]):start}" == "Оба ранга"


def test_programs_read_english_whatever_people_read() -> None:
    tl = load(RECORDINGS / "uneven")
    english = to_json(tl, find(tl))
    language.use("ru")
    assert "Шаг" in " ".join(f.message for f in find(tl))
    assert to_json(tl, find_in_english(tl)) == english


@pytest.mark.parametrize("name", ["uneven", "unsynced-step", "failed"])
def test_a_page_is_in_the_language_asked_for(tmp_path: Path, name: str) -> None:
    """Beside words of the job (names, code, places) nothing of it is English."""
    out = tmp_path / "page.html"
    assert main(["export", str(RECORDINGS / name), "--to", "html", "--lang", "ru", "-o", str(out)]) == 0
    page = out.read_text("utf-8")
    assert '<html lang="ru">' in page
    shown = re.sub(r"<(style|pre|code)\b.*?</\1>|/[\w./]+\.py", " ", page, flags=re.DOTALL)
    said = {html.unescape(text).strip() for text in re.findall(r">([^<>]+)<", shown)}
    entries = [entry for entry in catalogue.load("ru") if isinstance(entry.id, str) and entry.id]
    assert not said & {str(entry.id) for entry in entries if entry.id != entry.string}
    for words in ("Шкала синхронизации", "Находки", "Ранги", "состояние", "последнее событие"):
        assert words in said
    drawing = tmp_path / "run.svg"
    assert main(["export", str(RECORDINGS / name), "--to", "svg", "--lang", "ru", "-o", str(drawing)]) == 0
    assert "шаг без усреднённых градиентов" in drawing.read_text("utf-8")
    assert "micro-step" not in drawing.read_text("utf-8")


def test_help_and_complaints_are_in_the_language_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    for line in (["--lang", "ru", "check", "--help"], ["check", "--lang=ru", "--help"]):
        with pytest.raises(SystemExit):
            main(line)
        assert "коды возврата" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["run", "--lang", "ru"])
    assert "назовите SCRIPT.py" in capsys.readouterr().err


def lines(app: Dashboard) -> list[str]:
    return ["".join(segment.text for segment in strip) for strip in app.screen._compositor.render_strips()]


async def settle(app: Dashboard, pilot: Pilot[int]) -> list[str]:
    before: list[str] = []
    for _turn in range(40):
        await pilot.pause(0.05)
        if (now := lines(app)) == before:
            return now
        before = now
    return before


@pytest.mark.parametrize("spoken", ["en", "ru"])
def test_nothing_overflows_at_80x24(spoken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every view of recordings, and the help: no drawn text leaves its canvas, no part of header and footer is lost."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    over: list[str] = []
    put = Canvas.put

    def watched(self: Canvas, x: int, y: int, text: str, look: str = "") -> int:
        if x < 0 or x + cell_len(text.rstrip()) > self.width:
            over.append(text)
        return put(self, x, y, text, look)

    monkeypatch.setattr(Canvas, "put", watched)

    async def look(name: str) -> None:
        language.use(spoken)
        app = Dashboard(RECORDINGS / name, motion=False, settings=Settings(), narrate="teacher")
        async with app.run_test(size=(80, 24)) as pilot:
            await settle(app, pilot)
            for number, view in enumerate(VIEWS, start=1):
                await pilot.press(str(number))
                seen = await settle(app, pilot)
                assert {cell_len(line) for line in seen} == {80}, view
                assert all(f"{n} {language._(VIEW_NAMES[v])}" in seen[1] for n, v in enumerate(VIEWS, 1)), seen[1]
                assert f" {language._('quit')} " in seen[-1], (view, seen[-1])
                assert over == [], view
                if view == "overview":
                    legend = next(line for line in seen if f"▲ {language._('step')}" in line)
                    assert language._(SHORT[M.WRONG_STEP]) in legend
            await pilot.press("question_mark")
            assert {cell_len(line) for line in await settle(app, pilot)} == {80}

    for name in ("accumulate", "uneven", "unsynced-step") if spoken == "ru" else ("uneven",):
        asyncio.run(look(name))


def test_the_language_is_changed_while_one_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the palette: at once, at the place where one was, findings too; and it is kept."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))

    async def look() -> None:
        language.use("en")
        app = Dashboard(RECORDINGS / "uneven", motion=False, settings=Settings())
        async with app.run_test(size=(100, 30)) as pilot:
            await pilot.press("5")
            await settle(app, pilot)
            commands = {c.title: c.callback for c in app.get_system_commands(app.screen)}
            commands["Language: русский"]()
            for _turn in range(100):
                await pilot.pause(0.05)
                seen = "\n".join(lines(app))
                if "Ранги идут не в ногу" in seen:
                    break
            assert "5 Находки" in seen
            assert "Ранги идут не в ногу" in seen
            assert "Findings" not in seen
            assert app.screen.view == "findings"  # type: ignore[attr-defined]
            assert Settings.load().language == "ru"
            assert any(c.title == "Язык: English" for c in app.get_system_commands(app.screen))

    asyncio.run(look())


def test_what_lessons_saw_is_said_in_russian() -> None:
    """Every fact on every recorded lesson: a case that is asked of a bare number would fall back to English."""
    language.use("ru")
    facts = dict.fromkeys(fact for one in lessons() for fact in one.seen)
    for run in sorted(Path(quiz.RUNS).iterdir()):
        tl = load(run)
        for fact in facts:
            said = fact(tl)
            assert not said or re.search("[а-яё]{3}", said), said


def test_quiet_tells_steps_and_mistakes_and_a_teacher_says_why() -> None:
    tl = load(RECORDINGS / "accumulate")
    local, step = play.goto(tl, Cursor(), 0), play.goto(tl, Cursor(), 3)
    step = replace(step, time=step.time + 10**9)
    told = {}
    for level in narration.LEVELS:
        narration.speak(level)
        told[level] = [narration.narrate(tl, local), narration.narrate(tl, step)]
    narration.speak("normal")
    quiet, normal, teacher = told.values()
    assert quiet == ["", normal[1]]
    assert all(more.startswith(said) and len(more) > len(said) for said, more in zip(normal, teacher, strict=True))
