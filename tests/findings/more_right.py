"""More right loops, for right.py: what a network may go through between two steps."""

import torch
import torch.distributed as dist
from common import batch, loss_of, net, rank, sgd, world
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim.swa_utils import AveragedModel


def step(model, opt, loss=None):
    (loss_of(model) if loss is None else loss).backward()
    opt.step()
    opt.zero_grad()


def wrapped_again():
    """A frozen backbone is unfrozen, and the same network wrapped anew."""
    inner = net("Rewrapped")
    inner[0].requires_grad_(False)
    model = DDP(inner)
    opt = sgd(model)
    for _ in range(3):
        step(model, opt)
    inner[0].requires_grad_(True)
    model = DDP(inner)
    opt = sgd(model)
    for _ in range(3):
        step(model, opt)


def wrapped_for_each_epoch():
    inner = net("EachEpoch")
    opt = sgd(inner)
    for _ in range(3):
        model = DDP(inner)
        for _ in range(2):
            step(model, opt)


def frozen_later():
    model = DDP(net("FrozenLater"), find_unused_parameters=True)
    opt = sgd(model)
    for i in range(4):
        if i == 2:
            model.module[0].requires_grad_(False)
        step(model, opt)


def head_by_hand():
    """DDP of a part of the network; the rest is averaged by hand."""
    torch.manual_seed(0)
    body, head = DDP(type("Body", (nn.Linear,), {})(6, 8)), nn.Linear(8, 2)
    opt = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.1)
    for _ in range(3):
        head(body(batch()).tanh()).square().mean().backward()
        for p in head.parameters():
            dist.all_reduce(p.grad)
            p.grad /= world
        opt.step()
        opt.zero_grad()


def norm_by_hand():
    """Clipping by a norm that is all-reduced itself."""
    model = DDP(net("NormByHand"))
    opt = sgd(model)
    for _ in range(3):
        loss_of(model).backward()
        total = torch.stack([p.grad.square().sum() for p in model.parameters()]).sum()
        dist.all_reduce(total)
        for p in model.parameters():
            p.grad.mul_((0.1 / (total / world).sqrt()).clamp(max=1))
        opt.step()
        opt.zero_grad()


def alike_on_all_ranks():
    """Noise of one seed, weights clamped and reloaded, an average of the weights kept aside, evaluation on rank 0."""
    model = DDP(net("Alike"))
    opt, noise, average = sgd(model, momentum=0.9), torch.Generator().manual_seed(7), AveragedModel(model)
    for i in range(4):
        loss_of(model).backward()
        with torch.no_grad():
            for p in model.parameters():
                p.grad += 0.01 * torch.randn(p.shape, generator=noise)
            opt.step()
            opt.zero_grad()
            for p in model.parameters():
                p.clamp_(-0.2, 0.2)
            average.update_parameters(model)
            if rank == 0:
                loss_of(model)
        if i == 1:
            model.module.load_state_dict({k: v.clone() for k, v in average.module.module.state_dict().items()})


def by_tokens():
    """The loss is weighted by what each rank has of the batch."""
    model = DDP(net("ByTokens"))
    opt = sgd(model)
    for i in range(3):
        mine = torch.tensor(2.0 + (rank + i) % 3)
        total = mine.clone()
        dist.all_reduce(total)
        step(model, opt, model(batch(int(mine))).square().sum() * world / total)


def in_turn():
    """Two optimizers of one module, each stepping every second time."""
    model = DDP(net("InTurn"))
    opts = [torch.optim.SGD(model.module[k].parameters(), lr=0.1) for k in (0, 2)]
    for i in range(4):
        loss_of(model).backward()
        opts[i % 2].step()
        model.zero_grad()


def agreed_skip():
    model = DDP(net("Agreed"))
    opt = sgd(model)
    for i in range(4):
        bad = torch.tensor(float(rank == 0 and i == 1))
        dist.all_reduce(bad)
        if bad:
            continue
        loss_of(model).backward()
        opt.step()
        opt.zero_grad()


def two_wrappers():
    """Of one network, used in turn."""
    inner = net("TwoWrappers")
    models, opt = [DDP(inner), DDP(inner, find_unused_parameters=True)], sgd(inner)
    for i in range(6):
        step(models[i % 2], opt)


def wrapped_within():
    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.head = DDP(nn.Linear(6, 8)), nn.Linear(8, 2)

        def forward(self, x):
            return self.head(self.inner(x).tanh())

    torch.manual_seed(0)
    model = DDP(Outer())
    opt = sgd(model)
    for _ in range(3):
        step(model, opt)


LOOPS = [wrapped_again, wrapped_for_each_epoch, frozen_later, head_by_hand, norm_by_hand, alike_on_all_ranks, by_tokens,
         in_turn, agreed_skip, two_wrappers, wrapped_within]  # fmt: skip
