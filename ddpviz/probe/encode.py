"""Jobs in, packed rows and records out. Runs on the writer thread; knows no torch, keeps one small ledger a module.

The ledger holds the norm of each parameter's accumulated gradient, so that a pass which adds to some parameters only
still has the norm of them all. It is valid from a cleared window on, while every pass of the window was measured.
"""

from __future__ import annotations

import math
import struct
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ddpviz.probe import jobs, measure
from ddpviz.probe.jobs import Collective, Launch, PassJob, StepJob, completes
from ddpviz.trace import records as r
from ddpviz.trace.records import BucketFlag, LayerFlag, PassFlag, RowKind, StepFlag

_PACK = {kind: struct.Struct(r.struct_format(kind)).pack for kind in r.COLUMNS}
# plain numbers: an operation on an enum costs a microsecond, and this thread shares the interpreter with the training
_CLEARED, _SAMPLED, _HAS_LOSS = int(PassFlag.CLEARED), int(PassFlag.SAMPLED), int(PassFlag.HAS_LOSS)
_HAS_LOCAL_NORM, _HAS_NORM = int(PassFlag.HAS_LOCAL_NORM), int(PassFlag.HAS_NORM)
_HAS_LOCAL, _LAYER_HAS_NORM = int(LayerFlag.HAS_LOCAL), int(LayerFlag.HAS_NORM)
_BUCKET_HAS_LOCAL_NORM, _BUCKET_HAS_NORM = int(BucketFlag.HAS_LOCAL_NORM), int(BucketFlag.HAS_NORM)
_HAS_SUMS, _SENT, _FAILED = int(BucketFlag.HAS_SUMS), int(BucketFlag.SENT), int(BucketFlag.FAILED)
_HAS_GRAD, _HAS_PARAM = int(StepFlag.HAS_GRAD), int(StepFlag.HAS_PARAM)
_F32 = 3.4028234e38
_PATIENCE_NS = 2_000_000_000  # how long a number may be on its way before the row is written without it


def _f32(value: float) -> float:
    """The value as float32 can hold it: a large finite number saturates instead of looking like Inf."""
    return value if math.isnan(value) or math.isinf(value) else max(-_F32, min(_F32, value))


def measured(job: object) -> bool:
    """Whether numbers were taken for this job, which the budget pays for."""
    return isinstance(job, PassJob) and bool(job.flags & _SAMPLED)


@dataclass(slots=True)
class Ledger:
    window: int = -1
    whole: bool = False  # every pass since the window began was measured
    norms: dict[int, float] = field(default_factory=dict)
    sums: dict[int, float] = field(default_factory=dict)
    ever: set[int] = field(default_factory=set)  # parameters that ever received a gradient
    passes: int = 0
    nonfinite: bool = False


