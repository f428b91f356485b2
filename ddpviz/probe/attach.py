"""`ddpviz.attach(ddp_model)`: watch a module from inside a script, early or late, with the same probe as `ddpviz run`."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from torch.nn.parallel import DistributedDataParallel

from ddpviz.probe import exits, forwards, inject, session
from ddpviz.trace import records as r


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

    `run_dir`: the run's folder, the same on all ranks; without one it is `DDPVIZ_RUN_DIR`, else a new folder that rank 0
    makes in the state directory. `budget`: percent of the step time for norms and checksums; None measures everything.
    Returns a handle with `detach()`, also a context manager. Raises TypeError if the model is not wrapped in DDP.
    """
    if not isinstance(ddp_model, DistributedDataParallel):
        raise TypeError(
            f"attach() takes a DistributedDataParallel module, not {type(ddp_model).__name__}: wrap it first"
        )
    state = session.current()
    if state is None:
        folder = Path(run_dir) if run_dir is not None else _folder()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        state = session.start(folder, budget)
    inject.install(state)
    state.open()
    inject.tell_rank(state)
    forwards.watch(state, ddp_model, state.sites.here(2))
    return Handle(state, ddp_model)


def _folder() -> Path:
    """The run folder where none is given: shared by the ranks of this job on this host through its rendezvous name."""
    given = os.environ.get("DDPVIZ_RUN_DIR")
    if given:
        return Path(given)
    from ddpviz.trace import rundir

    return rundir.attached_run(session.job_name())
