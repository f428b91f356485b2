"""Ends a job whose ddpviz died without doing it: a small process beside the job, started by `Job`.

It waits on a pipe that ddpviz holds open. "done" through it means that all is well; its end without that word means
that ddpviz is gone (SIGKILL, a closed terminal): then the job's whole tree is ended and run.json says so.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path


def main() -> None:
    run_dir, pid, mark = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    if sys.stdin.read().strip() == "done":
        return
    sys.path[0] = str(Path(__file__).resolve().parents[2])
    from ddpviz.launch import tree
    from ddpviz.trace.reader import read_info
    from ddpviz.trace.rundir import update_run

    tree.end(pid, mark, grace=5.0)
    if not run_dir:  # the run is another node's
        return
    folder = Path(run_dir)
    notes = [*read_info(folder).get("notes", []), "ddpviz was ended while the job ran, and the job with it"]
    update_run(folder, status="interrupted", exit_code=130, ended_wall_ns=time.time_ns(), notes=notes)


if __name__ == "__main__":
    main()
