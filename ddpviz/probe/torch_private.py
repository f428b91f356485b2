"""The one file that touches names of torch which are not public. Everything else asks here.

Each entry says on which versions it was seen, and what is used instead where it is missing. Imports torch alone.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist


def has_group_hooks() -> bool:
    """Whether process groups have collective hooks of their own. Seen on 2.14.1; absent on 2.13.0."""
    return hasattr(dist, "ProcessGroup") and hasattr(dist.ProcessGroup, "register_pre_hook")


def collective_ops() -> dict[str, Any]:
    """c10d's operators by name, such as `allreduce_`: what every collective passes, from Python or from C++.

    Seen on 2.13.0 and 2.14.1. Empty where this torch registers none.
    """
    names = [n for n in torch._C._dispatch_get_all_op_names() if n.startswith("c10d::")]
    ops = {}
    for name in names:
        packet = getattr(torch.ops.c10d, name.partition("::")[2].partition(".")[0], None)
        op = getattr(packet, "default", None)
        if op is not None:
            ops[name.partition("::")[2]] = op
    return ops


def intercept(library: torch.library.Library, op: Any, kernel: Callable[..., Any]) -> None:
    """Run `kernel(proceed, *args, **kwargs)` in place of an operator; `proceed` is the rest of the dispatch.

    The kernel sits on BackendSelect, a key that every call carries (inference mode and any device included), that no
    c10d operator uses, and that lies below autograd, so torch's own warnings and the backends' kernels are untouched.
    Seen on 2.13.0 and 2.14.1.
    """
    key = torch._C.DispatchKey.BackendSelect
    rest = torch._C._dispatch_keyset_full_after(key)
    redispatch = op.redispatch

    def run(keys: Any, *args: Any, **kwargs: Any) -> Any:
        return kernel(lambda: redispatch(keys & rest, *args, **kwargs), *args, **kwargs)

    library.impl(op._schema.name.partition("::")[2], run, "BackendSelect", with_keyset=True)  # type: ignore[no-untyped-call]


def release(library: torch.library.Library) -> None:
    """Take an interception back. `Library._destroy` seen on 2.13.0 and 2.14.1; else the kernels stay, inert."""
    destroy = getattr(library, "_destroy", None)
    if destroy is not None:
        destroy()


def argument_positions(op: Any) -> dict[str, int]:
    """Position of each argument of an operator by its name: they differ between versions of torch."""
    return {a.name: i for i, a in enumerate(op._schema.arguments)}


def unbox_group(boxed: Any) -> Any:
    """The ProcessGroup inside an operator's argument. Seen on 2.13.0 and 2.14.1."""
    return dist.ProcessGroup.unbox(boxed)


def unbox_work(boxed: Any) -> Any:
    """The Work inside an operator's result. Seen on 2.13.0 and 2.14.1."""
    return dist.Work.unbox(boxed)


def operator_library() -> torch.library.Library:
    """A library that holds kernels for c10d's operators, until `release`."""
    return torch.library.Library("c10d", "IMPL")  # type: ignore[no-untyped-call]


def comm_hook_name(ddp: Any) -> str:
    """Name of the communication hook that a DDP module has, or "". Seen on 2.13.0, 2.14.1; else what Python holds."""
    try:
        return str(ddp._get_ddp_logging_data().get("comm_hook", ""))
    except Exception:
        hooks = getattr(ddp, "_comm_hooks", [])
        return getattr(hooks[0][0], "__qualname__", "hook") if hooks else ""


_register_comm_hook = getattr(dist, "_register_comm_hook", None)


def register_comm_hook(reducer: Any, state: Any, hook: Callable[..., Any]) -> None:
    """Put a hook into a reducer, once in its life, without DDP's own notes of it. Raises RuntimeError if one is there.

    Seen on 2.13.0 and 2.14.1, as is `_run_allreduce_hook`.
    """
    if _register_comm_hook is None:
        raise RuntimeError("this torch has no _register_comm_hook")
    _register_comm_hook(reducer, state, hook)


def run_all_reduce(reducer: Any, bucket: Any) -> Any:
    """The reducer's own all-reduce of a bucket, in sum; a future of a list of one tensor."""
    return reducer._run_allreduce_hook(bucket)


def replace_hook_registration(
    hook: Callable[..., Any], builtin: Callable[..., Any], joining: Callable[..., Any]
) -> None:
    """Let all registrations of communication hooks, and the work handles of `join`, pass these functions.

    DDP calls `dist._register_comm_hook(reducer, state, hook)`, `dist._register_builtin_comm_hook(reducer, kind)` and
    `reducer._set_forward_pass_work_handle(work, static)`. Seen on 2.13.0 and 2.14.1; what is missing is left out.
    """
    for name, replacement in (("_register_comm_hook", hook), ("_register_builtin_comm_hook", builtin)):
        original = getattr(dist, name, None)
        if original is not None and not hasattr(original, "__wrapped__"):
            setattr(dist, name, functools.wraps(original)(functools.partial(replacement, original)))
    reducer_type: Any = dist.Reducer  # type: ignore[attr-defined]
    original = getattr(reducer_type, "_set_forward_pass_work_handle", None)
    if original is not None and not hasattr(original, "__wrapped__"):

        @functools.wraps(original)
        def set_handle(self: Any, work: Any, use_static_world_size: bool) -> None:
            joining(self, work, use_static_world_size)
            original(self, work, use_static_world_size)

        reducer_type._set_forward_pass_work_handle = set_handle
