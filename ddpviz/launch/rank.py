"""Becomes one rank of a script: points stdout and stderr at the rank's own log, then replaces itself by the script.

torchrun starts this file (`python -I -S rank.py LOGS SCRIPT ARGS...`); nothing of it is left when the script runs.
One file for both streams keeps their lines in order, which torchrun's own redirection does not. Imports little.
"""

import os
import sys


def main() -> None:
    logs, script = sys.argv[1], sys.argv[2:]
    path = os.path.join(logs, f"rank-{os.environ.get('RANK', '0')}.log")
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(fd, 1)
        os.dup2(fd, 2)
        os.close(fd)
    except OSError as error:
        print(f"ddpviz: {path} cannot be written ({error.strerror}); the rank's output stays here", flush=True)
    command = [sys.executable, "-u", *script]  # as torchrun starts a script
    if os.name == "nt":
        import subprocess

        sys.exit(subprocess.call(command))
    os.execv(sys.executable, command)


if __name__ == "__main__":
    main()
