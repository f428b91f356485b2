"""The folder of a run: where runs live, how one is made, found and updated. Modes 0700 and 0600 whatever the umask.

Used by whoever starts a run (launch, or the probe of an attached script) and by whoever looks for one.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import random
import re
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ddpviz.trace import private
from ddpviz.trace.reader import SCHEMA, RunError, check_run, read_info
from ddpviz.trace.text import clean

MAX_SIZE = 4 << 30  # bytes of a run's traces, before old detail is thinned
_ROOM = 4096  # run.json grows by whole blocks, padded with spaces


@dataclass(frozen=True, slots=True)
class RunSummary:
    """A line of `ddpviz list`. A run whose run.json cannot be read has status "broken" and says why in `problem`."""

    path: Path
    id: str
    title: str
    status: str
    started_wall_ns: int
    problem: str = ""
    info: dict[str, Any] = field(default_factory=dict)


def runs_base() -> Path:
    """Where runs are kept unless told otherwise: `runs` in the user's state folder for ddpviz."""
    from platformdirs import user_state_path

    return user_state_path("ddpviz") / "runs"


def max_size(text: str) -> int | None:
    """Bytes that a run's traces may take, from `500M`, `2G` or a number; None for `none`. Raises ValueError."""
    words = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)i?b?", text.strip().lower())
    if text.strip().lower() == "none":
        return None
    if words is None:
        raise ValueError(f"{text!r} is no size such as 500M or 4G, nor none")
    return int(float(words[1]) * 1024 ** (" kmgt".index(words[2] or " ")))


def new_id(title: str, now: float | None = None) -> str:
    """Readable and sortable within a year, such as `1201-0424-train-ab12` (local time)."""
    stamp = time.strftime("%m%d-%H%M", time.localtime(now))
    word = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:24].strip("-") or "run"
    tail = random.SystemRandom().choices(
        "abcdefghjkmnpqrstuvwxyz23456789", k=4
    )  # the job's own generator stays untouched
    return f"{stamp}-{word}-{''.join(tail)}"


def create_run(base: Path | None, info: dict[str, Any], *, run_dir: Path | None = None) -> Path:
    """Make the folder of a run with its `run.json`, `trace/` and `logs/`; return its absolute path.

    It is `run_dir` if that is given (it must be empty, or not there yet), else a new folder in `base`, else in
    `runs_base()`. Fields that `info` leaves out get their neutral value. Raises RunError with one line for a person.
    """
    title = str(info.get("title") or "run")
    try:
        if run_dir is None:
            parent = runs_base() if base is None else base
            _private(parent)
            while True:
                run_dir = parent / new_id(title)
                try:
                    run_dir.mkdir(mode=0o700)
                    break
                except FileExistsError:
                    continue
        else:
            run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            if any(True for _ in run_dir.iterdir()):
                raise RunError(f"the run folder {clean(str(run_dir))} is not empty: name a new one")
        run_dir = Path(os.path.abspath(run_dir))
        os.chmod(run_dir, 0o700)
        for name in ("trace", "logs"):
            (run_dir / name).mkdir(mode=0o700)
            os.chmod(run_dir / name, 0o700)
        _store(run_dir, {**_defaults(run_dir.name, title), **info})
    except OSError as error:
        shown = clean(str(error.filename or run_dir or base))
        raise RunError(
            f"no run folder can be made at {shown}: {error.strerror or error}; name another with --run-dir"
        ) from None
    return run_dir


def join_runs(folders: Sequence[Path], into: Path) -> None:
    """Make the empty folder `into` a run that shows several as one: what the hosts of one job wrote, each its own.

    The first one's run.json and logs stand for all. Links only, so what is written later is seen too.
    """
    (into / "trace").mkdir(mode=0o700)
    for number, folder in enumerate(folders):
        check_run(folder)
        (into / "trace" / str(number)).symlink_to(Path(os.path.abspath(folder)) / "trace")
    for name in ("run.json", "logs"):
        (into / name).symlink_to(Path(os.path.abspath(folders[0])) / name)


def update_run(run_dir: Path, **fields: Any) -> None:
    """Change fields of run.json; readers see the old file or the new one, never half of one. Raises OSError."""
    try:
        info = read_info(run_dir)
    except RunError:
        info = _defaults(run_dir.name, run_dir.name)
    _store(run_dir, {**info, **fields})


