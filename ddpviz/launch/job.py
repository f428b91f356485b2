"""One job, from start to end: starts it, watches over its process tree, writes how it ended into run.json.

Usable from any thread, no event loop needed. Nothing of the job inherits the terminal: its output goes to logs in
the run's folder, its input is empty.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from ddpviz.launch import control, outcome
from ddpviz.launch.backend import Backend, choose, cuda_devices, default_ranks
from ddpviz.launch.environment import job_environment
from ddpviz.launch.spec import JobError, JobSpec, find_command, validate
from ddpviz.trace.reader import RunError, read_info
from ddpviz.trace.rundir import create_run, live_status, update_run

_HERE = Path(__file__).resolve().parent
_CRASHES = (4, 6, 7, 8, 11)  # signals of native code that failed: SIGILL, SIGABRT, SIGBUS, SIGFPE, SIGSEGV


class Job:
    """A job that is not started yet, with its run folder made. Raises JobError in one line if it cannot be.

    Then `start()`; `poll()` until it returns a code, or `stop()`; and `finish()`, always.
    """

    def __init__(self, spec: JobSpec) -> None:
        validate(spec)
        self.spec = spec
        self.ranks: int | None = None  # None: the command decides
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None
        self._stopped = ""
        self._lock = threading.RLock()
        self._exit_code: int | None = None
        if spec.command:
            hide = spec.cpu and cuda_devices() > 0
            self.backend = Backend("", "as asked by --cpu" if spec.cpu else "the command decides", hide)
        else:
            devices = cuda_devices()
            self.ranks = spec.nproc or default_ranks(devices)
            self.backend = choose(self.ranks, devices, wanted=spec.backend, cpu=spec.cpu)
        self._joined = _runs_elsewhere(spec)
        if self._joined and spec.run_dir is not None:
            self.run_dir = Path(os.path.abspath(spec.run_dir))
        else:
            try:
                self.run_dir = create_run(None, self._info(), run_dir=spec.run_dir)
            except RunError as error:
                raise JobError(str(error)) from None
        self._mark = f"{self.run_dir.name}-{secrets.token_hex(8)}"

    @property
    def logs(self) -> dict[str, str]:
        """Name (a rank's number, "launcher" or "command") to log file, relative to the run's folder."""
        if self.ranks is None:
            name = f"command-{socket.gethostname()}-{os.getpid()}" if self._joined else "command"
            return {name: f"logs/{name}.log"}
        return {**{str(rank): f"logs/rank-{rank}.log" for rank in range(self.ranks)}, "launcher": "logs/launcher.log"}

    @property
    def _main_log(self) -> Path:
        """The log of the job's first process: the launcher's, or the command's."""
        return self.run_dir / list(self.logs.values())[-1]

    def start(self) -> None:
        """Start the job. Raises JobError in one line if the system refuses."""
        with self._lock:
            if self._process is not None or self._exit_code is not None:
                return
            hide = self.backend.hide_cuda
            env = job_environment(os.environ, self.spec, self.run_dir, self._mark, ranks=self.ranks, hide_cuda=hide)
            try:
                if self.spec.control is not None:
                    control.prepare(self.run_dir)
                log = os.open(self._main_log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
                try:
                    self._process = subprocess.Popen(
                        self._command(),
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                        env=env,
                        start_new_session=True,
                    )
                finally:
                    os.close(log)
            except OSError as error:
                self._exit_code = 2
                why = f"{error.filename or self._main_log}: {error.strerror}"
                self._update(status="failed", exit_code=2, ended_wall_ns=time.time_ns(), notes=[why])
                raise JobError(f"the job cannot be started: {why}") from None
            self._start_guard()
            if self._joined:
                with contextlib.suppress(OSError, RunError):
                    update_run(self.run_dir, logs={**read_info(self.run_dir).get("logs", {}), **self.logs})
            self._update(status="running", pid=os.getpid())

    def poll(self) -> int | None:
        """None while the job runs, then the exit code of its first process (128 + n after signal n)."""
        with self._lock:
            if self._exit_code is not None:
                return self._exit_code
            code = self._process.poll() if self._process is not None else None
            return None if code is None else outcome.exit_code(code)

    def work(self) -> dict[int, float]:
        """What each of its living processes on this machine has done so far, by process id; see `tree.work`."""
        from ddpviz.launch import tree

        return tree.work(self._process.pid) if self._process is not None else {}

    def stop(self, reason: str = "interrupted", *, grace: float = 5.0) -> None:
        """End the whole process tree: SIGTERM, and SIGKILL after `grace` seconds. `reason` becomes the status."""
        from ddpviz.launch import tree

        with self._lock:
            process = self._process
            if self._exit_code is not None or process is None:
                return
            if process.poll() is None:
                self._stopped = reason
        survived = not tree.end(process.pid, self._mark, grace)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=1.0 if survived else 10.0)

    def finish(self) -> int:
        """Wait for the end, write it into run.json, and return the exit code: 130 if `stop()` ended the job."""
        process = self._process
        if process is not None:
            process.wait()
        with self._lock:
            if self._exit_code is None:
                self._exit_code = self._conclude()
                self._dismiss_guard()
            return self._exit_code

    def _conclude(self) -> int:
        ended = {"ended_wall_ns": time.time_ns()}
        if self._process is None:  # never started
            self._update(status="interrupted", exit_code=130, **ended)
            return 130
        if self._process.returncode < 0:  # a launcher that was killed leaves its ranks behind
            from ddpviz.launch import tree

            tree.end(self._process.pid, self._mark, 5.0)
        launcher_log = outcome.tail(self._main_log)
        verdict = outcome.judge(
            self._process.returncode,
            stopped=self._stopped,
            failures=outcome.torchrun_failures(launcher_log),
            words=outcome.last_words(self.run_dir),
            world_size=self.ranks,
        )
        for entry in verdict.ranks:  # a crash leaves no last word in the trace
            log = self.logs.get(str(entry["rank"]))
            if entry["signal"] in _CRASHES and log and (said := outcome.crash_words(outcome.tail(self.run_dir / log))):
                entry["said"] = said
        self._update(
            status=verdict.status,
            exit_code=verdict.exit_code,
            ranks=verdict.ranks,
            world_size=verdict.world_size,
            notes=[*self._notes(), *verdict.notes, *_full_disk(self.run_dir)],
            **ended,
        )
        return verdict.exit_code

    def _command(self) -> list[str]:
        if self.ranks is None:
            name, *args = self.spec.command
            return [find_command(name) or name, *args]
        logs = self.run_dir / "logs"
        torchrun = [sys.executable, str(_HERE / "agent.py"), "--standalone", "--local-addr", "localhost"]
        torchrun += ["--nproc-per-node", str(self.ranks), "--log-dir", str(logs / "elastic"), "--no-python"]
        rank = [sys.executable, "-I", "-S", str(_HERE / "rank.py"), str(logs)]
        return [*torchrun, *rank, str(self.spec.script), *self.spec.args]

    def _info(self) -> dict[str, Any]:
        spec = self.spec
        return {
            "title": _readable(spec.name),
            "lesson": spec.lesson,
            "control": spec.control is not None,
            "command": [_readable(word) for word in spec.command or (str(spec.script), *spec.args)],
            "world_size": self.ranks,
            "backend": self.backend.name,
            "backend_reason": self.backend.reason,
            "budget": spec.budget,
            "redirected": spec.cpu,
            "observe": spec.observe,
            "notes": self._notes(),
            "logs": self.logs,
        }

    def _notes(self) -> list[str]:
        return ["the CUDA devices of this machine were hidden from the job"] if self.backend.hide_cuda else []

    def _update(self, **fields: Any) -> None:
        """Into run.json if it is ours and can be written: a full disk or a removed folder never ends a job."""
        if self._joined:
            return
        with contextlib.suppress(OSError):
            update_run(self.run_dir, **fields)

    def _start_guard(self) -> None:
        if os.name == "nt" or self._process is None:
            return
        owned = "" if self._joined else str(self.run_dir)
        env = {key: value for key, value in os.environ.items() if not key.startswith("DDPVIZ_")}
        command = [sys.executable, str(_HERE / "guard.py"), owned, str(self._process.pid), self._mark]
        with contextlib.suppress(OSError):
            self._guard = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=env,
                start_new_session=True,
            )

    def _dismiss_guard(self) -> None:
        guard, self._guard = self._guard, None
        if guard is None or guard.stdin is None:
            return
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            guard.stdin.write(b"done")
            guard.stdin.close()
            guard.wait(timeout=5)


def _runs_elsewhere(spec: JobSpec) -> bool:
    """Whether the run folder holds a run that another agent has started and that goes on: this part of the job joins
    it, mostly from another node."""
    if spec.run_dir is None or not spec.command:
        return False
    try:
        info = read_info(spec.run_dir)
    except (OSError, RunError):
        return False
    mine = (info.get("host"), info.get("pid")) == (socket.gethostname(), os.getpid())
    return not mine and live_status(info) in ("starting", "running")


def _full_disk(run_dir: Path) -> list[str]:
    """A note if there was no room left for the recording: what is missing cannot say so itself."""
    try:
        free = shutil.disk_usage(run_dir).free
    except OSError:
        return ["the run folder is gone: nothing more could be recorded"]
    return ["the disk of the run folder is full: the end of the recording may be missing"] if free < 1 << 16 else []


def _readable(word: str) -> str:
    """A word of the command line as text that can be written anywhere: names of files need not be UTF-8."""
    return os.fsencode(word).decode(errors="replace")
