"""What becomes of the gradients: optimizer steps, zero_grad, clipping, GradScaler's skips.

A step is judged by what it used, so the facts are taken where it ends if its backward ran inside it (a closure).
Numbers are taken in measured windows only and never read here.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from ddpviz.probe import engine, guard, measure, torch_private
from ddpviz.probe.jobs import ClipJob, StepJob
from ddpviz.probe.measure import Reading
from ddpviz.probe.session import Session
from ddpviz.probe.watched import Watched
from ddpviz.trace import records as r
from ddpviz.trace.records import StepFlag

_now = time.monotonic_ns
# plain numbers: an operation on an enum costs a microsecond, on the training thread
_CLOSURE, _SKIPPED, _NO_GRADS = int(StepFlag.CLOSURE), int(StepFlag.SKIPPED), int(StepFlag.NO_GRADS)
_SAMPLED = int(StepFlag.SAMPLED)


@dataclass(slots=True)
class Held:
    """What one optimizer holds of the watched modules. Rebuilt when its groups or the watch change."""

    id: int
    ref: Any
    signature: tuple[int, ...]
    parts: list[tuple[Watched, list[int]]]  # module, indices of the parameters held
    rates: list[float] = field(default_factory=list)


@dataclass(slots=True)
class StepNow:
    """The step in progress."""

    held: Held
    begin: int
    site: int
    passes: list[int]
    grads: list[tuple[Reading, Reading] | None]


def held(session: Session, optimizer: Optimizer) -> Held:
    """The modules and parameters behind an optimizer, cached."""
    signature = [session.generation]
    for group in optimizer.param_groups:
        params = group["params"]
        signature += (len(params), id(params[0]), id(params[-1])) if params else (0,)
    known: Held | None = session.optimizers.get(id(optimizer))
    if known is not None and known.ref() is optimizer and known.signature == tuple(signature):
        return known
    parts = _parts(session, optimizer)
    signature[0] = session.generation  # looking may have found new parameters
    if known is not None and known.ref() is not optimizer:
        known = None  # gone, and its address is another's now
    number = known.id if known is not None else session.optimizers_seen
    session.optimizers_seen = max(session.optimizers_seen, number + 1)
    fresh = Held(number, torch_private.reference(optimizer), tuple(signature), parts)
    if known is None or [w.id for w, _ in known.parts] != [w.id for w, _ in parts]:
        strays = 0 if parts else _strays(session, optimizer)
        ids = [w.id for w, _ in parts]
        session.emit(r.Optimizer(number, type(optimizer).__name__, session.sites.here(5), ids, strays))
    elif known is not None:
        fresh.rates = known.rates
    session.optimizers[id(optimizer)] = fresh
    return fresh


def _strays(session: Session, optimizer: Optimizer) -> int:
    """Elements that it holds of no watched module, in a type of theirs: master weights in another are no mistake."""
    types = {p.dtype for w in session.modules for _, p in w.current()}
    return sum(p.numel() for g in optimizer.param_groups for p in g["params"] if p.dtype in types)


def _parts(session: Session, optimizer: Optimizer) -> list[tuple[Watched, list[int]]]:
    params = [p for g in optimizer.param_groups for p in g["params"]]
    if any(_find(session, p) is None for p in params):
        for watched in session.modules:
            watched.scan()
    found: dict[int, list[int]] = {}
    stray: list[tuple[str, nn.Parameter]] = []
    for k, p in enumerate(params):
        place = _find(session, p)
        if place is not None:
            found.setdefault(place[0].id, []).append(place[1])
        elif p.requires_grad:
            stray.append((f"parameter {k} of {type(optimizer).__name__} {tuple(p.shape)}", p))
    if stray and found:
        first = session.modules[min(found)]
        index = len(first.params)
        first.adopt(stray, "outside")
        found[first.id] += range(index, len(first.params))
    return [(session.modules[m], found[m]) for m in sorted(found)]


def _find(session: Session, param: Any) -> tuple[Watched, int] | None:
    found = None
    for watched in session.modules:
        index = watched.index_of.get(id(param))
        if index is not None and watched.params[index]() is param:
            if not watched.retired:
                return watched, index
            found = found or (watched, index)
    return found


# --- steps -----------------------------------------------------------------------------------------------------------


@guard.guarded
def _step_begins(session: Session, optimizer: Optimizer) -> None:
    if session.writer is None or not session.modules:
        return
    now = session.stepping
    if now is not None and now.held.ref() is not optimizer:
        return  # an optimizer within an optimizer: the outer one is the step
    what = held(session, optimizer)
    if not what.parts:
        return
    for watched, _ in what.parts:
        if watched.hand_after_step and watched.last_step >= 0 and not watched.window_passes:
            engine.replica(session, watched, final=False)
    session.progress += 1
    session.stepping = StepNow(
        held=what,
        begin=_now(),
        site=session.sites.here(5),
        passes=[w.passes for w, _ in what.parts],
        grads=[_gradients(session, w) for w, _ in what.parts],
    )


def _gradients(session: Session, watched: Watched) -> tuple[Reading, Reading] | None:
    """Checksum and norms of the gradients as the step uses them; None outside measured windows."""
    if not watched.sampled or (watched.cuda and measure.capturing()):
        return None
    began = _now()
    grads = [p.grad for _, p in watched.current() if p.grad is not None]
    taken = None
    if grads:
        sums, norms = measure.fingerprint(grads)
        taken = (measure.reading(sums), measure.reading(norms))
    session.budget.spend(_now() - began)
    return taken


@guard.guarded
def _step_ended(session: Session, optimizer: Optimizer) -> None:
    now = session.stepping
    if now is None or now.held.ref() is not optimizer:
        return
    session.stepping = None
    index, session.steps = session.steps, session.steps + 1
    ended = _now()
    for k, (watched, indices) in enumerate(now.held.parts):
        inside = watched.passes != now.passes[k]
        grads = _gradients(session, watched) if inside else now.grads[k]
        flags = _CLOSURE if inside else 0
        session.emit(_row(session, watched, now.held, indices, index, now, ended, flags, grads, True))
        watched.last_step = index
        watched.stepped = True
        watched.hand_after_step = 0
    _learning(session, now.held, optimizer, index)


def _row(
    session: Session,
    watched: Watched,
    what: Held,
    indices: list[int],
    index: int,
    now: StepNow,
    ended: int,
    flags: int,
    grads: tuple[Reading, Reading] | None,
    executed: bool,
) -> StepJob:
    alive = [(i, p) for i in indices if (p := watched.params[i]()) is not None]
    with_grad = [i for i, p in alive if p.grad is not None]
    if not with_grad and session.call is None and not flags & _CLOSURE:
        flags |= _NO_GRADS
    if watched.sampled:
        flags |= _SAMPLED
    running = session.call is not None and bool(watched.gather())  # a step inside its own backward
    job = StepJob(
        module=watched.id,
        optimizer=what.id,
        flags=flags,
        index=index,
        after=watched.passes - 1 + running,
        window=watched.window,
        begin=now.begin,
        end=ended,
        collective=watched.group.count,
        by_hand=watched.hand,
        unmanaged=sum(1 for i in with_grad if i >= watched.managed),
        site=now.site,
    )
    if grads is not None:
        job.grad_bits, job.grad_norms = grads
    if executed and watched.sampled and not (watched.cuda and measure.capturing()):
        began = _now()
        sums = measure.all_bits([p for _, p in watched.current()])
        if sums:
            job.param_bits = measure.reading(sums)
        session.budget.spend(_now() - began)
    return job


def _learning(session: Session, what: Held, optimizer: Optimizer, step: int) -> None:
    rates = [g.get("lr") for g in optimizer.param_groups]
    numbers = [float(x) for x in rates if isinstance(x, (int, float)) or (torch.is_tensor(x) and not x.is_cuda)]
    if numbers != what.rates:
        what.rates = numbers
        session.emit(r.Learning(what.id, numbers, step, _settings(optimizer)))


def _settings(optimizer: Optimizer) -> dict[str, list[float]]:
    """The other numbers in its parameter groups."""
    found: dict[str, list[float]] = {}
    for group in optimizer.param_groups:
        for name, value in group.items():
            if name in ("params", "lr", "initial_lr"):
                continue
            for number in value if isinstance(value, (tuple, list)) else (value,):
                if isinstance(number, (int, float)):
                    found.setdefault(name, []).append(float(number))
    return found


def hook_steps(session: Session) -> list[Any]:
    """Register torch's global optimizer hooks (public); returns their handles."""

    def before(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if not torch_private.is_compiling():
            _step_begins(session, optimizer)

    def after(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if not torch_private.is_compiling():
            _step_ended(session, optimizer)

    return [register_optimizer_step_pre_hook(before), register_optimizer_step_post_hook(after)]


# --- GradScaler, zero_grad, clipping ---------------------------------------------------------------------------------


@guard.guarded
def _skipped(session: Session, optimizer: Optimizer, begin: int, site: int) -> None:
    what = held(session, optimizer)
    if not what.parts:
        return
    index, session.skipped = session.skipped, session.skipped + 1
    now = StepNow(what, begin, site, [], [])
    for watched, indices in what.parts:
        session.emit(_row(session, watched, what, indices, index, now, _now(), _SKIPPED, None, False))
        watched.stepped = True


@guard.guarded
def _zeroed(session: Session, owner: Any, site: int) -> None:
    if session.writer is None:
        return
    for watched in session.modules:
        param = watched.sentinel() if watched.sentinel is not None else None
        if param is None or not watched.window_passes or watched.cleared:
            continue
        if isinstance(owner, Optimizer):
            mine = any(param is p for g in owner.param_groups for p in g["params"])
        else:
            ddp = watched.ref()
            mine = owner is ddp or owner is getattr(ddp, "module", None) or any(param is p for p in owner.parameters())
        if mine:
            engine.cleared(session, watched, site)
            watched.mark_version()


@guard.guarded
def _clipped(session: Session, params: Any, how: str, limit: float, result: Any, site: int) -> None:
    first = params if torch.is_tensor(params) else next((p for p in params if p.grad is not None), None)
    place = _find(session, first) if first is not None else None
    if place is None:
        return
    watched = place[0]
    norm = None
    if torch.is_tensor(result) and not (watched.cuda and measure.capturing()):
        norm = measure.reading([result.detach().clone()])
    session.emit(ClipJob(watched.id, watched.passes - 1, _now(), site, how, limit, norm))
    watched.mark_version()


def wrap_gradient_functions(session: Session, patch: Any) -> None:
    """Wrap zero_grad, clip_grad_* and GradScaler.step."""

    def zero(original: Any) -> Any:
        @functools.wraps(original)
        def zero_grad(self: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(self, *args, **kwargs)
            if not torch_private.is_compiling():
                _zeroed(session, self, session.sites.here(2))
            return result

        return zero_grad

    def clip(original: Any) -> Any:
        @functools.wraps(original)
        def clip_grad(*args: Any, **kwargs: Any) -> Any:
            params = args[0] if args else kwargs.get("parameters")
            if isinstance(params, Iterator):  # it can be walked once only
                params = list(params)
                args, kwargs = ((params, *args[1:]), kwargs) if args else (args, {**kwargs, "parameters": params})
            result = original(*args, **kwargs)
            if not torch_private.is_compiling() and session.modules:
                limit = args[1] if len(args) > 1 else kwargs.get("max_norm", kwargs.get("clip_value"))
                number = float(limit) if isinstance(limit, (int, float)) else 0.0
                _clipped(session, params, original.__name__, number, result, session.sites.here(2))
            return result

        return clip_grad

    def scaler(original: Any) -> Any:
        @functools.wraps(original)
        def step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            before, begin, site = session.steps, _now(), session.sites.here(2)
            result = original(self, optimizer, *args, **kwargs)
            if session.steps == before and session.writer is not None and isinstance(optimizer, Optimizer):
                _skipped(session, optimizer, begin, site)
            return result

        return step

    patch(Optimizer, "zero_grad", zero)
    patch(nn.Module, "zero_grad", zero)
    for owner in (nn.utils, nn.utils.clip_grad):
        for name in ("clip_grad_norm_", "clip_grad_value_"):
            if hasattr(owner, name):
                patch(owner, name, clip)
    from torch.amp import GradScaler

    patch(GradScaler, "step", scaler)
