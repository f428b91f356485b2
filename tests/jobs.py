"""Real multi-rank jobs in tests: a free port each, one thread a rank, a hard time limit, nothing left behind.

`run_ranks` starts the ranks of a script itself (no torchrun agent: that would import torch once more); `run_command`
starts any command, such as `ddpviz check ...`. Both mark every process of the job in its environment, end all that is
left at the limit, and say what was left in `Done.left`, which a test asserts to be empty.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parent.parent
MARK = "DDPVIZ_TEST_JOB"
GRACE = 8.0  # seconds for the other ranks once one has failed, and for a tree to end by itself


@dataclass(frozen=True)
class Done:
    """How a job ended. `codes` by rank (one for a command); `timed_out`: ended by the limit; `left`: still running."""

    codes: list[int | None]
    outputs: list[str]
    seconds: float
    timed_out: bool
    left: list[str] = field(default_factory=list)

    @property
    def code(self) -> int | None:
        """The first code that is not 0, else 0; None where a rank had to be killed."""
        return next((c for c in self.codes if c != 0), 0)

    @property
    def output(self) -> str:
        return "\n".join(self.outputs)


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def environment(mark: str, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a job: this one without a surrounding job's variables, one thread, the package importable."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("DDPVIZ_", "TORCHELASTIC_"))}
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        env.pop(name, None)
    path = [str(ROOT), *filter(None, [env.get("PYTHONPATH")])]
    env |= {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "PYTHONPATH": os.pathsep.join(path), MARK: mark}
    env["TORCH_CPP_LOG_LEVEL"] = "ERROR"
    return env | dict(extra or {})


def run_ranks(
    script: Path,
    nproc: int,
    args: Sequence[str] = (),
    *,
    env: Mapping[str, str] | None = None,
    limit: float = 120,
    python: str = sys.executable,
) -> Done:
    """Run a script as `nproc` ranks over gloo and wait for all of them. As under torchrun, one failure ends the job."""
    mark = uuid.uuid4().hex
    base = environment(mark, env) | {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": str(nproc),
        "LOCAL_WORLD_SIZE": str(nproc),
    }
    commands = [
        ([python, str(script), *args], base | {"RANK": str(rank), "LOCAL_RANK": str(rank)}) for rank in range(nproc)
    ]
    return _run(commands, mark, limit)


def run_command(
    command: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: Path | None = None, limit: float = 120
) -> Done:
    """Run one command with stdin closed and wait for it."""
    mark = uuid.uuid4().hex
    return _run([(list(command), environment(mark, env))], mark, limit, cwd)


def run_ddpviz(*args: str, env: Mapping[str, str] | None = None, cwd: Path | None = None, limit: float = 120) -> Done:
    """Run the command line of this checkout."""
    return run_command([sys.executable, "-m", "ddpviz", *args], env=env, cwd=cwd, limit=limit)


def _run(commands: list[tuple[list[str], dict[str, str]]], mark: str, limit: float, cwd: Path | None = None) -> Done:
    began = time.monotonic()
    files = [tempfile.TemporaryFile() for _ in commands]  # noqa: SIM115 (closed below, after the ranks)
    running = [
        subprocess.Popen(c, env=e, cwd=cwd, stdin=subprocess.DEVNULL, stdout=f, stderr=subprocess.STDOUT,
                         start_new_session=True)
        for (c, e), f in zip(commands, files, strict=True)
    ]  # fmt: skip
    failed_at: float | None = None
    timed_out = False
    try:
        while any(p.poll() is None for p in running):
            now = time.monotonic()
            if failed_at is None and any(p.poll() not in (None, 0) for p in running):
                failed_at = now
            if now - began > limit:
                timed_out = True
                break
            if failed_at is not None and now - failed_at > GRACE:
                break
            time.sleep(0.02)
        codes = [p.poll() for p in running]
        left = [] if timed_out or failed_at is not None else leftovers(mark)
    finally:
        for process in running:
            if process.poll() is None:  # a reaped process's number may be somebody else's by now
                end_tree(process.pid)
                process.wait()
        for stray in marked(mark):
            end_tree(stray.pid)
    outputs = []
    for f in files:
        f.seek(0)
        outputs.append(f.read().decode(errors="replace"))
        f.close()
    return Done(codes, outputs, time.monotonic() - began, timed_out, left)


def marked(mark: str) -> list[psutil.Process]:
    """The living processes that carry a job's mark."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


def leftovers(mark: str) -> list[str]:
    """Command lines of what a finished job left running, after a moment to end by itself."""
    deadline = time.monotonic() + GRACE
    while (strays := marked(mark)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return [_words(p) for p in strays]


def _words(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return str(process.pid)


def end_tree(pid: int) -> None:
    """Kill a process and all its descendants."""
    try:
        parent = psutil.Process(pid)
        family = [*parent.children(recursive=True), parent]
    except psutil.Error:
        return
    for process in family:
        try:
            process.kill()
        except psutil.Error:
            continue
    psutil.wait_procs(family, timeout=5)
