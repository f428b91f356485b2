"""What a tab of `ddpviz serve` runs: a viewer that costs little, and that ends with its server whatever ends that."""

from __future__ import annotations

import os
import signal
import threading
import time

# It draws a few times a second, behind the training in the queue for a core: thirty of them are not to slow a job down.
QUIET = {"DDPVIZ_FPS": "4", "TEXTUAL_FPS": "10", "COLORTERM": "truecolor"}
NICE = 15


def main() -> int:
    """Run the command line in `sys.argv` as a viewer."""
    if hasattr(os, "nice"):
        os.nice(NICE)
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    from ddpviz.cli import main as command_line

    return command_line()


def _end_with(server: int) -> None:
    """A server that was killed tells nobody, and an input that has ended does not end Textual's driver."""
    while os.getppid() == server:
        time.sleep(1.0)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(5.0)
    os._exit(1)
