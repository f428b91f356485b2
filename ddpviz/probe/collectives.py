"""Every collective of every process group, counted; and which of them carry a bucket of which module.

Two sources feed the same two functions, `begin` and `ended`: the process group's own collective hooks (torch >= 2.14),
installed here; elsewhere the patched functions and the comm hook. An all-reduce belongs to the module whose gradient
arrived last, if it has just the size of that module's next bucket (launches go in order); a user's communication hook
says its bucket itself.
"""

from __future__ import annotations

import functools
import secrets
import time
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ddpviz.probe import guard, torch_private
from ddpviz.probe.jobs import Collective, Launch
from ddpviz.probe.session import Session, current
from ddpviz.probe.watched import Watched
from ddpviz.trace import records as r
from ddpviz.trace.records import CollectiveFlag, CollectiveKind

_now = time.monotonic_ns
_DTYPE = {getattr(torch, name): i for i, name in enumerate(r.DTYPES) if hasattr(torch, name)}
# plain numbers: an operation on an enum costs a microsecond, on the training thread
_ASYNC, _IN_PASS = int(CollectiveFlag.ASYNC), int(CollectiveFlag.IN_PASS)
_ALL_REDUCE = int(CollectiveKind.ALL_REDUCE)
KINDS = {
    "ALLREDUCE": CollectiveKind.ALL_REDUCE,
    "BROADCAST": CollectiveKind.BROADCAST,
    "REDUCE": CollectiveKind.REDUCE,
    "ALLGATHER": CollectiveKind.ALL_GATHER,
    "REDUCE_SCATTER": CollectiveKind.REDUCE_SCATTER,
    "ALLTOALL": CollectiveKind.ALL_TO_ALL,
    "BARRIER": CollectiveKind.BARRIER,
    "SCATTER": CollectiveKind.SCATTER,
    "GATHER": CollectiveKind.GATHER,
}
_NOT_COUNTED = {"SEND", "RECV", "SPLIT", "NEW_WINDOW"}  # point to point, and what moves no data


class GroupWatch:
    """One process group of this process, with its own count of collectives."""

    def __init__(self, session: Session, group: Any) -> None:
        self.id = len(session.groups)
        self.count = 0
        self.pending: dict[int, Collective] = {}  # by count: issued, and not known to have ended
        self.by_op: dict[int, Collective] = {}  # by the group's op id, between its pre and post hook
        self.ref = torch_private.reference(group)
        self.hook_ids: tuple[int, int] | None = None
        self.told = False
        self.ranks: list[int] = []
        self.tell(session)

    def tell(self, session: Session) -> None:
        """Say who the members are, as soon as torch knows (a group is watched from before that)."""
        group = self.ref()
        ranks = torch_private.group_ranks(group) if group is not None else []
        self.ranks = ranks or self.ranks
        if ranks:
            self.told = True
            name, backend = torch_private.group_name(group), torch_private.group_backend(group)
            session.emit(r.Group.of(self.id, name, ranks, backend, _now()))


def begin(
    session: Session, group: GroupWatch, kind: int, tensors: Sequence[Tensor], async_op: bool, numel: int | None = None
) -> Collective:
    """A collective is being issued: count it, and find out what it carries. `numel` if the tensors are not known."""
    first = tensors[0] if tensors else None
    size = sum(t.numel() for t in tensors) if numel is None else numel
    width = first.element_size() if first is not None else 4
    coll = Collective(
        group=group.id,
        count=group.count,
        kind=int(kind),
        numel=size,
        dtype=_DTYPE.get(first.dtype, len(r.DTYPES) - 1) if first is not None else 0,
        nbytes=size * width,
        begin=_now(),
        flags=_ASYNC if async_op else 0,
    )
    group.count += 1
    session.progress += 1
    if not group.told:
        group.tell(session)
    if len(group.pending) > 4096:
        group.pending.clear()
    group.pending[coll.count] = coll
    if session.hooking is not None:
        watched, bucket = session.hooking
        _carry(watched, bucket, coll)
    elif session.depth and session.call is not None:
        coll.flags |= _IN_PASS
        if kind == _ALL_REDUCE and len(tensors) == 1 and first is not None:
            _match(session, group, first, coll)
    else:
        _outside(session, group, coll, tensors)
    return coll


def ended(session: Session, group: GroupWatch, coll: Collective, failed: bool = False, at: int | None = None) -> None:
    """The collective is complete (or failed). May be called on another thread, and late: an upper bound."""
    coll.done = at if at is not None else _now()
    coll.failed = failed
    coll.open = False
    group.pending.pop(coll.count, None)
    session.progress += 1


