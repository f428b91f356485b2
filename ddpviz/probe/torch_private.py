"""Every private PyTorch API that ddpviz touches, in this one file, with the versions it was seen in and a fallback.

"Seen in" means run on torch 2.4.1, 2.7.1, 2.13.0 and 2.14.1 unless it says otherwise. Everything is looked up by
feature, never by version; a missing piece makes the function return None (or do nothing), never raise.
"""

from __future__ import annotations

import functools
import sys
import types
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.autograd
import torch.distributed as dist
from torch import nn

# --- autograd engine -------------------------------------------------------------------------------------------------


def engine_call() -> tuple[Any, str] | None:
    """(module, attribute) of the function that `backward` and `autograd.grad` both go through; None if there is none.

    `torch.autograd._engine_run_backward`: since torch 2.2 (`torch/autograd/graph.py`).
    """
    return (torch.autograd, "_engine_run_backward") if hasattr(torch.autograd, "_engine_run_backward") else None


def is_compiling() -> bool:
    """True while dynamo traces our caller: public since 2.3, a constant inside a trace."""
    return torch.compiler.is_compiling()


Body = Callable[..., Any]


def skip_in_dynamo(
    wrappers: Iterable[types.CodeType],
    bodies: Iterable[types.CodeType],
    around: Callable[[Callable[[Body], Body]], None],
) -> None:
    """Have dynamo run these functions as it runs torch's own skipped files: untraced, and without a graph break.

    `wrappers` go on into the job's own code, which is traced as ever; nothing below `bodies` is traced. Where dynamo
    cannot be told so of a code object, `around` has what they run go through a function that turns dynamo off.
    `eval_frame.skip_code`: 2.4 to 2.14; `set_code_exec_strategy`: not in 2.4. Does nothing without dynamo.
    """
    frames: Any = sys.modules.get("torch._dynamo.eval_frame")
    skip = getattr(frames, "skip_code", None)
    if skip is None:
        return
    for code in wrappers:
        skip(code)
    inner = (*bodies, *_codes_in(intercept))
    try:
        strategy = frames.FrameExecStrategy(frames.FrameAction.SKIP, frames.FrameAction.SKIP)
        for code in inner:
            frames.set_code_exec_strategy(code, strategy)
    except AttributeError:
        for code in (*inner, *_codes_in(_untraced)):
            skip(code)
        if not hasattr(frames, "set_eval_frame"):
            return
        _kernels_around.append(_untraced)
        for cell in _kernels:
            cell[0] = _untraced(cell[0])
        around(_untraced)


def _codes_in(function: Any) -> list[types.CodeType]:
    return [c for c in function.__code__.co_consts if isinstance(c, types.CodeType)]


def _untraced(body: Body) -> Body:
    """The same function, with dynamo off in this thread while it runs. `eval_frame.set_eval_frame`: seen in 2.4."""
    set_callback = sys.modules["torch._dynamo.eval_frame"].set_eval_frame

    @functools.wraps(body)
    def run(*args: Any, **kwargs: Any) -> Any:
        before = set_callback(None)
        try:
            return body(*args, **kwargs)
        finally:
            set_callback(before)

    return run


def in_place_of(wrapper: Any, original: Any) -> Any:
    """`wrapper` as if it stood where `original` does: dynamo decides by a function's file how to enter a module."""
    code = original.__code__
    wrapper.__code__ = wrapper.__code__.replace(co_filename=code.co_filename, co_firstlineno=code.co_firstlineno)
    return wrapper


# --- process groups --------------------------------------------------------------------------------------------------


def can_see_collectives() -> bool:
    """Whether every collective can be seen where it is issued: by the groups' hooks, or before c10d's operators."""
    return has_group_hooks() or bool(collective_ops())


def all_groups() -> list[Any]:
    """Every process group of this process, the default one first. `_world.pg_map`: 2.0 to 2.14."""
    world = getattr(dist.distributed_c10d, "_world", None)
    groups = list(getattr(world, "pg_map", {}) or {})
    return [g for g in groups if g is not None]


def group_ranks(group: Any) -> list[int]:
    """Global ranks of a group, in group order."""
    try:
        return list(dist.get_process_group_ranks(group))
    except Exception:
        world = getattr(dist.distributed_c10d, "_world", None)
        ranks = getattr(world, "pg_group_ranks", {}).get(group, {})
        return sorted(ranks)


def group_name(group: Any) -> str:
    """The name that a group has on all its members; an empty string if it has none."""
    try:
        return str(group.group_name)
    except Exception:
        return ""


def group_backend(group: Any) -> str:
    try:
        return str(dist.get_backend(group))
    except Exception:
        return "unknown"


GROUP_MAKER = (dist.distributed_c10d, "_new_process_group_helper")  # all groups are made through it: 1.9 to 2.14


