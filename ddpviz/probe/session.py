"""The state of the probe in this process: the buffer, the counters, and who is being watched. One object, no locks.

Everything is appended by the training thread (or autograd's) under the interpreter's own lock and drained by the writer
thread. A session is *closed* at first (a process that only imports torch writes nothing) and opens when the process
turns out to be a rank: a process group, a DDP module, or a launcher's environment.
"""

from __future__ import annotations

import os
import re
import resource
import socket
import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ddpviz.probe import guard, torch_private
from ddpviz.probe.budget import Budget
from ddpviz.probe.jobs import Collective
from ddpviz.probe.measure import DeviceClock
from ddpviz.probe.sites import Sites
from ddpviz.probe.thread import Writer
from ddpviz.trace import records as r
from ddpviz.version import __version__

if TYPE_CHECKING:
    from ddpviz.probe.collectives import GroupWatch
    from ddpviz.probe.engine import EngineCall
    from ddpviz.probe.steps import StepNow
    from ddpviz.probe.watched import Watched

CAPACITY = 200_000  # jobs; at 1,000 passes a second minutes of a stalled disk


class Session:
    """What the hooks share. `observe` is "collectives" or "comm-hook"; `budget` percent or None for everything."""

    def __init__(self, run_dir: Path | None, budget: float | None, observe: str, redirected: bool) -> None:
        self.run_dir = run_dir
        self.budget = Budget(budget)
        self.observe = observe
        self.redirected = redirected
        self.close: Callable[[r.Exit], None] | None = None  # of a run that no launcher looks after
        self.interception: Any = None  # dispatched.Interception, where that is the way of seeing
        self.comm_hooks: Any = None  # commhook.CommHooks, likewise
        self.controlled: Any = None  # the gate of a job that takes live orders
        self.reset()

    def reset(self) -> None:
        """Forget everything: at the start, and in a forked child, which is nobody's rank until it says so."""
        self.pid = os.getpid()
        self.buffer: deque[object] = deque()
        self.dropped = 0
        self.progress = 0
        self.ends: deque[Any] = deque()  # collectives on an accelerator, to be polled by the writer
        self.device_clock: DeviceClock | None = None
        self.hooks: dict[int, str] = {}  # id of a reducer -> name of the user's communication hook
        self.optimizers: dict[int, Any] = {}
        self.optimizers_seen = 0
        self.generation = 0  # grows when a module or parameter comes under watch
        self.writer: Writer | None = None
        self.finished = False
        self.sites = Sites(self.emit)
        self.modules: list[Watched] = []
        self.groups: dict[int, GroupWatch] = {}  # by id of the group object
        self.rank: int | None = None
        self.depth = 0  # engine calls nested
        self.call: EngineCall | None = None
        self.last: Watched | None = None  # module of the newest gradient
        self.hooking: tuple[Watched, int] | None = None  # inside a user's communication hook for this bucket
        self.forwarding = 0
        self.constructing = 0
        self.joining = 0
        self.stepping: StepNow | None = None
        self.steps = 0
        self.skipped = 0
        self.passes_seen = 0

    # --- the buffer

    def emit(self, job: object) -> None:
        """Hand one job or record to the writer; never blocks. Full: the job is dropped and counted."""
        self.progress += 1
        if len(self.buffer) < CAPACITY:
            self.buffer.append(job)
        else:
            self.dropped += 1

    def note(self, text: str) -> None:
        self.emit(r.Note(text, time.monotonic_ns()))

    def oldest_open(self) -> Collective | None:
        """The collective that has waited longest; None if none is on its way."""
        waiting = [c for g in list(self.groups.values()) for c in list(g.pending.values()) if c.open]
        return min(waiting, key=lambda c: c.begin, default=None)

    def module_in_pass(self) -> int:
        return self.last.id if self.call is not None and self.last is not None else -1

    def pass_in_progress(self) -> int:
        return self.last.passes if self.call is not None and self.last is not None else -1

    @staticmethod
    def peak_memory() -> int:
        """Peak bytes so far: allocated on CUDA, else resident (`ru_maxrss` is in KiB on Linux, bytes on macOS)."""
        if torch.cuda.is_initialized():
            return int(torch.cuda.max_memory_allocated())
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024

    # --- opening and closing

    def open(self) -> None:
        """Start writing: create this process's trace. Does nothing if open, finished, or without a run folder."""
        if self.writer is not None or self.finished or self.run_dir is None:
            return
        if os.getpid() != self.pid:
            return
        job, attempt = job_name(), int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") or 0)
        stem = f"{job}-{attempt}-{os.getpid()}"
        writer = self.writer = Writer(self, self.run_dir / "trace", stem)
        early = list(self.buffer)
        self.buffer.clear()
        self.emit(
            r.Process(
                pid=os.getpid(),
                host=socket.gethostname(),
                job=job,
                attempt=attempt,
                argv=list(sys.argv),
                python=sys.version.split()[0],
                torch=str(torch.__version__),
                ddpviz=__version__,
                observed_by=self.observe,
                wall_ns=time.time_ns(),
                monotonic_ns=time.monotonic_ns(),
                budget=self.budget.percent,
                redirected=self.redirected,
                rank=_env_rank(),
                distributed_debug=os.environ.get("TORCH_DISTRIBUTED_DEBUG", ""),
            )
        )
        self.buffer.extend(early)
        guard.on_fault(self.note)
        writer.start()

    def finish(self, last: list[r.Record]) -> None:
        """Write what is left and stop, with these last words. Later calls do nothing."""
        if self.finished or os.getpid() != self.pid:
            return
        self.finished = True
        if self.writer is not None:
            self.writer.finish(last)


def job_name() -> str:
    """What the ranks of one job share: the elastic run id or the rendezvous address, safe for a file name."""
    env = os.environ
    name = env.get("TORCHELASTIC_RUN_ID", "")
    if not name or name == "none":
        name = f"{env.get('MASTER_ADDR', 'local')}_{env.get('MASTER_PORT', '0')}"
    return re.sub(r"[^A-Za-z0-9_.]+", "_", name)[:40] or "job"


def _env_rank() -> int | None:
    text = os.environ.get("RANK", "")
    return int(text) if text.isdigit() else None


_session: Session | None = None


def current() -> Session | None:
    """This process's session; None where ddpviz is not active."""
    return _session


def start(run_dir: Path | None, budget: float | None, observe: str | None = None, redirected: bool = False) -> Session:
    """Make the process's session (once); later calls return the same."""
    global _session
    if _session is None or _session.finished:  # a second attach after the last detach begins a second trace
        wanted = observe or ("collectives" if torch_private.can_see_collectives() else "comm-hook")
        if wanted == "collectives" and not torch_private.can_see_collectives():
            wanted = "comm-hook"
        _session = Session(run_dir, budget, wanted, redirected)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=_session.reset)
    return _session


def declared_flag(ddp: Any) -> bool | None:
    """What the module says of itself: True if gradients are to be synchronised. Shown beside the facts, never used for
    a verdict; None if it cannot be read."""
    value = getattr(ddp, "require_backward_grad_sync", None)
    return value if isinstance(value, bool) else None
