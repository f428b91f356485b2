"""Wraps a model with SyncBatchNorm, which PyTorch has for GPUs only."""

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("nccl")
layers = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
model = nn.SyncBatchNorm.convert_sync_batchnorm(layers).cuda()
DDP(model, device_ids=[0])
