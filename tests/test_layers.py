"""Who may import whom: the contract in pyproject.toml, and what really is in memory."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def test_the_layers_hold() -> None:
    tool = Path(sys.executable).with_name("lint-imports")
    command = [str(tool) if tool.exists() else shutil.which("lint-imports") or "lint-imports", "--no-cache"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def loaded(code: str) -> set[str]:
    """Top-level names of the modules in memory after this code, in a process of its own."""
    code += "\nimport sys\nprint(*{name.split('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    return set(done.stdout.split())


@pytest.mark.parametrize(
    ("code", "absent"),
    [
        ("import ddpviz", {"torch", "numpy", "textual", "msgspec", "psutil", "platformdirs"}),
        (
            "import ddpviz.trace.reader, ddpviz.trace.writer, ddpviz.trace.rundir",
            {"torch", "numpy", "textual", "psutil"},
        ),
        ("import ddpviz.launch", {"torch", "numpy", "textual", "psutil"}),
        ("import ddpviz.timeline.fold, ddpviz.findings", {"torch", "textual", "plotext"}),
        ("import ddpviz.headless.plain, ddpviz.headless.ci", {"torch", "textual"}),
        ("import ddpviz.dashboard.app", {"torch"}),
        ("import ddpviz.probe.inject", {"textual", "rich", "plotext", "psutil"}),
    ],
)
def test_what_a_room_brings_into_memory(code: str, absent: set[str]) -> None:
    assert loaded(code) & absent == set()
