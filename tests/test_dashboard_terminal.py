"""The dashboard in a real terminal: first frame, and the terminal as it was after every way of ending."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pexpect
import pytest
import synth

ENTERS, LEAVES, CURSOR = "\x1b[?1049h", "\x1b[?1049l", "\x1b[?25h"

ENDS: dict[str, Callable[[pexpect.spawn], None]] = {
    "q": lambda child: child.send("q"),
    "ctrl+c": lambda child: child.send("\x03"),
    "SIGTERM": lambda child: child.kill(signal.SIGTERM),
    "SIGHUP": lambda child: child.kill(signal.SIGHUP),
}


def watch(run: Path, config: Path) -> pexpect.spawn:
    env = {**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor", "XDG_CONFIG_HOME": str(config)}
    return pexpect.spawn(
        sys.executable, ["-m", "ddpviz", "watch", str(run)], env=env, dimensions=(30, 100), encoding="utf-8", timeout=60
    )


@pytest.mark.parametrize("way", ENDS)
def test_the_terminal_is_restored_and_the_run_left_alone(way: str, tmp_path: Path) -> None:
    run = synth.write_run(tmp_path)
    before = (run / "run.json").read_bytes()
    child = watch(run, tmp_path / "config")
    child.expect_exact(ENTERS)
    child.expect_exact("Sync timeline")
    child.expect_exact("What just happened")
    ENDS[way](child)
    child.expect(pexpect.EOF)
    rest = child.before
    assert isinstance(rest, str)
    assert LEAVES in rest
    assert CURSOR in rest[rest.rindex(LEAVES) :] or CURSOR in rest
    assert "Traceback" not in rest
    child.close()
    assert child.exitstatus == 0
    assert (run / "run.json").read_bytes() == before


def test_a_fault_of_ours_ends_in_one_line_and_keeps_the_details(tmp_path: Path) -> None:
    run = synth.write_run(tmp_path)
    code = (
        "import sys; from pathlib import Path; from ddpviz.dashboard import run_app, main;"
        "main.Main.action_help = lambda self: 1 / 0;"
        f"sys.exit(run_app(Path({str(run)!r})))"
    )
    env = {**os.environ, "TERM": "xterm-256color", "XDG_CONFIG_HOME": str(tmp_path / "config")}
    child = pexpect.spawn(sys.executable, ["-c", code], env=env, dimensions=(30, 100), encoding="utf-8", timeout=60)
    child.expect_exact("What just happened")
    child.send("?")
    child.expect(pexpect.EOF)
    rest = child.before
    assert isinstance(rest, str)
    assert LEAVES in rest
    last = rest[rest.rindex(LEAVES) :]
    assert "ddpviz: the dashboard failed (ZeroDivisionError: division by zero)" in last
    assert "Traceback" not in last
    assert "ZeroDivisionError" in (run / "dashboard-crash.txt").read_text()
    child.close()
    assert child.exitstatus == 1
