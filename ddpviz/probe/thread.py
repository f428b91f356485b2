"""The writer thread: drains the buffer about every 50 ms, encodes, writes; says once a second that Python answers.

It alone touches the file and reads numbers back. Nothing it does can raise into the job: a write that fails is counted
and tried anew with the next block. It also looks at the main thread's stack when nothing has moved for a second.
"""

from __future__ import annotations

import linecache
import os
import sys
import threading
import time
import types
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING

from ddpviz.probe import guard
from ddpviz.probe.encode import Encoder, measured
from ddpviz.trace import records as r, rundir
from ddpviz.trace.writer import TraceFile

if TYPE_CHECKING:
    from ddpviz.probe.session import Session

PERIOD_S = 0.05
BEAT_NS = 1_000_000_000
STUCK_NS = 1_000_000_000
_KEPT = 2_000  # records that wait for a disk with room again


class Writer:
    """Owns the file of this process. `finish` is for the exiting main thread, once this thread has stopped."""

    def __init__(self, session: Session, folder: Path, stem: str) -> None:
        self._session = session
        self._file = TraceFile(folder, stem)
        self.encoder = Encoder(session.peak_memory)
        self._pending: deque[object] = deque()
        self._stop = threading.Event()
        self._busy = threading.Lock()  # only between this thread and the exiting one
        self._lost = 0
        self._why = ""
        self._beat_at = 0
        self._moved_at = time.monotonic_ns()
        self._progress = -1
        self._last_stack: tuple[object, ...] = ()
        self._main = threading.main_thread().ident
        self._thread = threading.Thread(target=self._run, name="ddpviz-writer", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def share(self, ranks: int) -> None:
        """Of the size that a run may have, this is one of so many ranks' part: beyond it, old detail is thinned."""
        try:
            most = rundir.max_size(os.environ.get("DDPVIZ_MAX_SIZE", ""))
        except ValueError:  # not said, or said wrong
            most = rundir.MAX_SIZE
        self._file.limit = None if most is None else most // max(1, ranks)

    def _run(self) -> None:
        try:
            while not self._stop.wait(PERIOD_S):
                try:
                    with self._busy:
                        self._tick()
                except Exception as error:
                    guard.fault("thread.tick", error)
        except BaseException:  # the interpreter is going down
            return

    def finish(self, last: list[r.Record]) -> None:
        """Stop the thread and write what is left, `last` at the end. Called once, from the exiting process."""
        self._stop.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=2.0)
        if not self._busy.acquire(timeout=1.0):
            return
        try:
            deadline = time.monotonic_ns() + 500_000_000
            while True:
                self._drain(force=time.monotonic_ns() > deadline)
                if not self._pending and not self._session.buffer:
                    break
                time.sleep(0.002)
            self.encoder.records += self.encoder.unused(True)
            self.encoder.records += last
            self._write()
            self._file.close()
        except Exception as error:
            guard.fault("thread.finish", error)
        finally:
            self._busy.release()

    # --- one round

    def _tick(self) -> None:
        now = time.monotonic_ns()
        self._drain()
        progress = self._session.progress
        if progress != self._progress:
            self._progress, self._moved_at, self._last_stack = progress, now, ()
        elif now - self._moved_at > STUCK_NS:
            self._look(now)
        if now - self._beat_at > BEAT_NS:
            self._beat_at = now
            self.encoder.records.append(r.Beat(now, progress, cpu_ns=self._main_cpu()))
            self._write()
        self._file.thin_some()

    def _drain(self, force: bool = False) -> None:
        buffer, pending, encoder = self._session.buffer, self._pending, self.encoder
        while buffer:
            pending.append(buffer.popleft())
        ends = self._session.ends
        for _ in range(len(ends)):
            end = ends.popleft()
            if not end.poll():
                ends.append(end)
        now = time.monotonic_ns() + (1 << 60 if force else 0)
        while pending and encoder.ready(pending[0], now):
            job = pending.popleft()
            try:
                if measured(job):  # numbers cost here too, and this thread takes turns with the training
                    began = time.thread_time_ns()
                    encoder.take(job)
                    self._session.budget.wrote(time.thread_time_ns() - began)
                else:
                    encoder.take(job)
            except Exception as error:
                self._lose(1, f"{type(error).__name__}: {error}")
                guard.fault("encode.take", error)
        self._write()

    def _write(self) -> None:
        encoder = self.encoder
        dropped, self._session.dropped = self._session.dropped, 0
        if dropped:
            self._lose(dropped, "the buffer was full: the disk is too slow")
        records, encoder.records = encoder.records, []
        mine = [r.Dropped(self._lost, self._why, time.monotonic_ns())] if self._lost else []
        if records or mine:
            try:
                self._file.records([*records, *mine])
                self._lost = 0
            except OSError as error:
                # the rows are nothing without them: they are tried again, and no row goes before them
                encoder.records = records[:_KEPT]
                lost = len(records[_KEPT:]) + sum(len(rows) for rows in encoder.rows.values())
                self._lose(lost, str(error))
                for rows in encoder.rows.values():
                    rows.clear()
                return
        for kind, rows in encoder.rows.items():
            if rows:
                try:
                    self._file.rows(kind, b"".join(rows), len(rows))
                except OSError as error:
                    self._lose(len(rows), str(error))
                rows.clear()

    def _lose(self, count: int, why: str) -> None:
        self._lost += count
        self._why = why

    def _main_cpu(self) -> int:
        """CPU time of the main thread so far, which tells computing from waiting; -1 where the system does not say."""
        try:
            return time.clock_gettime_ns(time.pthread_getcpuclockid(self._main or 0))
        except (AttributeError, OSError):
            return -1

    # --- what the main thread is blocked in

    def _look(self, now: int) -> None:
        gate = self._session.controlled
        if gate is not None and gate.held:
            return  # on order: it waits for nobody
        frame = sys._current_frames().get(self._main or 0)
        if frame is None:
            return
        frames: list[str] = []
        names: list[tuple[str, str]] = []
        here: types.FrameType | None = frame
        while here is not None and len(frames) < 40:
            code = here.f_code
            if not code.co_filename.startswith("<frozen"):
                frames.append(f"{code.co_filename}:{here.f_lineno} {code.co_name}")
            names.append((os.path.basename(code.co_filename), code.co_name))
            here = here.f_back
        waiting = self._session.oldest_open()
        doing = what(names)
        if doing == "backward":  # inside the engine: either it waits for a collective or a kernel takes long
            doing = "all-reduce" if waiting else "computing"
        elif waiting and names[:1] == [("distributed.py", "_pre_forward")]:
            doing = "bucket rebuild"  # the reducer's own broadcast, in C++, at the forward after the first all-reduce
        elif (
            doing == "computing" and waiting and ".wait(" in linecache.getline(frame.f_code.co_filename, frame.f_lineno)
        ):
            doing = "wait"
        session = self._session
        site = session.sites.of(frame)
        key = (doing, site, waiting.count if waiting else -1)
        if key == self._last_stack:
            return
        self._last_stack = key
        self.encoder.records.append(
            r.Stack(
                at=now,
                since=self._moved_at,
                doing=doing,
                frames=frames,
                site=site,
                group=waiting.group if waiting else -1,
                count=waiting.count if waiting else -1,
                kind=waiting.kind if waiting else 0,
                numel=waiting.numel if waiting else 0,
                module=waiting.module if waiting else session.module_in_pass(),
                bucket=waiting.bucket if waiting else -1,
                pass_index=session.pass_in_progress(),
            )
        )
        self._write()


