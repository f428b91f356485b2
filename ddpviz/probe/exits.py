"""The last words: how this process ended, its buffers and parameters at the end, and nothing at all in a fork.

Exit codes and tracebacks of the job stay as they are; what is seen is noted and passed on.
"""

from __future__ import annotations

import atexit
import functools
import os
import sys
import time
import traceback
from types import TracebackType
from typing import Any

import torch.distributed as dist

from ddpviz.probe import collectives, engine, forwards, guard, measure
from ddpviz.probe.session import Session
from ddpviz.trace import records as r


class _Ending:
    """What is known so far of how the process will end."""

    code: int | None = 0
    reason = "finished"
    error = ""
    traceback = ""
    site = 0


def watch_exits(session: Session, patch: Any) -> None:
    """Note uncaught exceptions, exit codes and `os._exit`; write the last words at exit."""
    ending = _Ending()

    def excepthook(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
        try:
            ending.reason, ending.code = "exception", 1
            ending.error = f"{kind.__name__}: {value}"[:2000]
            ending.traceback = "".join(traceback.format_exception(kind, value, trace))[-8000:]
            frames = list(traceback.walk_tb(trace))
            ending.site = session.sites.of(frames[-1][0]) if frames else 0
        except Exception as error:
            guard.fault("exits.excepthook", error)
        previous(kind, value, trace)

    def leave(original: Any) -> Any:
        def exit(status: Any = None, /) -> Any:
            ending.code = status if isinstance(status, int) else 0 if status is None else 1
            return original(status)

        return exit

    def leave_at_once(original: Any) -> Any:
        def _exit(status: int) -> Any:
            try:
                if session.writer is not None and os.getpid() == session.pid:
                    last_words(session, r.Exit(time.monotonic_ns(), status, "os._exit"), numbers=False)
            except Exception as error:
                guard.fault("exits.os_exit", error)
            return original(status)

        return _exit

    def finish() -> None:
        try:
            last_words(
                session,
                r.Exit(time.monotonic_ns(), ending.code, ending.reason, ending.error, ending.traceback, ending.site),
                numbers=ending.reason == "finished",
            )
        except Exception as error:
            guard.fault("exits.finish", error)

    def destroyed(original: Any) -> Any:
        @functools.wraps(original)
        def destroy_process_group(group: Any = None, *args: Any, **kwargs: Any) -> Any:
            if group is None or group is dist.group.WORLD:
                final_numbers(session)  # the modules of a `main()` are gone at exit
            return original(group, *args, **kwargs)

        return destroy_process_group

    previous = sys.excepthook
    patch(sys, "excepthook", lambda _original: excepthook)
    patch(sys, "exit", leave)
    patch(os, "_exit", leave_at_once)
    for owner in (dist, dist.distributed_c10d):
        patch(owner, "destroy_process_group", destroyed)
    atexit.register(finish)


def last_words(session: Session, exit: r.Exit, numbers: bool) -> None:
    """Write everything there is, `exit` at the very end, and stop the writer. Later calls do nothing."""
    if session.finished or session.writer is None or os.getpid() != session.pid:
        return
    collectives.release(session)
    for watched in session.modules:
        forwards.unanswered(session, watched)
    if numbers:
        final_numbers(session)
    session.finish([exit])
    if session.close is not None:
        session.close(exit)


@guard.guarded
def final_numbers(session: Session) -> None:
    """Parameters' and buffers' checksums of every watched module, as they are now."""
    for watched in session.modules:
        ddp = watched.ref()
        if ddp is None:
            continue
        if watched.passes or watched.last_step >= 0:
            engine.replica(session, watched, final=True)
        buffers = [(n, b) for n, b in ddp.module.named_buffers() if b is not None and b.numel()]
        if buffers:
            sums = measure.reading([measure.bits(b).to("cpu").long() for _, b in buffers]).values()
            session.emit(
                r.Buffers(
                    watched.id,
                    [n for n, _ in buffers],
                    [measure.mix([int(s)]) for s in sums],
                    bool(getattr(ddp, "forward_sync_buffers", getattr(ddp, "broadcast_buffers", False))),
                    time.monotonic_ns(),
                )
            )
