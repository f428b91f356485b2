"""A simulated cluster that writes real traces: ranks, modules, groups, and collectives that really meet.

A program is a generator for one rank that reads like a training script. The k-th collective of a group meets the k-th
on every other rank, else the ranks hang. Gradients and parameters are small real vectors, so that norms, sums and
checksums hang together: replicas diverge here because a step was not averaged, not because a flag was set.

    def train(rank):
        for i in range(8):
            yield from rank.backward(sync=i % 4 == 3)
            if i % 4 == 3:
                rank.step()
                rank.clear()

    folder = Cluster(ranks=2).run(train).write(tmp_path)      # through create_run and TraceFile
    timeline = Cluster(ranks=2).run(train).timeline()         # or folded in memory
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from simrank import DIM, LINES, MONOTONIC, SCRIPT, WALL, Failed, Gone, Got, Net, Rank, Steps, Want

from ddpviz.timeline.model import Timeline
from ddpviz.trace import records as r
from ddpviz.trace.reader import Batch

__all__ = ["DIM", "Cluster", "Net", "Program", "Rank", "Steps"]

Program = Callable[[Rank], Steps]


class Cluster:
    """Simulated ranks, modules and groups. `run` a program, then `write` it, or ask for the `timeline`."""

    def __init__(
        self,
        ranks: int = 2,
        nets: Sequence[Net] = (Net(),),
        *,
        seed: int = 0,
        noise: float = 0.5,
        hosts: Sequence[str] | None = None,
        wall_skew: dict[str, int] | None = None,
        layers: bool = True,
        sampled: Callable[[int], bool] = lambda index: True,
        attempt: int = 0,
        title: str = "synthetic",
    ) -> None:
        self.size, self.nets, self.seed, self.noise, self.layers, self.sampled = (
            ranks,
            list(nets),
            seed,
            noise,
            layers,
            sampled,
        )
        self.attempt, self.title, self.hung = attempt, title, False
        self.wall_skew = wall_skew or {}  # ns by which a host's wall clock is fast
        self.groups: list[tuple[int, ...]] = [tuple(range(ranks))]
        for net in nets:
            if net.ranks is not None and net.ranks not in self.groups:
                self.groups.append(net.ranks)
        names = list(hosts or ["node-a"] * ranks)
        offsets = {h: 777_000_000_000 * i for i, h in enumerate(dict.fromkeys(names))}
        self.ranks = [Rank(self, k, names[k], offsets[names[k]]) for k in range(ranks)]
        self._running: dict[int, Steps] = {}
        self._waits: dict[int, Want] = {}
        self._files: dict[int, Any] = {}
        self.folder: Path | None = None

    def group_of(self, net: Net) -> int:
        return self.groups.index(net.ranks) if net.ranks is not None else 0

    # running

    def start(self, program: Program) -> Cluster:
        self._running = {rank.rank: program(rank) for rank in self.ranks}
        for k in list(self._running):
            self._resume(k, None)
        return self

    def run(self, program: Program) -> Cluster:
        self.start(program)
        while self.advance():
            pass
        return self

    def advance(self) -> bool:
        """Completes one collective; False when nothing is left to do (all ended, or the rest waits for ever)."""
        for want in list(self._waits.values()):
            members = [k for k in self.groups[want.group] if not self.ranks[k].joined]
            theirs = [self._waits.get(k) for k in members]
            if all(w is not None and w.group == want.group and w.count == want.count for w in theirs):
                wants = [w for w in theirs if w is not None]
                if len({(w.kind, w.numel) for w in wants}) > 1:
                    continue  # all-reduce against barrier: neither ever ends
                done = max(w.at for w in wants) + 60_000 + want.numel // 20
                total = len(self.groups[want.group])
                mean = [np.sum(v, axis=0) / total for v in zip(*(w.values for w in wants), strict=True)]
                for k in members:
                    del self._waits[k]
                for k in self.groups[want.group]:
                    if self.ranks[k].joined:
                        self._shadow(self.ranks[k], want, done)
                for k in members:
                    self._resume(k, ([v.copy() for v in mean], done))
                return True
        if self._waits:
            self.hung = True
            for k, w in self._waits.items():
                self._stuck(self.ranks[k], w)
            self._waits.clear()
        return False

    def _resume(self, k: int, got: Got | None) -> None:
        rank, program = self.ranks[k], self._running[k]
        try:
            self._waits[k] = next(program) if got is None else program.send(got)
        except StopIteration:
            rank.exit_code = 0
            rank.say(r.Exit(at=rank.tick(1000), code=0, reason="finished"))
        except Gone:
            rank.tick(1000)
        except Failed as error:
            rank.exit_code = 1
            rank.say(
                r.Exit(at=rank.tick(1000), code=1, reason="exception", error=str(error), site=rank.site("backward"))
            )

    @staticmethod
    def _shadow(rank: Rank, want: Want, done: int) -> None:
        rank.row(
            r.RowKind.COLLECTIVE,
            group=want.group,
            kind=want.kind,
            flags=0,
            dtype=1,
            count=rank.count(want.group),
            numel=want.numel,
            begin=want.at + rank.offset,
            end=done + rank.offset,
            site=0,
        )
        rank.now = max(rank.now, done + rank.offset)

    @staticmethod
    def _stuck(rank: Rank, w: Want) -> None:
        line, code = (
            (LINES["backward"] if w.module >= 0 else LINES["barrier"])[0],
            "loss.backward" if w.module >= 0 else "barrier",
        )
        doing = "all-reduce" if w.kind is r.CollectiveKind.ALL_REDUCE else w.kind.name.lower()
        rank.say(
            r.Stack(
                at=rank.tick(12_000_000_000),
                since=w.begun,
                doing=doing,
                frames=[f"{SCRIPT}:{line} {code}"],
                site=w.site,
                group=w.group,
                count=w.count,
                kind=int(w.kind),
                numel=w.numel,
                module=w.module,
                bucket=w.bucket,
                pass_index=w.pass_index,
            )
        )

    # what comes of it

    def info(self, *, live: bool = False) -> dict[str, Any]:
        """run.json."""
        failed = any(k.signal or k.exit_code for k in self.ranks)
        status = "running" if live else "hung" if self.hung and not failed else "failed" if failed else "finished"
        return {
            "schema": "ddpviz.run/1",
            "id": "synthetic",
            "title": self.title,
            "command": ["train.py"],
            "status": status,
            "exit_code": None if live else 1 if failed else 0,
            "world_size": self.size,
            "backend": "gloo",
            "backend_reason": "no CUDA device",
            "host": self.ranks[0].host,
            "started_wall_ns": WALL,
            "started_monotonic_ns": MONOTONIC,
            "ended_wall_ns": None,
            "ddpviz": "0.1.0",
            "budget": None,
            "redirected": False,
            "observe": "auto",
            "notes": [],
            "logs": {},
            "pid": 1,
            "ranks": [{"rank": k.rank, "exit_code": k.exit_code, "signal": k.signal} for k in self.ranks],
        }

    def source(self, rank: Rank) -> str:
        return f"127.0.0.1_29500-{self.attempt}-{4000 + rank.rank}"

    def batches(self) -> list[Batch]:
        """Everything new since the last call, as the reader would hand it over."""
        out = []
        for rank in self.ranks:
            blocks: list[tuple[r.RowKind, Any]] = []
            if rank.records:
                blocks.append((r.RowKind.RECORDS, list(rank.records)))
                rank.records.clear()
            for kind, rows in rank.rows.items():
                if rows:
                    blocks.append((kind, b"".join(rows)))
                    rows.clear()
            if blocks:
                out.append(Batch(self.source(rank), blocks))
        return out

    def timeline(self) -> Timeline:
        from ddpviz.timeline.fold import Fold

        fold = Fold()
        fold.run(self.info())
        fold.feed(self.batches())
        return fold.timeline

    def open(self, base: Path) -> Path:
        """The run folder, status `running`; `flush` then appends what is new."""
        from ddpviz.trace.rundir import create_run

        self.folder = create_run(base, self.info(live=True))
        return self.folder

    def flush(self) -> None:
        from ddpviz.trace.writer import TraceFile

        assert self.folder is not None, "open() first"
        by_source = {self.source(k): k.rank for k in self.ranks}
        for batch in self.batches():
            rank = by_source[batch.source]
            if rank not in self._files:
                self._files[rank] = TraceFile(self.folder / "trace", batch.source)
            for kind, payload in batch.blocks:
                if isinstance(payload, list):
                    self._files[rank].records(payload)
                else:
                    self._files[rank].rows(kind, payload, len(payload) // struct.calcsize(r.struct_format(kind)))

    def finish(self) -> None:
        from ddpviz.trace.rundir import update_run

        self.flush()
        for file in self._files.values():
            file.close()
        self._files.clear()
        assert self.folder is not None
        keep = {"status", "exit_code", "ranks"}
        update_run(self.folder, **{k: v for k, v in self.info().items() if k in keep})

    def write(self, base: Path) -> Path:
        """All of it into a new run folder under `base`."""
        folder = self.open(base)
        self.finish()
        return folder
