"""Passes of every pattern, and what an independent oracle saw of each: gradients compared over a group of its own.

Prints one JSON line a rank with, for each backward: whether gradients are equal on all ranks bit for bit afterwards,
and the float64 norms before and after; for each step: whether parameters are equal. The oracle's group is made with
`new_group` and used outside backward passes only, so that it takes no part in what the script itself does.
"""

import json
import os
import sys
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

if os.environ.get("PATTERNS_WITHOUT_FLAGS"):
    from ddpviz.probe import engine, forwards

    engine.declared_flag = forwards.declared_flag = lambda ddp: None

VIEWS = "--views" in sys.argv
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
oracle = dist.new_group(backend="gloo")
torch.manual_seed(0)
model = DDP(
    nn.Sequential(nn.Linear(7, 40), nn.Tanh(), nn.Linear(40, 40), nn.Tanh(), nn.Linear(40, 3)),
    gradient_as_bucket_view=VIEWS, bucket_cap_mb=0.004,
)  # fmt: skip
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
data = torch.Generator().manual_seed(100 + rank)
seen: dict[str, list[object]] = {"backwards": [], "steps": []}


def gathered(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    flat = torch.cat([t.detach().reshape(-1).double() for t in tensors])
    parts = [torch.zeros_like(flat) for _ in range(world)]
    dist.all_gather(parts, flat, group=oracle)
    return parts


def look_at_backward() -> None:
    parts = gathered([p.grad for p in model.parameters() if p.grad is not None])
    equal = all(torch.equal(parts[0], p) for p in parts)
    seen["backwards"].append({"equal": equal, "norms": [p.norm().item() for p in parts]})


def loss() -> torch.Tensor:
    return model(torch.randn(5, 7, generator=data)).square().mean()


def step(set_to_none: bool = True) -> None:
    optimizer.step()
    parts = gathered(list(model.parameters()))
    seen["steps"].append(all(torch.equal(parts[0], p) for p in parts))
    optimizer.zero_grad(set_to_none=set_to_none)


for forward_quiet, backward_quiet in [(1, 1), (1, 0), (0, 1), (0, 0), (1, 1), (0, 0)]:
    with model.no_sync() if forward_quiet else nullcontext():
        value = loss()
    with model.no_sync() if backward_quiet else nullcontext():
        value.backward()
    look_at_backward()
step(set_to_none=not VIEWS)
for quiet in (True, False):
    model.require_backward_grad_sync = not quiet
    loss().backward()
    look_at_backward()
step(set_to_none=not VIEWS)
(loss() + loss()).backward()
look_at_backward()
step()
with model.no_sync():
    first = loss()
second = loss()
first.backward()
look_at_backward()
second.backward()
look_at_backward()
step()
value = loss()
value.backward(retain_graph=True)
look_at_backward()
value.backward()
look_at_backward()
step()
model.module(torch.randn(5, 7, generator=data)).square().mean().backward()
look_at_backward()
step()
print("ORACLE " + json.dumps(seen))
dist.barrier()
dist.destroy_process_group()
