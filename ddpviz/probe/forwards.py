"""DDP's constructor, forward, join and communication hooks: who is watched, and what was declared. Decides no verdict.

The forward is wrapped on the class, not by a module hook, which would add a graph break under `torch.compile`.
"""

from __future__ import annotations

import functools
import time
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ddpviz.probe import collectives, engine, guard, measure, torch_private
from ddpviz.probe.jobs import Forward, Launch
from ddpviz.probe.session import Session, declared_flag
from ddpviz.probe.watched import Watched
from ddpviz.trace import records as r

_now = time.monotonic_ns


def watched_of(session: Session, ddp: Any) -> Watched | None:
    """The watch of a DDP module, if there is one."""
    for watched in session.modules:
        if watched.ref() is ddp:
            return watched
    return None


def watch(session: Session, ddp: Any, site: int) -> Watched | None:
    """Put a DDP module under watch (once): its group, its parameters' hooks, its bucket layout."""
    known = watched_of(session, ddp)
    if known is not None:
        return known
    if torch_private.reducer(ddp) is None:
        session.note("a DDP module without a reducer (every parameter's all-reduce is delayed) is not watched")
        return None
    session.open()
    session.generation += 1
    collectives.find_groups(session)
    group = collectives.group_of(session, ddp.process_group)
    made = Watched(session, ddp, group, site)
    for other in session.modules:
        if made.shares(other):
            made.sharing.append(other)
            other.sharing.append(made)
    session.modules.append(made)
    if made.cuda and session.device_clock is None:
        session.device_clock = measure.DeviceClock()
    layout = torch_private.rebuilt_layout(ddp)
    if layout:
        made.rebuilt = True
        if layout != made.buckets:
            made.set_layout(layout)
    name = session.hooks.get(id(torch_private.reducer(ddp)))
    if name:
        hook_is(session, made, name)
    made.scan()
    made.look_closely()
    if session.comm_hooks is not None:
        from ddpviz.probe import sources

        sources.watch_reducer(session, made, ddp)
    return made


def hook_is(session: Session, watched: Watched, name: str) -> None:
    """A user's communication hook is at work on this module."""
    watched.hook_name, watched.sums = name, True
    watched.look_closely()
    session.emit(r.HookIs(watched.id, name, name.startswith("BuiltinCommHookType"), _now()))


@guard.guarded
def _forward_begins(session: Session, ddp: Any) -> Forward | None:
    watched = watched_of(session, ddp)
    if watched is None:  # unpickled or deep-copied: no constructor ran
        watched = watch(session, ddp, session.sites.here(3))
    session.progress += 1
    if watched is None or not torch.is_grad_enabled():
        return None
    if watched.after_pass:
        watched.forwards.clear()
        watched.after_pass = False
    unanswered(session, watched)
    made = Forward(declared_flag(ddp), session.sites.here(3), _now())
    watched.forwards.append(made)
    watched.forwards_since += 1
    return made


def unanswered(session: Session, watched: Watched) -> None:
    """A forward with gradients that no backward followed, before the next such forward or the end."""
    if watched.forwards_since and watched.unanswered < 100:
        watched.unanswered += 1
        session.emit(
            r.Unanswered(watched.id, watched.passes - 1, _now(), watched.forwards[-1].site if watched.forwards else 0)
        )


@guard.guarded
def _built(session: Session, ddp: Any) -> None:
    watch(session, ddp, session.sites.here(4))


@guard.guarded
def _raised(session: Session, where: str, error: BaseException, ddp: Any) -> None:
    watched = watched_of(session, ddp)
    engine.refused(session, where, error, session.sites.here(4), [watched] if watched is not None else [])


@guard.guarded
def _joined(session: Session, ddp: Any) -> None:
    watched = watched_of(session, ddp)
    if watched is not None and not watched.joined:
        watched.joined = True
        session.emit(r.Joined(watched.id, watched.passes - 1, _now()))


def wrap_ddp(session: Session, patch: Any) -> None:
    """Wrap DDP's constructor, forward and join hook."""

    def init(original: Any) -> Any:
        @functools.wraps(original)
        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
            session.open()
            session.constructing += 1
            try:
                original(self, *args, **kwargs)
            except Exception as error:
                _raised(session, "constructor", error, self)
                raise
            finally:
                session.constructing -= 1
            _built(session, self)

        return __init__

    def forward(original: Any) -> Any:
        @functools.wraps(original)
        def forward(self: Any, *inputs: Any, **kwargs: Any) -> Any:
            if torch_private.is_compiling():
                return original(self, *inputs, **kwargs)
            mine = _forward_begins(session, self)
            session.forwarding += 1
            try:
                return original(self, *inputs, **kwargs)
            except Exception as error:
                _raised(session, "forward", error, self)
                raise
            finally:
                session.forwarding -= 1
                if mine is not None:
                    mine.end = _now()

        return torch_private.in_place_of(forward, original)

    def join_part(note: bool) -> Any:
        def make(original: Any) -> Any:
            @functools.wraps(original)
            def hook(self: Any, *args: Any, **kwargs: Any) -> Any:
                if note:
                    _joined(session, getattr(self, "ddp", None))
                session.joining += 1
                try:
                    return original(self, *args, **kwargs)
                finally:
                    session.joining -= 1

            return hook

        return make

    patch(DistributedDataParallel, "__init__", init)
    patch(DistributedDataParallel, "forward", forward)
    joiner = torch_private.join_hook_class()
    if joiner is not None:
        patch(joiner, "main_hook", join_part(True))
        patch(joiner, "post_hook", join_part(False))


def wrap_comm_hooks(session: Session, patch: Any) -> None:
    """See users' communication hooks at work; they stay the ones that run. For the collectives way of observing."""

    def registering(original: Any) -> Any:
        def _register_comm_hook(reducer: Any, state: Any, comm_hook: Any) -> Any:
            _named(session, reducer, getattr(comm_hook, "__qualname__", type(comm_hook).__name__))

            @functools.wraps(comm_hook)
            def hook(state: Any, bucket: Any) -> Any:
                before = session.hooking
                _hook_begins(session, reducer, bucket)
                try:
                    return comm_hook(state, bucket)
                finally:
                    session.hooking = before

            return original(reducer, state, hook)

        return _register_comm_hook

    def builtin(original: Any) -> Any:
        def _register_builtin_comm_hook(reducer: Any, comm_hook_type: Any) -> Any:
            result = original(reducer, comm_hook_type)
            _named(session, reducer, str(comm_hook_type))
            return result

        return _register_builtin_comm_hook

    patch(dist, "_register_comm_hook", registering)
    patch(dist, "_register_builtin_comm_hook", builtin)


@guard.guarded
def _named(session: Session, reducer: Any, name: str) -> None:
    session.hooks[id(reducer)] = name
    for watched in session.modules:
        if torch_private.reducer(watched.ref()) is reducer:
            hook_is(session, watched, name)


@guard.guarded
def _hook_begins(session: Session, reducer: Any, bucket: Any) -> None:
    for watched in session.modules:
        ddp = watched.ref()
        if ddp is not None and torch_private.reducer(ddp) is reducer:
            session.hooking = (watched, int(bucket.index()))
            if session.call is not None:
                watched.launches.append(Launch(int(bucket.index()), _now(), []))
            return
