"""What a tab of `ddpviz serve` runs: a viewer that costs little, and that ends with its server whatever ends that."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time

# It draws a few times a second, behind the training in the queue for a core: thirty of them are not to slow a job down.
QUIET = {"DDPVIZ_FPS": "4", "TEXTUAL_FPS": "10", "COLORTERM": "truecolor"}
NICE = 15
# Somebody waits for its first picture: until that is there, it stands only a little behind.
NICE_AT_FIRST = 5


def main() -> int:
    """Run the command line in `sys.argv` as a viewer."""
    if hasattr(os, "nice"):
        os.nice(NICE_AT_FIRST)
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    from ddpviz.cli import main as command_line

    return command_line()


def step_back() -> None:
    """What it had to do in a hurry is done."""
    if sys.platform == "linux":  # each thread has a priority of its own
        for thread in threading.enumerate():
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, thread.native_id or 0, NICE)
    elif hasattr(os, "nice"):
        os.nice(NICE - NICE_AT_FIRST)


def _end_with(server: int) -> None:
    """A server that was killed tells nobody, and an input that has ended does not end Textual's driver."""
    while os.getppid() == server:
        time.sleep(1.0)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(5.0)
    os._exit(1)
