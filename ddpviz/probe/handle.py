"""`ddpviz.attach(ddp_model)`: watch a module from inside a script, early or late, by the probe of `ddpviz run`."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ddpviz.probe import exits, forwards, inject, session
from ddpviz.trace import records as r, rundir
from ddpviz.trace.reader import RunError


class Handle:
    """A watched module. `detach()` (or leaving the `with` block) takes ddpviz off it again."""

    def __init__(self, state: session.Session, ddp: Any) -> None:
        self._session, self._ddp = state, ddp
        self.run_dir: Path | None = state.run_dir

    def detach(self) -> None:
        """Stop watching this module. What was recorded stays; the job goes on."""
        watched = forwards.watched_of(self._session, self._ddp)
        if watched is None:
            return
        watched.detach()
        watched.ref = _nobody
        if all(w.ref() is None for w in self._session.modules):
            exits.last_words(self._session, r.Exit(time.monotonic_ns(), None, "detached"), numbers=False)
            inject.uninstall()

    def __enter__(self) -> Handle:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.detach()


def _nobody() -> None:
    return None


def attach(
    ddp_model: DistributedDataParallel, *, run_dir: str | os.PathLike[str] | None = None, budget: float | None = 2.0
) -> Handle:
    """Watch `ddp_model` from here on, on every rank that calls this.

    `run_dir`: the run's folder, the same on all ranks; without one it is `DDPVIZ_RUN_DIR`, else a new folder in the
    state directory. `budget`: percent of the step time for norms and checksums; None measures everything.
    Returns a handle with `detach()`, also a context manager. Raises TypeError if the model is not wrapped in DDP.
    """
    if not isinstance(ddp_model, DistributedDataParallel):
        raise TypeError(
            f"attach() takes a DistributedDataParallel module, not {type(ddp_model).__name__}: wrap it first"
        )
    state = session.current()
    if state is None or state.finished:
        folder = Path(run_dir) if run_dir is not None else _folder()
        close = _describe(folder)
        state = session.start(folder, budget)
        state.close = close
    inject.install(state)
    state.open()
    inject.tell_rank(state)
    forwards.watch(state, ddp_model, state.sites.here(2))
    return Handle(state, ddp_model)


def _folder() -> Path:
    """The run folder where none is given: the same for the ranks that one launcher started on this host."""
    given = os.environ.get("DDPVIZ_RUN_DIR")
    return Path(given) if given else rundir.runs_base() / f"attached-{session.job_name()[:20]}-{os.getppid()}"


def _describe(folder: Path) -> Callable[[r.Exit], None] | None:
    """Write run.json for a run that no launcher made: the first rank to come does it, and closes it at its end."""
    try:
        rundir.create_run(
            None,
            {
                "title": Path(sys.argv[0]).stem or "attached",
                "command": list(sys.argv),
                "status": "running",
                "backend": str(dist.get_backend()) if dist.is_initialized() else "",
                "backend_reason": "chosen by the script",
                "world_size": dist.get_world_size() if dist.is_initialized() else 0,
                "attached": True,
                "pid": os.getpid(),
            },
            run_dir=folder,
        )
    except RunError as error:
        if not (folder / "trace").is_dir():  # else another rank was first
            print(f"ddpviz: nothing is recorded, the job goes on unwatched: {error}", file=sys.stderr)
        return None

    def close(exit: r.Exit) -> None:
        status = "finished" if exit.reason in ("finished", "detached") and not exit.code else "failed"
        rundir.update_run(folder, status=status, exit_code=exit.code or 0, ended_wall_ns=time.time_ns())

    return close
