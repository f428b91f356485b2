"""How a job ended: torchrun's own failure report, each rank's last word in the trace, and the verdict of both.

The verdicts are pure functions; `last_words` and `tail` read files of a run and nothing else.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ddpviz.trace.reader import RunError, RunReader
from ddpviz.trace.records import Exit, Process, RankIs, RowKind

# A worker of torchrun that ended badly, as its report prints it (torch/distributed/elastic/multiprocessing/errors).
_FAILURE = re.compile(r"rank\s*:\s*(\d+) \(local_rank: \d+\)\s*\n[^\n]*?exitcode\s*:\s*(-?\d+) \(pid: \d+\)")
_ABORTS = (-signal.SIGABRT, -signal.SIGSEGV)
_ENDED = -signal.SIGTERM  # what torchrun sends to the other workers when one has failed


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of a job as it stands in run.json."""

    status: str  # "finished" | "failed" | "hung" | "interrupted"
    exit_code: int
    ranks: list[dict[str, Any]] = field(default_factory=list)  # "rank", "exit_code", "signal", "ended_by"
    world_size: int | None = None
    notes: list[str] = field(default_factory=list)


def exit_code(returncode: int) -> int:
    """What a shell would call it: 128 + n for a process ended by signal n."""
    return returncode if returncode >= 0 else 128 - returncode


def torchrun_failures(output: str) -> dict[int, int]:
    """Rank to exit code (negative: signal) of the workers that torchrun's last failure report names; often not all."""
    start = output.rfind("FAILED\n")
    return {int(rank): int(code) for rank, code in _FAILURE.findall(output[max(start, 0) :])}


def last_words(run_dir: Path) -> dict[int, Exit | None]:
    """For each rank that wrote a trace, its exit record in its last attempt; None if it left none (it was killed)."""
    processes: dict[str, Process] = {}
    ranks: dict[str, int] = {}
    exits: dict[str, Exit] = {}
    try:
        reader = RunReader(run_dir)
    except RunError:
        return {}
    while batches := reader.read(16 << 20):
        for source, blocks in batches:
            for kind, block in blocks:
                if kind is not RowKind.RECORDS or isinstance(block, bytes):
                    continue
                for record in block:
                    if isinstance(record, Process):
                        processes[source] = record
                        if record.rank is not None:
                            ranks.setdefault(source, record.rank)
                    elif isinstance(record, RankIs):
                        ranks[source] = record.rank
                    elif isinstance(record, Exit) and record.reason != "detached":
                        exits[source] = record

    def age(source: str) -> tuple[int, int]:
        process = processes.get(source)
        return (process.attempt, process.wall_ns) if process else (0, 0)

    return {ranks[source]: exits.get(source) for source in sorted(ranks, key=age)}


def judge(
    returncode: int,
    *,
    stopped: str = "",
    failures: Mapping[int, int] | None = None,
    words: Mapping[int, Exit | None] | None = None,
    world_size: int | None = None,
) -> Outcome:
    """The outcome of a job whose first process ended with `returncode`.

    `stopped` is why ddpviz ended it ("" if it ended by itself). A rank that had finished its script and then aborted
    while its interpreter shut down makes no failed job: the trace decides.
    """
    failures, words = failures or {}, words or {}
    world = world_size if world_size is not None else max(words, default=-1) + 1 or None
    others_failed = any(end != _ENDED for end in failures.values())
    # A rank that had failed by itself and was ended in its last moments failed by itself.
    failures = {rank: end for rank, end in failures.items() if end != _ENDED or not _raised(words.get(rank))}
    ranks = [
        {
            "rank": rank,
            **_end(failures.get(rank), words.get(rank), returncode == 0 and not stopped),
            "ended_by": "launcher" if others_failed and failures.get(rank) == _ENDED else None,
        }
        for rank in range(world or 0)
    ]
    code = exit_code(returncode)
    if stopped:
        return Outcome(stopped, 130 if stopped == "interrupted" else code, ranks, world)
    if returncode == 0:
        return Outcome("finished", 0, ranks, world)
    all_done = bool(world) and all(_done(words.get(rank)) for rank in range(world or 0))
    aborted = [rank for rank, end in failures.items() if end in _ABORTS]
    only_aborts = bool(aborted) and all(end in (*_ABORTS, _ENDED) for end in failures.values())
    if all_done and (only_aborts or returncode in _ABORTS):
        return Outcome("finished", code, ranks, world, [_abort_note(aborted)])
    return Outcome("failed", code, ranks, world)


def tail(path: Path, size: int = 256 << 10) -> str:
    """The end of a log, "" if there is none."""
    try:
        with path.open("rb") as stream:
            stream.seek(0, 2)
            stream.seek(max(0, stream.tell() - size))
            return stream.read().decode(errors="replace")
    except OSError:
        return ""


def crash_words(log: str) -> str:
    """What a process printed as it crashed: the error that C++ names, or nothing."""
    lines = [line.strip() for line in log.splitlines() if "what():" in line]
    return lines[-1][:1000] if lines else ""


def _end(failure: int | None, word: Exit | None, all_well: bool) -> dict[str, Any]:
    if failure is not None:
        return {"exit_code": failure, "signal": None} if failure >= 0 else {"exit_code": None, "signal": -failure}
    if word is not None and word.reason == "signal" and word.code:
        number = -word.code if word.code < 0 else word.code - 128 if word.code > 128 else word.code
        return {"exit_code": None, "signal": number}
    if word is not None:
        return {"exit_code": 0 if word.code is None and word.reason == "finished" else word.code, "signal": None}
    return {"exit_code": 0 if all_well else None, "signal": None}


def _done(word: Exit | None) -> bool:
    return word is not None and word.reason == "finished" and not word.code


def _raised(word: Exit | None) -> bool:
    return word is not None and word.reason == "exception"


def _abort_note(ranks: Iterable[int]) -> str:
    which = ", ".join(str(rank) for rank in sorted(ranks))
    who = f"rank{'s' if ',' in which else ''} {which}" if which else "the process"
    return (
        f"{who} aborted while the interpreter shut down, after the script's last line: all work was done."
        " gloo does that at times; a dist.barrier() at the end of the script makes it rarer"
    )
