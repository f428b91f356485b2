"""torchrun, as its console script starts it: without the working folder on `sys.path`, where a user's `queue.py` or
`profile.py` would take the place of Python's own. (`python -m torch.distributed.run` puts it there.)

Runs as a process of its own; nothing imports this file.
"""

import runpy
import sys

if __name__ == "__main__":
    sys.path.pop(0)  # this file's own folder, for the same reason
    try:
        runpy.run_module("torch.distributed.run", run_name="__main__", alter_sys=True)
    except Exception as error:
        if type(error).__name__ != "ChildFailedError":
            raise
        print(error, file=sys.stderr)  # which ranks and how they ended; the agent's own stack says nothing more
        sys.exit(1)
