"""Collective hooks for torch < 2.14, where process groups have none: kernels in front of c10d's operators.

Every collective, the reducer's own C++ all-reduce included, goes through one of c10d's dispatcher operators. A kernel
of ours stands in front of each, tells the observer, and lets the call go on. Nothing of the job is replaced, so the
numbers are the reducer's own; what is seen is what the hooks of 2.14 show, in the same shape: the bucket's flat
tensor already divided, buffer broadcasts, users' hooks, collectives by hand, barriers, every group at once, also
those that exist already. Not seen: `monitored_barrier`, point-to-point calls, and what a `ProcessGroupWrapper` of
TORCH_DISTRIBUTED_DEBUG=DETAIL sends by itself.

Imports torch through `torch_private`; nothing here lets an exception of ours out.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from ddpviz.probe import torch_private
from ddpviz.probe.guard import fault


class OpName(enum.Enum):
    """The members of torch 2.14's `HookOpName` that are collectives."""

    BROADCAST = 2
    ALLREDUCE = 3
    REDUCE = 4
    ALLGATHER = 5
    REDUCE_SCATTER = 6
    ALLTOALL = 7
    BARRIER = 8
    SCATTER = 9
    GATHER = 10


_OPS = {
    "broadcast_": OpName.BROADCAST,
    "allreduce_": OpName.ALLREDUCE,
    "allreduce_coalesced_": OpName.ALLREDUCE,
    "reduce_": OpName.REDUCE,
    "allgather_": OpName.ALLGATHER,
    "_allgather_base_": OpName.ALLGATHER,
    "allgather_coalesced_": OpName.ALLGATHER,
    "allgather_into_tensor_coalesced_": OpName.ALLGATHER,
    "reduce_scatter_": OpName.REDUCE_SCATTER,
    "_reduce_scatter_base_": OpName.REDUCE_SCATTER,
    "reduce_scatter_tensor_coalesced_": OpName.REDUCE_SCATTER,
    "alltoall_": OpName.ALLTOALL,
    "alltoall_base_": OpName.ALLTOALL,
    "barrier": OpName.BARRIER,
    "scatter_": OpName.SCATTER,
    "gather_": OpName.GATHER,
}
_INPUTS = ("tensors", "input_tensors", "input_list", "inputs", "input_tensor", "input", "tensor")
_OUTPUTS = ("output_tensors", "output_lists", "outputs", "output_tensor", "output")


class PreArgs(NamedTuple):
    """What a collective is about to do; the fields of torch 2.14's `PreHookArgs`."""

    name: OpName
    async_op: bool
    input_tensors: list[Tensor]
    output_tensors: list[Tensor]
    root: int
    op_id: int


class PostArgs(NamedTuple):
    """What a collective was given; the fields of torch 2.14's `PostHookArgs`. `error`: it raised instead."""

    name: OpName
    async_op: bool
    work: Any
    op_id: int
    error: bool = False


class Observer(Protocol):
    """Told on the calling thread, before and after each collective. `group` is the ProcessGroup."""

    def before(self, group: Any, args: PreArgs) -> None: ...

    def after(self, group: Any, args: PostArgs) -> None: ...


class Interception:
    """Kernels that are in place; `remove` takes them back."""

    def __init__(self, library: torch.library.Library) -> None:
        self._library = library

    def remove(self) -> None:
        torch_private.release(self._library)


def install(observer: Observer) -> Interception | None:
    """Stand in front of every collective of this process. None if this torch has none of the operators."""
    ops = {name: op for name, op in torch_private.collective_ops().items() if name in _OPS}
    if not ops:
        return None
    library = torch_private.operator_library()
    counter = itertools.count()
    for name, op in ops.items():
        torch_private.intercept(
            library, op, _kernel(_OPS[name], torch_private.argument_positions(op), observer, counter)
        )
    return Interception(library)


def _kernel(
    name: OpName, positions: dict[str, int], observer: Observer, counter: itertools.count[int]
) -> Callable[..., Any]:
    group_at = positions["process_group"]
    async_at = positions.get("async_op")
    root_at = positions.get("root_rank")
    inputs_at = next((positions[n] for n in _INPUTS if n in positions), None)
    outputs_at = next((positions[n] for n in _OUTPUTS if n in positions), None)

    def kernel(proceed: Callable[[], Any], *args: Any, **kwargs: Any) -> Any:
        group = None
        op_id, async_op = -1, True
        try:
            op_id = next(counter)
            group = torch_private.unbox_group(args[group_at])
            if async_at is not None and async_at < len(args):
                async_op = bool(args[async_at])
            inputs = _tensors(args[inputs_at]) if inputs_at is not None else []
            outputs = _tensors(args[outputs_at]) if outputs_at is not None else inputs
            root = int(args[root_at]) if root_at is not None and root_at < len(args) else -1
            observer.before(group, PreArgs(name, async_op, inputs, outputs, root, op_id))
        except Exception as error:
            fault("dispatched.before", error)
        try:
            result = proceed()
        except BaseException:
            _after(observer, group, PostArgs(name, async_op, None, op_id, True))
            raise
        try:
            work = torch_private.unbox_work(result[-1] if isinstance(result, (tuple, list)) else result)
            _after(observer, group, PostArgs(name, async_op, work, op_id))
        except Exception as error:
            fault("dispatched.after", error)
        return result

    return kernel


def _after(observer: Observer, group: Any, args: PostArgs) -> None:
    try:
        if group is not None:
            observer.after(group, args)
    except Exception as error:
        fault("dispatched.after", error)


def _tensors(value: Any) -> list[Tensor]:
    """A flat list of the tensors in an operator's argument: one, a list, or a list of lists."""
    if isinstance(value, Tensor):
        return [value]
    return [t for item in value for t in _tensors(item)]