def settled(session: Session, coll: Collective) -> None:
    """The collective was issued: what is no bucket's own gets a row of its own."""
    if coll.bucket < 0:
        if not coll.site and not coll.flags & _IN_PASS:
            coll.site = session.sites.here(3)
        session.emit(coll)


def _carry(watched: Watched, bucket: int, coll: Collective) -> None:
    """Book the collective as part of a bucket of the pass in progress (or of a shadow pass inside `join`)."""
    coll.flags |= _IN_PASS
    if watched.session.call is None:
        return
    coll.bucket, coll.module = bucket, watched.id
    for launch in watched.launches:
        if launch.bucket == bucket:
            launch.collectives.append(coll)
            return
    watched.launches.append(Launch(bucket, coll.begin, [coll]))


def _match(session: Session, group: GroupWatch, tensor: Tensor, coll: Collective) -> None:
    last = session.last
    candidates = [last] if last is not None else []
    candidates += [w for w in session.modules if w is not last]
    if last is None or not last.sharing:
        _match_one_of(candidates, group, tensor, coll, learn=True)
        return
    candidates.sort(key=lambda w: not w.expects)  # wrappers of the same parameters: whose forward led here?
    if not _match_one_of(candidates, group, tensor, coll, learn=False):
        _match_one_of(candidates, group, tensor, coll, learn=True)


def _match_one_of(
    candidates: Sequence[Watched], group: GroupWatch, tensor: Tensor, coll: Collective, *, learn: bool
) -> bool:
    """Whether it is a bucket of one of them. `learn`: of a layout that DDP has not told yet, too."""
    for watched in candidates:
        if watched.group is not group or not (watched.arrived or watched.touched):
            continue
        if not (tensor.is_floating_point() or tensor.is_complex()):
            if tensor.numel() == watched.managed:
                coll.flags |= CollectiveFlag.USED_MAP
                return True
            continue
        bucket = watched.bucket_sent(tensor.numel(), learn)
        if bucket >= 0:
            coll.bucket, coll.module = bucket, watched.id
            watched.read_bucket(bucket)
            coll.begin = _now()
            watched.launches.append(Launch(bucket, coll.begin, [coll]))
            return True
    return False


_AVERAGING = (
    CollectiveKind.ALL_REDUCE,
    CollectiveKind.REDUCE_SCATTER,
    CollectiveKind.ALL_GATHER,
    CollectiveKind.REDUCE,
)


def _outside(session: Session, group: GroupWatch, coll: Collective, tensors: Sequence[Tensor]) -> None:
    """A collective outside any backward: by hand, in a forward, in a constructor, or a shadow inside `join`."""
    if session.forwarding or session.constructing:
        coll.flags |= CollectiveFlag.IN_FORWARD if session.forwarding else CollectiveFlag.PARAMETERS
        return
    if session.joining:
        return
    for watched in session.modules:
        alike = watched.group is group or (group.ranks and group.ranks == watched.group.ranks)  # averaged over the same
        if not alike or (not watched.passes and not session.steps):
            continue
        if coll.kind in _AVERAGING:
            watched.hand += coll.numel
            watched.hand_after_step += coll.numel
        elif coll.kind == CollectiveKind.BROADCAST:
            watched.hand_after_step += coll.numel
        if tensors and coll.numel > 1:
            pointer = tensors[0].data_ptr()
            if pointer in watched.grad_pointers():
                coll.flags |= CollectiveFlag.GRADIENTS
            elif any(p.data_ptr() == pointer for _, p in watched.current()):
                coll.flags |= CollectiveFlag.PARAMETERS


# --- groups ----------------------------------------------------------------------------------------------------------


def group_of(session: Session, group: Any) -> GroupWatch:
    """The watch of a process group; made, with hooks where torch has them, if it is new."""
    known = session.groups.get(id(group))
    if known is None or known.ref() is not group:
        known = session.groups[id(group)] = GroupWatch(session, group)
    if known.hook_ids is None and session.observe == "collectives" and torch_private.has_group_hooks():
        _hook(session, known, group)
    return known


def find_groups(session: Session) -> None:
    """Watch every process group there is. New ones are made without hooks, so look again after each is made."""
    for group in torch_private.all_groups():
        watch = group_of(session, group)
        if not watch.told:
            watch.tell(session)


