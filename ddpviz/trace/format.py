"""The bytes of a trace file: a magic and a version, then checksummed blocks. FORMAT.md beside this file says the same.

Pure functions over bytes: no file is opened here. The writer and the reader are the only users.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from ddpviz.trace.records import AnyRecord, Record, RowKind, struct_format

MAGIC = b"DDPVIZ\x00\n"  # the newline shows a transfer in text mode, the zero that this is no text
VERSION = 1  # changes only when an older reader could no longer make sense of a file; new kinds and columns do not
SUMMARY = 2  # the version of a segment whose old detail was thinned: packed blocks, and no others
NEWEST = SUMMARY
FILE_HEADER = struct.Struct("<8sHHI")  # magic, version, 0, 0
BLOCK_HEADER = struct.Struct("<BBHIII")  # kind, 0, row width (0: records), count, payload bytes, CRC-32 of the payload
HEADER_CRC = struct.Struct("<I")  # CRC-32 of the block header before it
_PACKED = 128  # added to the kind of a packed block
_ORIGIN = struct.Struct("<QI")  # rows (or records) of its kind that stood before it in the segment, and in its place
HEADER_BYTES = BLOCK_HEADER.size + HEADER_CRC.size
MAX_PAYLOAD = 64 << 20  # the writer stays far below; a reader takes more for damage

WIDTH: dict[int, int] = {int(k): struct.calcsize(struct_format(k)) for k in RowKind if k is not RowKind.RECORDS}

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[AnyRecord])
_one = msgspec.msgpack.Decoder(AnyRecord)
_raws = msgspec.msgpack.Decoder(list[msgspec.Raw])
_TAGS = {kind.__struct_config__.tag for kind in AnyRecord.__args__}


class _Tag(msgspec.Struct):
    """The tag of a record and nothing else."""

    record: str = ""


class Block(NamedTuple):
    """One whole block as it lies in a file; `payload` has passed its checksum."""

    kind: int
    width: int
    rows: int
    payload: memoryview
    end: int  # offset just behind it


class BadBlock(Exception):
    """A block that is all there and wrong. Its text says what; nothing behind it in the file can be trusted."""


def file_header(version: int = VERSION) -> bytes:
    return FILE_HEADER.pack(MAGIC, version, 0, 0)


def version_of(data: bytes | memoryview) -> int:
    """The version in a file's header; 0 if that is not all there."""
    return int(FILE_HEADER.unpack_from(data)[1]) if len(data) >= FILE_HEADER.size else 0


def block(kind: RowKind, width: int, count: int, payload: bytes) -> bytes:
    head = BLOCK_HEADER.pack(kind, 0, width, count, len(payload), zlib.crc32(payload))
    return head + HEADER_CRC.pack(zlib.crc32(head)) + payload


def by_column(rows: bytes, width: int) -> bytes:
    """Rows as columns of bytes: every first byte, then every second, and so on."""
    return b"".join(rows[at::width] for at in range(width))


def packed(kind: int, width: int, first: int, stood: int, count: int, columns: bytes) -> bytes:
    """A packed block of `count` rows (by column) or records, in place of the `stood` ones after the first `first`."""
    payload = _ORIGIN.pack(first, stood) + zlib.compress(columns, 3)
    head = BLOCK_HEADER.pack(_PACKED + kind, 0, width, count, len(payload), zlib.crc32(payload))
    return head + HEADER_CRC.pack(zlib.crc32(head)) + payload


def unpacked(block: Block) -> tuple[Block, int, int]:
    """The block that a packed one holds, and `first` and `stood` of `packed`. Raises BadBlock."""
    if len(block.payload) < _ORIGIN.size:
        raise BadBlock("a packed block is too short")
    first, stood = _ORIGIN.unpack_from(block.payload)
    most = block.width * block.rows if block.width else MAX_PAYLOAD
    if most > MAX_PAYLOAD:
        raise BadBlock("a packed block claims an impossible size")
    unzip = zlib.decompressobj()
    try:
        columns = unzip.decompress(block.payload[_ORIGIN.size :], most + 1)
    except zlib.error as error:
        raise BadBlock(f"a packed block cannot be unpacked: {error}") from None
    if len(columns) > most or not unzip.eof or (block.width and len(columns) != most):
        raise BadBlock("a packed block has not the size that it claims")
    rows = bytearray(len(columns))
    if block.width:
        for at in range(block.width):
            rows[at :: block.width] = columns[at * block.rows : (at + 1) * block.rows]
    plain = bytes(rows) if block.width else columns
    return block._replace(kind=block.kind - _PACKED, payload=memoryview(plain)), first, stood


