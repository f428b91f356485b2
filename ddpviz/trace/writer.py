"""Writes one process's trace: append-only blocks, rolling into segments. For one thread; raises OSError, keeps nothing.

A block reaches the file in one write. If that fails half way (a full disk), the torn part is cut off again, or, where
even that fails, the next block goes to a new segment: what was written before stays readable in every case.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections import deque
from collections.abc import Generator, Sequence
from pathlib import Path

from ddpviz.trace import format as fmt
from ddpviz.trace.private import open_private
from ddpviz.trace.records import Record, RowKind
from ddpviz.trace.thin import thin

_BLOCK_BYTES = 1 << 20  # larger batches are split: a reader that follows live gets whole blocks soon
_LEAST_SEGMENT = 256 << 10


class TraceFile:
    """Files `<folder>/<stem>.<segment:04d>.ddpv`, mode 0600. Nothing is created before the first block.

    Where `limit` is set, `thin_some` makes old segments small once all of them together are larger than that.
    """

    def __init__(self, folder: Path, stem: str, *, segment_bytes: int = 8 << 20, limit: int | None = None) -> None:
        self._folder = folder
        self._stem = stem
        self._segment_bytes = segment_bytes
        self._segment = -1
        self._fd = -1
        self._size = 0
        self._limit: int | None = None
        self._path: Path | None = None  # of the segment that is being written
        self._closed: deque[tuple[Path, int]] = deque()  # segments that can still be thinned, and their sizes
        self._kept = 0  # bytes in segments that are closed or thinned
        self._thinning: Generator[None, None, int] | None = None
        self.limit = limit

    @property
    def limit(self) -> int | None:
        """Bytes that all segments may take before old ones are thinned; None: any number."""
        return self._limit

    @limit.setter
    def limit(self, limit: int | None) -> None:
        self._limit = limit
        if limit is not None:  # several segments within it, so that the newest ones stay whole
            self._segment_bytes = min(self._segment_bytes, max(_LEAST_SEGMENT, limit // 8))

    def thin_some(self) -> None:
        """A few milliseconds of work at most. A segment that cannot be thinned stays as it is."""
        if self._thinning is None:
            if self._limit is None or self._kept + self._size <= self._limit or not self._closed:
                return
            self._thinning = thin(self._closed[0][0])
        try:
            next(self._thinning)
            return
        except StopIteration as done:
            self._kept += done.value - self._closed[0][1]
        except (OSError, fmt.BadBlock):
            pass
        self._thinning = None
        self._closed.popleft()

    def records(self, batch: Sequence[Record]) -> None:
        """Append records. Raises OSError: then none of the batch was written, or a part of it if it was huge."""
        if not batch:
            return
        payload = fmt.encode_records(batch)
        if len(payload) > _BLOCK_BYTES and len(batch) > 1:
            middle = len(batch) // 2
            self.records(batch[:middle])
            self.records(batch[middle:])
        else:
            self._append(fmt.block(RowKind.RECORDS, 0, len(batch), payload))

    def rows(self, kind: RowKind, packed: bytes, count: int) -> None:
        """Append `count` rows, packed as `struct_format(kind)` says. Raises OSError; ValueError on a wrong size."""
        width = fmt.WIDTH[kind]
        if len(packed) != width * count:
            raise ValueError(f"{count} rows of {kind.name} are {width * count} bytes, not {len(packed)}")
        step = _BLOCK_BYTES // width
        for first in range(0, count, step):
            part = packed[first * width : (first + step) * width]
            self._append(fmt.block(kind, width, len(part) // width, part))

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with contextlib.suppress(OSError):
                os.close(fd)

    def _append(self, data: bytes) -> None:
        if self._fd >= 0 and self._size + len(data) > self._segment_bytes:
            self.close()
            if self._path is not None:
                self._closed.append((self._path, self._size))
                self._kept += self._size
        if self._fd < 0:
            self._open()
        elif os.fstat(self._fd).st_nlink == 0:
            self.close()
            raise FileNotFoundError(errno.ENOENT, "the trace file was removed", str(self._folder))
        self._write(data)

    def _open(self) -> None:
        with contextlib.suppress(FileExistsError):
            os.mkdir(self._folder, 0o700)  # not its parents: a run that was removed stays removed
        stem, twin = self._stem, 1
        while True:
            path = self._folder / f"{stem}.{self._segment + 1:04d}.ddpv"
            try:
                self._fd = open_private(path, os.O_CREAT | os.O_EXCL | os.O_APPEND)
                break
            except FileExistsError:  # two hosts or containers on one folder can share every part of the stem
                twin += 1
                stem, self._segment = f"{self._stem}~{twin}", -1
        self._size = 0
        try:
            self._write(fmt.file_header())
        except OSError:  # a full disk: leave no trail of empty segments
            self.close()
            with contextlib.suppress(OSError):
                os.unlink(path)
            raise
        self._stem, self._path = stem, path
        self._segment += 1

    def _write(self, data: bytes) -> None:
        try:
            done = os.write(self._fd, data)
            while done < len(data):
                done += os.write(self._fd, data[done:])
        except OSError:
            try:
                os.ftruncate(self._fd, self._size)
            except OSError:
                self.close()
            raise
        self._size += len(data)
