"""The settings file, and the keys in it: what is kept, what is refused, and in which words."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ddpviz.dashboard.keymap import apply, name_of, normal, remapped, written
from ddpviz.dashboard.keys import KEYS
from ddpviz.dashboard.settings import Settings

README = Path(__file__).parent.parent / "README.md"


def test_settings_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "here" / "dashboard.json"
    assert Settings.load(path) == Settings()
    assert not Settings.load(path).problems  # none yet is no fault
    made = Settings("ddpviz-light", 3.0, False, "ru", keys={"pause": "p"})
    made.save(path)
    assert Settings.load(path) == made


def test_what_another_version_keeps_there_stays(tmp_path: Path) -> None:
    path = tmp_path / "dashboard.json"
    path.write_text('{"theme": "ddpviz-light", "size": 12}')
    Settings.load(path).save(path)
    assert json.loads(path.read_text())["size"] == 12


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"theme": "x",\n "keys": }', "dashboard.json is no JSON (line 2: Expecting value); it is left alone"),
        ("[]", "dashboard.json holds no JSON object; it is left alone"),
    ],
)
def test_a_file_that_cannot_be_read_is_said_and_never_written_over(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "dashboard.json"
    path.write_text(text)
    made = Settings.load(path)
    assert made == Settings()
    assert made.problems == (said,)
    made.save(path)
    assert path.read_text() == text


def test_a_wrong_value_is_said_and_the_others_hold(tmp_path: Path) -> None:
    path = tmp_path / "dashboard.json"
    path.write_text('{"theme": "ddpviz-light", "speed": "fast", "keys": 3, "motion": false, "language": "xx"}')
    made = Settings.load(path)
    assert made == Settings("ddpviz-light", motion=False)
    assert made.problems == (
        'dashboard.json: "fast" is no speed',
        'dashboard.json: "xx" is no language',
        "dashboard.json: 3 is no keys",
    )


@pytest.mark.parametrize(
    ("wanted", "keymap"),
    [
        ({"pause": "y"}, {"pause": "y"}),
        ({"step": ["y", "ctrl+l"]}, {"step": "y,ctrl+l"}),
        ({"pause": "q", "quit-job": "Q"}, {"pause": "q", "quit-job": "Q"}),  # both move: no conflict
        ({"step": "left", "step-back": "right"}, {"step": "left", "step-back": "right"}),
        ({"zoom": ">", "help": "F2"}, {"zoom": "greater_than_sign", "help": "f2"}),
        ({"choose": "y"}, {"choose": "y"}),  # of the Findings view
    ],
)
def test_keys_that_can_be_had(wanted: dict[str, object], keymap: dict[str, str]) -> None:
    assert remapped(wanted) == (keymap, [])


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ({"pause": "q"}, "keys: pause: q is the key of quit-job; pause keeps its own"),
        ({"help": "c"}, "keys: help: c is the key of copy-place; help keeps its own"),  # in one view only
        ({"nearest": "space"}, "keys: nearest: space is the key of pause; nearest keeps its own"),
        ({"paus": "x"}, "keys: there is no action 'paus'; pause?"),
        ({"pause": "hyper+x"}, "keys: pause: 'hyper+x' is no key"),
        ({"pause": 5}, "keys: pause: 5 is no key"),
        ({"pause": []}, "keys: pause: [] is no key"),
        ({"pause": "ctrl+z"}, "keys: pause: terminals keep ctrl+z for themselves"),
    ],
)
def test_keys_that_cannot_be_had_are_said_and_change_nothing(wanted: dict[str, object], said: str) -> None:
    assert remapped(wanted) == ({}, [said])


def test_a_chain_of_keys_is_refused_from_its_broken_end() -> None:
    keymap, problems = remapped({"pause": "t", "next-theme": "q"})
    assert keymap == {}
    assert len(problems) == 2


def test_keys_are_written_as_people_write_them() -> None:
    for key, text in {"?": "?", "shift+left": "⇧←", "CTRL+l": "ctrl+l", "f5": "F5", "shift+a": "A", "{": "{"}.items():
        named = normal(key)
        assert named is not None
        assert written(named) == text
    for key in KEYS:
        assert written(key.keys.split(",")[0]) == key.shown


def test_the_table_in_force_names_the_new_keys() -> None:
    table = {name_of(key.action): key for key in apply(KEYS, {"step": "l", "step-back": "h"})}
    assert table["step-back"].pair == "h l"
    assert table["step"].shown == "l"
    assert table["pause"] == next(key for key in KEYS if key.action == "pause")


def test_the_readme_names_every_action() -> None:
    text = README.read_text("utf-8")
    assert not [name for key in KEYS if f"`{(name := name_of(key.action))}`" not in text]
