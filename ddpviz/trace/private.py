"""Files of a run folder: for their owner alone, and changed in one step. The standard library only.

What a umask takes away is given back, so that the owner can read what they recorded; nobody else is given anything.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def open_private(path: Path, flags: int) -> int:
    """A file descriptor for writing, mode 0600 whatever the umask. Raises OSError if the file cannot be opened."""
    fd = os.open(path, os.O_WRONLY | getattr(os, "O_BINARY", 0) | flags, 0o600)
    if hasattr(os, "fchmod"):
        with contextlib.suppress(OSError):
            os.fchmod(fd, 0o600)
    return fd


def write(path: Path, data: bytes, flags: int = 0) -> None:
    """Write all of `data` from the beginning of the file on. Raises OSError."""
    fd = open_private(path, flags)
    try:
        while data:
            data = data[os.write(fd, data) :]
    finally:
        os.close(fd)


def replace(path: Path, data: bytes) -> None:
    """Whoever reads sees the old file or the new one, never half of one. Raises OSError, and then leaves nothing."""
    new = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        write(new, data, os.O_CREAT | os.O_TRUNC)
        os.replace(new, path)
    except BaseException:
        with contextlib.suppress(OSError):
            new.unlink()
        raise
