"""The one file that touches names of torch which are not public. Everything else asks here.

Each entry says on which versions it was seen, and what is used instead where it is missing. Imports torch alone.
"""

from __future__ import annotations

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
