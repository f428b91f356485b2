"""Mistakes, one after another in one job; each has a module class of its own. `EXPECTED` in test_real.py says which
findings each has to give, and no others of that severity.

Plain torch; the job goes on to its end, so what kills or hangs a job is elsewhere.
"""

import time
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
rng = torch.Generator().manual_seed(100 + rank)


def batch(n=4, width=6):
    return torch.randn(n, width, generator=rng)


def net(name, out=2):
    torch.manual_seed(0)
    kind = type(name, (nn.Sequential,), {})
    return kind(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, out))


def loss_of(model, x=None):
    return model(batch() if x is None else x).square().mean()


def sgd(model, lr=0.05):
    return torch.optim.SGD(model.parameters(), lr=lr)


def quietly(model, quiet):
    return model.no_sync() if quiet else nullcontext()


def train(model, sync, passes=6, accumulation=3, between=None):
    """The usual loop; `sync(i)` decides, `between(i)` runs between backward and step."""
    opt = sgd(model)
    for i in range(passes):
        with quietly(model, not sync(i)):
            loss_of(model).backward()
        if (i + 1) % accumulation == 0:
            if between:
                between(i)
            opt.step()
            opt.zero_grad()


def stale_by_helper():
    train(DDP(net("Stale")), lambda i: i % 3 == 1)


def never():
    train(DDP(net("Never")), lambda i: False)


def late_by_one_step():
    """The condition lags: only every second step is synchronised."""
    train(DDP(net("EverySecond")), lambda i: i % 6 == 5, passes=12)


def two_backwards_of_one_graph():
    model = DDP(net("Retained"))
    opt = sgd(model)
    for _ in range(2):
        loss = loss_of(model)
        loss.backward(retain_graph=True)
        (loss * 2).backward()
        opt.step()
        opt.zero_grad()


def metric_arms():
    model = DDP(net("Metric"))
    opt = sgd(model)
    for _ in range(2):
        for i in range(2):
            loss_of(model)  # a metric, without no_grad
            with quietly(model, i == 0):
                loss_of(model).backward()
        opt.step()
        opt.zero_grad()


def quiet_hook(state, bucket):
    done = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done


def twice_hook(state, bucket):
    flat = bucket.buffer().div_(world)
    work = dist.all_reduce(flat, async_op=True)
    return work.get_future().then(lambda f: f.value()[0] / world)


def own_hook(state, bucket):
    mine = bucket.buffer().clone()
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    return work.get_future().then(lambda f: mine)


def hooks():
    for name, hook in (("HookQuiet", quiet_hook), ("HookTwice", twice_hook), ("HookOwn", own_hook)):
        model = DDP(net(name))
        model.register_comm_hook(None, hook)
        train(model, lambda i: True, passes=3, accumulation=1)


def unfrozen():
    inner = net("Unfrozen")
    inner[0].requires_grad_(False)
    model = DDP(inner)
    inner[0].requires_grad_(True)
    train(model, lambda i: True, passes=3, accumulation=1)


def outside():
    model = DDP(net("Outside"))
    scale = nn.Parameter(torch.ones(()))
    opt = torch.optim.SGD([*model.parameters(), scale], lr=0.05)
    for _ in range(3):
        (loss_of(model) * scale).backward()
        opt.step()
        opt.zero_grad()


def scaled_by_rank():
    model = DDP(net("ScaledByRank"))

    def scale(i):
        for p in model.parameters():
            p.grad *= 1 + rank

    train(model, lambda i: True, passes=2, accumulation=1, between=scale)


def skips_alone():
    model = DDP(net("SkipsAlone"))
    opt = sgd(model)
    for i in range(4):
        loss_of(model).backward()
        if not (rank == 1 and i == 1):
            opt.step()
        opt.zero_grad()


def edits_in_place():
    model = DDP(net("Edited"))
    opt = sgd(model)
    for i in range(4):
        loss_of(model).backward()
        opt.step()
        opt.zero_grad()
        if i == 1 and rank == 1:
            with torch.no_grad():
                model.module[0].weight.add_(0.1)


def clears_in_branches():
    model = DDP(net("ClearsInBranches"))
    opt = sgd(model)
    for i in range(9):
        opt.zero_grad()
        if i % 3 == 2:
            loss_of(model).backward()
            opt.step()
        else:
            with model.no_sync():
                loss_of(model).backward()


def clears_before_step():
    model = DDP(net("ClearsBeforeStep"))
    opt = sgd(model)
    for _ in range(3):
        with model.no_sync():
            loss_of(model).backward()
        opt.zero_grad()
        opt.step()


def left_over():
    train(DDP(net("LeftOver")), lambda i: i % 4 == 3, passes=10, accumulation=4)


def carried():
    model = DDP(net("Carried"))
    opt = sgd(model)
    for _ in range(3):
        for i in range(7):
            with quietly(model, i % 3 != 2):
                loss_of(model).backward()
            if i % 3 == 2:
                opt.step()
                opt.zero_grad()


def clips_values():
    model = DDP(net("ClipsValues"))
    opt = sgd(model)
    for i in range(4):
        with quietly(model, i % 2 == 0):
            loss_of(model).backward()
        nn.utils.clip_grad_value_(model.parameters(), 1e-4)
        if i % 2:
            opt.step()
            opt.zero_grad()


def unused_head():
    class UnusedHead(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = nn.Linear(6, 2), nn.Linear(2, 2)

        def forward(self, x):
            return self.body(x)

    torch.manual_seed(0)
    train(DDP(UnusedHead(), find_unused_parameters=True), lambda i: True, passes=10, accumulation=1)


def not_a_number():
    model = DDP(net("NotANumber"))
    opt = sgd(model)
    for i in range(3):
        x = batch()
        if i == 1 and rank == 1:
            x[0, 0] = float("nan")
        loss_of(model, x).backward()
        opt.step()
        opt.zero_grad()


def disagrees():
    model = DDP(net("Disagrees"))
    opt = sgd(model)
    for i in range(6):
        with quietly(model, i % 3 != (1 if rank else 2)):
            loss_of(model).backward()
        if i % 3 == 2:
            opt.step()
            opt.zero_grad()


def same_data():
    model = DDP(net("SameData"))
    opt = sgd(model)
    for i in range(3):
        loss_of(model, torch.randn(4, 6, generator=torch.Generator().manual_seed(i))).backward()
        opt.step()
        opt.zero_grad()


def two_losses():
    model = DDP(net("TwoLosses"))
    opt = sgd(model)
    for _ in range(2):
        loss_of(model).backward()
        loss_of(model).backward()
        opt.step()
        opt.zero_grad()


def late_rank():
    torch.manual_seed(0)
    kind = type("LateRank", (nn.Sequential,), {})
    model = DDP(kind(nn.Linear(6, 2)))
    opt = sgd(model)
    for _ in range(25):
        x = batch()
        if rank == 1:
            time.sleep(0.02)
        loss_of(model, x).backward()
        opt.step()
        opt.zero_grad()


def bypassed():
    model = DDP(net("Bypassed"))
    opt = sgd(model)
    for _ in range(2):
        loss_of(model.module).backward()
        opt.step()
        opt.zero_grad()


for loop in (
    stale_by_helper, never, late_by_one_step, two_backwards_of_one_graph, metric_arms, hooks, unfrozen, outside,
    scaled_by_rank, skips_alone, edits_in_place, clears_in_branches, clears_before_step, left_over, carried,
    clips_values,
    unused_head, not_a_number, disagrees, same_data, two_losses, late_rank, bypassed,
):  # fmt: skip
    loop()
dist.barrier()
dist.destroy_process_group()