# --- DDP -------------------------------------------------------------------------------------------------------------


def reducer(ddp: nn.Module) -> Any:
    """The C++ reducer of a DDP module; None before it is built or under the Python reducer."""
    return getattr(ddp, "reducer", None)


def managed_parameters(ddp: Any) -> list[tuple[str, nn.Parameter]]:
    """(name, parameter) in the reducer's order, as `_build_params_for_reducer` gives them, without its side effects."""
    ignored = set(getattr(ddp, "parameters_to_ignore", ()) or ())
    return [(n, p) for n, p in ddp.module.named_parameters() if p.requires_grad and n not in ignored]


def logging_data(ddp: Any) -> dict[str, Any]:
    """DDP's own logging data; {} if it cannot be had. Costs about 6 us.

    Takes the reducer's mutex: never from inside a backward, where the reducer holds it while it launches a bucket (the
    job would stand still for ever).
    """
    try:
        return dict(ddp._get_ddp_logging_data())
    except Exception:
        return {}


def rebuilt_layout(ddp: Any) -> list[list[int]] | None:
    """Parameter indices of each bucket after the reducer rebuilt its buckets; None before that."""
    data = logging_data(ddp)
    if not data.get("has_rebuilt_buckets"):
        return None
    text = str(data.get("rebuilt_per_bucket_param_indices", ""))
    try:
        return [[int(i) for i in bucket.split()] for bucket in text.split(",") if bucket.strip()]
    except ValueError:
        return None


def initial_layout(ddp: Any, params: list[nn.Parameter]) -> list[list[int]] | None:
    """The bucket layout before the first rebuild, computed as `_ddp_init_helper` does (2.4 to 2.14).

    Without `find_unused_parameters`, or with `static_graph`, everything (of one dtype and device) is one bucket.
    """
    c10d: Any = dist
    try:
        static = bool(getattr(ddp, "static_graph", False))
        config = getattr(ddp, "_bucket_config", None)
        if config is not None:
            limits = config.compute_bucket_size_limits(
                static_graph=static, find_unused_parameters=ddp.find_unused_parameters
            )[0]
        elif static or not ddp.find_unused_parameters:
            limits = [sys.maxsize]
        elif getattr(ddp, "bucket_bytes_cap_default", False):
            limits = [c10d._DEFAULT_FIRST_BUCKET_BYTES, ddp.bucket_bytes_cap]
        else:
            limits = [ddp.bucket_bytes_cap]
        sparse = [makes_sparse_gradients(ddp, p) for p in params]
        buckets, _ = c10d._compute_bucket_assignment_by_size(list(params), limits, sparse)
        return [list(b) for b in reversed(buckets)]
    except Exception:
        return None


def makes_sparse_gradients(ddp: Any, param: nn.Parameter) -> bool:
    """Whether a parameter is an embedding's that gives sparse gradients, which the reducer divides in place."""
    for module in ddp.module.modules():
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.weight is param:
            return bool(module.sparse)
    return False


def has_comm_hook(ddp: Any) -> bool:
    """Whether a user's communication hook is registered (`_comm_hooks`: 2.0 to 2.14)."""
    return bool(getattr(ddp, "_comm_hooks", None))


def in_join(ddp: Any) -> bool:
    return bool(getattr(getattr(ddp, "_join_config", None), "enable", False))


def join_hook_class() -> type | None:
    """`_DDPJoinHook`, whose `main_hook` runs when a rank is out of inputs (1.10 to 2.14)."""
    module = sys.modules.get("torch.nn.parallel.distributed")
    return getattr(module, "_DDPJoinHook", None)


def foreach_norm() -> Callable[[list[torch.Tensor]], list[torch.Tensor]] | None:
    """`torch._foreach_norm`, as `clip_grad_norm_` uses it (2.0 to 2.14); None if there is none."""
    return getattr(torch, "_foreach_norm", None)


# --- small things ----------------------------------------------------------------------------------------------------


def accumulate_hook(param: torch.Tensor, hook: Callable[[torch.Tensor], None]) -> Any:
    """Run `hook(param)` after a gradient was accumulated, before the reducer hears of it. Public since 2.1."""
    return param.register_post_accumulate_grad_hook(hook)


def reference(obj: Any) -> Callable[[], Any]:
    """A weak reference, or a strong one for objects that cannot be weakly referenced."""
    try:
        return weakref.ref(obj)
    except TypeError:
        return lambda: obj


# --- c10d's operators, and communication hooks ----------------------------------------------------------------------


def has_group_hooks() -> bool:
    """Whether process groups have collective hooks of their own. Seen on 2.14.1; absent on 2.4.1 and 2.13.0."""
    return hasattr(dist, "ProcessGroup") and hasattr(dist.ProcessGroup, "register_pre_hook")


