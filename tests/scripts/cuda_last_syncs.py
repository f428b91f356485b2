"""Four local micro-batches, one synchronised, a step by an optimizer made just before it; for NCCL and CUDA alone."""

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group(backend="nccl")
torch.manual_seed(dist.get_rank())
model = nn.Linear(10, 5).cuda()
ddp_model = DDP(model)

for _ in range(4):
    with ddp_model.no_sync():
        input = torch.randn(2, 10).cuda()
        target = torch.randn(2, 5).cuda()
        loss = nn.MSELoss()(ddp_model(input), target)
        loss.backward()

input = torch.randn(2, 10).cuda()
target = torch.randn(2, 5).cuda()
output = ddp_model(input)
loss = nn.MSELoss()(output, target)
loss.backward()

optimizer = torch.optim.SGD(ddp_model.parameters(), lr=0.01)
optimizer.step()
