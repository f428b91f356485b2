"""Follows the log of a rank: new lines since the last look, made safe for a screen. No widget, no thread of its own."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass, field
from pathlib import Path

from ddpviz.language import _

FIRST = 256 * 1024  # bytes of a log's end that are read when it is opened
EACH = 256 * 1024  # ... and at most at each later look
LONGEST = 4000  # characters of a line

_ESCAPE = re.compile(
    r"\x1b\][^\x07\x1b]*(?:\x07|\x1b\\|$)"  # titles, links
    r"|\x1b[PX^_].*?(?:\x1b\\|$)"  # device strings
    r"|\x1b\[[0-?]*[ -/]*(?:[@-~]|$)"  # cursor movement, colours
    r"|\x1b[ -/]*[0-~]?"
)
_COLOUR = re.compile(r"\x1b\[[\d;:]*m")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def clean(line: str) -> str:
    """A line without anything that would move a terminal's cursor; its colours stay.

    What a progress bar overwrote (`\\r`) is gone, as it would be on a screen.
    """
    line = line.rstrip("\r").rsplit("\r", 1)[-1]
    if "\x1b" in line:
        line = _ESCAPE.sub(lambda found: found[0] if _COLOUR.fullmatch(found[0]) else "", line)
    return _CONTROL.sub("", line)[:LONGEST].expandtabs(4)


def plain(line: str) -> str:
    """A cleaned line without its colours."""
    return _COLOUR.sub("", line) if "\x1b" in line else line


class Tail:
    """One log file. `read` gives what is new in it; a log that is not there yet is an empty one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.skipped = 0  # bytes before what was read
        self._offset = -1
        self._rest = b""

    def read(self) -> list[str]:
        """The whole lines that came since the last call. Raises OSError if the log cannot be read."""
        try:
            with open(self.path, "rb") as log:
                size = os.fstat(log.fileno()).st_size
                if self._offset < 0:
                    self._offset = self.skipped = max(size - FIRST, 0)
                elif size < self._offset:  # begun anew
                    self._offset, self._rest = 0, b""
                log.seek(self._offset)
                data = log.read(EACH)
        except FileNotFoundError:
            return []
        if not data:
            return []
        fresh = self._offset == self.skipped > 0
        self._offset += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        if fresh and lines:
            self.skipped += len(lines.pop(0)) + 1  # begins in the middle of a line
        if len(self._rest) > 8 * LONGEST:
            lines.append(self._rest)
            self._rest = b""
        return [clean(line.decode("utf-8", "replace")) for line in lines]

    @property
    def partial(self) -> str:
        """The line that is still being written, such as a progress bar or a prompt."""
        return clean(self._rest.decode("utf-8", "replace"))


def logs_of(run_dir: Path) -> tuple[dict[str, Path], bool]:
    """(name -> log file of a run, whether it is over) from run.json; names are ranks, or "command" or "launcher".

    Empty while run.json is not there or names no logs. Files outside the run's folder are left alone.
    """
    try:
        info = json.loads((run_dir / "run.json").read_text("utf-8"))
        logs = {str(name): run_dir / str(path) for name, path in dict(info.get("logs") or {}).items()}
        over = info.get("status") not in ("running", "starting")
    except (OSError, ValueError, TypeError, AttributeError):
        return {}, False
    inside = os.path.abspath(run_dir) + os.sep
    return {name: path for name, path in logs.items() if os.path.abspath(path).startswith(inside)}, over


@dataclass(slots=True)
class News:
    """What one look at a run's logs found."""

    names: tuple[str, ...] = ()  # ranks by number, then what is no rank
    lines: dict[str, list[str]] = field(default_factory=dict)
    partial: dict[str, str] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, int] = field(default_factory=dict)  # bytes of a log's beginning that were left out
    over: bool = False  # the run has ended, and all of its output was read


class Logs:
    """All logs of a run. `look` may take long on a slow disk: call it from a thread, one call at a time."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self._tails: dict[str, Tail] = {}

    def look(self) -> News:
        paths, over = logs_of(self.run_dir)
        news = News(tuple(sorted(paths, key=lambda n: (not n.isdigit(), int(n) if n.isdigit() else 0, n))))
        for name in news.names:
            tail = self._tails.setdefault(name, Tail(paths[name]))
            try:
                news.lines[name] = tail.read()
            except OSError as error:
                news.problems[name] = _("The log cannot be read ({strerror}).", strerror=error.strerror)
            news.partial[name], news.skipped[name] = tail.partial, tail.skipped
        news.over = over and not any(news.lines.values())
        return news
