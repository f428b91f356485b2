"""What the dashboard itself costs: `ddpviz watch` in a real (pseudo) terminal, measured from outside.

    python tests/benchmarks/screen.py [--passes N] [--ranks N] [--seconds N]

Opening: a recording of 1 M rank-passes (8 ranks x 125,000): seconds from the start of the command to the first frame
that shows cells, and to the first that shows what the rules found in the whole of it; peak memory. Scrubbing: 64 ranks
run 100 micro-steps a second each while the cursor is moved 30 times a second; frames a second that reach the terminal,
the share of one core, and how far the screen is behind. Nothing here is asserted.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
import time
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pexpect
import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import synth
from simcluster import MONOTONIC, Cluster

from ddpviz.trace.rundir import create_run
from ddpviz.trace.writer import TraceFile

RATE = 100  # micro-steps a second and rank
PERIOD_S = 0.05
SIZE = (45, 140)
FRAME, ASKED, ANSWER = b"\x1b[?2026h", b"\x1b[?2026$p", b"\x1b[?2026;2$y"  # synchronised output: a frame's beginning


class Screen:
    """A viewer in a terminal of its own; `text` is what it wrote, `frames` counts its frames."""

    def __init__(self, run: Path, config: Path) -> None:
        env = {**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor", "XDG_CONFIG_HOME": str(config)}
        self.started = time.monotonic()
        argv = ["-c", "import sys; from ddpviz.cli import main; sys.exit(main())", "watch", str(run)]
        self.child = pexpect.spawn(sys.executable, argv, env=env, dimensions=SIZE, timeout=None)
        self.process = psutil.Process(self.child.pid)
        self.text, self.frames, self.peak = b"", 0, 0

    @property
    def age(self) -> float:
        return time.monotonic() - self.started

    def pump(self, seconds: float = 0.01) -> bytes:
        """Read for a while."""
        fresh, end = b"", time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            try:
                fresh += self.child.read_nonblocking(1 << 16, left)
            except (pexpect.TIMEOUT, pexpect.EOF):
                break
        if ASKED in fresh:
            self.child.send(ANSWER)
        self.frames += fresh.count(FRAME)
        self.text += fresh
        return fresh

    def until(self, what: str, seconds: float = 60) -> float:
        """Seconds since the start at which a text was there."""
        while not re.search(what.encode(), self.text):
            assert self.age < seconds, self.text[-3000:].decode("utf-8", "replace")
            self.pump()
        return self.age

    def end(self) -> None:
        self.peak = int(re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{self.process.pid}/status").read_text())[1]) >> 10  # type: ignore[index]
        self.child.send("q")
        while self.child.isalive():
            self.pump(0.1)


def _cpu(times: Any) -> float:
    return float(times.user + times.system)


def opening(base: Path, ranks: int, passes: int) -> None:
    run = synth.write_big(base, ranks, passes, wrong=[passes // 8])
    for _ in range(3):
        screen = Screen(run, base / "config")
        first = screen.until("(░░|██)")
        busy = screen.process.cpu_times()
        done = screen.until("unsynced-step")
        now = screen.process.cpu_times()
        screen.end()
        print(
            f"open {ranks} x {passes:,} rank-passes: cells after {first:.2f} s ({_cpu(busy):.2f} s of CPU), "
            f"all read, judged and shown after {done:.2f} s ({_cpu(now):.2f} s), peak {screen.peak} MB"
        )


def write(folder: Path, ranks: int, seconds: int, started: float, written: Any) -> None:
    """The job: every rank's file grows twenty times a second, at the recorded times."""
    each = int(RATE * PERIOD_S)
    queues: dict[str, list[list[tuple[object, object]]]] = {}
    for _, source, blocks in synth.big_batches(ranks, seconds * RATE, block=each):
        queues.setdefault(source, []).append(blocks)  # type: ignore[arg-type]
    files = {source: TraceFile(folder / "trace", source) for source in queues}
    for k in range(max(map(len, queues.values()))):
        time.sleep(max(started + k * PERIOD_S - time.monotonic(), 0))
        written.value = k * each
        for source, queue in queues.items():
            for kind, payload in queue[k] if k < len(queue) - 1 else ():
                if isinstance(payload, list):
                    files[source].records(payload)
                else:
                    files[source].rows(kind, payload, len(payload) // synth.dtype(kind).itemsize)  # type: ignore[arg-type]
    for file in files.values():
        file.close()


def scrubbing(base: Path, ranks: int, seconds: int) -> None:
    info = Cluster(ranks).info(live=True)
    info |= {"pid": os.getpid(), "started_monotonic_ns": MONOTONIC, "started_wall_ns": time.time_ns()}
    folder = create_run(base, info)
    started = time.monotonic() + 4
    written = get_context("fork").Value("q", 0)
    job = get_context("fork").Process(target=write, args=(folder, ranks, seconds + 10, started, written), daemon=True)
    job.start()
    screen = Screen(folder, base / "config")
    screen.until("██")
    for keys, name in (("", "live"), ("\x1b[D", "scrubbing back"), ("\x1b[C", "scrubbing forward")):
        screen.pump(1.5)
        frames, begun, busy = screen.frames, time.monotonic(), screen.process.cpu_times()
        for k in range(seconds // 3 * 30):
            screen.child.send(keys)
            screen.pump(max(begun + (k + 1) / 30 - time.monotonic(), 0.001))
        took, now = time.monotonic() - begun, screen.process.cpu_times()
        share = (_cpu(now) - _cpu(busy)) / took
        print(
            f"{ranks} ranks x {RATE} micro-steps/s, {name}: {(screen.frames - frames) / took:.0f} frames/s, {share:.0%}"
        )
    screen.text = b""
    screen.child.send("\x1b[F")
    screen.pump(1.0)
    shown = [int(n) for n in re.findall(rb"micro-step (\d+)", screen.text)]
    behind = (written.value - shown[-1]) / RATE * 1000 if shown else -1
    print(f"  at the live end the screen is about {behind:.0f} ms behind what is written")
    screen.end()
    job.terminate()
    job.join()


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument(
        "--passes", type=int, default=125_000, help="passes of each of 8 ranks of the recording; 0: none"
    )
    options.add_argument("--ranks", type=int, default=64, help="ranks of the live job")
    options.add_argument("--seconds", type=int, default=15, help="length of the scrubbing; 0: none")
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if chosen.passes:
            opening(Path(folder), 8, chosen.passes)
        if chosen.seconds:
            scrubbing(Path(folder), chosen.ranks, chosen.seconds)


if __name__ == "__main__":
    main()
