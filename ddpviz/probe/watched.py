"""One DDP module under watch: which parameter lies in which bucket, and what the pass in progress has done so far.

Holds weak references only, so a model is freed as it would be. Filled by hooks on the engine's thread, read at the end
of the engine call.
"""

from __future__ import annotations

import functools
import time
from collections import deque
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ddpviz.probe import guard, measure, torch_private
from ddpviz.probe.jobs import Forward, Launch, completes
from ddpviz.trace import records as r

if TYPE_CHECKING:
    from ddpviz.probe.collectives import GroupWatch
    from ddpviz.probe.session import Session

_now = time.monotonic_ns


class Watched:
    """State of one DDP module. `arrived`, `touched`, `launches` and `local` belong to the engine call in progress."""

    def __init__(self, session: Session, ddp: Any, group: GroupWatch, site: int) -> None:
        self.session = session
        self.id = len(session.modules)
        self.ref = torch_private.reference(ddp)
        self.group = group
        managed = torch_private.managed_parameters(ddp)
        self.names = [n for n, _ in managed]
        self.params: list[Any] = [torch_private.reference(p) for _, p in managed]
        self.index_of: dict[int, int] = {id(p): i for i, (_, p) in enumerate(managed)}
        self.managed = len(managed)
        self.numels = [p.numel() for _, p in managed]
        self.numel = sum(self.numels)
        self.frozen = {n for n, p in ddp.module.named_parameters() if not p.requires_grad}
        first = managed[0][1] if managed else torch.empty(0)
        self.cuda = first.is_cuda
        self.itemsize = first.element_size()
        self.views = bool(getattr(ddp, "gradient_as_bucket_view", False))
        self.sparse = any(torch_private.makes_sparse_gradients(ddp, p) for _, p in managed)
        self.sharing: list[Watched] = []  # other wrappers of the same parameters: a network that was wrapped again
        self.retired = False  # ... one of which is in use instead
        self.handles: list[Any] = []
        self.closers: list[Any] = []
        self.takers: list[Any] = []

        self.layout = -1
        self.buckets: list[list[int]] = []
        self.bucket_of: list[int] = [-1] * self.managed
        self.bucket_numels: list[int] = []
        self.rebuilt = False
        self.learned: list[list[int]] = []  # buckets of the pass in progress, where they are not those of the layout
        self.any_order = bool(getattr(ddp, "find_unused_parameters", False)) or bool(
            getattr(ddp, "static_graph", False)
        )

        self.passes = 0
        self.synced = 0  # passes with at least one bucket sent
        self.window = 0
        self.window_passes = 0
        self.window_began = _now()
        self.sampled = session.budget.takes(0)
        self.cleared = True  # the gradients are clear: the next pass begins a window
        self.clear_told = False  # ... and a clear row says so already
        self.stepped = False  # a step has used the gradients since they were last added to
        self.last_step = -1
        self.hand = 0  # elements put through collectives outside passes since the last pass
        self.hand_after_step = 0
        self.sentinel: Any = None  # parameter that the last pass touched last, weakly
        self.sentinel_version = -1
        self.forwards: deque[Forward] = deque(maxlen=64)
        self.forwards_since = 0  # forwards with gradients since the last pass
        self.unanswered = 0  # ... of them told as unanswered so far
        self.joined = False
        self.comm_watch: Any = None  # commhook.Watch, where that is the way of seeing
        self.after_pass = False  # a pass ended since the newest forward
        self.hook_name = ""
        self.sums = False  # linear functionals are wanted: a communication hook is at work

        self.arrived: list[Tensor] = []  # parameters whose gradient was added to, in order; emptied with the pass
        self.touched: dict[int, None] = {}  # the same by index, as far as `gather` has come
        self.closed: dict[int, int] = {}  # bucket -> when its last parameter's gradient arrived
        self.launches: list[Launch] = []
        self.local: dict[int, Tensor] = {}
        self.local_sums: dict[int, Tensor] = {}
        self.everything = frozenset(range(self.managed))
        self.last_touched: set[int] | frozenset[int] = set()  # parameters that the last pass reached
        self.count_at_begin = 0
        self.flag_at_begin: bool | None = None
        self.pointers: tuple[int, dict[int, int]] = (-2, {})

        session.emit(
            r.Module(
                id=self.id,
                name=type(ddp.module).__name__,
                group=group.id,
                params=list(self.names),
                numels=list(self.numels),
                dtype=str(first.dtype).removeprefix("torch."),
                itemsize=self.itemsize,
                device=str(first.device),
                site=site,
                at=_now(),
                options=_options(ddp),
            )
        )
        for _, p in managed:
            self.hook(p)
        layout = torch_private.initial_layout(ddp, [p for _, p in managed])
        self.set_layout(layout if layout is not None else [list(range(self.managed))])

    @property
    def armed(self) -> bool:
        """Whether the gradients that have just come are this wrapper's business: it sent some, or had a forward."""
        return bool(self.launches) or self.expects

    @property
    def expects(self) -> bool:
        """Whether a forward of this wrapper waits for its backward."""
        return bool(self.forwards) and not self.after_pass

    def shares(self, other: Watched) -> bool:
        """Whether both wrap a parameter."""
        places = [(self.params[i](), other.index_of[k]) for k, i in self.index_of.items() if k in other.index_of]
        return any(p is not None and other.params[k]() is p for p, k in places)

    def forget_pass(self) -> None:
        """Drop what the engine call in progress has left here."""
        self.arrived.clear()
        self.touched, self.launches, self.local, self.local_sums = {}, [], {}, {}
        self.closed, self.learned = {}, []

    # --- parameters

    def hook(self, param: nn.Parameter) -> None:
        """Have `param` report each accumulated gradient. A list's own `append` is the hook: no Python frame runs."""
        try:
            self.handles.append(torch_private.accumulate_hook(param, self.arrived.append))
        except RuntimeError:  # frozen at this moment; `scan` comes back to it
            pass

    def gather(self) -> dict[int, None]:
        """The parameters touched so far in this pass, in order of arrival."""
        if self.arrived:
            indices: dict[Any, None] = dict.fromkeys(map(self.index_of.get, map(id, self.arrived)))
            indices.pop(None, None)
            self.touched.update(indices)
            self.arrived.clear()
        return self.touched

    def _hook_closers(self) -> None:
        """Have the parameter that completes each bucket note the time."""
        for handle in self.closers:
            handle.remove()
        self.closers = []
        for k, bucket in enumerate(self.buckets):
            closer = completes(bucket, self.layout)
            param = self.params[closer]() if 0 <= closer < len(self.params) else None
            if param is None:
                continue

            self.closers.append(torch_private.accumulate_hook(param, functools.partial(_closing, self, k)))

    def look_closely(self) -> None:
        """Measure every gradient as it arrives, in measured windows: where the reducer would change it under us (views
        of the bucket, sparse gradients), or where a communication hook's result is to be held against its input."""
        wanted = self.sampled and (self.views or self.sparse or self.sums)
        if wanted == bool(self.takers):
            return
        for handle in self.takers:
            handle.remove()
        self.takers = []
        if not wanted:
            return
        for index, param in self.current():
            self.takers.append(torch_private.accumulate_hook(param, functools.partial(_take, self, index)))

    def read(self, params: list[tuple[int, nn.Parameter]] | list[tuple[int, Tensor]]) -> None:
        """Measure these parameters' accumulated gradients, before anything is averaged."""
        if self.cuda and measure.capturing():
            return
        began = _now()
        grads = [(i, g) for i, p in params if (g := p.grad) is not None]
        self.local.update(zip([i for i, _ in grads], measure.norms([g for _, g in grads]), strict=True))
        if self.sums:
            for index, grad in grads:
                self.local_sums[index] = measure.total(grad)
        self.session.budget.spend(_now() - began)

    def read_bucket(self, bucket: int) -> None:
        """Measure what a bucket is about to average, unless that was done on arrival."""
        if self.sampled and not self.takers:
            chosen = ((i, self.params[i]()) for i in (self.learned or self.buckets)[bucket])
            self.read([(i, p) for i, p in chosen if p is not None])

    def read_rest(self) -> None:
        """Measure what this pass added to and no bucket took."""
        left = [i for i in self.touched if i not in self.local]
        if left:
            self.read([(i, p) for i in left if (p := self.params[i]()) is not None])

    def current(self) -> list[tuple[int, nn.Parameter]]:
        """(index, parameter) of the parameters that are alive, unmanaged ones included, replaced ones left out."""
        return [(i, p) for i, ref in enumerate(self.params) if (p := ref()) is not None]

    def scan(self) -> None:
        """Look for parameters that the reducer does not manage: added, replaced or unfrozen after wrapping."""
        ddp = self.ref()
        if ddp is None:
            return
        ignored = set(getattr(ddp, "parameters_to_ignore", ()) or ())
        found: list[tuple[str, nn.Parameter, str]] = []
        for name, param in ddp.module.named_parameters():
            if not param.requires_grad or id(param) in self.index_of or name in ignored:
                continue
            reason = "replaced" if name in self.names else "unfrozen" if name in self.frozen else "added"
            found.append((name, param, reason))
        for reason in ("added", "replaced", "unfrozen"):
            self.adopt([(n, p) for n, p, why in found if why == reason], reason)

    def adopt(self, found: list[tuple[str, nn.Parameter]], reason: str) -> None:
        """Watch parameters that the reducer does not manage, and say so."""
        if not found:
            return
        first = len(self.params)
        for name, param in found:
            if reason == "replaced" and name in self.names[: self.managed]:
                self.params[self.names.index(name)] = _gone  # the reducer's old parameter is nobody's any more
            index = len(self.params)
            self.names.append(name)
            self.numels.append(param.numel())
            self.params.append(torch_private.reference(param))
            self.bucket_of.append(-1)
            self.index_of[id(param)] = index
            self.hook(param)
        self.session.generation += 1
        names = [n for n, _ in found]
        numels = [p.numel() for _, p in found]
        self.session.emit(r.Unmanaged(self.id, names, numels, first, reason, self.passes - 1, _now()))

    # --- buckets

    def set_layout(self, buckets: list[list[int]]) -> None:
        """A new bucket layout is in force from the next pass on."""
        self.layout += 1
        self.buckets = buckets
        for k, bucket in enumerate(buckets):
            for p in bucket:
                if p < len(self.bucket_of):
                    self.bucket_of[p] = k
        self.bucket_numels = [sum(self.numels[p] for p in b if p < self.managed) for b in buckets]
        sizes = [n * self.itemsize for n in self.bucket_numels]
        self.session.emit(r.Layout(self.id, self.layout, [list(b) for b in buckets], sizes, _now()))
        self._hook_closers()

    def look_for_rebuild(self) -> None:
        """The reducer rebuilds its buckets once, in the forward after the first synchronised pass."""
        ddp = self.ref()
        layout = torch_private.rebuilt_layout(ddp) if ddp is not None else None
        if layout:
            self.rebuilt = True
            if layout != self.buckets:
                self.set_layout(layout)
        elif self.synced > 4:
            self.rebuilt = True  # it will not come any more: find_unused_parameters rebuilds nothing

    def bucket_sent(self, numel: int, learn: bool) -> int:
        """Index of the bucket whose all-reduce this is: launches go in order. -1 if it is none of this module's.
        `learn`: a layout that DDP has not told yet is believed from what it sends."""
        k = len(self.launches)
        touched = self.gather()
        fits = not self.learned and k < len(self.bucket_numels) and self.bucket_numels[k] == numel
        # another collective of the same size is told by this: a bucket goes when its last gradient has arrived
        if fits and (self.any_order or all(p in touched for p in self.buckets[k])):
            return k
        return -1 if self.rebuilt or not learn else self._learn(k, numel)

    def _learn(self, k: int, numel: int) -> int:
        """A bucket of a layout that DDP does not tell yet: after the reducer has rebuilt its buckets, the logging data
        lag one forward behind. A bucket is then what has arrived and has not gone; where others wait for their turn, it
        is what arrived last (it is the one that they waited for) or first (its turn has come)."""
        gone = self.learned or self.buckets[:k]
        sent = {p for bucket in gone for p in bucket}
        waiting = [p for p in self.touched if p < self.managed and p not in sent]
        bucket = _run_at_an_end(waiting, self.numels, numel)
        if not bucket:
            return -1
        self.learned = [*gone, bucket]
        self.closed[k] = _now()
        return k

    def take_learned(self) -> None:
        """At the end of a pass: the layout that its launches showed is the one in force."""
        if self.learned:
            sent = {p for bucket in self.learned for p in bucket}
            rest = [p for p in range(self.managed) if p not in sent]
            layout, self.learned = [*self.learned, *([rest] if rest else [])], []
            self.set_layout(layout)

    # --- gradients

    def grads_gone(self) -> bool:
        """Whether the gradients were cleared behind our back since the last pass (`.grad = None` or zeroed by hand)."""
        param = self.sentinel() if self.sentinel is not None else None
        if param is None:
            return False
        grad = param.grad
        if grad is None:
            return True
        version = grad._version
        if version == self.sentinel_version or self.cuda:
            return False
        self.sentinel_version = version
        return not bool(grad.detach().any())

    def mark_version(self) -> None:
        """Remember the state of the gradients at the end of a pass (or after an edit that is explained)."""
        param = self.sentinel() if self.sentinel is not None else None
        grad = param.grad if param is not None else None
        self.sentinel_version = grad._version if grad is not None else -1

    def grad_pointers(self) -> dict[int, int]:
        """data_ptr -> parameter index of the gradients as they are since the last pass."""
        if self.pointers[0] != self.passes:
            self.pointers = (self.passes, {p.grad.data_ptr(): i for i, p in self.current() if p.grad is not None})
        return self.pointers[1]

    def detach(self) -> None:
        for handle in (*self.handles, *self.closers, *self.takers):
            handle.remove()
        self.handles, self.closers, self.takers = [], [], []


