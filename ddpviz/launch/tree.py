"""Ends every process of a job: the children of its first process and whoever carries its mark, orphans included."""

from __future__ import annotations

import os
import time

import psutil

from ddpviz.launch.environment import MARK


def members(pid: int | None, mark: str) -> list[psutil.Process]:
    """The job's living processes. This process is never one of them."""
    found: dict[int, psutil.Process] = {}
    if pid is not None:
        try:
            first = psutil.Process(pid)
            if first.environ().get(MARK, mark) != mark:
                raise psutil.NoSuchProcess(pid)  # the number is somebody else's by now
            found = {process.pid: process for process in (first, *first.children(recursive=True))}
        except psutil.Error:
            pass
    for process in psutil.process_iter():
        if process.pid in found:
            continue
        try:
            if process.environ().get(MARK) == mark:
                found[process.pid] = process
        except (psutil.Error, OSError):  # another user's, or just gone
            continue
    found.pop(os.getpid(), None)
    return [process for process in found.values() if _lives(process)]


_READING = 50e6  # bytes read that count as a second of work: slow disks and networks use little CPU


def work(pid: int) -> dict[int, float]:
    """CPU seconds so far of a process and its living descendants, by process id; reading counts too."""
    found: dict[int, float] = {}
    try:
        first = psutil.Process(pid)
        family = [first, *first.children(recursive=True)]
    except psutil.Error:
        return found
    for process in family:
        try:
            times = process.cpu_times()
            read = process.io_counters().read_chars if hasattr(process, "io_counters") else 0
        except (psutil.Error, AttributeError):  # just gone, or another's
            continue
        found[process.pid] = times.user + times.system + read / _READING
    return found


def end(pid: int | None, mark: str, grace: float) -> bool:
    """Ask all members to end, wait up to `grace` seconds, then kill what is left. False if something survived that."""
    for process in members(pid, mark):
        _send(process, kill=False)
    deadline = time.monotonic() + grace
    while time.monotonic() < deadline and members(pid, mark):
        time.sleep(0.05)
    for _ in range(100):  # again and again: a member may be forking
        left = members(pid, mark)
        if not left:
            return True
        for process in left:
            _send(process, kill=True)
        time.sleep(0.05)
    return False


def _lives(process: psutil.Process) -> bool:
    try:
        return bool(process.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD))
    except psutil.Error:
        return False


def _send(process: psutil.Process, *, kill: bool) -> None:
    try:
        process.kill() if kill else process.terminate()
    except (psutil.Error, OSError):
        pass