def collective_ops() -> dict[str, Any]:
    """c10d's operators by name, such as `allreduce_`: what every collective passes, from Python or from C++.

    Seen on 2.4.1 to 2.14.1. Empty where this torch registers none.
    """
    names = [n for n in torch._C._dispatch_get_all_op_names() if n.startswith("c10d::")]
    ops = {}
    for name in names:
        packet = getattr(torch.ops.c10d, name.partition("::")[2].partition(".")[0], None)
        op = getattr(packet, "default", None)
        if op is not None:
            ops[name.partition("::")[2]] = op
    return ops


_kernels: list[list[Callable[..., Any]]] = []  # what each interception runs
_kernels_around: list[Callable[[Body], Body]] = []


def intercept(library: torch.library.Library, op: Any, kernel: Callable[..., Any]) -> None:
    """Run `kernel(proceed, *args, **kwargs)` in place of an operator; `proceed` is the rest of the dispatch.

    The kernel sits on BackendSelect, a key that every call carries (inference mode and any device included), that no
    c10d operator uses, and that lies below autograd, so torch's own warnings and the backends' kernels are untouched.
    Seen on 2.4.1 to 2.14.1.
    """
    key = torch._C.DispatchKey.BackendSelect
    rest = torch._C._dispatch_keyset_full_after(key)
    redispatch = op.redispatch
    cell = [kernel]
    for wrap in _kernels_around:
        cell[0] = wrap(cell[0])
    _kernels.append(cell)

    def run(keys: Any, *args: Any, **kwargs: Any) -> Any:
        return cell[0](lambda: redispatch(keys & rest, *args, **kwargs), *args, **kwargs)

    library.impl(op._schema.name.partition("::")[2], run, "BackendSelect", with_keyset=True)


def release(library: torch.library.Library) -> None:
    """Take an interception back. `Library._destroy` seen on 2.4.1 to 2.14.1; else the kernels stay, inert."""
    _kernels.clear()
    destroy = getattr(library, "_destroy", None)
    if destroy is not None:
        destroy()


def argument_positions(op: Any) -> dict[str, int]:
    """Position of each argument of an operator by its name: they differ between versions of torch."""
    return {a.name: i for i, a in enumerate(op._schema.arguments)}


def unbox_group(boxed: Any) -> Any:
    """The ProcessGroup inside an operator's argument. Seen on 2.4.1 to 2.14.1."""
    return dist.ProcessGroup.unbox(boxed)


def unbox_work(boxed: Any) -> Any:
    """The Work inside an operator's result. Seen on 2.4.1 to 2.14.1."""
    return dist.Work.unbox(boxed)


def operator_library() -> torch.library.Library:
    """A library that holds kernels for c10d's operators, until `release`."""
    return torch.library.Library("c10d", "IMPL")


def comm_hook_name(ddp: Any) -> str:
    """Name of the communication hook that a DDP module has, or "". Seen on 2.4.1 to 2.14.1; else what Python holds."""
    try:
        return str(ddp._get_ddp_logging_data().get("comm_hook", ""))
    except Exception:
        hooks = getattr(ddp, "_comm_hooks", [])
        return getattr(hooks[0][0], "__qualname__", "hook") if hooks else ""


_register_comm_hook = getattr(dist, "_register_comm_hook", None)


def register_comm_hook(reducer: Any, state: Any, hook: Callable[..., Any]) -> None:
    """Put a hook into a reducer, once in its life, without DDP's own notes of it. Raises RuntimeError if one is there.

    Seen on 2.4.1 to 2.14.1, as is `_run_allreduce_hook`.
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
    `reducer._set_forward_pass_work_handle(work, static)`. Seen on 2.4.1 to 2.14.1; what is missing is left out.
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


# --- devices ---------------------------------------------------------------------------------------------------------


def device_functions() -> list[tuple[Any, str]]:
    """(owner, name) of every function that makes a tensor on a device: what `torch.set_default_device` acts upon.

    `torch.utils._device._device_constructors` seen on 2.4.1 to 2.14.1; else the usual names.
    """
    try:
        from torch.utils._device import _device_constructors

        functions = set(_device_constructors())
    except Exception:
        names = ("empty", "zeros", "ones", "full", "rand", "randn", "randint", "randperm", "arange", "linspace", "eye")
        functions = {getattr(torch, n) for n in (*names, "tensor", "as_tensor", "empty_strided")}
    owners = (torch, torch.fft, torch.nested)
    return [(o, n) for o in owners for n, f in list(vars(o).items()) if callable(f) and _among(f, functions)]


def _among(function: Any, functions: set[Any]) -> bool:
    try:
        return function in functions
    except TypeError:
        return False
