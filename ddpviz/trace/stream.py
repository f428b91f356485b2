"""A run as one stream: what `ddpviz cat` writes and `ddpviz watch -` reads. Carries run.json, traces and logs.

A magic and a version, then frames: kind, length of the name, offset, length of the payload, CRC-32 of name and payload,
then the name (a path in the run's folder) and the payload. `send` makes them from a run's folder; `Mirror` makes a
folder from them that a `RunReader` follows like any other. FORMAT.md beside this file says the same.
"""

from __future__ import annotations

import json
import os
import re
import struct
import threading
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from ddpviz.trace.format import FILE_HEADER, SUMMARY, version_of
from ddpviz.trace.private import open_private, replace
from ddpviz.trace.reader import RunError, check_run, read_info
from ddpviz.trace.rundir import live_status

MAGIC = b"DDPVIZ\x00S"
VERSION = 1
_OPENING = struct.Struct("<8sHH")  # magic, version, 0
_FRAME = struct.Struct("<BHQII")  # kind, name bytes, offset, payload bytes, CRC-32 of name and payload
_REPLACE, _AT, _END = 1, 2, 3  # the whole file; bytes at an offset; nothing follows
_CHUNK = 1 << 20
_MAX_PAYLOAD = 16 << 20
_MEMBER = re.compile(r"run\.json|trace/[^/\0.][^/\0]{0,200}\.ddpv|logs/[^/\0.][^/\0]{0,200}\.log")


def send(run_dir: Path, out: BinaryIO, *, follow: bool = False, pause: Callable[[float], None] = time.sleep) -> None:
    """Write the run to `out`, all of it; with `follow` go on until the run has ended. Raises RunError, OSError."""
    check_run(run_dir)
    out.write(_OPENING.pack(MAGIC, VERSION, 0))
    sent: dict[str, tuple[int, int]] = {}  # by name, the file's inode and how much of it is sent
    last_info = b""
    while True:
        running = follow and _runs(run_dir)
        try:
            info = (run_dir / "run.json").read_bytes()
        except OSError:
            info = last_info
        if info != last_info:
            _frame(out, _REPLACE, "run.json", 0, info)
            last_info = info
        for name in _members(run_dir):
            sent[name] = _send_new(run_dir / name, name, *sent.get(name, (0, 0)), out)
        out.flush()
        if not running:
            break
        pause(0.1)
    _frame(out, _END, "", 0, b"")
    out.flush()


class Mirror:
    """Reads a stream on a thread of its own into `folder`. `problem` is a line for a person once something is wrong."""

    def __init__(self, source: BinaryIO, folder: Path) -> None:
        self.folder = folder
        self.problem = ""
        self.ended = threading.Event()  # the stream is over, well or not
        self.begun = threading.Event()  # there is something to look at, or the stream is over
        self._source = source
        self._thread = threading.Thread(target=self._run, name="ddpviz-mirror", daemon=True)

    def start(self) -> None:
        for name in ("trace", "logs"):
            (self.folder / name).mkdir(mode=0o700, parents=True, exist_ok=True)
            os.chmod(self.folder / name, 0o700)  # whatever the umask took away
        self._thread.start()

    def _run(self) -> None:
        try:
            self._receive()
        except OSError as error:
            self.problem = f"the stream cannot be kept: {error.strerror or error}"
        except RunError as error:
            self.problem = str(error)
        if self.problem:
            self._note(self.problem)
        self.ended.set()
        self.begun.set()

    def _receive(self) -> None:
        opening = self._exactly(_OPENING.size)
        if opening is None or opening[: len(MAGIC)] != MAGIC:
            raise RunError("this is no stream of `ddpviz cat`")
        if _OPENING.unpack(opening)[1] > VERSION:
            raise RunError("the stream was written by a newer ddpviz")
        while True:
            head = self._exactly(_FRAME.size)
            if head is None:
                raise RunError("the stream ended before the run did")
            kind, name_bytes, offset, length, crc = _FRAME.unpack(head)
            body = self._exactly(name_bytes + length) if length <= _MAX_PAYLOAD else None
            if body is None:
                raise RunError("the stream ended in the middle")
            if zlib.crc32(body) != crc:
                raise RunError("the stream is damaged: a checksum fails")
            if kind == _END:
                return
            self._keep(kind, body[:name_bytes].decode(errors="replace"), offset, body[name_bytes:])

    def _keep(self, kind: int, name: str, offset: int, payload: bytes) -> None:
        if kind not in (_REPLACE, _AT) or not _MEMBER.fullmatch(name):
            return  # of a newer ddpviz, or a path that leads elsewhere
        path = self.folder / name
        if kind == _REPLACE:
            replace(path, payload)
        else:
            fd = open_private(path, os.O_CREAT | getattr(os, "O_NOFOLLOW", 0))
            with os.fdopen(fd, "wb") as stream:
                stream.seek(offset)
                stream.write(payload)
        self.begun.set()

    def _note(self, line: str) -> None:
        """Say in the mirrored run.json what is wrong with the stream, so that every viewer shows it."""
        try:
            info: dict[str, Any] = read_info(self.folder)
            notes = [*info.get("notes", []), line]
            replace(self.folder / "run.json", json.dumps({**info, "notes": notes}).encode())
        except (OSError, RunError, TypeError):
            pass

    def _exactly(self, count: int) -> bytes | None:
        parts: list[bytes] = []
        while count > 0:
            part = self._source.read(min(count, _CHUNK))
            if not part:
                return None
            parts.append(part)
            count -= len(part)
        return b"".join(parts)


def _frame(out: BinaryIO, kind: int, name: str, offset: int, payload: bytes) -> None:
    path = name.encode()
    out.write(_FRAME.pack(kind, len(path), offset, len(payload), zlib.crc32(payload, zlib.crc32(path))) + path)
    out.write(payload)


def _members(run_dir: Path) -> list[str]:
    """Traces and logs, each process's segments in order: one is sent to its end before the next one begins."""
    names = []
    for folder, suffix in (("trace", ".ddpv"), ("logs", ".log")):
        try:
            names += sorted(f"{folder}/{entry.name}" for entry in os.scandir(run_dir / folder) if entry.is_file())
        except OSError:
            continue
        names = [name for name in names if not name.startswith(folder) or name.endswith(suffix)]
    return [name for name in names if _MEMBER.fullmatch(name)]


def _send_new(path: Path, name: str, inode: int, offset: int, out: BinaryIO) -> tuple[int, int]:
    try:
        with path.open("rb") as stream:
            known, inode = inode, os.fstat(stream.fileno()).st_ino
            if known not in (0, inode) and version_of(stream.read(FILE_HEADER.size)) == SUMMARY:
                stream.seek(0)
                data = stream.read(_MAX_PAYLOAD)
                _frame(out, _REPLACE, name, 0, data)  # the receiver's reader goes on in it where it was
                offset = len(data)
            stream.seek(offset)
            while data := stream.read(_CHUNK):
                _frame(out, _AT, name, offset, data)
                offset += len(data)
    except FileNotFoundError:
        pass
    return inode, offset


def _runs(run_dir: Path) -> bool:
    try:
        return live_status(read_info(run_dir)) in ("starting", "running")
    except (OSError, RunError):
        return False