_WAITS = {
    "_engine_run_backward": "backward",
    "all_reduce": "all-reduce",
    "all_reduce_coalesced": "all-reduce",
    "broadcast": "broadcast",
    "broadcast_object_list": "broadcast",
    "all_gather": "all-gather",
    "all_gather_into_tensor": "all-gather",
    "all_gather_object": "all-gather",
    "reduce": "reduce",
    "reduce_scatter": "reduce-scatter",
    "reduce_scatter_tensor": "reduce-scatter",
    "gather": "gather",
    "scatter": "scatter",
    "all_to_all": "all-to-all",
    "barrier": "barrier",
    "monitored_barrier": "barrier",
    "send": "send",
    "recv": "recv",
    "new_group": "new_group",
    "_store_based_barrier": "store barrier",
    "init_process_group": "init_process_group",
    "destroy_process_group": "destroy_process_group",
    "_verify_param_shape_across_processes": "DDP constructor",
    "_sync_module_states": "DDP constructor",
    "_sync_buffers": "forward broadcast",
    "_broadcast_coalesced": "broadcast",
    "wait": "wait",
}
_TORCH_FILES = {
    "distributed_c10d.py",
    "distributed.py",
    "graph.py",
    "__init__.py",
    "utils.py",
    "rendezvous.py",
    "join.py",
}


def what(names: list[tuple[str, str]]) -> str:
    """What a stack (innermost first, file and function names) is blocked in; "computing" if in nothing we know."""
    for file, name in names:
        word = _WAITS.get(name)
        if word is not None and file in _TORCH_FILES:
            if word == "wait" and file != "distributed_c10d.py":
                continue
            return word
    return "computing"