def _run_at_an_end(params: list[int], numels: list[int], numel: int) -> list[int]:
    """The longest run of parameters at the end of the list, else one at its beginning, with so many elements."""
    size = sum(numels[p] for p in params)
    for i, p in enumerate(params):
        if size == numel:
            return params[i:]
        size -= numels[p]
    for i, p in enumerate(params):
        size += numels[p]
        if size == numel:
            return params[: i + 1]
    return []


@guard.guarded
def _closing(watched: Watched, bucket: int, param: Tensor) -> None:
    watched.closed[bucket] = _now()
    watched.session.last = watched


@guard.guarded
def _take(watched: Watched, index: int, param: Tensor) -> None:
    watched.read([(index, param)])


def _gone() -> None:
    return None


def _options(ddp: Any) -> dict[str, bool | int | float | str]:
    names = (
        "find_unused_parameters",
        "gradient_as_bucket_view",
        "static_graph",
        "forward_sync_buffers",
        "skip_all_reduce_unused_params",
    )
    options: dict[str, bool | int | float | str] = {n: bool(getattr(ddp, n)) for n in names if hasattr(ddp, n)}
    broadcast = options.pop("forward_sync_buffers", None)
    options["broadcast_buffers"] = bool(getattr(ddp, "broadcast_buffers", True) if broadcast is None else broadcast)
    cap = getattr(ddp, "bucket_bytes_cap", None)
    if isinstance(cap, int):
        options["bucket_cap_mb"] = cap / (1 << 20)
    if getattr(ddp, "mixed_precision", None) is not None:
        options["mixed_precision"] = str(ddp.mixed_precision)
    return options