def _hook(session: Session, watch: GroupWatch, group: Any) -> None:
    """Register pre and post hooks. A used id silently replaces another hook: hence random ids of 63 bits."""
    ids = (secrets.randbits(62) | 1, secrets.randbits(62) | 1)
    group.register_pre_hook(ids[0], functools.partial(_before, session, watch))
    group.register_post_hook(ids[1], functools.partial(_after, session, watch))
    watch.hook_ids = ids


@functools.cache
def _kind_of(word: Any) -> CollectiveKind | None:
    """The kind by torch's own word for it, whose text takes 20 us; None: not counted."""
    name = str(word).rsplit(".", 1)[-1]
    return None if name in _NOT_COUNTED else KINDS.get(name, CollectiveKind.UNKNOWN)


@guard.guarded
def _before(session: Session, watch: GroupWatch, args: Any) -> None:
    kind = _kind_of(args.name)
    if kind is None or current() is not session:
        return
    tensors = args.input_tensors or args.output_tensors
    watch.by_op[args.op_id] = begin(session, watch, kind, tensors, bool(args.async_op))


@guard.guarded
def _after(session: Session, watch: GroupWatch, args: Any) -> None:
    coll = watch.by_op.pop(args.op_id, None)
    if coll is None:
        return
    if args.work is None:
        ended(session, watch, coll)
    else:
        follow(session, watch, coll, args.work)
    settled(session, coll)


def follow(session: Session, watch: GroupWatch, coll: Collective, work: Any) -> None:
    """Have the end of a Work noted. On CUDA its future is complete at enqueue, so the end is an event behind it."""
    try:
        future = work.get_future()
    except Exception:  # a backend without futures: the end stays unknown
        coll.open = False
        watch.pending.pop(coll.count, None)
        return
    future.add_done_callback(functools.partial(_finished, session, watch, coll))


@guard.guarded
def _finished(session: Session, watch: GroupWatch, coll: Collective, future: Any) -> None:
    on_device = torch.cuda.is_initialized() and watch_on_cuda(watch)
    if on_device and not torch.cuda.is_current_stream_capturing():
        # callbacks run on a stream that waits for the collective (torch.futures.Future.then)
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        session.ends.append(DeviceEnd(session, watch, coll, event))
    else:
        ended(session, watch, coll)


def watch_on_cuda(watch: GroupWatch) -> bool:
    group = watch.ref()
    return group is not None and "nccl" in torch_private.group_backend(group)


class DeviceEnd:
    """A collective on an accelerator whose end is known when its event has passed; polled by the writer thread."""

    __slots__ = ("_coll", "_event", "_session", "_watch")

    def __init__(self, session: Session, watch: GroupWatch, coll: Collective, event: Any) -> None:
        self._session, self._watch, self._coll, self._event = session, watch, coll, event

    def poll(self) -> bool:
        """Whether the end is known now; books it the first time it is."""
        if self._coll.open and self._event.query():
            clock = self._session.device_clock
            ended(self._session, self._watch, self._coll, at=clock.at(self._event) if clock else None)
        return not self._coll.open


def release(session: Session) -> None:
    """Remove our hooks from every group: before the groups are destroyed, and at exit."""
    for watch in list(session.groups.values()):
        unhook(watch)


def unhook(watch: GroupWatch) -> None:
    group, ids = watch.ref(), watch.hook_ids
    watch.hook_ids = None
    if group is not None and ids is not None:
        try:
            group.unregister_pre_hook(ids[0])
            group.unregister_post_hook(ids[1])
        except Exception:
            pass


def wrap_group_functions(session: Session, patch: Any) -> None:
    """See groups come and go. `patch(owner, name, make)` replaces `owner.name` by `make(original)`."""

    def maker(original: Any) -> Any:
        def _new_process_group_helper(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            _made(session, result[0] if isinstance(result, tuple) else result)
            return result

        return _new_process_group_helper

    def destroyer(original: Any) -> Any:
        def destroy_process_group(group: Any = None, *args: Any, **kwargs: Any) -> Any:
            _going(session, group)
            return original(group, *args, **kwargs)

        return destroy_process_group

    patch(*torch_private.GROUP_MAKER, maker)
    for owner in (dist, dist.distributed_c10d):
        patch(owner, "destroy_process_group", destroyer)


@guard.guarded
def _made(session: Session, group: Any) -> None:
    if isinstance(group, dist.ProcessGroup) and session.writer is not None:
        group_of(session, group)


@guard.guarded
def _going(session: Session, group: Any) -> None:
    if group is None or group is dist.group.WORLD:
        release(session)
    elif id(group) in session.groups:
        unhook(session.groups[id(group)])