def is_packed(kind: int) -> bool:
    return kind >= _PACKED


def encode_records(batch: Sequence[Record]) -> bytes:
    """A payload of records. Names of files need not be UTF-8: what cannot be encoded in a text becomes `\ufffd`."""
    records = batch if isinstance(batch, list) else list(batch)
    try:
        return _encoder.encode(records)
    except UnicodeEncodeError:
        return _encoder.encode(_encodable(msgspec.to_builtins(records)))


def _encodable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode(errors="surrogatepass").decode(errors="replace")
    if isinstance(value, list):
        return [_encodable(item) for item in value]
    if isinstance(value, dict):
        return {_encodable(key): _encodable(item) for key, item in value.items()}
    return value


def decode_records(payload: bytes | memoryview) -> tuple[list[Record], list[str]]:
    """The records of a payload, and a line for each that is damaged. Tags of a newer ddpviz are skipped silently."""
    try:
        return list(_decoder.decode(payload)), []
    except msgspec.DecodeError:
        pass
    records: list[Record] = []
    problems: list[str] = []
    try:
        raws = _raws.decode(payload)
    except msgspec.DecodeError as error:
        return [], [f"a block of records cannot be decoded: {error}"]
    for raw in raws:
        try:
            records.append(_one.decode(raw))
        except msgspec.DecodeError as error:
            try:
                tag = msgspec.msgpack.decode(raw, type=_Tag).record
            except msgspec.DecodeError:
                tag = ""
            if not tag or tag in _TAGS:
                problems.append(f"a record{' ' + tag if tag else ''} cannot be decoded: {error}")
    return records, problems


def fit_rows(kind: int, width: int, payload: memoryview) -> bytes:
    """Rows of `width` bytes as rows of the width known here: newer columns are cut off, missing ones are zero."""
    want = WIDTH[kind]
    if width == want:
        return bytes(payload)
    pad = bytes(max(0, want - width))
    return b"".join(bytes(payload[at : at + min(width, want)]) + pad for at in range(0, len(payload), width))


def split_blocks(data: memoryview, base: int = 0) -> Iterator[Block]:
    """The whole blocks at the start of `data`; stops before one that is not all there yet.

    `base` is the file offset of `data`. Raises BadBlock at the first block that is damaged.
    """
    at = 0
    while len(data) - at >= HEADER_BYTES:
        head = data[at : at + BLOCK_HEADER.size]
        (crc,) = HEADER_CRC.unpack_from(data, at + BLOCK_HEADER.size)
        if zlib.crc32(head) != crc:
            raise BadBlock(f"the block header at byte {base + at} fails its checksum")
        kind, _, width, count, length, payload_crc = BLOCK_HEADER.unpack(head)
        if length > MAX_PAYLOAD or (width and width * count != length and kind < _PACKED):
            raise BadBlock(f"the block at byte {base + at} claims an impossible size")
        start, end = at + HEADER_BYTES, at + HEADER_BYTES + length
        if end > len(data):
            return
        payload = data[start:end]
        if zlib.crc32(payload) != payload_crc:
            raise BadBlock(f"the block at byte {base + at} fails its checksum")
        yield Block(kind, width, count, payload, base + end)
        at = end


def wanted(data: memoryview) -> int:
    """Bytes that the block at the start of `data` needs in all, as far as its header is there; 0 if it is not."""
    if len(data) < HEADER_BYTES:
        return 0
    return int(HEADER_BYTES + BLOCK_HEADER.unpack_from(data)[4])