def find_run(name: str | None, base: Path | None = None) -> Path:
    """The folder of a run: by its path, its id, the start or a part of its id; the latest if `name` is None.

    Raises RunError with one line that says what there is instead.
    """
    if name is None:
        runs = list_runs(base)
        if not runs:
            raise RunError("there are no runs yet: start one with `ddpviz demo` or `ddpviz run SCRIPT.py`")
        return runs[0].path
    if not name:
        raise RunError("the name of a run is empty: `ddpviz list` names the runs there are")
    path = Path(name).expanduser()
    try:
        if path.is_dir() and (os.sep in name or (path / "run.json").exists() or (path / "trace").is_dir()):
            check_run(path)
            return Path(os.path.abspath(path))
    except OSError as error:
        raise RunError(f"the run folder {clean(name)} cannot be read: {error.strerror}") from None
    if os.sep in name or (os.altsep and os.altsep in name) or name in (".", ".."):
        check_run(path)  # says what is wrong with it
        return Path(os.path.abspath(path))
    runs = list_runs(base)
    for fits in (
        [run for run in runs if run.id == name or run.path.name == name],
        [run for run in runs if run.id.startswith(name)],
        [run for run in runs if name in run.id],
    ):
        if len(fits) == 1:
            return fits[0].path
        if fits:
            raise RunError(f"{len(fits)} runs fit {clean(name)}: {', '.join(run.id for run in fits[:4])}")
    raise RunError(f"no run is called {clean(name)}: `ddpviz list` names the runs there are")


def list_runs(base: Path | None = None) -> list[RunSummary]:
    """Every run in `base` (default `runs_base()`), the latest first; half-broken ones too, marked as such."""
    folder = runs_base() if base is None else base
    found: list[tuple[int, RunSummary]] = []
    try:
        entries = list(os.scandir(folder))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise RunError(f"the runs in {clean(str(folder))} cannot be listed: {error.strerror}") from None
    for entry in entries:
        path = Path(entry.path)
        try:
            if not entry.is_dir():
                continue
            age = entry.stat().st_mtime_ns
        except OSError:
            continue
        try:
            info = read_info(path)
        except (OSError, RunError) as error:
            why = str(error) if isinstance(error, RunError) else f"run.json cannot be read: {error.strerror}"
            found.append((age, RunSummary(path, clean(entry.name), "", "broken", 0, why)))
            continue
        started = info.get("started_wall_ns")
        started = started if isinstance(started, int) and 0 <= started < 1 << 63 else 0
        summary = RunSummary(
            path, clean(entry.name), clean(str(info.get("title") or "")), live_status(info), started, "", info
        )
        found.append((started or age, summary))
    return [summary for _, summary in sorted(found, key=lambda pair: pair[0], reverse=True)]


def live_status(info: dict[str, Any]) -> str:
    """The run's status; one that says it runs while its ddpviz is gone (on this host) is "interrupted"."""
    status = clean(str(info.get("status", "")))
    pid = info.get("pid")
    if status in ("starting", "running") and info.get("host") == socket.gethostname() and isinstance(pid, int):
        return status if 0 < pid < 1 << 31 and _alive(pid) else "interrupted"
    return status


def _alive(pid: int) -> bool:
    import psutil

    return bool(psutil.pid_exists(pid))


def _private(folder: Path) -> None:
    """Make a folder and its missing parents; those that were made are for the user alone."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    for path in reversed(missing):
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700)
            os.chmod(path, 0o700)
    if not folder.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))


def _defaults(run_id: str, title: str) -> dict[str, Any]:
    from ddpviz.version import __version__

    return {
        "schema": SCHEMA,
        "id": run_id,
        "title": title,
        "command": [],
        "status": "starting",
        "exit_code": None,
        "world_size": None,
        "backend": "",
        "backend_reason": "",
        "host": socket.gethostname(),
        "started_wall_ns": time.time_ns(),
        "started_monotonic_ns": time.monotonic_ns(),
        "ended_wall_ns": None,
        "ddpviz": __version__,
        "budget": None,
        "redirected": False,
        "observe": "",
        "notes": [],
        "ranks": [],
        "logs": {},
        "pid": os.getpid(),
    }


def _store(run_dir: Path, info: dict[str, Any]) -> None:
    """Replace run.json. Where the disk is too full for a second file, write it in place, into the room it has."""
    data = json.dumps(info, ensure_ascii=True, indent=1).encode() + b"\n"
    data += b" " * (-len(data) % _ROOM)
    path = run_dir / "run.json"
    try:
        private.replace(path, data)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT) or not _has_room(path, len(data)):
            raise
        private.write(path, data)


def _has_room(path: Path, size: int) -> bool:
    try:
        return path.stat().st_size == size
    except OSError:
        return False