class Encoder:
    """Turns jobs into rows, in order. `memory()` gives the peak bytes written beside a pass."""

    def __init__(self, memory: Callable[[], int]) -> None:
        self.rows: dict[RowKind, list[bytes]] = defaultdict(list)
        self.records: list[r.Record] = []
        self._ledgers: dict[int, Ledger] = defaultdict(Ledger)
        self._memory = memory
        self.sizes: dict[int, int] = {}  # parameters of each module

    # --- readiness

    @staticmethod
    def ready(job: object, now: int) -> bool:
        """Whether everything the job waits for is here, or will not come any more."""
        if isinstance(job, PassJob):
            if now - job.end > _PATIENCE_NS:
                return True
            for x in (job.loss, job.local, job.local_sums, job.after, job.after_sums):
                if x is not None and not x.ready():
                    return False
            return not any(c.open for launch in job.launches for c in launch.collectives)
        if isinstance(job, StepJob):
            readings3 = (job.grad_bits, job.grad_norms, job.param_bits)
            return all(x is None or x.ready() for x in readings3) or now - job.end > _PATIENCE_NS
        if isinstance(job, Collective):
            return not job.open or now - job.begin > _PATIENCE_NS
        if isinstance(job, jobs.ClipJob):
            return job.norm is None or job.norm.ready() or now - job.at > _PATIENCE_NS
        if isinstance(job, jobs.ReplicaJob):
            return job.bits.ready() or now - job.at > _PATIENCE_NS
        return True

    # --- one job

    def take(self, job: object) -> None:
        """Encode one job into `rows` and `records`."""
        if isinstance(job, r.Record):
            if isinstance(job, r.Module):
                self.sizes[job.id] = len(job.params)
            self.records.append(job)
        elif isinstance(job, PassJob):
            self._pass(job)
        elif isinstance(job, StepJob):
            self._step(job)
        elif isinstance(job, Collective):
            self.rows[RowKind.COLLECTIVE].append(
                _PACK[RowKind.COLLECTIVE](
                    job.group, job.kind, (job.flags | (64 if job.failed else 0)) & 255, job.dtype, job.count, job.numel,
                    job.begin, job.done, job.site,
                )
            )  # fmt: skip
        elif isinstance(job, jobs.ClearJob):
            self.rows[RowKind.CLEAR].append(
                _PACK[RowKind.CLEAR](job.module, job.by_step, job.window, job.after, job.at, job.site)
            )
        elif isinstance(job, jobs.ClipJob):
            norm = job.norm.values()[0] if job.norm is not None and job.norm.ready() else None
            self.records.append(r.Clip(job.module, job.after, job.at, job.site, job.how, job.limit, norm))
        elif isinstance(job, jobs.ReplicaJob) and job.bits.ready():
            checksum = measure.mix([int(v) for v in job.bits.values()])
            self.records.append(r.Replica(job.module, job.step, checksum, job.at, job.final))

    def unused(self, final: bool) -> list[r.Record]:
        """One Unused record for each module that ran a pass."""
        return [
            r.Unused(m, [i for i in range(self.sizes.get(m, 0)) if i not in ledger.ever], ledger.passes, final)
            for m, ledger in self._ledgers.items()
            if ledger.passes
        ]

    # --- passes

    def _pass(self, job: PassJob) -> None:
        ledger = self._ledgers[job.module]
        flags = job.flags
        if job.window != ledger.window:
            ledger.window, ledger.norms, ledger.sums = job.window, {}, {}
            ledger.whole = bool(flags & _CLEARED)
        sampled = bool(flags & _SAMPLED)
        ledger.whole = ledger.whole and sampled
        ledger.passes += 1
        before = len(ledger.ever)
        ledger.ever.update(job.touched)
        if ledger.passes & (ledger.passes - 1) == 0 or (before != len(ledger.ever) and ledger.passes > 1):
            self.records += (
                self.unused(False)[-1:]
                if len(self._ledgers) == 1
                else [u for u in self.unused(False) if getattr(u, "module", -1) == job.module]
            )

        launched = {launch.bucket for launch in job.launches if launch.collectives}
        unreduced = _count_unreduced(job, launched)

        local = _by_param(job.local_order, job.local)
        local_sums = _by_param(job.local_order, job.local_sums)
        after = _by_param(job.after_order, job.after)
        after_sums = _by_param(job.after_order, job.after_sums)
        ledger.norms.update(local)
        ledger.sums.update(local_sums)
        norms_before, sums_before = dict(ledger.norms), dict(ledger.sums)
        self._first_nonfinite(job, ledger, local)
        if after:
            ledger.norms.update(after)
            ledger.sums.update(after_sums)

        local_norm = norm = 0.0
        whole = sampled and ledger.whole and bool(job.local is None or local or not job.touched)
        if whole:
            local_norm = math.sqrt(sum(v * v for v in norms_before.values()))
            flags |= _HAS_LOCAL_NORM
            if not launched:
                norm = local_norm
                flags |= _HAS_NORM
        if after and launched:
            norm = math.sqrt(sum(v * v for v in after.values()))
            flags |= _HAS_NORM
        loss = 0.0
        if job.loss is not None and job.loss.ready():
            loss = job.loss.values()[0]
            flags |= _HAS_LOSS

        self.rows[RowKind.PASS].append(
            _PACK[RowKind.PASS](
                job.module, flags, job.index, job.window, job.begin, job.end, job.collective,
                min(job.collectives, 0xFFFF), min(len(launched), 0xFFFF), min(len(job.buckets), 0xFFFF),
                len(job.touched), unreduced, job.forward_site, job.backward_site, local_norm, norm, loss,
                self._memory(), *job.forward,
            )
        )  # fmt: skip
        for launch in job.launches:
            self._bucket(job, launch, norms_before if whole else {}, sums_before if job.local_sums else {}, after,
                         after_sums)  # fmt: skip
        if sampled:
            self._layers(job, local, after)

    def _bucket(
        self,
        job: PassJob,
        launch: Launch,
        norms: dict[int, float],
        sums: dict[int, float],
        after: dict[int, float],
        after_sums: dict[int, float],
    ) -> None:
        params = job.buckets[launch.bucket] if launch.bucket < len(job.buckets) else ()
        colls = launch.collectives
        flags = 0
        local_norm = norm = sum_before = sum_after = 0.0
        if norms:
            local_norm = math.sqrt(sum(norms.get(p, 0.0) ** 2 for p in params))
            flags |= _BUCKET_HAS_LOCAL_NORM
        if after:
            norm = math.sqrt(sum(after.get(p, 0.0) ** 2 for p in params))
            flags |= _BUCKET_HAS_NORM
        if sums and after_sums:
            sum_before = sum(sums.get(p, 0.0) for p in params)
            sum_after = sum(after_sums.get(p, 0.0) for p in params)
            flags |= _HAS_SUMS
        if colls:
            flags |= _SENT
        if any(c.failed for c in colls):
            flags |= _FAILED
        done = 0 if any(c.open or not c.done for c in colls) else max((c.done for c in colls), default=0)
        self.rows[RowKind.BUCKET].append(
            _PACK[RowKind.BUCKET](
                job.module, job.layout, launch.bucket, flags, job.index,
                colls[0].count if colls else r.NO_INDEX, _ready(job, launch), launch.at, done,
                min(sum(c.nbytes for c in colls), 0xFFFFFFFF), _f32(local_norm), _f32(norm), _f32(sum_before),
                _f32(sum_after),
            )
        )  # fmt: skip

    def _layers(self, job: PassJob, local: dict[int, float], after: dict[int, float]) -> None:
        pack, module, index = _PACK[RowKind.LAYER], job.module, job.index
        params = sorted(local.keys() | after.keys())
        flags = [(p in local) * _HAS_LOCAL | (p in after) * _LAYER_HAS_NORM for p in params]
        values = [(p, local.get(p, 0.0), after.get(p, 0.0)) for p in params]
        try:
            rows = [pack(module, f, index, *v) for f, v in zip(flags, values, strict=True)]
        except OverflowError:  # finite, and beyond float32
            rows = [pack(module, f, index, p, _f32(a), _f32(b)) for f, (p, a, b) in zip(flags, values, strict=True)]
        self.rows[RowKind.LAYER] += rows

    def _first_nonfinite(self, job: PassJob, ledger: Ledger, local: dict[int, float]) -> None:
        if ledger.nonfinite:
            return
        for param in job.local_order:
            value = local.get(param, 0.0)
            if not math.isfinite(value):
                bucket = job.bucket_of[param] if param < len(job.bucket_of) else -1
                kind = "nan" if math.isnan(value) else "inf"
                self.records.append(r.NonFinite(job.module, job.index, param, kind, bucket))
                ledger.nonfinite = True
                return

    # --- steps

    def _step(self, job: StepJob) -> None:
        flags = job.flags
        grad = param = 0
        norm = 0.0
        if job.grad_bits is not None and job.grad_bits.ready():
            grad = measure.mix([int(v) for v in job.grad_bits.values()])
            flags |= _HAS_GRAD
            if job.grad_norms is not None and job.grad_norms.ready():
                norm = math.sqrt(sum(v * v for v in job.grad_norms.values()))
        if job.param_bits is not None and job.param_bits.ready():
            param = measure.mix([int(v) for v in job.param_bits.values()])
            flags |= _HAS_PARAM
        self.rows[RowKind.STEP].append(
            _PACK[RowKind.STEP](
                job.module, job.optimizer, flags, job.index, job.after, job.window, job.begin, job.end,
                job.collective, min(job.by_hand, 0xFFFFFFFF), job.unmanaged, job.site, grad, norm, param,
            )
        )  # fmt: skip


def _by_param(order: list[int], reading: Any) -> dict[int, float]:
    if reading is None or not reading.ready():
        return {}
    return dict(zip(order, reading.values(), strict=False))


def _ready(job: PassJob, launch: Launch) -> int:
    """When the bucket's last gradient arrived: noted by the parameter that should complete it; where another one did
    (a graph that runs in another order), the launch, which follows on it at once or later."""
    noted = job.closed.get(launch.bucket)
    if noted is None or noted > launch.at or launch.bucket >= len(job.buckets):
        return launch.at
    mine = set(job.buckets[launch.bucket])
    last = next((p for p in reversed(job.touched) if p in mine), -1)
    return noted if last == completes(job.buckets[launch.bucket], job.layout) else launch.at


def _count_unreduced(job: PassJob, launched: set[int]) -> int:
    """Touched parameters outside every bucket whose collective was issued."""
    if not launched:
        return len(job.touched)
    if len(launched) == len(job.buckets) and max(job.touched, default=0) < job.managed:
        return 0
    of = job.bucket_of
    return sum(1 for p in job.touched if (of[p] if p < len(of) else -1) not in launched)
