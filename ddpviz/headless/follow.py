"""Follows a running job: its trace, its logs, and the signals that end ddpviz itself. Shared by run and check."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from ddpviz.timeline.fold import Fold
from ddpviz.timeline.model import Timeline
from ddpviz.trace.reader import RunReader
from ddpviz.trace.text import clean


class Follower:
    """The timeline of a run that is being written. `poll` reads what is new; nothing waits."""

    def __init__(self, run_dir: Path) -> None:
        self.reader = RunReader(run_dir)
        self.fold = Fold()
        self.logs = Logs(run_dir)
        self._info: dict[str, Any] | None = None

    @property
    def timeline(self) -> Timeline:
        return self.fold.timeline

    def poll(self) -> bool:
        """True if anything changed."""
        info = self.reader.info()
        changed = info is not self._info
        if changed:
            self._info = info
            self.fold.run(info)
            self.logs.files(info.get("logs") or {})
        return self.fold.feed(self.reader.read()) or changed

    def start_again(self) -> None:
        """Forget the timeline and read the trace from its beginning; the logs go on where they are."""
        self.reader, self.fold, self._info = RunReader(self.reader.run_dir), Fold(), None

    def now_ns(self) -> int:
        """The present on the timeline's clock: nanoseconds since the run's start."""
        return time.monotonic_ns() - int((self._info or {}).get("started_monotonic_ns") or 0)


_LINE = 1 << 16  # bytes of a line that are waited for


class Logs:
    """The job's own output, from the files that the launcher keeps: one a rank, or one of the command."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._tails: dict[str, _Tail] = {}

    def files(self, logs: dict[str, str]) -> None:
        """Take the names from run.json: {"0": "logs/rank-0.log", ...} or {"command": ...}."""
        for key, name in logs.items():
            if key not in self._tails:
                self._tails[key] = _Tail(self._run_dir / name)

    def lines(self, *, final: bool = False) -> Iterator[tuple[str, str]]:
        """New whole lines as (key, text), clean; with `final` an unended last line too."""
        for key, tail in self._tails.items():
            for text in tail.lines(final):
                yield key, text

    def end_of(self, key: str, count: int = 15) -> list[str]:
        """The last lines of one log, clean."""
        tail = self._tails.get(key)
        return tail.end(count) if tail is not None else []

    def size(self) -> int:
        """Bytes that the job has printed so far."""
        return sum(tail.size() for tail in self._tails.values())

    def keys(self) -> list[str]:
        return list(self._tails)

    def path(self, key: str) -> Path | None:
        tail = self._tails.get(key)
        return tail.path if tail is not None else None


class _Tail:
    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = 0
        self._rest = b""

    def lines(self, final: bool) -> Iterator[str]:
        while data := self._read(self._offset):
            self._offset += len(data)
            *whole, self._rest = (self._rest + data).split(b"\n")
            yield from map(_text, whole)
        if self._rest and (final or len(self._rest) > _LINE):
            yield _text(self._rest)
            self._rest = b""

    def end(self, count: int) -> list[str]:
        try:
            start = max(self.path.stat().st_size - 400 * count - 4096, 0)
        except OSError:
            return []
        lines = [_text(line) for line in self._read(start).split(b"\n")]
        return [line for line in lines if line.strip()][-count:]

    def size(self) -> int:
        try:
            return self.path.stat().st_size
        except OSError:
            return 0

    def _read(self, start: int) -> bytes:
        try:
            with open(self.path, "rb") as stream:
                stream.seek(start)
                return stream.read(8 << 20)
        except OSError:
            return b""


def _text(line: bytes) -> str:
    """A line as one would see it: what a carriage return wrote over is gone."""
    shown = line.rstrip(b"\r").rsplit(b"\r", 1)[-1]
    return clean(shown.decode("utf-8", "replace").expandtabs(4))


class Ended(KeyboardInterrupt):
    """A signal asked ddpviz to end."""

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.signum = signum

    @property
    def code(self) -> int:
        """The exit code that a shell expects: 130 after Ctrl-C, 143 after SIGTERM."""
        return 128 + self.signum


@contextlib.contextmanager
def ending_signals() -> Iterator[None]:
    """Inside, the first SIGINT, SIGTERM or SIGHUP raises `Ended`; later ones are ignored while the job is ended."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals go to the main thread, whoever that belongs to
        return

    def end(signum: int, frame: FrameType | None) -> None:
        for number in old:
            signal.signal(number, signal.SIG_IGN)
        raise Ended(signum)

    numbers = [signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])]
    # One that is ignored (nohup, a background job of a script) stays ignored.
    old = {n: signal.getsignal(n) for n in numbers if signal.getsignal(n) is not signal.SIG_IGN}
    for number in old:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
