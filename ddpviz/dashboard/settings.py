"""What is kept between sessions, in one small file in the config dir that a person may edit. A fault in it is said.

    {"theme": "ddpviz-light", "speed": 1, "motion": true, "language": "ru", "keys": {"step": ["x", "k"]}}

What this version does not know is left as it is, and a file that cannot be read is never written over.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from platformdirs import user_config_path

from ddpviz.language import LANGUAGES, _

KEPT = ("theme", "speed", "motion", "language", "narration", "keys", "max_size")


@dataclass(slots=True)
class Settings:
    theme: str = ""  # name of a theme; empty: what suits the terminal
    speed: float = 0.0  # of playback, 0 to 100; 0: one pass a second
    motion: bool = True  # whether Levels move
    language: str = ""  # "en", "ru"; empty: the locale's
    narration: str = ""  # "quiet", "normal", "teacher"; empty: normal
    keys: dict[str, Any] = field(default_factory=dict)  # name of an action -> key or keys; `keymap.py` judges them
    max_size: str = ""  # of a run's traces before old detail is thinned, such as "2G"; empty: the default
    problems: tuple[str, ...] = field(default=(), compare=False)  # what is wrong with the file, in lines for people
    unreadable: bool = field(default=False, compare=False)
    others: dict[str, Any] = field(default_factory=dict, compare=False)

    @classmethod
    def load(cls, path: Path | None = None) -> Settings:
        path = path or place()
        try:
            kept = json.loads(path.read_text("utf-8"))
        except FileNotFoundError:
            return cls()
        except OSError as error:
            return cls(
                problems=(_("{name} cannot be read ({strerror})", name=path.name, strerror=error.strerror),),
                unreadable=True,
            )
        except ValueError as error:
            where = (
                _("line {lineno}: {msg}", lineno=error.lineno, msg=error.msg)
                if isinstance(error, json.JSONDecodeError)
                else _("no UTF-8")
            )
            return cls(
                problems=(_("{name} is no JSON ({where}); it is left alone", name=path.name, where=where),),
                unreadable=True,
            )
        if not isinstance(kept, dict):
            return cls(problems=(_("{name} holds no JSON object; it is left alone", name=path.name),), unreadable=True)
        made = cls(others={name: value for name, value in kept.items() if name not in KEPT})
        wrong = []
        for name in KEPT:
            value = kept.get(name)
            if name not in kept:
                continue
            if _right(name, value):
                setattr(made, name, float(value or 0) if name == "speed" else value)
            else:
                wrong.append(
                    _("{name}: {value} is no {setting}", name=path.name, value=json.dumps(value)[:40], setting=name)
                )
        made.problems = tuple(wrong)
        return made

    def save(self, path: Path | None = None) -> None:
        """Best effort: a read-only home is no reason to complain."""
        if self.unreadable:
            return
        target = path or place()
        kept = {**self.others, **{name: getattr(self, name) for name in KEPT}}
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            fresh = target.with_suffix(f".{os.getpid()}")
            fresh.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n", "utf-8")
            fresh.replace(target)
        except OSError:
            pass


def _right(name: str, value: object) -> bool:
    if name == "speed":
        return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 100
    if name == "language":
        return value in ("", *LANGUAGES)
    if name == "narration":
        return value in ("", "quiet", "normal", "teacher")
    return isinstance(value, {"motion": bool, "keys": dict}.get(name, str))


def place() -> Path:
    return user_config_path("ddpviz") / "dashboard.json"
