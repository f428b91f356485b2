"""One simulated rank: what a program for `simcluster.Cluster` may do, and the rows and records that it leaves."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ddpviz.trace import records as r

if TYPE_CHECKING:
    from simcluster import Cluster

Floats = npt.NDArray[np.float64]
MONOTONIC = 5_000_000_000_000  # the first host's monotonic clock when the run starts
WALL = 1_750_000_000_000_000_000
DIM = 4  # simulated elements of a parameter, whatever its numel says
SCRIPT = "/home/user/train.py"
LINES = {
    "model": (9, "model = DDP(net)"),
    "optimizer": (10, "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)"),
    "forward": (17, "loss = criterion(model(x), y)"),
    "backward": (18, "loss.backward()"),
    "step": (19, "optimizer.step()"),
    "clear": (20, "optimizer.zero_grad()"),
    "by_hand": (21, "dist.all_reduce(flat)"),
    "barrier": (30, "dist.barrier()"),
    "clip": (22, "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)"),
}


@dataclass(frozen=True)
class Net:
    """A DDP module to simulate."""

    name: str = "MLP"
    params: tuple[tuple[str, int], ...] = (("0.weight", 1280), ("0.bias", 64), ("2.weight", 640), ("2.bias", 10))
    buckets: tuple[tuple[int, ...], ...] = ((3, 2), (1, 0))
    ranks: tuple[int, ...] | None = None  # None: all
    options: dict[str, Any] = field(default_factory=lambda: {"find_unused_parameters": False, "bucket_cap_mb": 25})

    @property
    def numel(self) -> int:
        return sum(n for _, n in self.params)

    def bytes_of(self, bucket: Sequence[int]) -> int:
        return 4 * sum(self.params[p][1] for p in bucket)


@dataclass
class Want:
    """A collective that a rank enters: what it brings, and when."""

    group: int
    count: int
    kind: r.CollectiveKind
    numel: int
    values: list[Floats]
    at: int
    begun: int
    module: int = -1
    bucket: int = -1
    pass_index: int = -1
    site: int = 0


Got = tuple[list[Floats], int]  # the mean of what the ranks brought, and when it was there
Steps = Generator[Want, Got, None]


class Gone(Exception):
    """Ends a program: the process was killed (no last word)."""


class Failed(Exception):
    """Ends a program the way an exception of the user's does."""


def checksum(vectors: Iterable[Floats]) -> int:
    return int.from_bytes(hashlib.blake2b(b"".join(v.tobytes() for v in vectors), digest_size=8).digest(), "little")


@dataclass
class State:
    """One rank's copy of one module."""

    net: Net
    group: int
    weights: list[Floats]
    grads: list[Floats | None]
    index: int = 0
    window: int = 0
    cleared: bool = True
    by_hand: int = 0
    stepped: bool = False


