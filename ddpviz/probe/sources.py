"""The ways to see an all-reduce, and which of them is at work here. All of them feed `collectives.begin` and `ended`.

- "collectives": the process groups' own hooks (torch >= 2.14), else kernels in front of c10d's operators. Sees every
  collective of every group; replaces nothing.
- "comm-hook": a transparent communication hook in each reducer, on request or where the first is not to be had. Names
  buckets exactly; sees no collective outside the reducer.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from ddpviz.probe import collectives, commhook, dispatched, forwards, guard, torch_private
from ddpviz.probe.collectives import GroupWatch
from ddpviz.probe.jobs import Collective, Launch
from ddpviz.probe.session import Session
from ddpviz.probe.watched import Watched
from ddpviz.trace.records import CollectiveKind

_now = time.monotonic_ns


def install(session: Session, patch: Any) -> None:
    """Put the way of seeing that the session names in place."""
    if session.observe == "comm-hook":
        hooks = session.comm_hooks = commhook.CommHooks(ReducerView(session))
        hooks.install()
        return
    forwards.wrap_comm_hooks(session, patch)
    if not torch_private.has_group_hooks():
        session.interception = made = dispatched.install(OperatorView(session))  # its kernels go when it goes
        if made is not None:
            patch.extra.append(made.remove)


class OperatorView:
    """Collectives seen in front of c10d's operators."""

    def __init__(self, session: Session) -> None:
        self._session = session

    @guard.guarded
    def before(self, group: Any, args: dispatched.PreArgs) -> None:
        session = self._session
        if session.writer is None or session.finished:
            return
        watch = collectives.group_of(session, group)
        kind = collectives.KINDS.get(args.name.name, CollectiveKind.UNKNOWN)
        tensors = args.input_tensors or args.output_tensors
        watch.by_op[args.op_id] = collectives.begin(session, watch, kind, tensors, args.async_op)

    @guard.guarded
    def after(self, group: Any, args: dispatched.PostArgs) -> None:
        session = self._session
        watch = session.groups.get(id(group))
        coll = watch.by_op.pop(args.op_id, None) if watch is not None else None
        if watch is None or coll is None:
            return
        if args.error or args.work is None:
            collectives.ended(session, watch, coll, failed=args.error)
        else:
            collectives.follow(session, watch, coll, args.work)
        collectives.settled(session, coll)


class ReducerView:
    """Buckets seen by our communication hook: which went out, and when each came back."""

    def __init__(self, session: Session) -> None:
        self._session = session

    @guard.guarded
    def launched(
        self, module: int, bucket: int, tensor: Tensor, divided: bool, parameters: Sequence[Tensor]
    ) -> tuple[GroupWatch, Collective] | None:
        session = self._session
        watched: Watched = session.modules[module]
        self._layout(watched, bucket, parameters)
        if session.call is not None:
            if bucket < len(watched.buckets):
                watched.read_bucket(bucket)
            watched.launches.append(Launch(bucket, _now(), []))
        if not divided:  # a user's hook: what it sends is its own affair, and not seen from here
            watched.sums = True  # from the next measured window on
        before = session.hooking
        session.hooking = (watched, bucket)
        try:
            coll = collectives.begin(session, watched.group, CollectiveKind.ALL_REDUCE, [tensor], True)
        finally:
            session.hooking = before
        return watched.group, coll

    @guard.guarded
    def finished(self, token: tuple[GroupWatch, Collective] | None, result: Tensor | None, error: bool) -> None:
        if token is not None:
            collectives.ended(self._session, token[0], token[1], failed=error)

    @staticmethod
    def _layout(watched: Watched, bucket: int, parameters: Sequence[Tensor]) -> None:
        """The hook is told the bucket's parameters: correct the layout where it is another one."""
        indices = [watched.index_of[id(p)] for p in parameters if id(p) in watched.index_of]
        if bucket < len(watched.buckets) and sorted(watched.buckets[bucket]) == sorted(indices):
            return
        layout = [list(b) for b in watched.buckets]
        while len(layout) <= bucket:
            layout.append([])
        taken = set(indices)
        layout = [[p for p in b if p not in taken] for b in layout]
        layout[bucket] = indices
        watched.set_layout([b for k, b in enumerate(layout) if b or k <= bucket])


@guard.guarded
def watch_reducer(session: Session, watched: Watched, ddp: Any) -> None:
    if session.comm_hooks is not None:
        watched.comm_watch = session.comm_hooks.watch(watched.id, ddp)
