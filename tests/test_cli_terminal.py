"""Commands in a real terminal: what a person sees and types, and that nothing is left behind."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pexpect
import psutil
import pyte
import pytest

from ddpviz.trace import records as r
from ddpviz.trace.reader import read_info
from ddpviz.trace.rundir import create_run
from ddpviz.trace.writer import TraceFile

DDPVIZ = f"{sys.executable} -m ddpviz"


class Terminal:
    """A shell command in a terminal of its own, and what its screen shows."""

    def __init__(self, command: str, home: Path, columns: int = 110, lines: int = 30) -> None:
        env = {**os.environ, "TERM": "xterm-256color", "XDG_STATE_HOME": str(home / "state"), "HOME": str(home)}
        self.child = pexpect.spawn("bash", ["-c", command], dimensions=(lines, columns), env=env)
        self.screen = pyte.Screen(columns, lines)
        self.stream = pyte.ByteStream(self.screen)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        self.child.close(force=True)

    def read(self) -> bool:
        """Take in what was printed; False at the end."""
        try:
            self.stream.feed(self.child.read_nonblocking(65536, timeout=0.1))
        except pexpect.TIMEOUT:
            pass
        except pexpect.EOF:
            return False
        return True

    def shows(self, *words: str, seconds: float = 60.0) -> str:
        deadline = time.monotonic() + seconds
        while not all(word in "\n".join(self.screen.display) for word in words):
            missing = f"{words} are not all in\n" + "\n".join(self.screen.display)
            assert self.read(), missing
            assert time.monotonic() < deadline, missing
        return "\n".join(self.screen.display)

    def code(self, seconds: float = 60.0) -> int:
        deadline = time.monotonic() + seconds
        while self.read():
            assert time.monotonic() < deadline, "it does not end:\n" + "\n".join(self.screen.display)
        self.child.close()
        assert self.child.exitstatus is not None
        return int(self.child.exitstatus)


def lives(pid: int) -> bool:
    """Whether it is a process that can still do something: a zombie whose parent died waits for init alone."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize("command", ["watch {run}", "cat {run} | {ddpviz} watch -"], ids=["folder", "stream"])
def test_a_run_is_opened_and_quit(tmp_path: Path, command: str) -> None:
    run = create_run(tmp_path, {"title": "seen-before", "status": "finished", "exit_code": 0, "world_size": 1})
    TraceFile(run / "trace", "j").records([r.Note(text="hello", at=0)])
    with Terminal(f"set -o pipefail; {DDPVIZ} " + command.format(run=run, ddpviz=DDPVIZ), tmp_path) as terminal:
        terminal.shows("seen-before", "FINISHED")
        terminal.child.send("q")
        assert terminal.code() == 0
    assert not list(tmp_path.glob("**/ddpviz-watch-*"))


@pytest.mark.parametrize("key", ["q", "\x03"], ids=["q", "ctrl-c"])
def test_quitting_ends_the_job(tmp_path: Path, key: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import os, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True)\n"
        "print(os.getpid(), child.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    run = tmp_path / "run"
    log = run / "logs" / "command.log"
    with Terminal(f"{DDPVIZ} run --run-dir {run} -- {sys.executable} {script}", tmp_path) as terminal:
        terminal.shows("ddpviz")
        deadline = time.monotonic() + 60
        while not (log.exists() and log.read_text().endswith("\n")):
            terminal.read()
            assert time.monotonic() < deadline
        pids = [int(word) for word in log.read_text().split()]
        terminal.child.send(key)
        assert terminal.code() == 130
    assert read_info(run)["status"] == "interrupted"
    assert [pid for pid in pids if lives(pid)] == []


def test_a_job_that_ends_stays_on_screen_and_says_how(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("raise SystemExit('no such data set')")
    with Terminal(f"{DDPVIZ} run -- {sys.executable} {script}", tmp_path) as terminal:
        terminal.shows("FAILED", "exit 1")
        terminal.child.send("q")
        assert terminal.code() == 1


def test_what_watch_needs_is_said_in_a_terminal_too(tmp_path: Path) -> None:
    with Terminal(f"{DDPVIZ} watch -", tmp_path) as terminal:
        terminal.shows("ddpviz cat RUN --follow | ddpviz watch -")
        assert terminal.code() == 2
    with Terminal(f"{DDPVIZ} cat x", tmp_path) as terminal:
        terminal.shows("no run is called x")
        assert terminal.code() == 5
    run = create_run(tmp_path, {"title": "t"})
    with Terminal(f"{DDPVIZ} cat {run}", tmp_path) as terminal:
        terminal.shows("cat writes a binary stream")
        assert terminal.code() == 2
    with Terminal(f"{DDPVIZ} run -- true </dev/null", tmp_path) as terminal:
        terminal.shows("ddpviz: recording to")
        assert terminal.code() == 0
