"""Old segments made small: a closed segment is replaced by a summary that keeps what happened and drops how it looked.

Kept of every pass: all that decides its verdict, and when it began and ended; every step, clear, collective and record,
whole. Dropped: norms, losses, layers, and the times of buckets, but for 16 passes of every 1,024 (on all ranks the same
ones) and for whatever is NaN or Inf. The passes without them are as if not sampled. Columns are packed by zlib. The
summary takes the segment's place by one rename. FORMAT.md beside this file has the bytes.
"""

from __future__ import annotations

import contextlib
import math
import os
import struct
from collections.abc import Generator, Iterator
from itertools import compress
from pathlib import Path

from ddpviz.trace import format as fmt
from ddpviz.trace.private import open_private
from ddpviz.trace.rows import COLUMNS, BucketFlag, LayerFlag, PassFlag, RowKind, column_at

_GROUP = 512 << 10  # bytes of one kind's rows that are packed together
_PASS_DROPS = ("local_norm", "norm", "loss", "forward", "forward_end")
_BUCKET_DROPS = ("launch", "done", "local_norm", "norm")
_PASS_BITS = PassFlag.SAMPLED | PassFlag.HAS_LOSS | PassFlag.HAS_LOCAL_NORM | PassFlag.HAS_NORM
_BUCKET_BITS = BucketFlag.HAS_LOCAL_NORM | BucketFlag.HAS_NORM


def detailed(index: int) -> bool:
    """Whether a pass keeps its details: the same passes on every rank, a few windows in a row."""
    return index >> 4 & 63 == 0


def thin(path: Path) -> Generator[None, None, int]:
    """Replace a closed segment by its summary, a part at each `next`; its new size. Raises OSError, BadBlock."""
    data = memoryview(path.read_bytes())
    if data[: len(fmt.MAGIC)] != fmt.MAGIC or fmt.version_of(data) != fmt.VERSION:
        raise fmt.BadBlock("no segment that can be thinned")
    new = path.with_name(f".{path.name}.thin")
    fd = open_private(new, os.O_CREAT | os.O_TRUNC)
    try:
        with os.fdopen(fd, "wb") as out:
            out.write(fmt.file_header(fmt.SUMMARY))
            for part in _parts(data[fmt.FILE_HEADER.size :]):
                out.write(part)
                yield
            out.flush()
            size = out.tell()
        os.replace(new, path)
        return size
    except BaseException:
        with contextlib.suppress(OSError):
            new.unlink()
        raise


def _parts(body: memoryview) -> Iterator[bytes]:
    """The summary's blocks: of each kind large groups, in order."""
    held: dict[int, list[bytes]] = {}
    counts: dict[int, int] = {}
    before: dict[int, int] = {}
    for block in fmt.split_blocks(body, fmt.FILE_HEADER.size):
        if block.kind == RowKind.RECORDS:
            before.setdefault(0, 0)
            yield fmt.packed(0, 0, before[0], block.rows, block.rows, bytes(block.payload))
            before[0] += block.rows
            continue
        if block.kind not in fmt.WIDTH or not block.width:
            raise fmt.BadBlock("blocks of a newer version are not thinned")
        rows = fmt.fit_rows(block.kind, block.width, block.payload)
        held.setdefault(block.kind, []).append(rows)
        counts[block.kind] = counts.get(block.kind, 0) + block.rows
        if counts[block.kind] * fmt.WIDTH[block.kind] >= _GROUP:
            yield _group(block.kind, before, counts, held)
    for kind in sorted(held):
        if counts.get(kind):
            yield _group(kind, before, counts, held)


def _group(kind: int, before: dict[int, int], counts: dict[int, int], held: dict[int, list[bytes]]) -> bytes:
    payload, count = b"".join(held.pop(kind)), counts.pop(kind)
    first = before.get(kind, 0)
    before[kind] = first + count
    kept, rows = _thinned(RowKind(kind), payload, count)
    return fmt.packed(kind, fmt.WIDTH[kind], first, count, rows, kept)


def _thinned(kind: RowKind, payload: bytes, count: int) -> tuple[bytes, int]:
    """The rows of a group with less in them, by column, and their number."""
    if kind is RowKind.LAYER:
        row = fmt.WIDTH[kind]
        keep = _keep(kind, payload, "pass", LayerFlag.HAS_LOCAL | LayerFlag.HAS_NORM)
        payload = b"".join(compress((payload[at : at + row] for at in range(0, len(payload), row)), keep))
        return fmt.by_column(payload, row), sum(keep)
    columns = fmt.by_column(payload, fmt.WIDTH[kind])
    if kind is RowKind.PASS:
        keep = _keep(kind, payload, "index", _PASS_BITS)
        return _without(kind, columns, count, keep, _PASS_DROPS, int(_PASS_BITS)), count
    if kind is RowKind.BUCKET:
        keep = _keep(kind, payload, "pass", _BUCKET_BITS)
        return _without(kind, columns, count, keep, _BUCKET_DROPS, int(_BUCKET_BITS)), count
    return columns, count


def _keep(kind: RowKind, payload: bytes, index: str, bits: int) -> list[bool]:
    """Of each row, whether it keeps its details."""
    names = dict(COLUMNS[kind])
    wanted = ("flags", index, "local_norm", "norm")  # in the order in which every row has them
    shape, at = "<", 0
    for name in wanted:
        offset, size = column_at(kind, name)
        shape += f"{offset - at}x" + {"u2": "H", "u4": "I", "f4": "f", "f8": "d"}[names[name]]
        at = offset + size
    rows = struct.Struct(shape + f"{fmt.WIDTH[kind] - at}x").iter_unpack(payload)
    finite = math.isfinite
    return [
        detailed(number) or (bool(flags & bits) and not (finite(local) and finite(norm)))
        for flags, number, local, norm in rows
    ]


def _without(kind: RowKind, columns: bytes, count: int, keep: list[bool], drops: tuple[str, ...], bits: int) -> bytes:
    """Columns with some of them zero, and some bits of the flags clear, in the rows that keep no details."""
    mask = int.from_bytes(bytes(255 if kept else 0 for kept in keep), "little")
    whole = bytearray(columns)
    for name in drops:
        offset, size = column_at(kind, name)
        for at in range(offset, offset + size):
            whole[at * count : (at + 1) * count] = _masked(columns[at * count : (at + 1) * count], mask)
    offset, size = column_at(kind, "flags")
    for byte in range(size):
        left = ~bits >> 8 * byte & 255
        allowed = int.from_bytes(bytes(255 if kept else left for kept in keep), "little")
        at = offset + byte
        whole[at * count : (at + 1) * count] = _masked(columns[at * count : (at + 1) * count], allowed)
    return bytes(whole)


def _masked(column: bytes, mask: int) -> bytes:
    """One byte of each row, `and` the mask: as one large number, which costs microseconds."""
    return (int.from_bytes(column, "little") & mask).to_bytes(len(column), "little")
