"""What right.py, more_right.py and wrong.py share: the process group, data that differs by rank, a network."""

import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
rng = torch.Generator().manual_seed(100 + rank)


def batch(n=4, width=6):
    return torch.randn(n, width, generator=rng)


def net(name, out=2):
    """A small network whose class is called `name`."""
    torch.manual_seed(0)
    kind = type(name, (nn.Sequential,), {})
    return kind(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, out))


def loss_of(model, x=None):
    return model(batch() if x is None else x).square().mean()


def sgd(model, lr=0.05, **settings):
    return torch.optim.SGD(model.parameters(), lr=lr, **settings)
