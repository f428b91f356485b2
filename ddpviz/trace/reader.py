"""Reads a run directory, live or finished: everything new since the last call. Never waits, never writes, never locks.

A torn tail is waited for; damage costs the rest of that segment and a line in `problems`; a newer or foreign file
costs that file and a line. What can be read is always read.
"""

from __future__ import annotations

import json
import os
import re
from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypedDict

import msgspec

from ddpviz.trace import format as fmt
from ddpviz.trace.records import Record, RowKind
from ddpviz.trace.text import clean

SCHEMA = "ddpviz.run/1"
_NAME = re.compile(r"(?P<stem>.+)\.(?P<segment>\d{4,})\.ddpv", re.DOTALL)
_CHUNK = 8 << 20  # bytes of one file looked at before the next file has its turn


MOST_RANKS = 1 << 17  # more than that is damage

_Whole = Annotated[int, msgspec.Meta(ge=-(1 << 62), le=1 << 62)]
_Text = Annotated[str, msgspec.Meta(max_length=1 << 16)]


class _Ended(TypedDict, total=False):
    rank: Annotated[int, msgspec.Meta(ge=0, lt=MOST_RANKS)]
    exit_code: _Whole | None
    signal: _Whole | None
    ended_by: str | None


_FIELDS: dict[str, Any] = {
    **dict.fromkeys(
        ("id", "title", "lesson", "status", "backend", "backend_reason", "host", "ddpviz", "observe"), _Text | None
    ),
    **dict.fromkeys(("exit_code", "pid", "started_wall_ns", "started_monotonic_ns", "ended_wall_ns"), _Whole | None),
    **dict.fromkeys(("command", "notes"), list[_Text] | None),
    "world_size": Annotated[int, msgspec.Meta(ge=0, le=MOST_RANKS)] | None,
    "budget": float | None,
    "redirected": bool | None,
    "ranks": list[_Ended] | None,
    "logs": dict[str, str] | None,
}

_Blocks = list[tuple[RowKind, "list[Record] | bytes"]]


class RunError(Exception):
    """This is no run that can be read. Its text is one line for a person."""


class Batch(NamedTuple):
    """New blocks of one process, in the order in which they were written."""

    source: str  # file stem without the segment
    blocks: list[tuple[RowKind, list[Record] | bytes]]


@dataclass
class _File:
    path: Path
    stem: str
    segment: int
    offset: int = 0
    dead: bool = False  # nothing more can be read from it
    last: bool = True  # no later segment exists: the tail may still grow
    inode: int = 0
    replaced: bool = False  # another file has taken its place: its summary, or a copy that has grown
    unpacked: int = 0  # bytes out of packed blocks so far
    taken: dict[int, int] = field(default_factory=dict)  # by kind, how many rows (or records) have been read


