"""What to start, and whether it can be started at all. Looks at files and names; starts nothing, writes nothing."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path


class JobError(Exception):
    """The job cannot be started as asked. Its text is one line for a person; the exit code is 2."""


@dataclass(frozen=True, slots=True)
class JobSpec:
    """A job to start: a script under torchrun, or (if `command` is given) a command as it stands."""

    script: Path | None = None
    args: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    nproc: int | None = None  # None: as many as there are CUDA devices if more than one, else 2
    backend: str = "auto"  # "auto" | "nccl" | "gloo"
    cpu: bool = False  # redirect a script written for CUDA and NCCL to the CPU and gloo
    budget: float | None = 2.0  # percent of the step time for norms and checksums; None: full
    run_dir: Path | None = None  # the run's folder; None: a new one where runs are kept
    max_size: str = ""  # of the run's folder, as `rundir.max_size` reads it; empty: the default
    observe: str = ""  # "collectives" | "comm-hook" | "": as the torch allows
    title: str = ""
    control: tuple[str, ...] | None = None  # takes live orders, and these options of its script may be changed
    lesson: str = ""  # the demo that it is, if it is one

    @property
    def name(self) -> str:
        """What people call this job."""
        if self.title:
            return self.title
        return self.script.stem if self.script else Path(self.command[0]).name if self.command else "run"


def validate(spec: JobSpec, cores: int | None = None) -> None:
    """Raise JobError, in one line, if the job makes no sense on this machine."""
    if spec.command:
        _check_command(spec)
    elif spec.script is not None:
        _check_script(spec.script)
        _check_ranks(spec.nproc, cores or os.cpu_count() or 1)
        if importlib.util.find_spec("torch") is None:
            raise JobError(f"PyTorch is not installed for {sys.executable}: pip install torch")
    else:
        raise JobError("nothing to run: name a script, or a command behind --")
    if spec.cpu and spec.backend == "nccl":
        raise JobError("--cpu and --backend nccl contradict each other: NCCL needs CUDA devices")
    if spec.budget is not None and not 0 <= spec.budget <= 100:
        raise JobError(f"--budget {spec.budget:g}: give a percentage from 0 to 100, or full")


def _check_command(spec: JobSpec) -> None:
    if spec.nproc is not None or spec.backend != "auto":
        raise JobError("-n and --backend are for a SCRIPT.py; a command behind -- brings its own launcher and options")
    if spec.control is not None:
        raise JobError("--control is for a SCRIPT.py: of a command's ranks ddpviz does not know how many there are")
    name = spec.command[0]
    if not name:
        raise JobError("the command behind -- is empty")
    if find_command(name) is None:
        if Path(name).is_dir():
            raise JobError(f"{name} is a folder, not a command")
        if Path(name).exists():
            raise JobError(f"{name} cannot be executed; is it a script? Then: ddpviz run {name}")
        raise JobError(f"no such command: {name}")


def _check_script(script: Path) -> None:
    try:
        if script.is_dir():
            raise JobError(f"{script} is a folder, not a script")
        if not script.exists():
            hint = f"; to run a command, put -- before it: ddpviz run -- {script} ..." if _is_command(script) else ""
            raise JobError(f"no such script: {script}{hint}")
        if not script.is_file():
            raise JobError(f"{script} is not a file that can be read twice (every rank reads it)")
        with script.open("rb") as stream:
            head = stream.read(512)
    except ValueError:  # a zero byte in the name
        raise JobError(f"no such script: {str(script)!r}") from None
    except OSError as error:
        raise JobError(f"{script} cannot be read: {error.strerror}") from None
    first = head.split(b"\n", 1)[0]
    if b"\0" in head or (first.startswith(b"#!") and b"python" not in first and script.suffix != ".py"):
        raise JobError(f"{script} is no Python script; to run it as a command: ddpviz run -- {script}")


def find_command(name: str) -> str | None:
    """The file that a command means: on PATH, or beside the Python that runs ddpviz (a venv need not be activated)."""
    return shutil.which(name) or shutil.which(name, path=str(Path(sys.executable).parent))


def _is_command(script: Path) -> bool:
    return len(script.parts) == 1 and find_command(str(script)) is not None


def _check_ranks(nproc: int | None, cores: int) -> None:
    if nproc is None:
        return
    if nproc < 1:
        raise JobError(f"-n {nproc}: a job has at least one rank")
    most = max(64, 8 * cores)
    if nproc > most:
        raise JobError(
            f"-n {nproc}: each rank is a process with PyTorch in it, so at most {most} on this machine"
            f" ({cores} core{'s' if cores > 1 else ''})"
        )
