"""Where a pass begins and ends: the one function that `backward` and `autograd.grad` go through.

It sees `.module` bypass, `retain_graph`, reentrant checkpointing (nested calls) and passes that raise; a pass is one
outermost call in which parameters of a DDP module received gradients. Nothing here reads a number from a tensor.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ddpviz.probe import guard, measure, torch_private
from ddpviz.probe.jobs import ClearJob, PassJob, ReplicaJob
from ddpviz.probe.session import Session, declared_flag
from ddpviz.probe.watched import Watched
from ddpviz.trace import records as r
from ddpviz.trace.records import PassFlag

_now = time.monotonic_ns
# plain numbers: an operation on an enum costs a microsecond, and a pass needs ten
_FORWARD_SEEN, _FLAGS_KNOWN = int(PassFlag.FORWARD_SEEN), int(PassFlag.FLAGS_KNOWN)
_NO_SYNC_FORWARD, _NO_SYNC_BACKWARD = int(PassFlag.NO_SYNC_FORWARD), int(PassFlag.NO_SYNC_BACKWARD)
_RAISED, _CAPTURED, _CLEARED = int(PassFlag.RAISED), int(PassFlag.CAPTURED), int(PassFlag.CLEARED)
_IN_STEP, _IN_JOIN = int(PassFlag.IN_STEP), int(PassFlag.IN_JOIN)
_COMM_HOOK, _SAMPLED = int(PassFlag.COMM_HOOK), int(PassFlag.SAMPLED)


@dataclass(slots=True)
class EngineCall:
    begin: int
    site: int
    loss: measure.Reading | None
    captured: bool


def wrap_engine(session: Session, patch: Any) -> None:
    """Wrap the engine call. `patch(owner, name, make)` replaces `owner.name` by `make(original)`."""
    place = torch_private.engine_call()
    if place is None:
        session.note("this torch has no engine call that ddpviz knows: backward passes are not seen")
        return

    def make(original: Any) -> Any:
        def _engine_run_backward(t_outputs: Any, *args: Any, **kwargs: Any) -> Any:
            if torch_private.is_compiling():
                return original(t_outputs, *args, **kwargs)
            begin(session, t_outputs)
            raised: BaseException | None = None
            try:
                return original(t_outputs, *args, **kwargs)
            except BaseException as error:
                raised = error
                raise
            finally:
                end(session, raised)
                raised = None

        return _engine_run_backward

    patch(place[0], place[1], make)


@guard.guarded
def begin(session: Session, outputs: Any) -> None:
    """An engine call begins; only the outermost one is a pass."""
    session.depth += 1
    if session.depth > 1 or session.writer is None:
        return
    session.progress += 1
    captured = any(w.cuda for w in session.modules) and measure.capturing()
    loss = None
    if not captured and len(outputs) == 1 and outputs[0].numel() == 1 and outputs[0].layout is torch.strided:
        loss = measure.scalar(outputs[0])
    for watched in session.modules:
        _before(session, watched)
        if watched.comm_watch is not None:
            watched.comm_watch.before_backward()
    session.call = EngineCall(_now(), session.sites.here(3), loss, captured)


def _before(session: Session, watched: Watched) -> None:
    watched.flag_at_begin = declared_flag(watched.ref())
    watched.count_at_begin = watched.group.count
    if watched.synced and not watched.rebuilt:
        watched.look_for_rebuild()
    if watched.passes < 3:
        watched.scan()
    if not watched.cleared and watched.window_passes and watched.grads_gone():
        cleared(session, watched, site=0)
    if watched.cleared and watched.window_passes:
        _new_window(session, watched)
    if watched.hand_after_step and watched.last_step >= 0:
        replica(session, watched, final=False)


def _new_window(session: Session, watched: Watched) -> None:
    """The gradients were cleared since the last pass: the next one opens a window, measured or not."""
    if not watched.clear_told:
        session.emit(ClearJob(watched.id, int(watched.stepped), watched.window, watched.passes - 1, _now(), 0))
    now = _now()
    session.budget.window_ended(watched.sampled, now - watched.window_began)
    watched.window += 1
    watched.window_passes = 0
    watched.window_began = now
    watched.clear_told = False
    count = watched.group.count if watched.synced else watched.window
    watched.sampled = session.budget.takes(count)
    watched.look_closely()
    watched.cleared = True


def cleared(session: Session, watched: Watched, site: int) -> None:
    """The module's gradients are gone (zero_grad, or by hand). Tells it once for each window."""
    if watched.window_passes and not watched.clear_told:
        session.emit(ClearJob(watched.id, int(watched.stepped), watched.window, watched.passes - 1, _now(), site))
        watched.clear_told = True
    watched.cleared = True


def replica(session: Session, watched: Watched, final: bool) -> None:
    """Checksum the parameters: after collectives by hand that followed a step, or at the end."""
    watched.hand_after_step = 0
    if not final and not watched.sampled:
        return
    began = _now()
    sums = measure.all_bits([p for _, p in watched.current()])
    if sums:
        session.emit(ReplicaJob(watched.id, watched.last_step, _now(), final, measure.reading(sums)))
    session.budget.spend(_now() - began)


