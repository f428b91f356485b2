"""One rank of an ordinary script, looked at by an oracle that shares nothing with ddpviz.

    python rank.py OUT_DIR SCRIPT.py [ARGS...]         (with RANK, WORLD_SIZE, ... in the environment)

Imports no ddpviz, reads no flag, registers no communication hook, issues no collective: what it sees goes into files,
which the parent compares bit by bit, so that it can neither change nor hang what it looks at. OUT_DIR/<rank>.json says:

- after every outermost `torch.autograd.backward`, for each DDP module whose gradients changed: a digest of every
  gradient as this rank computed it (before any averaging) and as it is at the end, the float64 norm over all of them
  before and after, and how many collectives the process groups counted meanwhile;
- after every executed optimizer step: digests of the parameters of every module.
"""

import hashlib
import json
import os
import pathlib
import runpy
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim.optimizer import register_optimizer_step_post_hook

out, script = pathlib.Path(sys.argv[1]), sys.argv[2]
modules: list = []
passes: list[dict] = []
steps: list[dict] = []
fresh: dict[int, torch.Tensor] = {}  # by id of a parameter: its gradient when it was last added to
hooked: set[torch.Tensor] = set()
depth = 0


def digest(t):
    if t.is_sparse:
        t = t.coalesce().to_dense()
    return hashlib.sha256(t.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()).hexdigest()[:16]


def norm(tensors):
    return sum(float(t.detach().double().square().sum()) for t in tensors) ** 0.5


def plain(t):
    return t.coalesce().to_dense() if t.is_sparse else t.detach().clone()


def counted():
    """Collectives that the groups have counted by themselves."""
    groups = list(dist.distributed_c10d._world.pg_map) if dist.is_initialized() else []
    return sum(g._get_sequence_number_for_group() for g in groups)


def remember(parameter):
    if parameter.grad is not None:
        fresh[id(parameter)] = plain(parameter.grad)


def wrap_init(original):
    def __init__(self, *args, **kwargs):
        original(self, *args, **kwargs)
        modules.append(self)

    return __init__


def wrap_backward(original):
    def backward(*args, **kwargs):
        global depth
        if depth:
            return original(*args, **kwargs)
        depth += 1
        fresh.clear()
        for p in {p for m in modules for p in m.parameters() if p.requires_grad} - hooked:
            p.register_post_accumulate_grad_hook(remember)
            hooked.add(p)
        before = {id(p): plain(p.grad) for m in modules for p in m.parameters() if p.grad is not None}
        count = counted()
        error = None
        try:
            return original(*args, **kwargs)
        except BaseException as raised:
            error = type(raised).__name__
            raise
        finally:
            depth -= 1
            look(before, counted() - count, error)

    return backward


def look(before, collectives, error):
    seen = {}
    for number, module in enumerate(modules):
        named = [(n, p) for n, p in module.module.named_parameters() if p.requires_grad]
        if not any(id(p) in fresh for _, p in named):
            continue
        local = {n: fresh.get(id(p), before.get(id(p))) for n, p in named}
        after = {n: plain(p.grad) for n, p in named if p.grad is not None}
        local = {n: t for n, t in local.items() if t is not None}
        seen[number] = {
            "local": {n: digest(t) for n, t in local.items()},
            "after": {n: digest(t) for n, t in after.items()},
            "local_norm": norm(local.values()),
            "norm": norm(after.values()),
        }
    passes.append({"modules": seen, "collectives": collectives, "error": error})


def after_step(optimizer, args, kwargs):
    held = {id(p) for g in optimizer.param_groups for p in g["params"]}
    mine = [i for i, m in enumerate(modules) if any(id(p) in held for p in m.parameters())]
    parameters = {i: {n: digest(p) for n, p in modules[i].module.named_parameters()} for i in mine}
    steps.append({"passes": len(passes), "parameters": parameters})


DDP.__init__ = wrap_init(DDP.__init__)
torch.autograd.backward = wrap_backward(torch.autograd.backward)
register_optimizer_step_post_hook(after_step)
torch.set_num_threads(1)
rank = os.environ["RANK"]
sys.argv = sys.argv[2:]
sys.path[0] = str(pathlib.Path(script).resolve().parent)
try:
    runpy.run_path(script, run_name="__main__")
finally:
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{rank}.json").write_text(json.dumps({"modules": len(modules), "passes": passes, "steps": steps}))