class RunReader:
    """Follows one run directory. Raises RunError if it is none."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = Path(run_dir)
        self.problems: list[str] = []
        self._files: dict[str, _File] = {}
        self._turn = ""  # the process that was read last
        self._info: dict[str, Any] = {}
        self._info_stamp: tuple[int, int, int] | None = None
        check_run(self.run_dir)

    def info(self) -> dict[str, Any]:
        """run.json, read again when it changed. Empty if it cannot be read (said in `problems`)."""
        path = self.run_dir / "run.json"
        try:
            stat = path.stat()
            stamp = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
            if stamp != self._info_stamp:
                self._info, self._info_stamp = read_info(self.run_dir), stamp
        except (OSError, RunError) as error:
            self._problem(str(error) if isinstance(error, RunError) else f"run.json is missing in {self.run_dir}")
        return self._info

    def read(self, limit_bytes: int | None = None) -> list[Batch]:
        """All whole blocks written since the last call, or about `limit_bytes` of them (at least one block).

        Blocks of one process keep their order, over segments too; with a limit the processes take turns. An empty list
        means nothing new.
        """
        found: dict[str, _Blocks] = defaultdict(list)
        queues = self._list()
        left = limit_bytes
        while queues and (left is None or left > 0):
            share = _CHUNK if left is None else min(_CHUNK, max(64 << 10, left // len(queues)))
            for stem, queue in list(queues.items()):
                if left is not None and left <= 0:
                    break
                self._turn = stem
                file = queue[0]
                before = file.offset
                if not self._read_some(file, share, found[stem]):
                    queue.popleft()
                    if not queue:
                        del queues[stem]
                if left is not None:
                    left -= file.offset - before
        return [Batch(stem, blocks) for stem, blocks in found.items() if blocks]

    def _problem(self, line: str) -> None:
        if line not in self.problems:
            self.problems.append(line)

    def _list(self) -> dict[str, deque[_File]]:
        """By process, the segments that may hold something new, in order."""
        sizes: dict[str, int] = {}
        inodes: dict[str, int] = {}
        try:
            for name, stat in _traces(self.run_dir / "trace"):
                sizes[name], inodes[name] = stat.st_size, stat.st_ino
        except FileNotFoundError:
            if not self.run_dir.is_dir():
                self._problem(f"the run folder is gone: {clean(str(self.run_dir))}")
        except OSError as error:
            self._problem(f"the traces cannot be listed: {error.strerror}")
        for name in sizes.keys() - self._files.keys():
            match = _NAME.fullmatch(name)
            self._files[name] = _File(
                self.run_dir / "trace" / name,
                match["stem"] if match else name.removesuffix(".ddpv"),
                int(match["segment"]) if match else 0,
            )
        queues: dict[str, deque[_File]] = {}
        latest: dict[str, _File] = {}
        for file in sorted((self._files[name] for name in sizes), key=lambda file: (file.stem, file.segment)):
            if file.stem in latest:
                latest[file.stem].last = False  # closed before this one was made, so all of it can be seen by now
            latest[file.stem] = file
        for name, size in sizes.items():
            file = self._files[name]
            file.replaced = file.replaced or file.inode not in (0, inodes[name])
            file.inode = inodes[name]
            if size < file.offset and not file.dead and not file.replaced:
                self._shorter(file)
            if not file.dead and (size > file.offset or not file.last or file.replaced):
                queues.setdefault(file.stem, deque()).append(file)
        in_turn = sorted(queues, key=lambda stem: (stem <= self._turn, stem))  # after the one that was last
        return {stem: deque(sorted(queues[stem], key=lambda file: file.segment)) for stem in in_turn}

    def _shorter(self, file: _File) -> None:
        file.dead = True
        self._problem(f"{clean(file.path.name)} became shorter while it was read; what was read before is kept")

    def _read_some(self, file: _File, limit: int, out: _Blocks) -> bool:
        """Add the next whole blocks of a file to `out`; False if it holds no more, for now or for good."""
        name = clean(file.path.name)
        try:
            with open(file.path, "rb") as stream:
                stat = os.fstat(stream.fileno())
                size = stat.st_size
                if file.replaced or file.inode not in (0, stat.st_ino):
                    file.replaced, file.inode = False, stat.st_ino
                    if fmt.version_of(stream.read(fmt.FILE_HEADER.size)) == fmt.SUMMARY:
                        file.offset = file.unpacked = 0  # what of it has been read is known by number
                    elif size < file.offset:
                        self._shorter(file)
                        return False
                stream.seek(file.offset)
                data = stream.read(min(limit, size - file.offset))
                if file.offset == 0:
                    said = _header_problem(data)
                    if said is not None:
                        file.dead = said != "" or not file.last
                        if file.dead:
                            self._problem(f"{name} {said or 'ends before its header is complete'}")
                        return False
                    file.offset = fmt.FILE_HEADER.size
                    data = data[fmt.FILE_HEADER.size :]
                need = fmt.wanted(memoryview(data))
                if len(data) < need <= size - file.offset:
                    data += stream.read(need - len(data))
        except OSError as error:
            file.dead = not isinstance(error, FileNotFoundError)
            self._problem(f"{name} cannot be read: {error.strerror}")
            return False
        start = file.offset
        try:
            for block in fmt.split_blocks(memoryview(data), start):
                self._take(file, name, block, out)
                file.offset = block.end
        except fmt.BadBlock as error:
            file.dead = True
            self._problem(f"{name}: {error}; the rest of this segment is left out")
            return False
        if file.offset > start:
            return file.offset < size or not file.last
        if not file.last:
            file.dead = True
            if file.offset < size:
                self._problem(f"{name} ends inside a block; the next segment goes on")
        return False

    def _take(self, file: _File, name: str, block: fmt.Block, out: _Blocks) -> None:
        skip = 0
        if fmt.is_packed(block.kind):
            block, first, stood = fmt.unpacked(block)
            file.unpacked += len(block.payload)
            if file.unpacked > fmt.MAX_PAYLOAD:
                raise fmt.BadBlock("it unpacks to more than any segment holds")
            skip = max(0, file.taken.get(block.kind, 0) - first)
            if skip >= stood or (skip and block.rows != stood):
                return  # read before it was thinned (or some of it, and the rest is detail)
            file.taken[block.kind] = first + stood
        else:
            file.taken[block.kind] = file.taken.get(block.kind, 0) + block.rows
        if block.kind == RowKind.RECORDS:
            records, problems = fmt.decode_records(block.payload)
            records = records[skip:]
            for problem in problems:
                self._problem(f"{name}: {problem}")
            if records:
                out.append((RowKind.RECORDS, records))
        elif block.kind not in fmt.WIDTH:
            pass  # a kind of a newer ddpviz: additions are skipped, as unknown records are
        elif block.width == 0:
            self._problem(f"{name}: a block of {RowKind(block.kind).name} rows without a row width is left out")
        elif block.rows:
            payload = block.payload[skip * block.width :]
            if payload:
                out.append((RowKind(block.kind), fmt.fit_rows(block.kind, block.width, payload)))


def _traces(folder: Path, prefix: str = "") -> Iterator[tuple[str, os.stat_result]]:
    """The trace files in a folder and, one level down, in those that `join_runs` has put there."""
    with os.scandir(folder) as entries:
        for entry in entries:
            try:
                if entry.name.endswith(".ddpv") and entry.is_file():
                    yield prefix + entry.name, entry.stat()
                elif not prefix and entry.name.isdigit() and entry.is_dir():
                    yield from _traces(Path(entry.path), f"{entry.name}/")
            except OSError:
                continue  # it went away, or may not be looked at


def check_run(run_dir: Path) -> None:
    """Raise RunError, in one line, unless the folder is a run that this ddpviz can read."""
    shown = clean(str(run_dir))
    try:
        if not run_dir.is_dir():
            raise RunError(f"no run folder: {shown} is a file" if run_dir.exists() else f"no such run: {shown}")
        has_traces = any(True for _ in (run_dir / "trace").glob("*.ddpv"))
    except OSError as error:
        raise RunError(f"the run folder {shown} cannot be read: {error.strerror}") from None
    try:
        read_info(run_dir)
    except FileNotFoundError:
        if not has_traces:
            raise RunError(f"{shown} is no run of ddpviz: it has no run.json and no traces") from None
    except OSError as error:
        raise RunError(f"the run folder {shown} cannot be read: {error.strerror}") from None
    except RunError as error:
        if not has_traces or "newer" in str(error):
            raise


def read_info(run_dir: Path) -> dict[str, Any]:
    """run.json as it stands. Raises OSError, or RunError with a line if it is not this ddpviz's to read."""
    shown = clean(str(run_dir))
    try:
        info = json.loads((run_dir / "run.json").read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        raise RunError(f"run.json in {shown} is damaged: it is not JSON") from None
    schema = info.get("schema") if isinstance(info, dict) else None
    if not isinstance(schema, str) or not schema.startswith("ddpviz.run/"):
        raise RunError(f"run.json in {shown} is not ddpviz's: it has no ddpviz.run schema")
    if schema != SCHEMA:
        raise RunError(f"{shown} was written by a newer ddpviz ({clean(schema)}; this one reads {SCHEMA})")
    assert isinstance(info, dict)
    return {name: value for name, value in info.items() if name not in _FIELDS or _fits(value, _FIELDS[name])}


def _fits(value: Any, kind: Any) -> bool:
    """Whether a field of run.json is what it should be: one that is not counts as left out."""
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return False
    return True


def _header_problem(data: bytes) -> str | None:
    """None: a good header. "": not all there yet. Else what is wrong with the file."""
    if not fmt.MAGIC.startswith(data[: len(fmt.MAGIC)]):
        return "is no trace of ddpviz and is left out"
    if len(data) < fmt.FILE_HEADER.size:
        return ""
    _, version, _, _ = fmt.FILE_HEADER.unpack_from(data)
    if version > fmt.NEWEST:
        return f"was written by a newer ddpviz (trace version {version}, this one reads {fmt.NEWEST}) and is left out"
    return None
