"""Mutated recordings through everything that reads one: reader, timeline, findings, report. None may crash it.

`python tests/fuzz.py --count 100000` runs inputs of its own making, each named by a number that makes it again
(`--first N --count 1`). Most have their checksums signed anew, so that the damage reaches the decoder and the timeline.
An input fails if anything but `RunError` comes out, if it takes longer than its time, or if memory runs out: the
process may have `--memory` MiB of address space more than it had at the start.
"""

from __future__ import annotations

import argparse
import copy
import faulthandler
import mmap
import os
import random
import resource
import signal
import struct
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

import synth

from ddpviz.export.load import load
from ddpviz.export.report import in_parts
from ddpviz.findings import find
from ddpviz.trace import format as fmt, records as r
from ddpviz.trace.reader import RunError
from ddpviz.trace.thin import thin

RECORDINGS = Path(__file__).parent / "recordings"
SECONDS = 10.0  # CPU time that one input may take
NUMBERS = [0, 1, -1, 2, 127, 255, 65535, 1 << 31, (1 << 31) - 1, (1 << 32) - 1, 1 << 40, -(1 << 63), (1 << 63) - 1]
NUMBERS += [(1 << 64) - 1, 4_999_999, 1_000_000]
VALUES: list[Any] = [
    None,
    True,
    "",
    "x" * 3000,
    "\x1b[2J\x00\u202e",
    [],
    [0] * 50,
    {},
    {"a": 1},
    1.5,
    float("nan"),
    b"b",
]
Block = tuple[int, int, int, bytes]  # kind, width, count, payload


def seeds(folder: Path) -> list[dict[str, bytes]]:
    """The files of some recordings, real and simulated, by their names in the run's folder."""
    runs = [RECORDINGS / name for name in ("accumulate", "failed", "uneven", "unsynced-step")]
    for number, mistake in enumerate([None, "drift", "hang", "skipped", "by-hand", "local-sgd", "join", "nan"]):
        hosts = ["a", "b"] if number % 2 else None
        runs.append(synth.write_run(folder, mistake, ranks=2, modules=1 + number % 2, windows=2, hosts=hosts))
    keep = ("run.json", ".ddpv")
    found = [
        {str(p.relative_to(run)): p.read_bytes() for p in sorted(run.rglob("*")) if p.name.endswith(keep)}
        for run in runs
    ]
    for run in runs[-4:]:  # simulated ones: now as their writers would have thinned them
        for path in sorted((run / "trace").iterdir()):
            for _ in thin(path):
                pass
        found.append({str(p.relative_to(run)): p.read_bytes() for p in sorted(run.rglob("*")) if p.name.endswith(keep)})
    return found


def blocks_of(data: bytes) -> list[Block]:
    body = memoryview(data)[fmt.FILE_HEADER.size :]
    return [(b.kind, b.width, b.rows, bytes(b.payload)) for b in fmt.split_blocks(body)]


def signed(blocks: list[Block]) -> bytes:
    version = fmt.SUMMARY if any(fmt.is_packed(kind) for kind, _, _, _ in blocks) else fmt.VERSION
    return fmt.file_header(version) + b"".join(fmt.block(k, w, n, p) for k, w, n, p in blocks)  # type: ignore[arg-type]


# --- mutations: each takes the generator and a trace file, and gives another -----------------------------------------


def raw(rng: random.Random, data: bytes) -> bytes:
    """Bytes changed, cut out or doubled: most of it stops at a checksum."""
    out = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(out))
        way = rng.randrange(4)
        if way == 0:
            out[at] = rng.randrange(256)
        elif way == 1:
            del out[at : at + rng.randint(1, 40)]
        elif way == 2:
            out[at:at] = out[at : at + rng.randint(1, 200)]
        else:
            del out[at:]
        if not out:
            return b""
    return bytes(out)


