"""One backward pass over two million parameters; prints its float64 gradient norm."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DDP(nn.Sequential(nn.Linear(1000, 2000), nn.ReLU(), nn.Linear(2000, 10)))
data = torch.Generator().manual_seed(rank)
model(torch.randn(8, 1000, generator=data)).square().mean().backward()
norm = sum(p.grad.double().square().sum() for p in model.parameters()).sqrt()
print(f"rank {rank} norm {norm.item():.9f}")
dist.barrier()
dist.destroy_process_group()