@guard.guarded
def end(session: Session, raised: BaseException | None) -> None:
    """An engine call ended, or raised: the outermost one closes the pass of every module that got gradients."""
    session.depth -= 1
    if session.depth > 0:
        return
    session.depth = 0
    call, session.call = session.call, None
    if call is None:
        return
    session.progress += 1
    touched = _in_use(session, [w for w in session.modules if w.gather()])
    if raised is not None and not isinstance(raised, (KeyboardInterrupt, SystemExit)):
        refused(session, "backward", raised, call.site, touched)
    if not touched:
        for watched in session.modules:
            if watched.launches:
                watched.launches, watched.learned = [], []
            watched.scan()  # gradients that no hook of ours heard of: were the parameters replaced?
        return
    for watched in touched:
        try:
            _finish(session, watched, call, raised is not None)
        except Exception as error:
            watched.forget_pass()
            guard.fault("engine.finish", error)


def _in_use(session: Session, touched: list[Watched]) -> list[Watched]:
    """Without wrappers of a network that was wrapped again and is trained through the other wrapper: this pass is not
    theirs, and neither are the steps that follow."""
    for watched in touched:
        if not watched.sharing:
            continue
        others = [w for w in watched.sharing if w in touched]
        retired = not watched.armed and (watched.retired or any(w.armed for w in others))
        if retired != watched.retired:
            watched.retired = retired
            session.generation += 1
        if retired:
            watched.forget_pass()
    return [w for w in touched if not w.retired]


def _finish(session: Session, watched: Watched, call: EngineCall, raised: bool) -> None:
    ended = _now()
    sampled = watched.sampled and not call.captured
    if sampled:
        watched.read_rest()
    watched.take_learned()
    touched, watched.touched = watched.touched, {}
    closed, watched.closed = watched.closed, {}
    launches, watched.launches = watched.launches, []
    local, watched.local = watched.local, {}
    local_sums, watched.local_sums = watched.local_sums, {}
    ddp = watched.ref()
    flags = _RAISED if raised else 0
    forward = watched.forwards.popleft() if watched.forwards else None
    if forward is not None:
        flags |= _FORWARD_SEEN
        if forward.flag is not None:
            flags |= _FLAGS_KNOWN if forward.flag else _FLAGS_KNOWN | _NO_SYNC_FORWARD
    watched.after_pass = True
    watched.forwards_since = 0
    if watched.flag_at_begin is not None:
        if not watched.flag_at_begin:
            flags |= _NO_SYNC_BACKWARD
        if forward is None:
            flags |= _FLAGS_KNOWN
    if call.captured:
        flags |= _CAPTURED
    if watched.cleared:
        flags |= _CLEARED
    if session.stepping is not None:
        flags |= _IN_STEP
    if ddp is not None and torch_private.in_join(ddp):
        flags |= _IN_JOIN
    if watched.hook_name:
        flags |= _COMM_HOOK
    if sampled:
        flags |= _SAMPLED
    job = PassJob(
        module=watched.id,
        index=watched.passes,
        window=watched.window,
        flags=flags,
        begin=call.begin,
        end=ended,
        collective=watched.count_at_begin,
        collectives=watched.group.count - watched.count_at_begin,
        forward_site=forward.site if forward is not None else 0,
        forward=(forward.begin, forward.end) if forward is not None else (0, 0),
        backward_site=call.site,
        layout=watched.layout,
        buckets=watched.buckets,
        bucket_of=watched.bucket_of,
        managed=watched.managed,
        itemsize=watched.itemsize,
        touched=list(touched),
        closed=closed,
        launches=launches,
        loss=call.loss,
    )
    if sampled:
        _numbers(session, watched, job, local, local_sums)
    watched.passes += 1
    watched.window_passes += 1
    watched.synced += any(launch.collectives for launch in launches)
    watched.cleared = watched.stepped = False
    watched.hand = 0
    last = next(reversed(touched))
    watched.sentinel = watched.params[last]
    watched.mark_version()
    watched.last_touched = set(touched) if len(touched) < watched.managed else watched.everything
    session.passes_seen += 1
    session.emit(job)


def _numbers(
    session: Session, watched: Watched, job: PassJob, local: dict[int, Tensor], local_sums: dict[int, Tensor]
) -> None:
    began = _now()
    if local:
        job.local_order = list(local)
        job.local = measure.reading(list(local.values()))
        if len(local_sums) == len(local):  # fewer where sums were wanted only from the middle of this pass on
            job.local_sums = measure.reading([local_sums[i] for i in job.local_order])
    if job.launches:
        grads = [(i, g) for i, p in watched.current() if (g := p.grad) is not None]
        if grads:
            job.after_order = [i for i, _ in grads]
            job.after = measure.reading(measure.norms([g for _, g in grads]))
            if watched.sums:
                job.after_sums = measure.reading([measure.total(g) for _, g in grads])
    session.budget.spend(_now() - began)


def refused(session: Session, where: str, error: BaseException, site: int, modules: list[Watched]) -> None:
    """PyTorch raised out of a DDP call: keep its words, and the parameters that they leave out."""
    watched = modules[0] if modules else (session.modules[0] if len(session.modules) == 1 else None)
    missing: list[int] = []
    if watched is not None:
        now = set(watched.gather())
        seen = now or watched.last_touched
        missing = [i for i in range(watched.managed) if i not in seen][:100]
    session.emit(
        r.Refused(
            at=_now(),
            where=where,
            type=type(error).__name__,
            message=str(error)[:4000],
            site=site,
            module=watched.id if watched is not None else -1,
            pass_index=watched.passes if watched is not None else -1,
            params=missing,
        )
    )