def shuffled(rng: random.Random, data: bytes) -> bytes:
    """Blocks lost, doubled, moved, or their payload cut; signed."""
    blocks = blocks_of(data)
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(blocks))
        way = rng.randrange(5)
        if way == 0 and len(blocks) > 1:
            del blocks[at]
        elif way == 1:
            blocks.insert(rng.randint(0, len(blocks)), blocks[at])
        elif way == 2:
            blocks[at], blocks[-1] = blocks[-1], blocks[at]
        else:
            kind, width, count, payload = blocks[at]
            if way == 3:
                payload = payload[: rng.randint(0, len(payload))]
            kind = rng.choice([kind, kind, *range(8)])
            width = rng.choice([width, width, 0, 1, 8, 500])
            count = rng.choice([count, len(payload) // width if width else count, 0, (1 << 32) - 1])
            blocks[at] = (kind, width, count, payload)
    return signed(blocks)


def bytes_of_payload(rng: random.Random, data: bytes) -> bytes:
    """Any bytes of payloads changed; signed."""
    blocks = blocks_of(data)
    for _ in range(rng.randint(1, 5)):
        at = rng.randrange(len(blocks))
        kind, width, count, payload = blocks[at]
        if payload:
            out = bytearray(payload)
            out[rng.randrange(len(out))] = rng.choice([0, 1, 127, 128, 255, rng.randrange(256)])
            blocks[at] = (kind, width, count, bytes(out))
    return signed(blocks)


def columns(rng: random.Random, data: bytes) -> bytes:
    """Numbers of rows changed, one here or a whole column; rows doubled or in another order; signed."""
    blocks = blocks_of(data)
    rows = [at for at, (kind, width, _, _) in enumerate(blocks) if width == fmt.WIDTH.get(kind, -1)]
    for at in rng.choices(rows, k=min(len(rows), rng.randint(1, 3))):
        kind, width, _, payload = blocks[at]
        shape = struct.Struct(r.struct_format(r.RowKind(kind)))
        names = [code for _, code in r.COLUMNS[r.RowKind(kind)]]
        table = [list(row) for row in shape.iter_unpack(payload)]
        column = rng.randrange(len(names))
        value = _number(rng, names[column], table[0][column])
        for row in table if rng.random() < 0.2 else [rng.choice(table)]:
            row[column] = value
        if rng.random() < 0.1:
            rng.shuffle(table)
        if rng.random() < 0.1:
            table += table
        blocks[at] = (kind, width, len(table), b"".join(shape.pack(*row) for row in table))
    return signed(blocks)


def _number(rng: random.Random, code: str, old: Any) -> Any:
    if code[0] == "f":
        return rng.choice([0.0, -1.0, float("nan"), float("inf"), 3e38, 1e-45, old])
    bits = 8 * int(code[1])
    value = rng.choice([*NUMBERS, old + 1, old - 1, rng.getrandbits(bits)]) % (1 << bits)
    return value - (1 << bits) if code[0] == "i" and value >= 1 << (bits - 1) else value


def records(rng: random.Random, data: bytes) -> bytes:
    """Values, keys and kinds of records changed, records lost or doubled; signed."""
    blocks = blocks_of(data)
    spoken = [at for at, block in enumerate(blocks) if block[0] == 0 and block[2]]
    if not spoken:
        return data
    for _ in range(rng.randint(1, 3)):
        at = rng.choice(spoken)
        said = msgspec.msgpack.decode(blocks[at][3])
        k = rng.randrange(len(said))
        way = rng.randrange(8)
        if way == 0 and len(said) > 1:
            del said[k]
        elif way == 1:
            said.append(copy.deepcopy(said[k]))
        elif way == 2:
            said[k]["record"] = rng.choice(said)["record"]
        else:
            _spoil(rng, said[k])
        blocks[at] = (0, 0, len(said), msgspec.msgpack.encode(said))
    return signed(blocks)


def _spoil(rng: random.Random, record: dict[str, Any]) -> None:
    key = rng.choice(list(record))
    old = record[key]
    if isinstance(old, list) and old and rng.random() < 0.7:
        at = rng.randrange(len(old))
        old[at] = _other(rng, old[at])
    elif isinstance(old, dict) and old and rng.random() < 0.7:
        inner = rng.choice(list(old))
        old[inner] = _other(rng, old[inner])
    elif rng.random() < 0.1:
        del record[key]
    else:
        record[key] = _other(rng, old)


def _other(rng: random.Random, old: Any) -> Any:
    """Another value: mostly of the same type, which gets further."""
    if rng.random() < 0.2:
        return rng.choice([*NUMBERS, *VALUES])
    if isinstance(old, bool):
        return not old
    if isinstance(old, int):
        return rng.choice([*NUMBERS, old + 1, old - 1])
    if isinstance(old, float):
        return rng.choice([0.0, -1.0, float("nan"), float("inf"), 1e308])
    if isinstance(old, str):
        return rng.choice(["", old * 3, "\x1b]0;x\x07" + old, old[: len(old) // 2], "é\u202e"])
    if isinstance(old, list):
        return rng.choice([[], old + old, old[::-1], old[:1] * 100])
    return rng.choice(VALUES)


def repacked(rng: random.Random, data: bytes) -> bytes:
    """What packed blocks hold, and whose place they say they take; signed. Blocks that are not packed get packed."""
    blocks = blocks_of(data)
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(blocks))
        kind, width, count, payload = blocks[at]
        first, stood = 0, count
        if fmt.is_packed(kind):
            block, first, stood = fmt.unpacked(fmt.Block(kind, width, count, memoryview(payload), 0))
            kind, payload = block.kind, bytes(block.payload)
        rows = fmt.by_column(payload, width) if width else payload
        columns = bytearray(rows)
        if columns and rng.random() < 0.8:
            for _ in range(rng.randint(1, 4)):
                columns[rng.randrange(len(columns))] = rng.choice([0, 1, 127, 255, rng.randrange(256)])
        if rng.random() < 0.3:
            first = rng.choice([0, 1, count, (1 << 64) - 1, rng.randrange(1000)])
            stood = rng.choice([0, count, 1, (1 << 32) - 1])
        if rng.random() < 0.1:
            columns = columns[: rng.randint(0, len(columns))]
        whole = fmt.packed(kind, width, first, stood, rng.choice([count, count, count + 1]), bytes(columns))
        (packed,) = fmt.split_blocks(memoryview(whole))
        blocks[at] = (packed.kind, packed.width, packed.rows, bytes(packed.payload))
    return signed(blocks)


def info(rng: random.Random, data: bytes) -> bytes:
    """run.json, its values changed."""
    whole = msgspec.json.decode(data)
    for _ in range(rng.randint(1, 3)):
        _spoil(rng, whole)
    return msgspec.json.encode({k: v.decode() if isinstance(v, bytes) else v for k, v in whole.items()})


WAYS: list[Callable[[random.Random, bytes], bytes]] = [
    raw,
    shuffled,
    bytes_of_payload,
    columns,
    columns,
    records,
    records,
    repacked,
]


def made(number: int, seeds: list[dict[str, bytes]]) -> tuple[str, dict[str, bytes]]:
    """Input `number`: what was done to it, and its files."""
    rng = random.Random(number)
    files = dict(rng.choice(seeds))
    done = []
    for _ in range(rng.choice([1, 1, 2, 3])):
        name = rng.choice([n for n in files if n.endswith(".ddpv")])
        way = rng.choice(WAYS)
        try:
            files[name] = way(rng, files[name])
        except Exception:
            continue  # a mutation before has left nothing that this one can work on
        done.append(way.__name__)
    if rng.random() < 0.1:
        files["run.json"] = info(rng, files["run.json"])
        done.append("info")
    if rng.random() < 0.02:
        del files[rng.choice(list(files))]
    return " ".join(done), files


class TooLong(BaseException):
    """An input has used up its time."""


def _late(*_: object) -> None:
    raise TooLong


def opened(files: dict[str, bytes], folder: Path) -> None:
    """What every viewer and exporter does with a run; raises what they raise."""
    for path in folder.rglob("*"):
        if path.is_file():
            path.unlink()
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    try:
        tl = load(folder)
    except RunError:
        return
    for _ in in_parts(tl, find(tl)):
        pass


def guarded(first: int, count: int, memory_mib: int) -> int:
    """`run` in a child, so that an input which ends the whole process is named too."""
    at = mmap.mmap(-1, 8)
    pid = os.fork()
    if pid == 0:
        failed = run(first, count, memory_mib, at)
        sys.stdout.flush()
        os._exit(failed != 0)
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        number = int.from_bytes(at[:8], "little")
        print(f"input {number} ({made_words(number)}): the process died of signal {os.WTERMSIG(status)}")
        return 1
    return os.WEXITSTATUS(status)


def made_words(number: int) -> str:
    with tempfile.TemporaryDirectory() as scratch:
        return made(number, seeds(Path(scratch)))[0]


def run(first: int, count: int, memory_mib: int, progress: mmap.mmap) -> int:
    """Number of failures among the inputs `first` to `first + count`; says each, and at the end how it went."""
    faulthandler.enable()
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGPROF, _late)
    failed, ways, slowest, began = 0, 0, 0.0, time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        known, folder = seeds(Path(scratch) / "seeds"), Path(scratch) / "run"
        for files in known:
            opened(files, folder)  # everything is imported before the limit is set
        pages = int(Path("/proc/self/statm").read_text().split()[0]) if sys.platform == "linux" else 0
        if pages:
            limit = pages * resource.getpagesize() + (memory_mib << 20)
            resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
        for number in range(first, first + count):
            progress[:8] = number.to_bytes(8, "little")
            what, files = made(number, known)
            ways += bool(what)
            at = time.process_time()
            signal.setitimer(signal.ITIMER_PROF, SECONDS)
            try:
                opened(files, folder)
            except BaseException as error:
                signal.setitimer(signal.ITIMER_PROF, 0)
                if isinstance(error, KeyboardInterrupt):
                    raise
                failed += 1
                print(f"input {number} ({what}): {type(error).__name__}: {error}")
                print("".join(traceback.format_exception(error)[-4:]), flush=True)
                if failed == 20:
                    break
            signal.setitimer(signal.ITIMER_PROF, 0)
            slowest = max(slowest, time.process_time() - at)
        if pages:
            resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    took = time.monotonic() - began
    print(
        f"{count} inputs from {first}: {failed} failed; slowest {slowest:.2f} s, peak {peak} MiB, {took:.0f} s in all"
    )
    return failed


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--memory", type=int, default=700, metavar="MIB")
    options = parser.parse_args()
    sys.exit(guarded(options.first, options.count, options.memory))