class Rank:
    """What a program may do. Methods that meet other ranks are generators: `yield from` them."""

    def __init__(self, cluster: Cluster, rank: int, host: str, offset: int) -> None:
        self.cluster, self.rank, self.host, self.offset = cluster, rank, host, offset
        self.now = MONOTONIC + offset + 2_000_000_000 + rank * 10_000
        self.random = np.random.default_rng([cluster.seed, rank])
        self.records: list[r.Record] = []
        self.rows: dict[r.RowKind, list[bytes]] = {k: [] for k in r.RowKind if k is not r.RowKind.RECORDS}
        self.counts: dict[int, int] = {}
        self.sites: dict[tuple[str, int], int] = {}
        self.steps = self.skipped = 0
        self.noise = cluster.noise
        self.late_ns = 0
        self.states: dict[int, State] = {}
        self.joined = False
        self.exit_code: int | None = None
        self.signal: int | None = None
        self._open()

    def _open(self) -> None:
        c = self.cluster
        self.say(
            r.Process(
                pid=4000 + self.rank,
                host=self.host,
                job="127.0.0.1:29500",
                attempt=c.attempt,
                argv=["train.py"],
                python="3.11.9",
                torch="2.14.1",
                ddpviz="0.1.0",
                observed_by="collectives",
                wall_ns=WALL + (self.now - MONOTONIC - self.offset) + c.wall_skew.get(self.host, 0),
                monotonic_ns=self.now,
                budget=None,
            ),
            r.RankIs(rank=self.rank, world_size=c.size, local_rank=self.rank, backend="gloo", at=self.tick(1000)),
        )
        for g, ranks in enumerate(c.groups):
            if self.rank in ranks:
                self.say(r.Group.of(g, str(g), ranks, "gloo", self.tick(1000)))
        mine = []
        for m, net in enumerate(c.nets):
            if self.rank not in (net.ranks or range(c.size)):
                continue
            mine.append(m)
            weights = [np.random.default_rng([c.seed, m, p]).normal(size=DIM) for p in range(len(net.params))]
            self.states[m] = State(net, c.group_of(net), weights, [None] * len(net.params))
            names, numels = [n for n, _ in net.params], [n for _, n in net.params]
            self.say(
                r.Module(
                    id=m,
                    name=net.name,
                    group=c.group_of(net),
                    params=names,
                    numels=numels,
                    dtype="float32",
                    itemsize=4,
                    device="cpu",
                    site=self.site("model"),
                    at=self.tick(1000),
                    options=dict(net.options),
                ),
                r.Layout(m, 0, [list(b) for b in net.buckets], [net.bytes_of(b) for b in net.buckets], self.tick(1000)),
            )
        for m in mine:
            self.say(r.Optimizer(id=m, name="SGD", site=self.site("optimizer"), modules=[m]))

    # what a program sees

    def tick(self, ns: int) -> int:
        self.now += ns
        return self.now

    def say(self, *records: r.Record) -> None:
        self.records.extend(records)

    def site(self, what: str, line: int | None = None) -> int:
        at, code = LINES[what]
        key = (what, line or at)
        if key not in self.sites:
            self.sites[key] = len(self.sites) + 1
            self.say(r.Site(id=self.sites[key], file=SCRIPT, line=line or at, function="<module>", code=code))
        return self.sites[key]

    def backward(
        self,
        sync: bool = True,
        module: int = 0,
        *,
        only: Sequence[int] | None = None,
        nan: int | None = None,
        same_data: bool = False,
        raised: bool = False,
        no_sync_forward: bool | None = None,
        no_sync_backward: bool | None = None,
        forward: bool = True,
        unused: Sequence[int] = (),
        loss: float | None = None,
        in_step: bool = False,
    ) -> Steps:
        """One pass. `only`: send just these buckets; `nan`: that parameter's gradient is NaN."""
        s, c = self.states[module], self.cluster
        net, flags = s.net, r.PassFlag.FLAGS_KNOWN
        forward_site, backward_site = self.site("forward"), self.site("backward")
        forward_at = self.now
        self.tick(int(self.random.integers(300_000, 400_000)) + self.late_ns)
        begin = self.now
        seed = [c.seed, 99, module, s.index] if same_data else [c.seed, self.rank, module, s.index]
        noise = np.random.default_rng(seed)
        touched = [p for p in range(len(net.params)) if p not in unused]
        for p in touched:
            true = np.random.default_rng([c.seed, 7, module, p]).normal(size=DIM)
            grad = true + self.noise * noise.normal(size=DIM)
            if nan == p:
                grad = grad * np.nan
                if not np.isnan(np.concatenate([g for g in s.grads if g is not None] or [np.zeros(1)])).any():
                    self.say(r.NonFinite(module, s.index, p, "nan"))
            s.grads[p] = grad if s.grads[p] is None else s.grads[p] + grad
        local = [None if g is None else g.copy() for g in s.grads]
        count = self.counts.get(s.group, 0)
        send = [] if not sync else [b for b in range(len(net.buckets)) if only is None or b in only]
        wants = []
        span = 200_000 * len(net.params)
        for n, b in enumerate(send):
            ready = begin + span * (n + 1) // (len(send) + 1)
            held = [p for p in net.buckets[b] if s.grads[p] is not None]
            wants.append((b, ready, held, self._want(s, module, b, ready, held)))
        self.now = begin + span
        for b, ready, held, want in wants:
            want.begun = self.now
            got, done = yield want
            done += self.offset
            before = _norm([s.grads[p] for p in held])
            sum_before = float(sum(s.grads[p].sum() for p in held)) if held else 0.0  # type: ignore[union-attr]
            for p, value in zip(held, got, strict=True):
                s.grads[p] = value
            self.row(
                r.RowKind.BUCKET,
                module=module,
                layout=0,
                index=b,
                flags=7 | r.BucketFlag.SENT,
                count=want.count,
                ready=ready,
                launch=ready + 2000,
                done=done,
                wire_bytes=net.bytes_of(net.buckets[b]),
                local_norm=before,
                norm=_norm([s.grads[p] for p in held]),
                sum_before=sum_before,
                sum_after=float(sum(v.sum() for v in got)) if held else 0.0,
                **{"pass": s.index},
            )
            self.now = max(self.now, done + 3000)
        off = not sync
        for known, bit in ((no_sync_forward, 2), (no_sync_backward, 4)):
            flags |= r.PassFlag(bit) if (off if known is None else known) else r.PassFlag(0)
        sampled = c.sampled(s.index)
        flags |= r.PassFlag.FORWARD_SEEN if forward else r.PassFlag(0)
        flags |= r.PassFlag.RAISED if raised else r.PassFlag(0)
        flags |= r.PassFlag.CLEARED if s.cleared else r.PassFlag(0)
        flags |= r.PassFlag.IN_STEP if in_step else r.PassFlag(0)
        flags |= r.PassFlag.REDUCER_DONE if len(send) == len(net.buckets) else r.PassFlag(0)
        flags |= r.PassFlag.HAS_LOSS
        if sampled:
            flags |= r.PassFlag.SAMPLED | r.PassFlag.HAS_LOCAL_NORM | r.PassFlag.HAS_NORM
        covered = {p for b in send for p in net.buckets[b]}
        self.row(
            r.RowKind.PASS,
            module=module,
            flags=flags,
            index=s.index,
            window=s.window,
            begin=begin,
            end=self.tick(5000),
            collective=count,
            collectives=len(send),
            launched=len(send),
            buckets=len(net.buckets),
            touched=len(touched),
            unreduced=sum(p not in covered for p in touched),
            forward_site=forward_site,
            backward_site=backward_site,
            local_norm=_norm(local),
            norm=_norm(s.grads),
            loss=loss if loss is not None else 2.3 / (1 + 0.05 * s.index),
            memory=500_000_000 + 1000 * s.index,
            forward=forward_at if forward else 0,
            forward_end=begin - 20_000 if forward else 0,
        )
        if sampled and c.layers:
            for p in touched:
                self.row(
                    r.RowKind.LAYER,
                    module=module,
                    flags=3,
                    param=p,
                    local_norm=_norm([local[p]]),
                    norm=_norm([s.grads[p]]),
                    **{"pass": s.index},
                )
        s.index += 1
        s.cleared, s.stepped, s.by_hand = False, False, 0
        if raised:
            raise Failed("RuntimeError: simulated")

    def step(
        self,
        module: int = 0,
        *,
        skipped: bool = False,
        closure: bool = False,
        line: int | None = None,
        rate: float = 0.1,
        optimizer: int | None = None,
    ) -> None:
        """One optimizer.step on this module (or GradScaler's skip of it)."""
        s = self.states[module]
        begin = self.tick(20_000)
        flags = r.StepFlag(0)
        if skipped:
            flags |= r.StepFlag.SKIPPED
        if closure:
            flags |= r.StepFlag.CLOSURE
        grads = [g for g in s.grads if g is not None]
        if not grads:
            flags |= r.StepFlag.NO_GRADS
        else:
            flags |= r.StepFlag.HAS_GRAD
            if not skipped:
                s.weights = [w if g is None else w - rate * g for w, g in zip(s.weights, s.grads, strict=True)]
                s.stepped = True
        if not skipped:
            flags |= r.StepFlag.HAS_PARAM | r.StepFlag.SAMPLED
        index = self.skipped if skipped else self.steps
        self.row(
            r.RowKind.STEP,
            module=module,
            optimizer=module if optimizer is None else optimizer,
            flags=flags,
            index=index,
            after=s.index - 1,
            window=s.window,
            begin=begin,
            end=self.tick(30_000),
            collective=self.counts.get(s.group, 0),
            by_hand=s.by_hand,
            unmanaged=0,
            site=self.site("step", line),
            grad_checksum=checksum(grads),
            grad_norm=_norm(s.grads),
            param_checksum=checksum(s.weights),
        )
        if skipped:
            self.skipped += 1
        else:
            self.steps += 1

    def clear(self, module: int = 0) -> None:
        """optimizer.zero_grad()."""
        s = self.states[module]
        if any(g is not None for g in s.grads):
            self.row(
                r.RowKind.CLEAR,
                module=module,
                by_step=int(s.stepped),
                window=s.window,
                after=s.index - 1,
                at=self.tick(5000),
                site=self.site("clear"),
            )
            s.window += 1
        s.grads = [None] * len(s.grads)
        s.cleared, s.stepped = True, False

    def set_grads(self, module: int = 0) -> None:
        """Gradients from torch.autograd.grad, put into .grad by hand: no pass."""
        s = self.states[module]
        s.grads = [self.random.normal(size=DIM) for _ in s.grads]
        self.tick(900_000)

    def all_reduce_gradients(self, module: int = 0, *, flattened: bool = True) -> Steps:
        """What people do by hand: average the gradients outside any pass."""
        s = self.states[module]
        flags = r.CollectiveFlag(0) if flattened else r.CollectiveFlag.GRADIENTS
        got = yield from self._collective(
            s.group, r.CollectiveKind.ALL_REDUCE, s.net.numel, _held(s.grads), "by_hand", flags
        )
        s.grads = list(got)
        s.by_hand += s.net.numel

    def average_parameters(self, module: int = 0) -> Steps:
        """Local SGD's exchange."""
        s = self.states[module]
        flags = r.CollectiveFlag.PARAMETERS
        got = yield from self._collective(
            s.group, r.CollectiveKind.ALL_REDUCE, s.net.numel, s.weights, "by_hand", flags
        )
        s.weights = got
        s.by_hand += s.net.numel
        self.say(r.Replica(module, self.steps - 1, checksum(s.weights), self.tick(1000)))

    def barrier(self, group: int = 0) -> Steps:
        yield from self._collective(group, r.CollectiveKind.BARRIER, 0, [], "barrier", r.CollectiveFlag(0))

    def edit_parameters(self, module: int = 0) -> None:
        """An in-place edit on this rank alone."""
        self.states[module].weights[0] = self.states[module].weights[0] + 1.0

    def join(self, module: int = 0) -> None:
        """Out of inputs inside a join context: from here the rank shadows the others."""
        self.say(r.Joined(module, self.states[module].index - 1, self.tick(1000)))
        self.joined = True

    def die(self, signal: int = 9) -> None:
        self.signal = signal
        raise Gone

    def fail(self, error: str = "ValueError: simulated") -> None:
        raise Failed(error)

    # what makes rows

    def row(self, kind: r.RowKind, /, **values: Any) -> None:
        self.rows[kind].append(struct.pack(r.struct_format(kind), *(values[name] for name, _ in r.COLUMNS[kind])))

    def count(self, group: int) -> int:
        n = self.counts.get(group, 0)
        self.counts[group] = n + 1
        return n

    def _want(self, s: State, module: int, bucket: int, at: int, held: list[int]) -> Want:
        return Want(
            s.group,
            self.count(s.group),
            r.CollectiveKind.ALL_REDUCE,
            s.net.bytes_of(s.net.buckets[bucket]) // 4,
            [np.asarray(s.grads[p]) for p in held],
            at - self.offset,
            at,
            module,
            bucket,
            s.index,
            self.site("backward"),
        )

    def _collective(
        self, group: int, kind: r.CollectiveKind, numel: int, values: list[Floats], what: str, flags: r.CollectiveFlag
    ) -> Generator[Want, Got, list[Floats]]:
        begin = self.tick(10_000)
        site = self.site(what)
        want = Want(group, self.count(group), kind, numel, values, begin - self.offset, begin, site=site)
        got, done = yield want
        self.now = max(self.now, done + self.offset)
        self.row(
            r.RowKind.COLLECTIVE,
            group=group,
            kind=kind,
            flags=flags,
            dtype=1,
            count=want.count,
            numel=numel,
            begin=begin,
            end=self.now,
            site=site,
        )
        return got


def _held(grads: list[Floats | None]) -> list[Floats]:
    return [np.zeros(DIM) if g is None else g for g in grads]


def _norm(grads: Iterable[Floats | None]) -> float:
    return float(np.sqrt(sum(float((g**2).sum()) for g in grads if g is not None)))
